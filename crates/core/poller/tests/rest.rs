//! Tenants that do nothing cost next to nothing, and their first command afterwards does not wait for long.

use std::sync::Arc;

use backend_memory::{Null, NullDrive};
use fastrand::Rng;
use io_model::{Fetch, IoBuf, Nanos, Op, Outcome, Place, Source, TenantId, Token};
use policy::{Passthrough, TenantSlot, Terms};
use poller::{Board, Poller, Probe, REST_AFTER};

const TENANTS: u32 = 64;
const VQS: u16 = 16;
/// The patrol's round among these tenants: the longest that a first command waits, apart from the running iteration.
const ROUND: Nanos = Nanos::from_micros(32);
const LONGEST_STEP: Nanos = Nanos::from_micros(15);
/// What is promised.
const _: () = assert!(ROUND.0 + LONGEST_STEP.0 < 50_000);

/// VQs 1 and up with discards, which need no data.
struct Guest {
    place: Place,
    live: u128,
    waiting: Vec<u32>,
    told: Vec<u32>,
    looks: u64,
    asked: u64,
    /// Of each VQ.
    fetched: Vec<u64>,
    completed: u64,
}

impl Guest {
    fn new(tenant: u32) -> Self {
        let vqs = usize::from(VQS) + 1;
        Self {
            place: Place::whole_drive(TenantId(tenant)),
            live: ((1 << VQS) - 1) << 1,
            waiting: vec![0; vqs],
            told: vec![0; vqs],
            looks: 0,
            asked: 0,
            fetched: vec![0; vqs],
            completed: 0,
        }
    }
}

impl Source for Guest {
    fn live_vqs(&self) -> u128 {
        self.live
    }

    fn rung(&mut self) -> u128 {
        self.looks += 1;
        let moved = |vq: &usize| self.waiting[*vq] != self.told[*vq];
        (1..self.told.len()).filter(moved).fold(0, |rung, vq| rung | 1 << vq)
    }

    fn backlog(&mut self, vq: u16) -> u32 {
        self.asked += 1;
        let waiting = self.waiting[usize::from(vq)];
        self.told[usize::from(vq)] = waiting;
        waiting
    }

    fn fetch(&mut self, vq: u16) -> Fetch {
        let waiting = &mut self.waiting[usize::from(vq)];
        if *waiting == 0 {
            return Fetch::Empty;
        }
        *waiting -= 1;
        self.fetched[usize::from(vq)] += 1;
        Fetch::Command(self.place.command(Op::Discard, 0, 512), IoBuf::default(), Token::new(vq, 0, 0))
    }

    fn complete(&mut self, token: Token, outcome: Outcome, _: IoBuf) {
        assert_eq!(outcome, Ok(()));
        token.spend();
        self.completed += 1;
    }

    fn notify(&mut self) {}

    fn set_wakeup(&mut self, _: bool) {}
}

struct World {
    poller: Poller<Guest, Null, Passthrough>,
    slots: Vec<TenantSlot>,
    now: Nanos,
}

impl World {
    fn new(tenants: u32, terms: &Terms) -> Self {
        let backend = NullDrive::new(1 << 20).open_queues(4, 1024);
        let mut poller = Poller::new(backend, Passthrough::new(4, 1024), Arc::new(Board::default()), Nanos(0));
        let add = |tenant: u32| {
            let probe = Arc::new(Probe::new(TenantId(tenant), terms.class));
            poller.add(Guest::new(tenant), probe, terms).ok().expect("there is room")
        };
        let slots = (0..tenants).map(add).collect();
        Self { poller, slots, now: Nanos(0) }
    }

    /// Every tenant rests, but for those who never do.
    fn rest(&mut self) {
        for _ in 0..2 {
            self.now += REST_AFTER + Nanos(1);
            self.poller.step(self.now);
        }
    }

    /// A guest, without waking the tenants: the poller does not know that the test looks.
    fn guest(&mut self, tenant: usize) -> &mut Guest {
        let slot = self.slots[tenant];
        let found = self.poller.sources_mut().find(|(at, _)| *at == slot);
        found.map(|(_, guest)| guest).expect("it is there")
    }

    fn ring(&mut self, tenant: usize, vq: u16) {
        self.guest(tenant).waiting[usize::from(vq)] += 1;
    }

    fn step(&mut self, takes: Nanos) {
        self.poller.step(self.now);
        self.now += takes;
    }

    fn looks(&mut self) -> u64 {
        self.poller.sources_mut().map(|(_, guest)| guest.looks).sum()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.poller.finish(self.now);
    }
}

/// VQ 1 of tenant 0 works all the time, in iterations as long as `takes` says; others of its own and of other tenants
/// have one command each after a rest.
fn first_commands(takes: impl Fn(&mut Rng) -> Nanos, seed: u64) {
    let mut world = World::new(TENANTS, &Terms::default());
    world.rest();
    let mut random = Rng::with_seed(seed);
    for _ in 0..50 {
        // Anywhere in the patrol's round, and everybody rests again.
        let until = world.now + REST_AFTER + REST_AFTER + Nanos(random.u64(..40_000));
        while world.now < until {
            world.ring(0, 1);
            world.step(takes(&mut random));
        }
        let (tenant, vq) = (random.usize(..TENANTS as usize), random.u16(2..=VQS));
        let tenant = if random.bool() { tenant } else { 0 };
        let before = world.guest(tenant).fetched[usize::from(vq)];
        world.ring(tenant, vq);
        let (rung_at, mut step) = (world.now, Nanos(0));
        while world.guest(tenant).fetched[usize::from(vq)] == before {
            let waited = world.now - rung_at;
            assert!(waited <= ROUND + step, "seed {seed}: not seen after {} ns", waited.0);
            world.ring(0, 1);
            step = takes(&mut random);
            world.step(step);
        }
    }
}

#[test]
fn the_first_command_after_a_rest_waits_for_a_bounded_time_however_long_iterations_take() {
    for (seed, step_ns) in [100, 1_000, 5_000, LONGEST_STEP.0].into_iter().enumerate() {
        first_commands(|_| Nanos(step_ns), seed as u64);
    }
    for seed in 10..20 {
        first_commands(|random| Nanos(50 + random.u64(..LONGEST_STEP.0 - 50)), seed);
    }
}

#[test]
fn a_poller_that_has_nothing_else_to_do_looks_at_one_more_each_time() {
    let mut world = World::new(TENANTS, &Terms::default());
    world.rest();
    world.ring(40, 3);
    let steps = (1..).find(|_| {
        world.step(Nanos(1));
        world.guest(40).fetched[3] > 0
    });
    assert!(steps.is_some_and(|steps| steps <= TENANTS), "{steps:?}");
}

#[test]
fn tenants_at_rest_take_a_bounded_share_of_looks_and_are_asked_nothing() {
    for (tenants, pace_ns) in [(16, 480), (64, 480), (96, 720), (256, 960), (1024, 960)] {
        let mut world = World::new(tenants, &Terms::default());
        world.rest();
        world.rest();
        // Until the busy one was found nobody would wait for a look.
        world.ring(0, 1);
        while world.guest(0).fetched[1] == 0 {
            world.step(Nanos(1));
        }
        let (before, asked) = (world.looks(), world.guest(1).asked);
        let (iterations, step) = (10_000, Nanos(300));
        for _ in 0..iterations {
            world.ring(0, 1);
            world.step(step);
        }
        let looks = world.looks() - before;
        // One in that time, plus the first ones.
        let most = iterations * step.0 / pace_ns + 2;
        assert!(looks > most / 2 && looks <= most, "{tenants} tenants: {looks} looks in {iterations} iterations");
        assert_eq!(world.guest(1).asked, asked);
    }
}

#[test]
fn guaranteed_tenants_never_rest() {
    let mut world = World::new(4, &Terms::guaranteed(Some(Nanos::from_micros(50))));
    world.rest();
    world.rest();
    for _ in 0..1_000 {
        world.ring(0, 1);
        let before = world.looks();
        world.step(Nanos(100));
        assert_eq!(world.looks() - before, 4);
    }
    // A tenant that is no longer guaranteed rests. Once it is guaranteed again, the poller looks at it from then on.
    let slot = world.slots[3];
    assert!(world.poller.change_terms(slot, &Terms::default(), world.now));
    world.rest();
    world.rest();
    let looks = |world: &mut World| {
        let before = world.guest(3).looks;
        for _ in 0..100 {
            world.ring(0, 1);
            world.step(Nanos(10));
        }
        world.guest(3).looks - before
    };
    assert!(looks(&mut world) < 10);
    let promised = Terms::guaranteed(Some(Nanos::from_micros(50)));
    assert!(world.poller.change_terms(slot, &promised, world.now));
    assert_eq!(looks(&mut world), 100);
}

#[test]
fn a_poller_that_is_about_to_sleep_sees_everybody() {
    let mut world = World::new(TENANTS, &Terms::default());
    world.rest();
    world.ring(0, 1);
    world.step(Nanos(1));
    world.ring(50, 16);
    world.ring(9, 1);
    world.poller.set_wakeup(true);
    assert_eq!(world.poller.step(world.now).sent, 2);
    let before = world.looks();
    world.ring(0, 1);
    world.step(Nanos(1));
    assert!(world.looks() - before < 8, "once");
}

#[test]
fn a_tenant_whose_front_end_was_touched_is_looked_at_at_once() {
    let mut world = World::new(TENANTS, &Terms::default());
    world.rest();
    world.ring(0, 1);
    world.step(Nanos(1));
    world.ring(33, 2);
    let slot = world.slots[33];
    assert!(world.poller.source_mut(slot).is_some());
    assert_eq!(world.poller.step(world.now).sent, 1);
}

/// Tenants ring, rest, get other queues, leave and come at random: each command is fetched and completed once.
#[test]
fn nothing_is_lost() {
    for seed in 1..=20 {
        let mut random = Rng::with_seed(seed);
        let mut world = World::new(40, &Terms::default());
        let (mut rung, mut fetched, mut next_id) = (0, 0, 40);
        for _ in 0..20_000 {
            match random.u32(..1000) {
                0 => {
                    let left = random.usize(..world.slots.len());
                    if let Some(guest) = world.poller.remove(world.slots[left], world.now) {
                        // What waited goes with it.
                        rung -= guest.waiting.iter().copied().map(u64::from).sum::<u64>();
                        fetched += guest.completed;
                        let probe = Arc::new(Probe::new(TenantId(next_id), Terms::default().class));
                        let slot = world.poller.add(Guest::new(next_id), probe, &Terms::default());
                        world.slots[left] = slot.ok().expect("there is room");
                        next_id += 1;
                    }
                }
                1..20 => {
                    let tenant = random.usize(..world.slots.len());
                    world.guest(tenant).live ^= 1 << random.u16(1..=VQS);
                }
                20..100 => {
                    let tenant = random.usize(..world.slots.len());
                    for _ in 0..random.u32(1..5) {
                        world.ring(tenant, random.u16(1..=VQS));
                        rung += 1;
                    }
                }
                100..102 => world.now += REST_AFTER + Nanos(1),
                102..110 => world.poller.set_wakeup(random.bool()),
                _ => world.step(Nanos(random.u64(1..2_000))),
            }
        }
        (0..world.slots.len()).for_each(|tenant| world.guest(tenant).live = ((1 << VQS) - 1) << 1);
        for _ in 0..20 {
            world.step(Nanos::from_micros(200));
        }
        fetched += world.poller.sources_mut().map(|(_, guest)| guest.completed).sum::<u64>();
        assert_eq!((fetched, world.poller.inflight()), (rung, 0), "seed {seed}");
    }
}
