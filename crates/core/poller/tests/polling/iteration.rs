//! The poll iteration against a scripted front end, a slow device and a first-come policy.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use backend_memory::{Null, NullDrive};
use backend_wrappers::{Checked, Delay, Fate, Fault, Faults, Faulty};
use io_model::{Command, DeviceError, Fetch, HwqId, IoBuf, Nanos, Op, Outcome, Place, Source, TenantId, Token, VqId};
use policy::{
    Class, Lpns, LpnsConfig, Next, Policy, PolicyFigure, TenantFigure, TenantReport, TenantSlot, Terms, VqSlot,
};
use poller::{Board, INTERVAL, INTERVALS_PER_PERIOD, Poller, Probe, Progress};

/// What happened, in order.
type Log = Rc<RefCell<Vec<String>>>;

/// A tenant with one VQ (index 1) that holds the blocks of waiting discards, which need no data.
struct Scripted {
    live: u128,
    waiting: VecDeque<u64>,
    /// Completion slots left.
    slots: usize,
    /// What each fetch costs beyond the usual, and what was not told yet.
    work: (u32, u32),
    place: Place,
    log: Log,
}

impl Scripted {
    fn new(tenant: TenantId, log: &Log, commands: impl IntoIterator<Item = u64>) -> Self {
        let (waiting, place) = (commands.into_iter().collect(), Place::whole_drive(tenant));
        Self { live: 0b10, waiting, slots: usize::MAX, work: (0, 0), place, log: Rc::clone(log) }
    }
}

impl Source for Scripted {
    fn live_vqs(&self) -> u128 {
        self.live
    }

    fn backlog(&mut self, vq: u16) -> u32 {
        assert_eq!(vq, 1, "only live VQs are looked at");
        self.waiting.len() as u32
    }

    fn fetch(&mut self, _vq: u16) -> Fetch {
        if self.slots == 0 {
            return Fetch::Empty;
        }
        self.work.1 += self.work.0;
        match self.waiting.pop_front() {
            None => Fetch::Empty,
            Some(u64::MAX) => Fetch::Handled,
            Some(block) => {
                self.slots -= 1;
                let command = self.place.command(Op::Discard, block * 512, 512);
                Fetch::Command(command, IoBuf::default(), Token::new(1, 0, block as u32))
            }
        }
    }

    fn complete(&mut self, token: Token, outcome: Outcome, _buf: IoBuf) {
        let (_, _, id) = token.spend();
        self.slots += 1;
        self.log.borrow_mut().push(format!("complete {id} {outcome:?}"));
    }

    fn take_work(&mut self) -> u32 {
        std::mem::take(&mut self.work.1)
    }

    fn notify(&mut self) {
        self.log.borrow_mut().push("notify".into());
    }

    fn set_wakeup(&mut self, wanted: bool) {
        self.log.borrow_mut().push(format!("wakeup {wanted}"));
    }
}

/// Finishes each command 100 ns after its submission; the 13th of the drive's blocks fails.
type Slow = Checked<Delay<Faulty<Null>, fn(&Command) -> Nanos>>;

fn slow() -> Slow {
    let faults = Faults::default();
    let block_13 = Some(13 * 512..14 * 512);
    faults.add(Fault { in_drive: block_13, ..Fault::new(Fate::Fails(DeviceError::Medium)) });
    let drive = NullDrive::new(1 << 20).open_queues(1, 4);
    Checked::new(Delay::new(Faulty::new(drive, &faults), |_| Nanos(100)))
}

/// Serves backlogged VQs in slot order, four commands in flight at most.
#[derive(Default)]
struct InOrder {
    backlog: Vec<u32>,
    inflight: u32,
    attached: Vec<VqId>,
    told: Vec<(TenantSlot, Terms)>,
    forgotten: Vec<TenantSlot>,
    completed: u32,
    intervals: Vec<usize>,
    /// The last ones.
    reports: Vec<TenantReport>,
}

impl Policy for InOrder {
    fn attach(&mut self, slot: VqSlot, vq: VqId, tenant: TenantSlot, terms: &Terms, _now: Nanos) {
        self.backlog.resize(self.backlog.len().max(usize::from(slot.0) + 1), 0);
        self.attached.push(vq);
        self.told.push((tenant, *terms));
    }

    fn change_terms(&mut self, tenant: TenantSlot, terms: &Terms, _now: Nanos) {
        self.told.push((tenant, *terms));
    }

    fn forget(&mut self, tenant: TenantSlot) {
        self.forgotten.push(tenant);
    }

    fn detach(&mut self, slot: VqSlot, _now: Nanos) {
        self.backlog[usize::from(slot.0)] = 0;
    }

    fn arrived(&mut self, slot: VqSlot, backlog: u32, _now: Nanos) {
        self.backlog[usize::from(slot.0)] = backlog;
    }

    fn next(&mut self, _now: Nanos) -> Next {
        match self.backlog.iter().position(|backlog| *backlog > 0) {
            Some(_) if self.inflight == 4 => Next::WaitUntil(Nanos::MAX),
            Some(slot) => Next::Send { vq: VqSlot(slot as u16), hwq: HwqId(0) },
            None => Next::Idle,
        }
    }

    fn sent(&mut self, slot: VqSlot, _hwq: HwqId, _op: Op, _len_bytes: u64, _now: Nanos) {
        self.backlog[usize::from(slot.0)] -= 1;
        self.inflight += 1;
    }

    fn refused(&mut self, slot: VqSlot, consumed: bool, _now: Nanos) {
        let backlog = &mut self.backlog[usize::from(slot.0)];
        *backlog = if consumed { *backlog - 1 } else { 0 };
    }

    fn completed(&mut self, _: VqSlot, _: HwqId, _: TenantSlot, _: Op, _: u64, _: Nanos, _: Nanos) {
        self.inflight -= 1;
        self.completed += 1;
    }

    fn interval(&mut self, reports: &[TenantReport], _now: Nanos) {
        self.intervals.push(reports.len());
        self.reports = reports.to_vec();
    }

    fn backlog_of(&self, slot: VqSlot) -> u32 {
        self.backlog[usize::from(slot.0)]
    }

    fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        self.backlog.get(usize::from(slot.0)).map(|_| HwqId(0))
    }

    fn figures(&self, tell: &mut dyn FnMut(PolicyFigure, f64)) {
        tell(PolicyFigure::Window, 4.0);
    }

    fn tenant_figures(&self, tenant: TenantSlot, tell: &mut dyn FnMut(TenantFigure, f64)) {
        tell(TenantFigure::Floor, tenant.0.into());
    }
}

struct Bench {
    poller: Poller<Scripted, Slow, InOrder>,
    board: Arc<Board>,
    log: Log,
}

impl Bench {
    fn new() -> Self {
        let board = Arc::new(Board::default());
        let poller = Poller::new(slow(), InOrder::default(), Arc::clone(&board), Nanos(0));
        Self { poller, board, log: Log::default() }
    }

    fn add(&mut self, id: u32, commands: impl IntoIterator<Item = u64>) -> (TenantSlot, Arc<Probe>) {
        let probe = Arc::new(Probe::new(TenantId(id), Class::BestEffort { weight: 1 }));
        let source = Scripted::new(TenantId(id), &self.log, commands);
        let slot = self.poller.add(source, Arc::clone(&probe), &Terms::default());
        (slot.ok().expect("there is room"), probe)
    }

    fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.borrow_mut())
    }
}

#[test]
fn a_command_goes_out_and_comes_back_once() {
    let mut bench = Bench::new();
    let (_, probe) = bench.add(7, [1, 13, u64::MAX]);
    let progress = bench.poller.step(Nanos(0));
    assert_eq!((progress.sent, progress.handled, progress.completed), (2, 1, 0));
    assert_eq!(bench.poller.backend().kicks(), 1, "one kick for the whole batch");
    assert_eq!(bench.take_log(), ["notify"], "for the command that needed no device");
    assert_eq!(bench.poller.next_event(), Nanos(100));

    assert!(!bench.poller.step(Nanos(99)).any());
    assert_eq!(bench.poller.step(Nanos(110)).completed, 2);
    assert_eq!(bench.take_log(), ["complete 1 Ok(())", "complete 13 Err(Medium)", "notify"]);
    assert_eq!(bench.poller.inflight(), 0);
    assert_eq!(bench.poller.policy().completed, 2);
    let counters = probe.counters();
    assert_eq!((counters.submitted, counters.completed, counters.errors), (2, 2, 1));
    assert_eq!(counters.latency_sum_ns, 2 * 110);
    assert_eq!(io_model::lost_tokens(), 0);
}

#[test]
fn an_expensive_fetch_is_worked_off_by_its_tenant_alone() {
    let mut bench = Bench::new();
    let (dear, _) = bench.add(1, std::iter::repeat_n(u64::MAX, 100));
    let (plain, _) = bench.add(2, std::iter::repeat_n(u64::MAX, 2000));
    // As much as eight looks may fetch.
    bench.poller.source_mut(dear).unwrap().work.0 = 2048;
    let mut waiting = |slot| bench.poller.source_mut(slot).unwrap().waiting.len();
    assert_eq!((waiting(dear), waiting(plain)), (100, 2000));
    for look in 0..16 {
        let now = Nanos(look);
        let progress = bench.poller.step(now);
        // The poller does not sleep over what waits: nothing else would announce it.
        assert_eq!((progress.handled, bench.poller.next_timer()), (64, now), "look {look}");
    }
    let mut waiting = |slot| bench.poller.source_mut(slot).unwrap().waiting.len();
    assert_eq!((100 - waiting(dear), 2000 - waiting(plain)), (2, 16 * 64 - 2));
}

#[test]
fn latency_counts_from_the_first_sight_of_the_doorbell() {
    let mut bench = Bench::new();
    // Five commands, four fit the device: the fifth waits in the guest's own queue.
    let (_, probe) = bench.add(1, 1..=5);
    assert_eq!(bench.poller.step(Nanos(0)).sent, 4);
    assert_eq!(bench.poller.step(Nanos(50)).sent, 0);
    assert_eq!(bench.poller.step(Nanos(100)).sent, 1);
    assert_eq!(bench.poller.step(Nanos(200)).completed, 1);
    assert_eq!(probe.counters().latency_sum_ns, 4 * 100 + 200);
}

#[test]
fn what_ends_after_the_poller_stood_still_is_counted_apart() {
    // After an iteration of this length with these commands and bytes: how many of four are late, and how many because
    // of that.
    let late_after = |took: u64, sent: u32, completed_bytes: u64| {
        let mut bench = Bench::new();
        let (slot, probe) = bench.add(1, 1..=4);
        bench.poller.change_terms(slot, &Terms::guaranteed(Some(Nanos(1_000))), Nanos(0));
        bench.poller.step(Nanos(0));
        bench.poller.took(Nanos(took), Progress { sent, completed_bytes, ..Progress::default() });
        assert_eq!(bench.poller.step(Nanos(took)).completed, 4);
        (probe.report().violations, probe.report().stalled)
    };
    assert_eq!(late_after(60_000, 4, 0), (4, 4), "four commands take no 60 us");
    assert_eq!(late_after(60_000, 5, 0), (4, 0), "five may");
    assert_eq!(late_after(60_000, 4, 1_999), (4, 4));
    assert_eq!(late_after(60_000, 4, 4_096), (4, 0), "a poller that copies");
    assert_eq!(late_after(900, 0, 0), (0, 0));
}

#[test]
fn an_iteration_that_stood_still_excuses_what_ends_in_the_next_one_alone() {
    let mut bench = Bench::new();
    let (slot, probe) = bench.add(1, 1..=4);
    bench.poller.change_terms(slot, &Terms::guaranteed(Some(Nanos(1_000))), Nanos(0));
    bench.poller.took(Nanos(60_000), Progress::default());
    bench.poller.step(Nanos(0));
    assert_eq!(bench.poller.step(Nanos(60_000)).completed, 4);
    assert_eq!((probe.report().violations, probe.report().stalled), (4, 0));
}

#[test]
fn what_operators_want_to_see_is_published_within_a_period() {
    let mut bench = Bench::new();
    let (slot, probe) = bench.add(1, 1..=400);
    let (_, other) = bench.add(2, []);
    bench.poller.step(Nanos(0));
    assert_eq!(bench.poller.inside().in_flight()[0], 4);
    assert_eq!((probe.waiting(), probe.figure(TenantFigure::Floor), probe.hwqs().count()), (0, None, 0));
    for interval in 1..=INTERVALS_PER_PERIOD as u64 {
        bench.poller.step(Nanos(INTERVAL.0 * interval));
    }
    // Four go at each step.
    assert_eq!((probe.waiting(), other.waiting()), (400 - 4 * (INTERVALS_PER_PERIOD as u64 + 1), 0));
    assert_eq!(bench.poller.inside().figure(PolicyFigure::Window), Some(4.0));
    assert_eq!(bench.poller.inside().figure(PolicyFigure::LpnsOmega), None);
    assert_eq!([&probe, &other].map(|probe| probe.figure(TenantFigure::Floor)), [Some(0.0), Some(1.0)]);
    assert_eq!(probe.hwqs().collect::<Vec<_>>(), [(1, 0)]);
    // A queue that goes is told no more.
    bench.poller.source_mut(slot).unwrap().live = 0;
    for interval in 1..=INTERVALS_PER_PERIOD as u64 {
        bench.poller.step(Nanos(INTERVAL.0 * (interval + INTERVALS_PER_PERIOD as u64)));
    }
    assert_eq!((probe.hwqs().count(), bench.poller.inside().in_flight()[0]), (0, 0));
}

#[test]
fn every_poller_hears_of_a_tenant_that_starts_and_stops() {
    let mut bench = Bench::new();
    let mut other = Poller::new(slow(), InOrder::default(), Arc::clone(&bench.board), Nanos(0));
    let (busy, _) = bench.add(1, []);
    bench.add(2, []);
    let mut interval = |commands: u64| {
        let waiting = &mut bench.poller.source_mut(busy).unwrap().waiting;
        waiting.extend(0..commands);
        let now = bench.poller.policy().intervals.len() as u64 * INTERVAL.0;
        [0, 100, 200, INTERVAL.0].into_iter().for_each(|later| _ = bench.poller.step(Nanos(now + later)));
        other.step(Nanos(now + INTERVAL.0));
        let reports = [&bench.poller, &other].map(|poller| poller.policy().reports.clone());
        assert_eq!(reports[0], reports[1]);
        assert_eq!((reports[0].len(), reports[0][1].submitted), (2, 0));
        let TenantReport { submitted, completed, mean_latency, .. } = reports[0][0];
        assert_eq!(submitted, completed);
        (submitted, mean_latency)
    };
    for (commands, total, mean) in [(0, 0, 0), (2, 2, 100), (0, 2, 0), (0, 2, 0), (1, 3, 100), (1, 4, 100), (0, 4, 0)] {
        assert_eq!(interval(commands), (total, Nanos(mean)));
    }
}

#[test]
fn an_idle_tenant_has_the_bound_of_all_idle_ones() {
    let policy = Lpns::new(LpnsConfig::p5800x().with_hwqs(1, 0, 4)).unwrap();
    let (log, board) = (Log::default(), Arc::<Board>::default());
    let mut poller = Poller::new(slow(), policy, board, Nanos(0));
    let mut add = |id: u32, terms: Terms, commands: Range<u64>| {
        let probe = Arc::new(Probe::new(TenantId(id), terms.class));
        let source = Scripted::new(TenantId(id), &log, commands);
        (poller.add(source, Arc::clone(&probe), &terms).ok().unwrap(), probe)
    };
    let promised = Terms::guaranteed(Some(Nanos::from_micros(50)));
    let (_, idle) = add(1, promised, 0..0);
    let (_, busy) = add(2, promised, 0..4);
    let (slot, other) = add(3, Terms::default(), 0..0);
    assert_eq!([&idle, &busy, &other].map(|probe| probe.bound()), [None; 3]);
    for at in (0..3).flat_map(|interval| [0, 200].map(|later| Nanos(interval * INTERVAL.0 + later))) {
        poller.step(at);
    }
    // One interval saw the commands, the next one that nothing more is with the drive.
    poller.step(Nanos(3 * INTERVAL.0));
    assert!(idle.bound().is_some() && other.bound().is_none());
    assert_eq!((idle.bound(), busy.bound()), (poller.policy().idle_bound(true), idle.bound()));
    poller.change_terms(slot, &promised, Nanos(3 * INTERVAL.0 + 1));
    assert_eq!(other.bound(), idle.bound(), "promised by now");
}

#[test]
fn a_vq_without_completion_slots_is_asked_again() {
    let mut bench = Bench::new();
    let (slot, _) = bench.add(1, [1, 2]);
    bench.poller.source_mut(slot).unwrap().slots = 1;
    assert_eq!(bench.poller.step(Nanos(0)).sent, 1);
    assert_eq!(bench.poller.step(Nanos(10)).sent, 0);
    // The completion at 100 frees the slot; the same iteration uses it.
    let progress = bench.poller.step(Nanos(100));
    assert_eq!((progress.completed, progress.sent), (1, 1));
    assert_eq!(bench.poller.finish(Nanos(200)).completed, 1);
}

#[test]
fn vqs_come_and_go_and_in_flight_commands_still_end() {
    let mut bench = Bench::new();
    let (slot, _) = bench.add(3, [1]);
    bench.poller.step(Nanos(0));
    assert_eq!(bench.poller.policy().attached, [VqId { tenant: TenantId(3), index: 1 }]);
    bench.poller.source_mut(slot).unwrap().live = 0;
    bench.poller.step(Nanos(1));
    assert!(bench.poller.remove(slot, Nanos(2)).is_none(), "its command is with the device");
    assert_eq!(bench.poller.step(Nanos(100)).completed, 1);
    assert!(bench.poller.policy().forgotten.is_empty());
    assert_eq!(bench.board.tenants().len(), 1);
    assert!(bench.poller.remove(slot, Nanos(101)).is_some());
    assert_eq!(bench.poller.policy().forgotten, [slot]);
    assert_eq!(bench.board.tenants().len(), 0, "what it counted went with it");

    // The next tenant takes the same places.
    let (again, _) = bench.add(4, [2]);
    assert_eq!(again, slot);
    assert_eq!(bench.poller.step(Nanos(102)).sent, 1);
    assert_eq!(bench.poller.policy().attached.len(), 2);
    bench.poller.step(Nanos(300));
}

#[test]
fn terms_change_for_the_probe_the_policy_and_vqs_that_come_later() {
    let mut bench = Bench::new();
    let (slot, probe) = bench.add(1, [1, 2]);
    bench.poller.step(Nanos(0));
    let terms = Terms::guaranteed(Some(Nanos(50)));
    assert!(bench.poller.change_terms(slot, &terms, Nanos(10)));
    assert_eq!(probe.class(), terms.class);
    bench.poller.step(Nanos(100));
    assert_eq!(probe.counters().violations, 2, "both took 100 ns");
    bench.poller.source_mut(slot).unwrap().live = 0;
    bench.poller.step(Nanos(101));
    bench.poller.source_mut(slot).unwrap().live = 0b10;
    bench.poller.step(Nanos(102));
    assert_eq!(bench.poller.policy().told, [(slot, Terms::default()), (slot, terms), (slot, terms)]);
    bench.poller.remove(slot, Nanos(103));
    assert!(!bench.poller.change_terms(slot, &terms, Nanos(104)), "nobody is there");
}

#[test]
fn intervals_pass_every_ten_milliseconds_and_catch_up_after_sleep() {
    let mut bench = Bench::new();
    bench.add(1, []);
    bench.add(2, []);
    for ms in 0..=30 {
        bench.poller.step(Nanos::from_millis(ms));
    }
    assert_eq!(bench.poller.policy().intervals, [2, 2, 2], "both tenants are reported");
    bench.poller.step(Nanos::from_millis(5_000));
    bench.poller.step(Nanos::from_millis(5_001));
    assert_eq!(bench.poller.policy().intervals.len(), 4, "one for the sleep, not five hundred");
}

#[test]
fn winding_down_completes_but_does_not_fetch() {
    let mut bench = Bench::new();
    bench.add(1, 1..=6);
    bench.poller.step(Nanos(0));
    assert_eq!(bench.poller.finish(Nanos(100)).completed, 4);
    assert_eq!(bench.poller.inflight(), 0, "the other two stay with the guest");
    bench.poller.set_wakeup(true);
    assert_eq!(bench.take_log().last().map(String::as_str), Some("wakeup true"));
}

#[test]
fn a_policy_takes_over_when_nothing_is_in_flight_and_knows_what_waits() {
    let log = Log::default();
    let mut poller = Poller::new(slow(), InOrder::default(), Arc::new(Board::default()), Nanos(0));
    let probe = Arc::new(Probe::new(TenantId(3), Class::BestEffort { weight: 7 }));
    let terms = Terms::best_effort(7);
    let slot = poller.add(Scripted::new(TenantId(3), &log, 0..6), probe, &terms).ok().unwrap();
    assert_eq!(poller.step(Nanos(10)).sent, 4);
    poller.change_policy(InOrder::default());
    // Four are in flight: nothing more goes, and the old one hears of each completion.
    assert_eq!((poller.step(Nanos(20)).sent, poller.inflight()), (0, 4));
    assert_eq!(poller.policy().told.len(), 1);
    let progress = poller.step(Nanos(200));
    assert_eq!((progress.completed, progress.sent), (4, 2));
    let policy = poller.policy();
    assert_eq!((policy.completed, &policy.told[..]), (0, &[(slot, terms)][..]), "the new one");
    assert_eq!(poller.step(Nanos(400)).completed, 2);
    assert_eq!(poller.policy().completed, 2);
    let done = log.borrow().iter().filter(|line| line.starts_with("complete")).count();
    assert_eq!(done, 6, "each once");
    // With nothing in flight, at once.
    poller.change_policy(InOrder::default());
    poller.step(Nanos(500));
    assert_eq!((poller.policy().completed, poller.policy().told.len()), (0, 1));
}

#[test]
fn a_tenants_commands_are_recorded_as_they_end_and_no_others() {
    let mut bench = Bench::new();
    let (slot, _) = bench.add(1, [7, 13]);
    bench.add(2, [21]);
    let (recorder, mut recording) = poller::recorder(8);
    assert!(bench.poller.record(slot, Some(recorder)));
    assert!(!bench.poller.record(TenantSlot(9), None), "nobody is there");
    [0, 100, 200].into_iter().for_each(|now| {
        bench.poller.step(Nanos(now));
    });
    let recorded: Vec<_> = std::iter::from_fn(|| recording.take()).collect();
    let told: Vec<_> = recorded.iter().map(|it| (it.op, it.offset_bytes, it.len_bytes, it.failed)).collect();
    assert_eq!(told, [(Op::Discard, 7 * 512, 512, false), (Op::Discard, 13 * 512, 512, true)]);
    assert!(recorded.iter().all(|it| (it.arrived, it.waited, it.served) == (Nanos(0), Nanos(0), Nanos(100))));
    assert!(!recording.is_over());
    bench.poller.record(slot, None);
    assert!(recording.is_over());
}
