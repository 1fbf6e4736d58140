//! Ceilings of groups whose members are at several pollers.

use io_model::{HwqId, Nanos, Op, TenantId, VqId};

use super::*;
use crate::{AnyPolicy, Limited, Next, Passthrough, Policy, TenantSlot, Terms, VqSlot};

const SECOND: Nanos = Nanos::from_millis(1_000);
const GROUP: GroupId = GroupId(3);

/// Pollers with members of one group, which all ask all the time, at drives that answer at once.
struct Host {
    groups: std::sync::Arc<Groups>,
    pollers: Vec<AnyPolicy>,
    /// Commands of each member.
    sent: Vec<u64>,
    now: Nanos,
}

impl Host {
    /// `members`: the poller of each, in order.
    fn new(ceiling: Limits, members: &[usize]) -> Self {
        let groups = std::sync::Arc::new(Groups::up_to(4));
        groups.set(GROUP, ceiling);
        let pollers = members.iter().max().map_or(0, |most| most + 1);
        let poller = |_| Limited::new(Passthrough::new(1, 1024).into(), std::sync::Arc::clone(&groups));
        let mut pollers: Vec<AnyPolicy> = (0..pollers).map(poller).collect();
        for (member, at) in (0..).zip(members) {
            let vq = VqId { tenant: TenantId(member), index: 1 };
            let (slot, tenant) = (VqSlot(member as u16), TenantSlot(member as u16));
            let terms = Terms { group: Some(GROUP), ..Terms::default() };
            pollers[*at].attach(slot, vq, tenant, &terms, Nanos(0));
            pollers[*at].arrived(slot, u32::MAX, Nanos(0));
        }
        Self { groups, pollers, sent: vec![0; members.len()], now: Nanos(0) }
    }

    /// Runs until `end`. The pollers look one after the other, from another one first each time: `greed` commands of
    /// the first poller, then one of each other.
    fn run(&mut self, end: Nanos, greed: usize, len_bytes: impl Fn(usize) -> u64) {
        while self.now < end {
            let mut next = Nanos::MAX;
            for at in 0..self.pollers.len() {
                for _ in 0..if at == 0 { greed } else { 1 } {
                    match self.pollers[at].next(self.now) {
                        Next::Send { vq, hwq } => {
                            let member = usize::from(vq.0);
                            self.send(at, vq, hwq, len_bytes(member));
                            self.sent[member] += 1;
                            next = self.now;
                        }
                        Next::WaitUntil(until) => next = next.min(until),
                        Next::Idle => {}
                    }
                }
            }
            self.now = next.min(end);
        }
    }

    fn send(&mut self, at: usize, vq: VqSlot, hwq: HwqId, len_bytes: u64) {
        let (policy, now) = (&mut self.pollers[at], self.now);
        policy.sent(vq, hwq, Op::Read, len_bytes, now);
        policy.completed(vq, hwq, TenantSlot(vq.0), Op::Read, len_bytes, Nanos(0), now);
    }
}

fn iops(rw_ios_per_sec: u64) -> Limits {
    Limits { rw_ios_per_sec, ..Limits::default() }
}

#[test]
fn members_at_several_pollers_share_one_ceiling_equally() {
    let mut host = Host::new(iops(30_000), &[0, 1, 2]);
    host.run(SECOND, 64, |_| 4_096);
    let all: u64 = host.sent.iter().sum();
    // A second, the slices at both ends, what is kept of one slice, and a command per poller.
    assert!((29_990..=30_093).contains(&all), "{:?}", host.sent);
    assert!(host.sent.iter().all(|sent| sent.abs_diff(10_000) <= 100), "{:?}", host.sent);
}

#[test]
fn what_a_modest_member_leaves_the_others_get() {
    let mut host = Host::new(iops(20_000), &[0, 1, 2]);
    host.pollers[2].arrived(VqSlot(2), 0, Nanos(0));
    for ms in 0..1_000 {
        // The third asks for a single command each millisecond.
        host.pollers[2].arrived(VqSlot(2), 1, host.now);
        host.run(Nanos::from_millis(ms), 64, |_| 4_096);
        host.pollers[2].arrived(VqSlot(2), 0, host.now);
    }
    let all: u64 = host.sent.iter().sum();
    assert!((19_900..=20_100).contains(&all), "{:?}", host.sent);
    // What it leaves goes to the member that comes first; an equal part stays with each.
    assert!(host.sent[2] >= 990 && host.sent[1] >= 6_600, "{:?}", host.sent);
}

#[test]
fn large_commands_overdraw_and_are_paid_back_and_members_take_turns() {
    let ceiling = Limits { rw_mbytes_per_sec: 10, ..Limits::default() };
    let mut host = Host::new(ceiling, &[0, 1]);
    host.run(Nanos(20 * SECOND.0), 8, |_| 1 << 20);
    let all: u64 = host.sent.iter().sum();
    assert!((198..=203).contains(&all), "{:?}", host.sent);
    assert!(host.sent[0].abs_diff(host.sent[1]) <= 8, "{:?}", host.sent);
}

#[test]
fn a_ceiling_changes_at_once_and_goes() {
    let mut host = Host::new(iops(1_000), &[0, 1]);
    host.run(SECOND, 8, |_| 4_096);
    host.groups.set(GROUP, iops(50_000));
    let before: u64 = host.sent.iter().sum();
    host.run(Nanos(2 * SECOND.0), 8, |_| 4_096);
    let after: u64 = host.sent.iter().sum();
    assert!(before.abs_diff(1_000) <= 5 && (after - before).abs_diff(50_000) <= 200, "{before}, {after}");
    host.groups.set(GROUP, Limits::default());
    let Next::Send { .. } = host.pollers[0].next(host.now + Nanos::from_millis(1)) else { panic!("no ceiling") };
}

#[test]
fn own_limits_hold_within_the_group() {
    let mut host = Host::new(iops(10_000), &[0, 1]);
    let terms = Terms { limits: iops(1_000), group: Some(GROUP), ..Terms::default() };
    host.pollers[1].change_terms(TenantSlot(1), &terms, Nanos(0));
    host.run(SECOND, 8, |_| 4_096);
    assert!(host.sent[1].abs_diff(1_000) <= 2 && host.sent[0].abs_diff(9_000) <= 100, "{:?}", host.sent);
}
