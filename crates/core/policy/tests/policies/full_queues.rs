//! VQs that wait for a full HWQ that others fill again with each completion.

use io_model::{HwqId, Nanos, Op, TenantId, VqId};
use policy::{Class, Evenkeel, EvenkeelConfig, Next, Percentile, Policy, PollerShape, TenantSlot, Terms, VqSlot};

const HWQS: u16 = 3;
const DEPTH: u32 = 16;
/// By slot. Of each tenant as many VQs as there are HWQs.
const GUARANTEED: [u16; 2] = [0, 1];
const TENANTS: u16 = 4;
const BLOCK: u64 = 4096;
const COMMANDS: u64 = 60_000;
/// Commands that each VQ keeps outstanding.
const OUTSTANDING: u32 = 7;
/// Those of guaranteed tenants that share this HWQ have more than it holds; all others find room now and then.
const FULL: u16 = 1;
const MANY: u32 = 3 * DEPTH;

fn shape() -> PollerShape {
    PollerShape { hwqs: HWQS, hwq_depth: DEPTH, guaranteed_vqs: 0, weighted: false }
}

fn vq(slot: u16) -> VqId {
    VqId { tenant: TenantId((slot / HWQS).into()), index: slot % HWQS }
}

/// Commands of each VQ, where some complete at once, and others take their places a moment later. `is_full`: these HWQs
/// are kept full by guaranteed tenants.
fn served(seed: u64, is_full: impl Fn(u16) -> bool, weight_of: impl Fn(u16) -> u32) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut policy = Evenkeel::new(EvenkeelConfig::p5800x(), &shape()).expect("valid settings");
    let slots = HWQS * TENANTS;
    let (mut flying, mut served, mut now) = (Vec::<(u16, HwqId)>::new(), vec![0; slots.into()], Nanos(0));
    let mut waiting = vec![OUTSTANDING; slots.into()];
    for slot in 0..slots {
        let tenant = slot / HWQS;
        if GUARANTEED.contains(&tenant) && is_full(slot % HWQS) {
            waiting[usize::from(slot)] = MANY;
        }
        let class = match GUARANTEED.contains(&tenant) {
            true => Class::Guaranteed { latency_target: None, percentile: Percentile::default() },
            false => Class::BestEffort { weight: weight_of(tenant) },
        };
        let terms = Terms { class, ..Terms::best_effort(1) };
        policy.attach(VqSlot(slot), vq(slot), TenantSlot(tenant), &terms, now);
    }
    while served.iter().sum::<u64>() < COMMANDS {
        (0..slots).for_each(|slot| policy.arrived(VqSlot(slot), waiting[usize::from(slot)], now));
        while let Next::Send { vq, hwq } = policy.next(now) {
            policy.sent(vq, hwq, Op::Read, BLOCK, now);
            waiting[usize::from(vq.0)] -= 1;
            flying.push((vq.0, hwq));
        }
        for _ in 0..random.usize(1..=flying.len().min(4)) {
            let (slot, hwq) = flying.swap_remove(random.usize(..flying.len()));
            served[usize::from(slot)] += 1;
            waiting[usize::from(slot)] += 1;
            let tenant = TenantSlot(slot / HWQS);
            policy.completed(VqSlot(slot), hwq, tenant, Op::Read, BLOCK, Nanos(50_000), now);
        }
        now += Nanos(1_000);
    }
    served
}

#[test]
fn each_queue_of_best_effort_has_its_turn_where_guaranteed_ones_keep_one_full() {
    for seed in 0..20 {
        let served = served(seed, |hwq| hwq == FULL, u32::from);
        let at_full = || (0..).zip(&served).filter(|(slot, _)| slot % HWQS == FULL);
        let all: u64 = at_full().map(|(_, count)| count).sum();
        let others = || at_full().filter(|(slot, _)| !GUARANTEED.contains(&(slot / HWQS)));
        // A 64th of what goes there, in turns, and up to a 16th while nobody of guaranteed tenants waits elsewhere.
        let part = others().map(|(_, count)| count).sum::<u64>() as f64 / all as f64;
        assert!((1.0 / 65.0..1.0 / 16.0).contains(&part), "{part:.4} of all that goes there: {served:?} (seed {seed})");
        let least = others().map(|(_, count)| *count).min().unwrap_or(0) as f64 / all as f64;
        assert!(least > 0.25 / 64.0, "{least:.4} of all that goes there: {served:?} (seed {seed})");
    }
}

#[test]
fn best_effort_has_its_turns_by_weight_where_guaranteed_tenants_keep_all_queues_full() {
    for seed in 0..20 {
        let served = served(seed, |_| true, |tenant| if tenant == 2 { 10 } else { 1 });
        let of = |tenant: usize| served[tenant * usize::from(HWQS)..][..usize::from(HWQS)].iter().sum::<u64>() as f64;
        let (all, heavy, light) = (served.iter().sum::<u64>() as f64, of(2), of(3));
        let part = (heavy + light) / all;
        assert!((1.0 / 65.0..1.0 / 16.0).contains(&part), "{part:.4} of all: {served:?} (seed {seed})");
        let ratio = heavy / light;
        assert!(
            (6.0..14.0).contains(&ratio),
            "ten times the weight, {ratio:.1} times the commands: {served:?} (seed {seed})"
        );
    }
}
