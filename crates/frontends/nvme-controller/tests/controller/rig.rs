//! A controller in one part or several, wired as its user must wire it. All parts hear the same, in order, and messages
//! between two parts keep their order, but otherwise arrive at any time.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use guest_memory::{IoBuf, MappedU32, Mapping, MemoryListener, SpaceError};
use io_model::{Fetch, Outcome, Source, Token};
use nvme_controller::{
    Controller, ControllerConfig, EraseRecord, Event, FormatRecord, NamespaceConfig, NamespaceError, Part, PartMessage,
    StateError,
};

use super::Vectors;

pub struct Rig {
    /// The first one is what a look at the rig sees.
    parts: Vec<Controller<Vectors>>,
    /// By who sent it and whom to.
    mail: BTreeMap<(u16, u16), VecDeque<PartMessage>>,
    /// By number: the part that fetched it, and its token there. Not with only one part.
    tokens: BTreeMap<u32, (usize, Token)>,
    next_token: u32,
    /// Ranges that this many parts no longer use.
    quiet: BTreeMap<(u64, u64), usize>,
    random: fastrand::Rng,
}

impl Rig {
    /// One part for each that the configuration asks for.
    pub fn new(config: &ControllerConfig, doorbells: &Arc<Mapping>, vectors: &Vectors) -> Self {
        Self::of(config, |config| {
            Controller::new(config, Arc::clone(doorbells), vectors.clone()).expect("a good configuration")
        })
    }

    pub fn take_over(
        config: &ControllerConfig,
        doorbells: &Arc<Mapping>,
        vectors: &Vectors,
        journal: &Arc<Mapping>,
    ) -> Result<Self, StateError> {
        let mut failed = None;
        let taken = Self::of(config, |config| {
            let fresh = config.clone();
            let taken = Controller::take_over(config, Arc::clone(doorbells), vectors.clone(), journal);
            taken.unwrap_or_else(|error| {
                failed = Some(error);
                Controller::new(fresh, Arc::clone(doorbells), vectors.clone()).expect("a good configuration")
            })
        });
        failed.map_or(Ok(taken), Err)
    }

    fn of(config: &ControllerConfig, mut part: impl FnMut(ControllerConfig) -> Controller<Vectors>) -> Self {
        let of = config.part.of;
        // The first one as the last.
        let others: Vec<_> =
            (1..of).map(|index| part(ControllerConfig { part: Part { index, of }, ..config.clone() })).collect();
        let first = part(ControllerConfig { part: Part { index: 0, of }, ..config.clone() });
        Self {
            parts: std::iter::once(first).chain(others).collect(),
            mail: BTreeMap::new(),
            tokens: BTreeMap::new(),
            next_token: 0,
            quiet: BTreeMap::new(),
            random: fastrand::Rng::with_seed(u64::from(of)),
        }
    }

    pub fn format_recorded(&mut self, record: FormatRecord, is_durable: bool) {
        self.recorded(EraseRecord::Format(record), is_durable);
    }

    fn is_whole(&self) -> bool {
        self.parts.len() == 1
    }

    /// One of its parts.
    pub fn at(&mut self, index: usize) -> &mut Controller<Vectors> {
        &mut self.parts[index]
    }

    /// What messages are on their way. Returns how many.
    fn collect(&mut self) -> usize {
        for (from, part) in (0..).zip(&mut self.parts) {
            while let Some((to, message)) = part.take_message() {
                self.mail.entry((from, to)).or_default().push_back(message);
            }
        }
        self.mail.values().map(VecDeque::len).sum()
    }

    /// Carries one message, of any that may come next. `false`: there is none.
    fn carry(&mut self) -> bool {
        self.collect();
        let waiting: Vec<_> = self.mail.iter().filter(|(_, queue)| !queue.is_empty()).map(|(way, _)| *way).collect();
        if waiting.is_empty() {
            return false;
        }
        let way = waiting[self.random.usize(..waiting.len())];
        let message = self.mail.get_mut(&way).and_then(VecDeque::pop_front).expect("it waits");
        self.parts[usize::from(way.1)].hear(message);
        true
    }

    /// Carries all messages, those too that come of them.
    pub fn carry_all(&mut self) {
        while self.carry() {}
    }

    /// Carries some of them.
    fn carry_some(&mut self) {
        while !self.is_whole() && self.random.bool() && self.carry() {}
    }

    /// Each part does the same, the first as the last.
    fn all<T>(&mut self, mut act: impl FnMut(&mut Controller<Vectors>) -> T) -> T {
        for at in 1..self.parts.len() {
            act(&mut self.parts[at]);
            self.carry_some();
        }
        let acted = act(&mut self.parts[0]);
        self.carry_some();
        acted
    }

    pub fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        self.all(|part| part.bar_write(bar, offset, data));
    }

    pub fn config_write(&mut self, offset: u64, data: &[u8]) {
        self.all(|part| part.config_write(offset, data));
    }

    pub fn reset(&mut self) {
        self.all(Controller::reset);
    }

    pub fn client_gone(&mut self) {
        self.all(Controller::client_gone);
    }

    pub fn is_idle(&self) -> bool {
        self.parts.iter().all(Controller::is_idle)
    }

    pub fn memory_is_lost(&mut self) -> bool {
        self.all(Controller::memory_is_lost)
    }

    pub fn set_msix_armed(&mut self, armed: bool) {
        self.all(|part| part.set_msix_armed(armed));
    }

    pub fn set_vector_masked(&mut self, vector: u16, masked: bool) {
        self.all(|part| part.set_vector_masked(vector, masked));
    }

    pub fn keep_journal(&mut self, memory: &Arc<Mapping>) -> Result<(), StateError> {
        self.all(|part| part.keep_journal(memory))
    }

    pub fn resume(&mut self) {
        self.all(Controller::resume);
    }

    pub fn dma_map(
        &mut self,
        iova: u64,
        len_bytes: u64,
        mapping: Option<Arc<Mapping>>,
        listener: &mut dyn MemoryListener,
    ) -> Result<(), SpaceError> {
        if self.is_whole() {
            return self.parts[0].dma_map(iova, len_bytes, mapping, listener);
        }
        self.all(|part| part.dma_map(iova, len_bytes, mapping.as_ref().map(Mapping::alias), &mut *listener))
    }

    pub fn dma_unmap(&mut self, iova: u64, len_bytes: u64) -> Result<(), SpaceError> {
        self.all(|part| part.dma_unmap(iova, len_bytes))
    }

    /// A range that no part uses any more.
    pub fn take_unmapped(&mut self, listener: &mut dyn MemoryListener) -> Option<(u64, u64)> {
        for part in &mut self.parts {
            while let Some(range) = part.take_unmapped(listener) {
                *self.quiet.entry(range).or_default() += 1;
            }
        }
        let range = self.quiet.iter().find(|(_, parts)| **parts == self.parts.len()).map(|(range, _)| *range)?;
        self.quiet.remove(&range);
        Some(range)
    }

    pub fn unmaps_pending(&self) -> usize {
        self.parts.iter().map(Controller::unmaps_pending).max().unwrap_or(0)
    }

    pub fn attach(&mut self, nsid: u32, config: NamespaceConfig) -> Result<(), NamespaceError> {
        self.all(|part| part.attach(nsid, config.clone()))
    }

    pub fn grow(&mut self, nsid: u32, size_bytes: u64) -> Result<(), NamespaceError> {
        self.all(|part| part.grow(nsid, size_bytes))
    }

    pub fn set_elsewhere(&mut self, nsid: u32, elsewhere: bool) -> Result<(), NamespaceError> {
        self.all(|part| part.set_elsewhere(nsid, elsewhere))
    }

    pub fn detach(&mut self, nsid: u32) -> Result<(), NamespaceError> {
        self.all(|part| part.detach(nsid))
    }

    pub fn is_detached(&self, nsid: u32) -> bool {
        self.parts.iter().all(|part| part.is_detached(nsid))
    }

    pub fn doorbells(&self, out: &mut Vec<(MappedU32, u32)>) {
        self.parts.iter().for_each(|part| part.doorbells(out));
    }

    pub fn take_event(&mut self) -> Option<Event> {
        self.carry_all();
        self.parts.iter_mut().find_map(Controller::take_event)
    }

    /// The process is no more: what was in flight is nobody's.
    pub fn forget_tokens(&mut self) {
        std::mem::take(&mut self.tokens).into_values().for_each(|(_, token)| _ = token.spend());
    }
}

impl Deref for Rig {
    type Target = Controller<Vectors>;

    fn deref(&self) -> &Controller<Vectors> {
        &self.parts[0]
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Controller<Vectors> {
        &mut self.parts[0]
    }
}

/// As one poller would have all of it.
impl Source for Rig {
    fn live_vqs(&self) -> u128 {
        self.parts.iter().fold(0, |live, part| live | part.live_vqs())
    }

    fn priority(&self, vq: u16) -> io_model::QueuePriority {
        self.parts[0].priority(vq)
    }

    fn service(&mut self) -> u32 {
        let did: u32 = self.parts.iter_mut().map(Source::service).sum();
        did + u32::from(self.carry())
    }

    fn rung(&mut self) -> u128 {
        self.parts.iter_mut().fold(0, |rung, part| rung | part.rung())
    }

    fn backlog(&mut self, vq: u16) -> u32 {
        self.parts.iter_mut().map(|part| part.backlog(vq)).sum()
    }

    fn fetch(&mut self, vq: u16) -> Fetch {
        if self.is_whole() {
            return self.parts[0].fetch(vq);
        }
        for (at, part) in self.parts.iter_mut().enumerate() {
            match part.fetch(vq) {
                Fetch::Command(command, buf, token) => {
                    self.next_token += 1;
                    self.tokens.insert(self.next_token, (at, token));
                    return Fetch::Command(command, buf, Token::new(vq, 0, self.next_token));
                }
                Fetch::Handled => return Fetch::Handled,
                Fetch::Empty => {}
            }
        }
        Fetch::Empty
    }

    fn take_work(&mut self) -> u32 {
        self.parts.iter_mut().map(Source::take_work).sum()
    }

    fn complete(&mut self, token: Token, outcome: Outcome, buf: IoBuf) {
        if self.is_whole() {
            return self.parts[0].complete(token, outcome, buf);
        }
        let (_, _, number) = token.spend();
        if let Some((at, token)) = self.tokens.remove(&number) {
            self.parts[at].complete(token, outcome, buf);
        }
    }

    fn notify(&mut self) {
        self.parts.iter_mut().for_each(Source::notify);
    }

    fn set_wakeup(&mut self, wanted: bool) {
        self.parts.iter_mut().for_each(|part| part.set_wakeup(wanted));
    }
}
