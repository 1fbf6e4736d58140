//! The drive serves backlogged queues in the ratios that its arbitration promises.

use std::collections::VecDeque;

use io_model::{HwqClass, WrrWeights};
use ssd_model::{Arbiter, Arbitration, Drive, Kind, MAX_QUEUES, Profile, QuantaKib, Request, UnknownQueue};

const KIB: u64 = 1024;
const WRR: Arbitration =
    Arbitration::WeightedRoundRobin { burst: 1, weights: WrrWeights { high: 32, medium: 16, low: 8 } };
const DRR: Arbitration = Arbitration::DeficitRoundRobin { quanta: QuantaKib { high: 128, medium: 64, low: 32 } };
const RR: Arbitration = Arbitration::RoundRobin { burst: 1 };

/// A queue's class and the sizes of its commands, which come in turn.
type Job = (HwqClass, &'static [u64]);

/// Bytes that each always backlogged job read, in commands that a drive with few places inside fetched.
fn served(arbitration: Arbitration, jobs: &[Job], commands: u32) -> Vec<u64> {
    let profile = Profile { arbitration, window: 8, ..Profile::p5800x() };
    let mut drive = Drive::new(profile, jobs.len() as u16);
    let mut sent = vec![0usize; jobs.len()];
    let mut lengths: Vec<VecDeque<u64>> = vec![VecDeque::new(); jobs.len()];
    let mut random: u64 = 9;
    let mut send = |drive: &mut Drive, lengths: &mut Vec<VecDeque<u64>>, now: u64, hwq: usize| {
        let len_bytes = jobs[hwq].1[sent[hwq] % jobs[hwq].1.len()] * KIB;
        sent[hwq] += 1;
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let offset_bytes = (random >> 30) * 16 * KIB;
        lengths[hwq].push_back(len_bytes);
        drive
            .submit(now, hwq as u16, Request { tag: 0, kind: Kind::Read, offset_bytes, len_bytes })
            .expect("the queue exists");
    };
    for (hwq, (class, _)) in jobs.iter().enumerate() {
        drive.set_class(hwq as u16, *class).expect("the queue exists");
        (0..64).for_each(|_| send(&mut drive, &mut lengths, 0, hwq));
    }
    let mut bytes = vec![0; jobs.len()];
    for _ in 0..commands {
        let now = drive.next_event().expect("backlogged");
        let mut finished = Vec::new();
        drive.poll(now, &mut |hwq, _, _| finished.push(usize::from(hwq)));
        for hwq in finished {
            // Sizes alternate, so that the order within a queue does not matter to the sum.
            bytes[hwq] += lengths[hwq].pop_front().expect("it was sent");
            send(&mut drive, &mut lengths, now, hwq);
        }
    }
    bytes
}

#[track_caller]
fn ratio(arbitration: Arbitration, jobs: [Job; 2], expected: f64) {
    let bytes = served(arbitration, &jobs, 60_000);
    let seen = bytes[0] as f64 / bytes[1] as f64;
    assert!((seen / expected - 1.0).abs() < 0.02, "{arbitration:?}: {seen:.3}, expected {expected}");
}

#[test]
fn the_scenarios_of_the_qos_paper() {
    use HwqClass::{High, Low, Medium};
    let scenarios: [([Job; 2], [f64; 3]); 5] = [
        ([(High, &[4]), (Medium, &[8])], [2.0, 1.0, 0.5]),
        ([(High, &[4]), (High, &[4])], [1.0, 1.0, 1.0]),
        ([(High, &[4]), (Low, &[8])], [4.0, 2.0, 0.5]),
        ([(High, &[8]), (Low, &[4])], [4.0, 8.0, 2.0]),
        ([(High, &[4, 8]), (High, &[8, 16])], [1.0, 0.5, 0.5]),
    ];
    for (jobs, expected) in scenarios {
        for (arbitration, expected) in [DRR, WRR, RR].into_iter().zip(expected) {
            ratio(arbitration, jobs, expected);
        }
    }
}

#[test]
fn urgent_queues_leave_nothing_to_the_others() {
    for arbitration in [WRR, DRR] {
        let bytes = served(arbitration, &[(HwqClass::Urgent, &[4]), (HwqClass::High, &[4])], 10_000);
        assert_eq!(bytes[1], 0, "{arbitration:?}");
        assert!(bytes[0] > 0);
    }
}

#[test]
fn a_built_drive_changes_its_arbitration() {
    let mut drive = Drive::new(Profile::p5800x(), 2);
    assert_eq!(drive.arbitration(), RR);
    drive.set_arbitration(WRR);
    assert_eq!(drive.arbitration(), WRR);
    assert_eq!(drive.set_class(1, HwqClass::Low), Ok(()));
    assert_eq!(drive.set_class(2, HwqClass::Low), Err(UnknownQueue));
}

/// Picks `count` times from queues that stay backlogged with commands of these sizes.
fn picks(arbiter: &mut Arbiter, sizes_kib: &[u64], count: usize) -> Vec<u16> {
    (0..count).map(|_| arbiter.pick(|queue| sizes_kib[usize::from(queue)] * KIB).expect("backlogged")).collect()
}

fn backlogged(arbitration: Arbitration, queues: &[(u16, HwqClass)]) -> Arbiter {
    let mut arbiter = Arbiter::new(arbitration, MAX_QUEUES);
    for &(queue, class) in queues {
        assert!(arbiter.set_class(queue, class));
        arbiter.set_backlogged(queue, true);
    }
    arbiter
}

#[test]
fn queues_take_turns() {
    let queues = [(0, HwqClass::Low), (5, HwqClass::Urgent), (127, HwqClass::Medium)];
    let mut arbiter = backlogged(RR, &queues);
    let sizes = [4; MAX_QUEUES as usize];
    assert_eq!(picks(&mut arbiter, &sizes, 6), [0, 5, 127, 0, 5, 127]);
    arbiter.set_arbitration(Arbitration::RoundRobin { burst: 2 });
    assert_eq!(picks(&mut arbiter, &sizes, 6), [0, 0, 5, 5, 127, 127]);
    arbiter.set_backlogged(127, false);
    assert_eq!(picks(&mut arbiter, &sizes, 4), [0, 0, 5, 5]);
    (0..=127).for_each(|queue| arbiter.set_backlogged(queue, false));
    assert_eq!(arbiter.pick(|_| 0), None);
}

#[test]
fn a_class_takes_its_weight_in_bursts_and_forfeits_what_it_can_not_use() {
    let weights = WrrWeights { high: 3, medium: 2, low: 1 };
    let arbitration = Arbitration::WeightedRoundRobin { burst: 2, weights };
    let queues = [(0, HwqClass::High), (1, HwqClass::High), (2, HwqClass::Medium), (3, HwqClass::Low)];
    let mut arbiter = backlogged(arbitration, &queues);
    let sizes = [4; MAX_QUEUES as usize];
    assert_eq!(picks(&mut arbiter, &sizes, 6), [0, 0, 1, 2, 2, 3]);
    let order = picks(&mut arbiter, &sizes, 24);
    let of = |class: &[u16]| order.iter().filter(|queue| class.contains(queue)).count();
    assert_eq!((of(&[0, 1]), of(&[2]), of(&[3])), (12, 8, 4), "{order:?}");
    assert_eq!((of(&[0]), of(&[1])), (6, 6), "a burst goes on in the class's next turn: {order:?}");
    arbiter.set_backlogged(2, false);
    let order = picks(&mut arbiter, &sizes, 8);
    assert_eq!(order.iter().filter(|queue| **queue == 3).count(), 2, "{order:?}");
}

#[test]
fn a_deficit_is_kept_while_backlogged_and_lost_when_empty() {
    let quanta = QuantaKib { high: 8, medium: 8, low: 8 };
    let queues = [(0, HwqClass::Medium), (1, HwqClass::Medium)];
    let mut arbiter = backlogged(Arbitration::DeficitRoundRobin { quanta }, &queues);
    // 12 KiB of queue 0 need two quanta of 8: the 4 left over buy every third turn's second command.
    let order = picks(&mut arbiter, &[12, 8], 10);
    assert_eq!(order.iter().filter(|queue| **queue == 0).count(), 4, "{order:?}");
    let mut arbiter = backlogged(Arbitration::DeficitRoundRobin { quanta }, &queues);
    let mut order = Vec::new();
    for _ in 0..10 {
        // Queue 0 runs empty after each of its commands, so it never saves the 4 KiB.
        let queue = picks(&mut arbiter, &[12, 8], 1)[0];
        arbiter.set_backlogged(queue, queue == 1);
        arbiter.set_backlogged(queue, true);
        order.push(queue);
    }
    assert_eq!(order.iter().filter(|queue| **queue == 0).count(), 3, "{order:?}");
}

#[test]
fn commands_far_larger_than_a_quantum_cost_no_rounds() {
    let quanta = QuantaKib { high: 1, medium: 1, low: 1 };
    let queues: Vec<_> = (0..MAX_QUEUES).map(|queue| (queue, HwqClass::Low)).collect();
    let mut arbiter = backlogged(Arbitration::DeficitRoundRobin { quanta }, &queues);
    let mut served = [0u64; MAX_QUEUES as usize];
    for _ in 0..1_000 {
        served[usize::from(arbiter.pick(|_| u64::from(u32::MAX) * KIB).unwrap())] += 1;
    }
    let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
    assert!(most - least <= 1, "{served:?}");
    // Also where sizes leave the range of any sum.
    (0..1_000).for_each(|_| assert!(arbiter.pick(|_| u64::MAX).is_some()));
}

#[test]
fn queues_that_do_not_exist_have_no_commands() {
    let mut arbiter = Arbiter::new(RR, 2);
    arbiter.set_backlogged(2, true);
    assert!(!arbiter.any_backlogged());
    assert!(!arbiter.set_class(2, HwqClass::High));
    assert_eq!(arbiter.pick(|_| 0), None);
    assert_eq!(Arbiter::new(RR, u16::MAX).queues(), MAX_QUEUES);
}
