//! The rules, queue by queue.

use arbitration::{Arbiter, Arbitration, MAX_QUEUES, QuantaKib};
use io_model::{QueuePriority, WrrWeights};

const KIB: u64 = 1024;
const RR: Arbitration = Arbitration::RoundRobin { burst: 1 };

/// Picks `count` times from queues that stay backlogged with commands of these sizes; the last one is that of all
/// further queues.
fn picks(arbiter: &mut Arbiter, sizes_kib: &[u64], count: usize) -> Vec<u16> {
    let pick = |_| {
        let queue = arbiter.pick().expect("backlogged");
        let size_kib = sizes_kib.get(usize::from(queue)).or(sizes_kib.last()).expect("a size");
        arbiter.charge(queue, size_kib * KIB);
        queue
    };
    (0..count).map(pick).collect()
}

fn backlogged(arbitration: Arbitration, queues: &[(u16, QueuePriority)]) -> Arbiter {
    let mut arbiter = Arbiter::new(arbitration, MAX_QUEUES);
    for &(queue, class) in queues {
        assert!(arbiter.set_class(queue, class));
        arbiter.set_backlogged(queue, true);
    }
    arbiter
}

#[test]
fn queues_take_turns() {
    let queues = [(0, QueuePriority::Low), (5, QueuePriority::Urgent), (127, QueuePriority::Medium)];
    let mut arbiter = backlogged(RR, &queues);
    assert_eq!(picks(&mut arbiter, &[4], 6), [0, 5, 127, 0, 5, 127]);
    arbiter.set_arbitration(Arbitration::RoundRobin { burst: 2 });
    assert_eq!(picks(&mut arbiter, &[4], 6), [0, 0, 5, 5, 127, 127]);
    arbiter.set_backlogged(127, false);
    assert_eq!(picks(&mut arbiter, &[4], 4), [0, 0, 5, 5]);
    (0..=127).for_each(|queue| arbiter.set_backlogged(queue, false));
    assert_eq!(arbiter.pick(), None);
}

#[test]
fn a_class_takes_its_weight_in_bursts_and_forfeits_what_it_can_not_use() {
    let weights = WrrWeights { high: 3, medium: 2, low: 1 };
    let arbitration = Arbitration::WeightedRoundRobin { burst: 2, weights };
    let queues =
        [(0, QueuePriority::High), (1, QueuePriority::High), (2, QueuePriority::Medium), (3, QueuePriority::Low)];
    let mut arbiter = backlogged(arbitration, &queues);
    assert_eq!(picks(&mut arbiter, &[4], 6), [0, 0, 1, 2, 2, 3]);
    let order = picks(&mut arbiter, &[4], 24);
    let of = |class: &[u16]| order.iter().filter(|queue| class.contains(queue)).count();
    assert_eq!((of(&[0, 1]), of(&[2]), of(&[3])), (12, 8, 4), "{order:?}");
    assert_eq!((of(&[0]), of(&[1])), (6, 6), "a burst goes on in the class's next turn: {order:?}");
    arbiter.set_backlogged(2, false);
    let order = picks(&mut arbiter, &[4], 8);
    assert_eq!(order.iter().filter(|queue| **queue == 3).count(), 2, "{order:?}");
}

#[test]
fn a_debt_is_carried_over_and_outlives_an_empty_queue() {
    let quanta = QuantaKib { high: 8, medium: 8, low: 8 };
    let queues = [(0, QueuePriority::Medium), (1, QueuePriority::Medium)];
    let mut arbiter = backlogged(Arbitration::DeficitRoundRobin { quanta }, &queues);
    // Two commands of 12 KiB for three of 8.
    let order = picks(&mut arbiter, &[12, 8], 10);
    assert_eq!(order.iter().filter(|queue| **queue == 0).count(), 4, "{order:?}");
    let mut arbiter = backlogged(Arbitration::DeficitRoundRobin { quanta }, &queues);
    let mut order = Vec::new();
    for _ in 0..100 {
        // Queue 0 runs empty after each of its commands: it loses credit, never its debt.
        let queue = picks(&mut arbiter, &[64, 8], 1)[0];
        arbiter.set_backlogged(queue, queue == 1);
        arbiter.set_backlogged(queue, true);
        order.push(queue);
    }
    let large = order.iter().filter(|queue| **queue == 0).count();
    assert!((11..=12).contains(&large), "one of 64 KiB for eight of 8: {order:?}");
}

#[test]
fn a_new_queue_under_an_old_number_owes_nothing() {
    let quanta = QuantaKib { high: 8, medium: 8, low: 8 };
    let queues = [(0, QueuePriority::Medium), (1, QueuePriority::Medium)];
    let mut arbiter = backlogged(Arbitration::DeficitRoundRobin { quanta }, &queues);
    assert_eq!(picks(&mut arbiter, &[1 << 20, 8], 3), [0, 1, 1]);
    arbiter.set_backlogged(0, false);
    arbiter.forgive(0);
    arbiter.set_backlogged(0, true);
    assert!(picks(&mut arbiter, &[8, 8], 2).contains(&0));
}

#[test]
fn commands_far_larger_than_a_quantum_cost_no_rounds() {
    let quanta = QuantaKib { high: 1, medium: 1, low: 1 };
    let queues: Vec<_> = (0..MAX_QUEUES).map(|queue| (queue, QueuePriority::Low)).collect();
    let mut arbiter = backlogged(Arbitration::DeficitRoundRobin { quanta }, &queues);
    let mut served = vec![0_u64; queues.len()];
    for _ in 0..4 * queues.len() {
        let queue = arbiter.pick().expect("backlogged");
        arbiter.charge(queue, 1 << 40);
        served[usize::from(queue)] += 1;
    }
    assert!(served.iter().all(|&count| count == 4), "{served:?}");
    // Also where sizes leave the range of any sum.
    for _ in 0..1_000 {
        let queue = arbiter.pick().expect("backlogged");
        arbiter.charge(queue, u64::MAX);
    }
}

#[test]
fn the_next_queue_is_found_among_thousands() {
    let far = [
        (0, QueuePriority::Medium),
        (63, QueuePriority::Medium),
        (64, QueuePriority::Medium),
        (4_095, QueuePriority::Medium),
    ];
    let mut arbiter = backlogged(RR, &far);
    assert_eq!(picks(&mut arbiter, &[4], 6), [0, 63, 64, 4_095, 0, 63]);
    arbiter.set_backlogged(64, false);
    arbiter.set_backlogged(0, false);
    assert_eq!(picks(&mut arbiter, &[4], 3), [4_095, 63, 4_095]);
}

#[test]
fn queues_that_do_not_exist_have_no_commands() {
    let mut arbiter = Arbiter::new(RR, 2);
    arbiter.set_backlogged(2, true);
    assert!(!arbiter.any_backlogged());
    assert!(!arbiter.set_class(2, QueuePriority::High));
    assert_eq!(arbiter.pick(), None);
    assert_eq!(Arbiter::new(RR, u16::MAX).queues(), MAX_QUEUES);
}
