//! Limits, mostly under `passthrough`, which holds nobody back itself.

use io_model::{HwqId, QueuePriority, TenantId, VqId};

use super::*;
use crate::{
    AnyPolicy, Arbitrated, ArbitratedConfig, Lpns, LpnsConfig, Passthrough, Policy, PollerShape, TenantPriority, Terms,
};

const SECOND: Nanos = Nanos::from_millis(1_000);

fn attach(policy: &mut AnyPolicy, slot: u16, tenant: u16, limits: Limits, backlog: u32) {
    let vq = VqId { tenant: TenantId(tenant.into()), index: slot + 1 };
    policy.attach(VqSlot(slot), vq, TenantSlot(tenant), &Terms { limits, ..Terms::default() }, Nanos(0));
    policy.arrived(VqSlot(slot), backlog, Nanos(0));
}

fn policy(limits: &[Limits]) -> AnyPolicy {
    let shape = PollerShape { hwqs: 2, hwq_depth: 1024, guaranteed_vqs: 0, weighted: false };
    let mut policy = AnyPolicy::from(Passthrough::new(shape.hwqs, shape.hwq_depth));
    for (tenant, limits) in (0..).zip(limits) {
        attach(&mut policy, tenant, tenant, *limits, u32::MAX);
    }
    policy
}

/// Runs for a span with instant completions: when each command of each tenant went, and how often it was asked in
/// vain.
fn run(
    policy: &mut AnyPolicy,
    tenants: usize,
    end: Nanos,
    command: impl Fn(usize) -> (Op, u64),
) -> (Vec<Vec<Nanos>>, u32) {
    let (mut sent, mut waits) = (vec![Vec::new(); tenants], 0);
    let mut now = Nanos(0);
    while now < end {
        match policy.next(now) {
            Next::Send { vq, hwq } => {
                let (op, len_bytes) = command(sent[usize::from(vq.0)].len());
                policy.sent(vq, hwq, op, len_bytes, now);
                policy.completed(vq, hwq, TenantSlot(vq.0), op, len_bytes, Nanos(0), now);
                sent[usize::from(vq.0)].push(now);
            }
            Next::WaitUntil(at) => {
                assert!(at > now && at < Nanos::MAX);
                (now, waits) = (at, waits + 1);
            }
            Next::Idle => panic!("everyone has a backlog"),
        }
    }
    (sent, waits)
}

#[test]
fn commands_per_second_are_exact_and_never_burst() {
    let rates = [1_u64, 500, 1_500, 33_333, 250_000];
    let limits = rates.map(|rw_ios_per_sec| Limits { rw_ios_per_sec, ..Limits::default() });
    let mut policy = policy(&limits);
    let (sent, waits) = run(&mut policy, rates.len(), Nanos(10 * SECOND.0), |_| (Op::Write, 4096));
    assert!(waits <= 10_000, "not more than one wait per slice: {waits}");
    for (sent, rate) in sent.iter().zip(rates) {
        let wanted = rate as f64 * 10.0;
        assert!((sent.len() as f64 - wanted).abs() <= (wanted * 0.01).max(1.0), "{rate}: {}", sent.len());
        // Any span of 20 slices: the limit, one slice's quota and one command.
        let most = (rate as f64 * 0.021) as usize + 1;
        let spans = sent.iter().zip(sent.iter().skip(most));
        assert!(spans.into_iter().all(|(first, beyond)| *beyond - *first >= Nanos(20 * SLICE.0)), "{rate}");
    }
}

#[test]
fn bytes_per_second_hold_for_large_commands_and_each_direction() {
    let limits = [
        Limits { rw_mbytes_per_sec: 100, ..Limits::default() },
        Limits { r_mbytes_per_sec: 10, ..Limits::default() },
        Limits { w_mbytes_per_sec: 10, ..Limits::default() },
    ];
    let mut policy = policy(&limits);
    let command = |count: usize| (if count.is_multiple_of(4) { Op::Write } else { Op::Read }, 1 << 20);
    let (sent, _) = run(&mut policy, 3, Nanos(10 * SECOND.0), command);
    let totals = [1_000.0, 133.3, 400.0];
    for (sent, wanted) in sent.iter().zip(totals) {
        assert!((sent.len() as f64 - wanted).abs() <= wanted * 0.01 + 2.0, "{} of {wanted}", sent.len());
    }
}

#[test]
fn a_held_tenant_stops_nobody_and_rest_earns_one_slice() {
    let limits = [Limits { rw_ios_per_sec: 1_000, ..Limits::default() }, Limits::default()];
    let mut policy = policy(&limits);
    policy.arrived(VqSlot(1), 3, Nanos(0));
    let mut order = Vec::new();
    let later = Nanos(5 * SECOND.0);
    while let Next::Send { vq, hwq } = policy.next(later) {
        policy.sent(vq, hwq, Op::Read, 4096, later);
        order.push(vq.0);
    }
    assert_eq!(order, [0, 1, 1, 1]);
    assert_eq!(policy.next(later), Next::WaitUntil(later + SLICE));
}

#[test]
fn room_that_a_held_tenant_was_woken_for_goes_to_others() {
    let shape = PollerShape { hwqs: 2, hwq_depth: 1, guaranteed_vqs: 0, weighted: false };
    let limits = [Limits { rw_ios_per_sec: 3_000, ..Limits::default() }, Limits::default()];
    let mut policy = AnyPolicy::from(Passthrough::new(shape.hwqs, shape.hwq_depth));
    let send = |policy: &mut AnyPolicy| {
        let Next::Send { vq, hwq } = policy.next(Nanos(0)) else { return None };
        policy.sent(vq, hwq, Op::Read, 4096, Nanos(0));
        Some((vq.0, hwq.0))
    };
    // VQs 0 and 1 of the limited tenant fill both HWQs and wait for them, 2 and 3 of another come after.
    let mut order = Vec::new();
    for slots in [[0, 1], [2, 3]] {
        for slot in slots {
            attach(&mut policy, slot, slot / 2, limits[usize::from(slot / 2)], 9);
        }
        order.extend(std::iter::from_fn(|| send(&mut policy)));
    }
    assert_eq!(order, [(0, 0), (1, 1)]);
    for hwq in [0, 1] {
        policy.completed(VqSlot(hwq), HwqId(hwq), TenantSlot(0), Op::Read, 4096, Nanos(0), Nanos(0));
    }
    // Both were woken, but one command is all that is left of the slice.
    order = std::iter::from_fn(|| send(&mut policy)).collect();
    assert_eq!(order, [(0, 0), (3, 1)]);
}

#[test]
fn vqs_of_a_held_tenant_take_turns_at_full_hwqs() {
    let shape = PollerShape { hwqs: 1, hwq_depth: 2, guaranteed_vqs: 0, weighted: false };
    let limits = [Limits { rw_ios_per_sec: 3_000, ..Limits::default() }, Limits::default()];
    let mut policy = AnyPolicy::from(Arbitrated::drr(&ArbitratedConfig::drr(), &shape).unwrap());
    for slot in 0..5 {
        attach(&mut policy, slot, 0, limits[0], u32::MAX);
    }
    let mut sent = [0; 5];
    for slice in 0..100 {
        let now = Nanos(slice * SLICE.0);
        for _ in 0..2 {
            let mut flying = 0;
            while let Next::Send { vq, hwq } = policy.next(now) {
                policy.sent(vq, hwq, Op::Read, 4096, now);
                sent[usize::from(vq.0)] += 1;
                flying += 1;
            }
            for _ in 0..flying {
                policy.completed(VqSlot(0), HwqId(0), TenantSlot(0), Op::Read, 4096, Nanos(0), now);
            }
        }
    }
    assert!(sent.iter().all(|count| (59..=61).contains(count)), "{sent:?}");
}

#[test]
fn limits_that_change_hold_from_then_on_and_shed_no_debt() {
    let ios = |rw_ios_per_sec| Terms { limits: Limits { rw_ios_per_sec, ..Limits::default() }, ..Terms::default() };
    let mut policy = policy(&[Limits { rw_mbytes_per_sec: 1, ..Limits::default() }]);
    // 1 MiB at once is paid for in a second.
    let (sent, _) = run(&mut policy, 1, SLICE, |_| (Op::Read, 1 << 20));
    assert_eq!(sent[0].len(), 1);
    let ten = Terms { limits: Limits { rw_mbytes_per_sec: 10, ..Limits::default() }, ..Terms::default() };
    policy.change_terms(TenantSlot(0), &ten, SLICE);
    let Next::WaitUntil(at) = policy.next(SLICE) else { panic!("the debt is kept") };
    assert!((95..=101).contains(&(at.0 / SLICE.0)), "paid back at the new rate: {at:?}");
    // Raised, lowered and said again within a slice: never more than a quota.
    policy.change_terms(TenantSlot(0), &ios(5_000), at);
    let mut count = 0;
    for _ in 0..10 {
        for limit in [50_000, 5_000, 5_000] {
            policy.change_terms(TenantSlot(0), &ios(limit), at);
        }
        while let Next::Send { vq, hwq } = policy.next(at) {
            policy.sent(vq, hwq, Op::Read, 512, at);
            count += 1;
        }
    }
    assert_eq!(count, 5);
    policy.change_terms(TenantSlot(0), &Terms::default(), at);
    assert!(matches!(policy.next(at), Next::Send { .. }), "without limits it is not held");
}

#[test]
fn the_next_tenant_in_a_slot_owes_nothing() {
    let limits = Limits { rw_mbytes_per_sec: 1, ..Limits::default() };
    let mut policy = policy(&[limits]);
    run(&mut policy, 1, SLICE, |_| (Op::Read, 1 << 20));
    policy.detach(VqSlot(0), SLICE);
    attach(&mut policy, 0, 0, limits, 1);
    assert!(matches!(policy.next(SLICE), Next::WaitUntil(_)), "the same tenant does");
    policy.detach(VqSlot(0), SLICE);
    policy.forget(TenantSlot(0));
    attach(&mut policy, 0, 0, limits, 1);
    assert!(matches!(policy.next(SLICE), Next::Send { .. }));
}

#[test]
fn reads_and_writes_have_ceilings_of_their_own() {
    let limits = [
        Limits { r_ios_per_sec: 2_000, ..Limits::default() },
        Limits { w_ios_per_sec: 2_000, ..Limits::default() },
        Limits { w_ios_per_sec: 2_000, ..Limits::default() },
    ];
    let mut policy = policy(&limits);
    // Of each four a read, a write, a flush and a discard.
    let ops = [Op::Read, Op::Write, Op::Flush, Op::Discard];
    let (sent, _) = run(&mut policy, 3, SECOND, |count| (ops[count % 4], 4096));
    for (sent, wanted) in sent.iter().zip([8_000, 2_667, 2_667]) {
        assert!(sent.len().abs_diff(wanted) <= 40, "{} of {wanted}", sent.len());
    }
}

#[test]
fn a_burst_is_what_rest_earned_and_no_more() {
    let burst = Nanos::from_millis(100);
    let limits = Limits { rw_ios_per_sec: 5_000, burst, ..Limits::default() };
    let mut policy = policy(&[limits]);
    let mut now = Nanos(0);
    let mut at_once = |policy: &mut AnyPolicy, rest| {
        now += rest;
        let mut count = 0;
        while let Next::Send { vq, hwq } = policy.next(now) {
            policy.sent(vq, hwq, Op::Read, 512, now);
            policy.completed(vq, hwq, TenantSlot(0), Op::Read, 512, Nanos(0), now);
            count += 1;
        }
        count
    };
    assert_eq!(at_once(&mut policy, Nanos(0)), 5, "it has rested for nothing yet");
    assert_eq!(at_once(&mut policy, Nanos::from_millis(40)), 200);
    assert_eq!(at_once(&mut policy, SECOND), 505);
    assert_eq!(at_once(&mut policy, SLICE), 5);
    // A longer burst has to be earned too.
    let longer = Limits { burst: SECOND, ..limits };
    policy.change_terms(TenantSlot(0), &Terms { limits: longer, ..Terms::default() }, Nanos(2 * SECOND.0));
    assert_eq!(at_once(&mut policy, SECOND), 505 + 41 * 5, "from the change on it rested for 41 ms");
}

#[test]
fn limits_that_go_while_their_tenant_is_held_leave_nothing_behind() {
    let limits = Limits { rw_ios_per_sec: 1, ..Limits::default() };
    for change in [Limits::default(), Limits { rw_ios_per_sec: 1_000_000, ..limits }] {
        let mut policy = policy(&[limits]);
        for slot in 1..4 {
            attach(&mut policy, slot, 0, limits, 1);
        }
        // Held again and again, until one of the VQs goes first alone.
        for second in 0..20 {
            while let Next::Send { vq, hwq } = policy.next(Nanos(second * SECOND.0)) {
                policy.sent(vq, hwq, Op::Read, 512, Nanos(second * SECOND.0));
                policy.arrived(vq, 1, Nanos(second * SECOND.0));
            }
        }
        let now = Nanos(30 * SECOND.0);
        (0..4).for_each(|slot| policy.arrived(VqSlot(slot), 2, now));
        policy.change_terms(TenantSlot(0), &Terms { limits: change, ..Terms::default() }, now);
        // It owes nothing; a higher limit lets one command go at once, as the old one's slice has it.
        let later = if change.is_empty() { now } else { now + SLICE };
        let mut sent = [0; 4];
        for now in [now, later] {
            while let Next::Send { vq, hwq } = policy.next(now) {
                policy.sent(vq, hwq, Op::Read, 512, now);
                sent[usize::from(vq.0)] += 1;
            }
        }
        assert_eq!((sent, policy.next(later)), ([2; 4], Next::Idle));
    }
}

#[test]
fn queues_of_several_classes_share_a_held_tenants_quota() {
    let shape = PollerShape { hwqs: 2, hwq_depth: 1024, guaranteed_vqs: 0, weighted: false };
    let mut policy = AnyPolicy::from(Arbitrated::drr(&ArbitratedConfig::drr(), &shape).unwrap());
    let limits = Limits { rw_ios_per_sec: 1_000, ..Limits::default() };
    let limited = Terms { limits, priority: TenantPriority::OfQueue, ..Terms::default() };
    let low = Terms { priority: TenantPriority::Fixed(QueuePriority::Low), ..Terms::default() };
    let mut add = |slot, tenant, terms, asked| {
        let vq = VqId { tenant: TenantId(tenant), index: slot + 1 };
        policy.attach(VqSlot(slot), vq, TenantSlot(tenant as u16), terms, Nanos(0));
        policy.asked_priority(VqSlot(slot), asked);
        policy.arrived(VqSlot(slot), u32::MAX, Nanos(0));
    };
    add(0, 0, &limited, QueuePriority::High);
    // A tenant that shares its class with many others is named long after a tenant that is alone in another class.
    add(1, 0, &limited, QueuePriority::Low);
    (1..12).for_each(|tenant| add(tenant as u16 + 1, tenant, &low, QueuePriority::Low));
    let mut sent = [0; 2];
    for now in (0..1_000).flat_map(|slice| (0..20).map(move |part| Nanos(slice * SLICE.0 + part))) {
        let Next::Send { vq, hwq } = policy.next(now) else { panic!("others always have commands") };
        policy.sent(vq, hwq, Op::Read, 128 << 10, now);
        policy.completed(vq, hwq, TenantSlot(vq.0.max(1) - 1), Op::Read, 128 << 10, Nanos(0), now);
        if let Some(count) = sent.get_mut(usize::from(vq.0)) {
            *count += 1;
        }
    }
    assert!(sent.iter().all(|count| *count >= 50), "{sent:?}");
}

#[test]
fn a_guaranteed_tenant_has_limits_too_and_its_neighbours_go_on() {
    let shape = PollerShape { hwqs: 4, hwq_depth: 1024, guaranteed_vqs: 1, weighted: false };
    let mut policy = AnyPolicy::from(Lpns::new(LpnsConfig::p5800x().with_hwqs(4, 1, shape.hwq_depth)).unwrap());
    let limits = Limits { rw_ios_per_sec: 3_000, ..Limits::default() };
    for (slot, terms) in [(0, Terms::guaranteed(Some(Nanos::from_micros(50)))), (1, Terms::best_effort(1))] {
        let limits = if slot == 0 { limits } else { Limits::default() };
        let vq = VqId { tenant: TenantId(slot.into()), index: 1 };
        policy.attach(VqSlot(slot), vq, TenantSlot(slot), &Terms { limits, ..terms }, Nanos(0));
        policy.arrived(VqSlot(slot), u32::MAX, Nanos(0));
    }
    let (sent, _) = run(&mut policy, 2, SECOND, |_| (Op::Read, 4096));
    assert!(sent[0].len().abs_diff(3_000) <= 3, "{}", sent[0].len());
    assert!(sent[1].len() > 3_000, "{}", sent[1].len());
}

/// A lone VQ of a tenant at this many pollers. Returns the bytes that it gets here per second with commands of this
/// length, from this fraction of its limits, if one is told.
fn at_one_of(pollers: u16, limits: Limits, len_bytes: u64) -> impl FnMut(Option<f64>) -> u64 {
    let mut policy = policy(&[]);
    let vq = VqId { tenant: TenantId(0), index: 1 };
    let terms = Terms { limits, pollers, ..Terms::default() };
    policy.attach(VqSlot(0), vq, TenantSlot(0), &terms, Nanos(0));
    policy.arrived(VqSlot(0), u32::MAX, Nanos(0));
    let mut from = Nanos(0);
    move |part| {
        if let Some(part) = part {
            policy.asks_here(TenantSlot(0), part, from);
        }
        let mut sent = 0;
        let end = from + SECOND;
        while from < end {
            match policy.next(from) {
                Next::Send { vq, hwq } => {
                    policy.sent(vq, hwq, Op::Read, len_bytes, from);
                    policy.completed(vq, hwq, TenantSlot(0), Op::Read, len_bytes, Nanos(0), from);
                    sent += len_bytes;
                }
                Next::WaitUntil(at) => from = at.min(end),
                Next::Idle => panic!("it has a backlog"),
            }
        }
        sent
    }
}

#[test]
fn a_part_of_a_limit_shrinks_at_once_and_grows_when_others_have_heard() {
    let mut in_a_second = at_one_of(2, Limits { rw_ios_per_sec: 2_000, ..Limits::default() }, 512);
    let got = [None, Some(0.25), Some(0.75), Some(0.75), Some(0.5)].map(&mut in_a_second);
    for (got, wanted) in got.into_iter().zip([1_000_u64, 500, 500, 1_500, 1_000]) {
        assert!((got / 512).abs_diff(wanted) <= 3, "{} instead of {wanted}", got / 512);
    }
}

#[test]
fn parts_of_a_limit_are_exact_however_many_pollers_there_are() {
    let limits = Limits { rw_mbytes_per_sec: 2, rw_ios_per_sec: 700, ..Limits::default() };
    for (len_bytes, most) in [(65_536, 2 << 20), (4_096, 512 * 4_096), (512, 700 * 512)] {
        for part in [0.985, 0.5, 0.01, 0.0005] {
            let mut in_a_second = at_one_of(64, limits, len_bytes);
            in_a_second(Some(part));
            let got = (0..20).map(|_| in_a_second(Some(part))).sum::<u64>() as f64 / 20.0;
            let wanted = f64::from(most) * part;
            assert!((got - wanted).abs() <= wanted * 0.01 + len_bytes as f64 / 10.0, "{got} instead of {wanted}");
        }
    }
}
