//! The drive serves backlogged queues in the ratios that its arbitration promises.

use std::collections::VecDeque;

use arbitration::{Arbitration, QuantaKib};
use io_model::{QueuePriority, WrrWeights};
use ssd_model::{Drive, Kind, Profile, Request, UnknownQueue};

const KIB: u64 = 1024;
const WRR: Arbitration =
    Arbitration::WeightedRoundRobin { burst: 1, weights: WrrWeights { high: 32, medium: 16, low: 8 } };
const DRR: Arbitration = Arbitration::DeficitRoundRobin { quanta: QuantaKib { high: 128, medium: 64, low: 32 } };
const RR: Arbitration = Arbitration::RoundRobin { burst: 1 };

/// A queue's class and the sizes of its commands, which come in turn.
type Job = (QueuePriority, &'static [u64]);

/// Bytes that each always backlogged job read, in commands that a drive with few places inside fetched.
fn served(arbitration: Arbitration, jobs: &[Job], commands: u32) -> Vec<u64> {
    let profile = Profile { arbitration, window: 8, ..Profile::p5800x() };
    let mut drive = Drive::new(profile, jobs.len() as u16);
    let mut sent = vec![0usize; jobs.len()];
    let mut lengths: Vec<VecDeque<u64>> = vec![VecDeque::new(); jobs.len()];
    let mut random = fastrand::Rng::with_seed(9);
    let mut send = |drive: &mut Drive, lengths: &mut Vec<VecDeque<u64>>, now: u64, hwq: usize| {
        let len_bytes = jobs[hwq].1[sent[hwq] % jobs[hwq].1.len()] * KIB;
        sent[hwq] += 1;
        let offset_bytes = random.u64(..1 << 34) * 16 * KIB;
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
    use QueuePriority::{High, Low, Medium};
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
        let bytes = served(arbitration, &[(QueuePriority::Urgent, &[4]), (QueuePriority::High, &[4])], 10_000);
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
    assert_eq!(drive.set_class(1, QueuePriority::Low), Ok(()));
    assert_eq!(drive.set_class(2, QueuePriority::Low), Err(UnknownQueue));
}
