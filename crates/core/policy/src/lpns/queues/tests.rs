use super::*;
use crate::lpns::GUARANTEED_RUN;

/// VQs of one tenant for each class, on one HWQ, all with more commands than are ever sent.
fn queues(depth: u32, classes: &[(Class, u16)]) -> Queues {
    let mut queues = Queues::new(HwqPool::new(0, 1, depth), true);
    let mut slot = 0;
    for (tenant, (class, vqs)) in (0..).zip(classes) {
        for _ in 0..*vqs {
            queues.attach(slot, TenantId(tenant.into()), tenant, *class);
            queues.set_backlog(slot, u32::MAX);
            slot += 1;
        }
    }
    queues
}

const GUARANTEED: Class = Class::guaranteed(None);

#[test]
fn guaranteed_vqs_take_turns_at_a_full_hwq() {
    let mut queues = queues(2, &[(GUARANTEED, 5)]);
    let mut order = Vec::new();
    for _ in 0..20 {
        while let Some(tenant) = queues.front_guaranteed() {
            let Some((vq, hwq)) = queues.next_vq(tenant) else { continue };
            queues.sent(vq.0, hwq, 1);
            order.push(vq.0);
        }
        queues.completed(HwqId(0), 0, 1);
    }
    assert!(order.iter().enumerate().all(|(at, slot)| usize::from(*slot) == at % 5), "{order:?}");
}

#[test]
fn a_full_hwq_owes_best_effort_a_turn() {
    let mut queues = queues(2, &[(GUARANTEED, 2), (Class::BestEffort { weight: 1 }, 2)]);
    let send_guaranteed = |queues: &mut Queues| {
        while let Some(tenant) = queues.front_guaranteed() {
            if let Some((vq, hwq)) = queues.next_vq(tenant) {
                queues.sent(vq.0, hwq, 1);
            }
        }
        while let Some(tenant) = queues.front_best_effort() {
            assert_eq!(queues.next_vq(tenant), None, "there is no room");
        }
    };
    send_guaranteed(&mut queues);
    for _ in 2..GUARANTEED_RUN {
        queues.completed(HwqId(0), 0, 1);
        assert_eq!(queues.next_due(), None);
        send_guaranteed(&mut queues);
    }
    queues.completed(HwqId(0), 0, 1);
    assert_eq!(queues.next_due(), Some((1, VqSlot(2), HwqId(0))));
    queues.sent(2, HwqId(0), 1);
    assert_eq!(queues.next_due(), None, "its turn is over");
    queues.completed(HwqId(0), 0, 1);
    assert_eq!(queues.front_guaranteed().and_then(|tenant| queues.next_vq(tenant)).map(|next| next.1), Some(HwqId(0)));
}
