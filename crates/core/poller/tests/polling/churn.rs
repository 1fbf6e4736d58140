//! Ten thousand tenants come, change their terms and go in a random order beside one that runs all the time, under
//! every policy. A seed decides everything: replay one with `CHURN_SEED=<seed> cargo test -p poller churn`.

use std::collections::VecDeque;
use std::sync::Arc;

use fastrand::Rng;
use io_model::{
    Backend, Done, Fetch, HwqId, Io, IoBuf, Nanos, Op, Outcome, Place, QueuePriority, Source, TenantId, Token,
};
use policy::{
    AnyPolicy, ArbitratedConfig, Class, EvenkeelConfig, FairConfig, Floor, Limits, LpnsConfig, PolicyConfig,
    PolicyKind, PollerShape, TenantPriority, TenantSlot, Terms,
};
use poller::{Board, Poller, Probe};

const TENANTS: u32 = 10_000;
const ALIVE: usize = 16;
const VQS: u16 = 8;
const HWQS: u16 = 8;
const STEP: Nanos = Nanos::from_micros(20);

fn terms(random: &mut Rng) -> Terms {
    let class = match random.u64(..4) {
        0 => Class::guaranteed(Some(Nanos::from_micros(20 + random.u64(..400)))),
        _ => Class::BestEffort { weight: 1 + random.u64(..10_000) as u32 },
    };
    let priority = match random.u64(..4) {
        0 => TenantPriority::Fixed(QueuePriority::High),
        1 => TenantPriority::Fixed(QueuePriority::Low),
        2 => TenantPriority::OfQueue,
        _ => TenantPriority::default(),
    };
    let rw_ios_per_sec = if random.u64(..2) == 0 { 0 } else { 1 + random.u64(..100_000) };
    let floor = Floor { ios_per_sec: random.u64(0..3_000), ..Floor::default() };
    Terms { class, priority, floor, limits: Limits { rw_ios_per_sec, ..Limits::default() }, pollers: 1, group: None }
}

/// VQs 1 and up with reads of 4 KiB.
struct Guest {
    place: Place,
    vqs: u16,
    waiting: Vec<u32>,
    /// What completes waits again.
    closed_loop: bool,
    fetched: u64,
    completed: u64,
}

impl Source for Guest {
    fn live_vqs(&self) -> u128 {
        ((1 << self.vqs) - 1) << 1
    }

    fn priority(&self, vq: u16) -> QueuePriority {
        if vq.is_multiple_of(2) { QueuePriority::High } else { QueuePriority::Low }
    }

    fn backlog(&mut self, vq: u16) -> u32 {
        self.waiting[usize::from(vq)]
    }

    fn fetch(&mut self, vq: u16) -> Fetch {
        let waiting = &mut self.waiting[usize::from(vq)];
        if *waiting == 0 {
            return Fetch::Empty;
        }
        *waiting -= 1;
        self.fetched += 1;
        Fetch::Command(self.place.command(Op::Read, 0, 4096), IoBuf::default(), Token::new(vq, 0, self.fetched as u32))
    }

    fn complete(&mut self, token: Token, outcome: Outcome, _: IoBuf) {
        assert_eq!(outcome, Ok(()));
        let (vq, ..) = token.spend();
        self.completed += 1;
        self.waiting[usize::from(vq)] += u32::from(self.closed_loop);
    }

    fn notify(&mut self) {}

    fn set_wakeup(&mut self, _: bool) {}
}

/// Completes in order, each command 60 µs after it came.
#[derive(Default)]
struct Slow(VecDeque<(Nanos, HwqId, Done)>);

impl Backend for Slow {
    fn hwqs(&self) -> u16 {
        HWQS
    }

    fn depth(&self) -> u32 {
        64
    }

    fn submit(&mut self, hwq: HwqId, io: Io, now: Nanos) {
        assert!(hwq.0 < HWQS && self.0.iter().filter(|flight| flight.1 == hwq).count() < 64, "{hwq:?} is full");
        self.0.push_back((now + Nanos::from_micros(60), hwq, io.done(Ok(()))));
    }

    fn kick(&mut self) {}

    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        while self.0.front().is_some_and(|flight| flight.0 <= now) {
            let Some((_, hwq, ended)) = self.0.pop_front() else { return };
            done(hwq, ended);
        }
    }
}

struct World {
    random: Rng,
    poller: Poller<Guest, Slow, AnyPolicy>,
    board: Arc<Board>,
    now: Nanos,
    /// Identifiers that would burst any table that is indexed by them.
    next_id: u32,
    alive: Vec<TenantSlot>,
}

impl World {
    fn new(config: &PolicyConfig, seed: u64) -> Self {
        let policy = config
            .build(&PollerShape { hwqs: HWQS, hwq_depth: 64, guaranteed_vqs: 2, weighted: false })
            .expect("valid");
        let board = Arc::new(Board::default());
        let poller = Poller::new(Slow::default(), policy, Arc::clone(&board), Nanos(0));
        Self {
            random: Rng::with_seed(seed),
            poller,
            board,
            now: Nanos(0),
            next_id: u32::MAX - TENANTS - 8,
            alive: Vec::new(),
        }
    }

    fn add(&mut self, vqs: u16, each: u32, closed_loop: bool, terms: &Terms) -> TenantSlot {
        let waiting = vec![each; usize::from(vqs) + 1];
        let place = Place::whole_drive(TenantId(self.next_id));
        let guest = Guest { place, vqs, waiting, closed_loop, fetched: 0, completed: 0 };
        let probe = Arc::new(Probe::new(TenantId(self.next_id), terms.class));
        self.next_id += 1;
        self.poller.add(guest, probe, terms).ok().expect("there is room")
    }

    fn step(&mut self) {
        self.now += STEP;
        self.poller.step(self.now);
    }

    /// Lets one go, if nothing of it is with the drive.
    fn remove(&mut self, at: usize) -> bool {
        let gone = self.poller.remove(self.alive[at], self.now);
        if let Some(gone) = &gone {
            assert_eq!(gone.fetched, gone.completed);
            self.alive.swap_remove(at);
        }
        gone.is_some()
    }

    fn change(&mut self) {
        match (self.random.u64(..8), self.alive.len()) {
            (0..3, alive) if alive < ALIVE => {
                let terms = terms(&mut self.random);
                let (vqs, each) = (self.random.u16(1..=VQS), self.random.u32(..8));
                let slot = self.add(vqs, each, false, &terms);
                self.alive.push(slot);
            }
            (0..6, alive @ 1..) => {
                let at = self.random.u64(..alive as u64) as usize;
                self.remove(at);
            }
            (_, alive @ 1..) => {
                let (slot, terms) = (self.alive[self.random.u64(..alive as u64) as usize], terms(&mut self.random));
                assert!(self.poller.change_terms(slot, &terms, self.now));
            }
            _ => {}
        }
    }
}

fn churn(config: &PolicyConfig, seed: u64) {
    let mut world = World::new(config, seed);
    let runs = world.add(2, 4, true, &Terms::guaranteed(Some(Nanos::from_micros(200))));
    let (mut steps, mut before) = (0_u64, 0);
    while world.next_id < u32::MAX - 8 {
        (0..1 + world.random.u64(..3)).for_each(|_| world.change());
        world.step();
        steps += 1;
        if steps.is_multiple_of(500) {
            let completed = world.poller.source_mut(runs).expect("it stays").completed;
            // Eight at a time, each done in four steps: a tenth of that under whatever neighbours.
            assert!(completed > before + 100, "it came to a standstill: {before} and {completed}");
            before = completed;
            assert_eq!(world.board.tenants().len(), world.alive.len() + 1);
        }
    }
    let (tenants, vqs) = world.poller.table_lengths();
    let most = ALIVE + 1;
    assert!(tenants <= most && vqs <= most * usize::from(VQS), "{tenants} tenants and {vqs} VQs have places");
    for _ in 0..1_000 {
        world.step();
        (0..world.alive.len()).rev().for_each(|at| _ = world.remove(at));
    }
    assert_eq!((world.alive.len(), world.board.tenants().len()), (0, 1), "all can leave");
    while world.poller.inflight() > 0 {
        world.now += STEP;
        world.poller.finish(world.now);
    }
    assert_eq!((world.poller.unknown_completions(), io_model::lost_tokens()), (0, 0));
}

#[test]
fn ten_thousand_tenants_leave_no_trace_under_any_policy() {
    let seed = std::env::var("CHURN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let configs = [
        PolicyConfig::Passthrough,
        PolicyConfig::Wrr(ArbitratedConfig::wrr()),
        PolicyConfig::Drr(ArbitratedConfig::drr()),
        PolicyConfig::Lpns(LpnsConfig::p5800x()),
        PolicyConfig::Fair(FairConfig::p5800x()),
        PolicyConfig::Evenkeel(EvenkeelConfig::p5800x()),
    ];
    assert_eq!(configs.each_ref().map(PolicyConfig::name), PolicyKind::NAMES);
    for config in configs {
        let outcome = std::panic::catch_unwind(|| churn(&config, seed));
        assert!(outcome.is_ok(), "{} with CHURN_SEED={seed}", config.name());
    }
}
