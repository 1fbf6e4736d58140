//! Arbitration among a tenant's submission queues: what the guest asks for, and in which order it is served.

use std::collections::HashMap;

use bytemuck::Zeroable;
use io_model::{Fetch, QueuePriority, Source};
use nvme_controller::ControllerConfig;
use nvme_spec::data::DsmRange;
use nvme_spec::feature::{ArbitrationValue, SAVE, capability, fid, sel};
use nvme_spec::identify::{IdentifyController, cns};
use nvme_spec::opcode::create::{QPRIO_HIGH, QPRIO_LOW, QPRIO_MEDIUM, QPRIO_URGENT};
use nvme_spec::opcode::{admin, dsm, nvm};
use nvme_spec::regs::{Cap, Cc, Reg};
use nvme_spec::vendor::{FID_QUANTA, Quanta, SIGNATURE};
use nvme_spec::{Cqe, Sqe, Status};
use test_clients::rings::Sq;

use crate::host::{Host, RAM_BYTES, RAM_IOVA, config, flush, rw};

/// The VQ that all I/O queues are.
const TOGETHER: u16 = 1;
const DEFAULT: ArbitrationValue = ArbitrationValue { ab: 0, lpw: 7, mpw: 15, hpw: 31 };

/// A controller under `ams`, with a queue pair of 1024 entries for each priority, from identifier 1 on.
fn host(ams: u8, priorities: &[u8]) -> Host {
    let mut host = Host::new(config());
    bring_up(&mut host, ams, priorities);
    host
}

fn bring_up(host: &mut Host, ams: u8, priorities: &[u8]) {
    host.enable_with(32, Cc::enable_nvm().with_ams(ams));
    for (qid, qprio) in (1..).zip(priorities) {
        host.create_pair_with(qid, 1024, *qprio);
    }
}

/// One admin command, while I/O commands stay where they are.
fn execute(host: &mut Host, sqe: Sqe) -> Cqe {
    host.submit(0, sqe);
    assert_eq!(host.controller.service(), 1);
    host.next_completion(0).expect("a completion")
}

fn set(host: &mut Host, feature: u8, value: u32) -> Status {
    let sqe = Sqe { opc: admin::SET_FEATURES, cdw10: feature.into(), cdw11: value, ..Sqe::zeroed() };
    execute(host, sqe).status().code()
}

fn get(host: &mut Host, feature: u8, select: u8) -> u32 {
    let cdw10 = u32::from(feature) | u32::from(select) << 8;
    let cqe = execute(host, Sqe { opc: admin::GET_FEATURES, cdw10, ..Sqe::zeroed() });
    assert_eq!(cqe.status(), Status::SUCCESS);
    cqe.dw0
}

fn fill(host: &mut Host, qid: u16, commands: usize, sqe: Sqe) {
    (0..commands).for_each(|_| {
        host.push(qid, sqe);
    });
    host.ring(qid);
}

/// Fetches `commands` commands, with a look at the backlog before each, as a poller whose drive is full.
fn order(host: &mut Host, commands: usize) -> Vec<u16> {
    (0..commands)
        .map(|_| {
            assert!(host.controller.backlog(TOGETHER) > 0, "a backlog is there");
            let Fetch::Command(command, buf, token) = host.controller.fetch(TOGETHER) else {
                panic!("something is there to be fetched");
            };
            let qid = token.vq();
            host.in_flight.push((token, command, buf));
            host.finish_all();
            qid
        })
        .collect()
}

/// How often each queue occurs.
fn shares(order: &[u16], queues: u16) -> Vec<usize> {
    (1..=queues).map(|qid| order.iter().filter(|other| **other == qid).count()).collect()
}

#[test]
fn mechanisms_that_are_offered_come_up_and_others_are_fatal() {
    let mut host = Host::new(config());
    let cap = Cap(host.reg64(Reg::Cap));
    assert_eq!(cap.0 >> 17 & 3, 3, "CAP.AMS");
    for ams in 0..8 {
        host.enable_with(32, Cc::enable_nvm().with_ams(ams));
        let good = [Cc::AMS_ROUND_ROBIN, Cc::AMS_WEIGHTED, Cc::AMS_VENDOR].contains(&ams);
        assert_eq!((host.csts().rdy(), host.csts().cfs()), (good, !good), "CC.AMS = {ams}");
        assert_eq!(cap.offers_ams(ams), good);
        // It can't be changed while the controller is enabled.
        host.set32(Reg::Cc, Cc::enable_nvm().with_ams(ams ^ 1).0);
        assert_eq!(Cc(host.reg32(Reg::Cc)).ams(), ams);
        host.set32(Reg::Cc, 0);
    }
}

#[test]
fn both_features_are_set_read_and_reset() {
    let mut host = host(Cc::AMS_WEIGHTED, &[]);
    let quanta = Quanta { high_kib: 128, medium_kib: 64, low_kib: 32 }.to_dword().expect("in range");
    for (feature, default, other) in
        [(fid::ARBITRATION, DEFAULT.to_dword(), 0x01_02_03_07), (FID_QUANTA, quanta, 0x3fff_ffff)]
    {
        assert_eq!(get(&mut host, feature, sel::CURRENT), default);
        assert_eq!(set(&mut host, feature, other), Status::SUCCESS);
        assert_eq!(get(&mut host, feature, sel::CURRENT), other);
        assert_eq!(get(&mut host, feature, sel::DEFAULT), default);
        assert_eq!(get(&mut host, feature, sel::SAVED), default);
        assert_eq!(get(&mut host, feature, sel::SUPPORTED), capability::CHANGEABLE);
        let saved = Sqe { opc: admin::SET_FEATURES, cdw10: SAVE | u32::from(feature), cdw11: 1, ..Sqe::zeroed() };
        assert_eq!(execute(&mut host, saved).status().code(), Status::FEATURE_NOT_SAVEABLE);
        let of_namespace = Sqe { cdw10: feature.into(), nsid: 1, ..saved };
        assert_eq!(execute(&mut host, of_namespace).status().code(), Status::FEATURE_NOT_NAMESPACE);
        assert_eq!(get(&mut host, feature, sel::CURRENT), other);
    }
    // Reserved bits: the standard's are dropped, ours are refused.
    assert_eq!(set(&mut host, fid::ARBITRATION, 0xffff_ffff), Status::SUCCESS);
    assert_eq!(get(&mut host, fid::ARBITRATION, sel::CURRENT), 0xffff_ff07);
    for value in [1 << 30, 1 << 31, u32::MAX] {
        assert_eq!(set(&mut host, FID_QUANTA, value), Status::INVALID_FIELD, "{value:#x}");
    }
    assert_eq!(get(&mut host, FID_QUANTA, sel::CURRENT), 0x3fff_ffff);
    host.set32(Reg::Cc, 0);
    bring_up(&mut host, Cc::AMS_WEIGHTED, &[]);
    assert_eq!(get(&mut host, fid::ARBITRATION, sel::CURRENT), DEFAULT.to_dword());
    assert_eq!(get(&mut host, FID_QUANTA, sel::CURRENT), quanta);
}

#[test]
fn identify_recommends_a_burst_and_names_what_is_ours() {
    let mut host = Host::ready();
    let data = host.alloc(4096);
    let sqe = Sqe { opc: admin::IDENTIFY, dptr: [data, 0], cdw10: cns::CONTROLLER.into(), ..Sqe::zeroed() };
    assert_eq!(host.admin(sqe).status(), Status::SUCCESS);
    let identity: IdentifyController = bytemuck::pod_read_unaligned(&host.read(data, 4096));
    assert_eq!(identity.rab, DEFAULT.ab);
    assert_eq!(&identity.vendor[..SIGNATURE.len()], SIGNATURE);
}

#[test]
fn urgent_comes_first_and_the_other_classes_share_by_weight() {
    let priorities = [QPRIO_LOW, QPRIO_URGENT, QPRIO_HIGH, QPRIO_MEDIUM];
    let mut host = host(Cc::AMS_WEIGHTED, &priorities);
    assert_eq!(host.controller.live_vqs(), 0b11, "the admin queue, and all others as one");
    for qid in 1..=4 {
        fill(&mut host, qid, 600, flush());
    }
    assert_eq!(host.controller.backlog(TOGETHER), 2400);
    assert_eq!(order(&mut host, 600), [2; 600]);
    for round in 0..10 {
        assert_eq!(shares(&order(&mut host, 56), 4), [8, 0, 32, 16], "round {round}");
    }
    assert_eq!(host.controller.backlog(TOGETHER), 1800 - 560);
    // Every command completed to its own queue.
    for (qid, expected) in [(1, 80), (2, 600), (3, 320), (4, 160)] {
        let completions = host.completions(qid);
        assert_eq!(completions.len(), expected);
        assert!(completions.iter().all(|cqe: &Cqe| cqe.sqid == qid && cqe.status().is_success()));
    }
    // VQs that are part of another one yield nothing by themselves.
    assert_eq!(host.controller.backlog(3), 0);
    assert!(matches!(host.controller.fetch(3), Fetch::Empty));
}

#[test]
fn a_turn_is_the_burst_and_new_weights_count_at_once() {
    let mut host = host(Cc::AMS_WEIGHTED, &[QPRIO_HIGH, QPRIO_HIGH, QPRIO_LOW]);
    for qid in 1..=3 {
        fill(&mut host, qid, 1000, flush());
    }
    let value = |ab, hpw, lpw| ArbitrationValue { ab, hpw, mpw: 0, lpw }.to_dword();
    assert_eq!(set(&mut host, fid::ARBITRATION, value(1, 5, 2)), Status::SUCCESS);
    assert_eq!(order(&mut host, 18), [1, 1, 2, 2, 1, 1, 3, 3, 3, 2, 2, 1, 1, 2, 2, 3, 3, 3]);
    // One command in a turn, and the longest turns.
    assert_eq!(set(&mut host, fid::ARBITRATION, value(0, 3, 0)), Status::SUCCESS);
    let alternating = order(&mut host, 10);
    assert_eq!(shares(&alternating, 3), [4, 4, 2], "{alternating:?}");
    assert!(alternating.windows(2).all(|pair| pair[0] != pair[1]), "{alternating:?}");
    // Without a limit a turn ends with the class's.
    assert_eq!(set(&mut host, fid::ARBITRATION, value(ArbitrationValue::NO_LIMIT, 99, 9)), Status::SUCCESS);
    let long = order(&mut host, 110);
    let changes = long.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!((changes, shares(&long, 3)[2]), (1, 10), "{long:?}");
}

#[test]
fn bytes_are_shared_whatever_the_sizes_of_commands() {
    let mut host = host(Cc::AMS_VENDOR, &[QPRIO_MEDIUM, QPRIO_MEDIUM, QPRIO_LOW, QPRIO_URGENT]);
    let data = host.alloc(64 << 10);
    let read = |host: &mut Host, bytes: u64| host.rw(nvm::READ, 0, (bytes / 512) as u32, data, bytes);
    let (large, small) = (read(&mut host, 64 << 10), read(&mut host, 4 << 10));
    let fill_all = |host: &mut Host| {
        fill(host, 1, 100, large);
        fill(host, 2, 1000, small);
        fill(host, 3, 1000, small);
    };
    fill_all(&mut host);
    fill(&mut host, 4, 5, flush());
    assert_eq!(order(&mut host, 5), [4; 5], "urgent first");
    // Medium 64 KiB, low 32 KiB a round.
    let counts = shares(&order(&mut host, 25 * 40), 3);
    assert_eq!(counts, [40, 640, 320], "64 KiB, 64 KiB and 32 KiB a round");
    assert_eq!(
        set(&mut host, FID_QUANTA, Quanta { high_kib: 1, medium_kib: 16, low_kib: 64 }.to_dword().expect("in range")),
        Status::SUCCESS
    );
    let counts = shares(&order(&mut host, 4 * (1 + 16 + 64)), 3);
    assert_eq!(counts, [4, 64, 256], "a command above the quantum waits for its turns");
}

#[test]
fn what_moves_no_data_is_cheap_but_not_free() {
    let mut host = host(Cc::AMS_VENDOR, &[QPRIO_MEDIUM, QPRIO_MEDIUM, QPRIO_MEDIUM]);
    let data = host.alloc(4096);
    let read = host.rw(nvm::READ, 0, 8, data, 4096);
    fill(&mut host, 1, 1000, rw(nvm::WRITE_ZEROES, 0, 4096));
    fill(&mut host, 2, 1000, read);
    fill(&mut host, 3, 1000, flush());
    assert_eq!(shares(&order(&mut host, 2 * (128 + 16 + 128)), 3), [256, 32, 256]);
}

#[test]
fn commands_that_are_refused_use_their_queue_s_turns() {
    let mut host = host(Cc::AMS_WEIGHTED, &[QPRIO_HIGH, QPRIO_LOW]);
    fill(&mut host, 1, 1000, rw(nvm::READ, u64::MAX, 1));
    fill(&mut host, 2, 1000, flush());
    let mut fetched = HashMap::new();
    for _ in 0..400 {
        host.controller.backlog(TOGETHER);
        match host.controller.fetch(TOGETHER) {
            Fetch::Command(command, buf, token) => {
                *fetched.entry(token.vq()).or_insert(0) += 1;
                host.in_flight.push((token, command, buf));
            }
            Fetch::Handled => *fetched.entry(1).or_insert(0) += 1,
            Fetch::Empty => panic!("both queues are full of commands"),
        }
    }
    host.finish_all();
    assert_eq!(fetched, HashMap::from([(1, 320), (2, 80)]));
    assert_eq!(host.completions(1).len(), 320);
}

#[test]
fn round_robin_ignores_priorities_and_weights() {
    let mut host = host(Cc::AMS_ROUND_ROBIN, &[QPRIO_LOW, QPRIO_URGENT]);
    assert_eq!(set(&mut host, fid::ARBITRATION, 0), Status::SUCCESS);
    assert_eq!(host.controller.live_vqs(), 0b111);
    for qid in 1..=2 {
        fill(&mut host, qid, 10, flush());
        assert_eq!(host.controller.backlog(qid), 10);
        assert_eq!(host.controller.priority(qid), QueuePriority::Medium);
    }
    host.run();
    assert_eq!((host.completions(1).len(), host.completions(2).len()), (10, 10));
}

#[test]
fn queues_may_be_shown_singly_with_their_priorities() {
    let priorities = [QPRIO_LOW, QPRIO_URGENT, QPRIO_HIGH, QPRIO_MEDIUM];
    for ams in [Cc::AMS_ROUND_ROBIN, Cc::AMS_WEIGHTED, Cc::AMS_VENDOR] {
        let mut host = Host::new(ControllerConfig { queues_singly: true, ..config() });
        bring_up(&mut host, ams, &priorities);
        assert_eq!(host.controller.live_vqs(), 0b11111);
        let seen: Vec<QueuePriority> = (0..6).map(|vq| host.controller.priority(vq)).collect();
        use QueuePriority::{High, Low, Medium, Urgent};
        let weighted = [Medium, Low, Urgent, High, Medium, Medium];
        assert_eq!(seen, if ams == Cc::AMS_ROUND_ROBIN { [Medium; 6] } else { weighted });
        fill(&mut host, 3, 10, flush());
        assert_eq!((host.controller.backlog(3), host.controller.backlog(1)), (10, 0));
        host.run();
        assert_eq!(host.completions(3).len(), 10);
    }
}

#[test]
fn a_full_completion_queue_holds_its_own_queues_back_and_no_others() {
    let mut host = host(Cc::AMS_WEIGHTED, &[QPRIO_LOW]);
    host.create_pair_with(2, 8, QPRIO_URGENT);
    for _ in 0..5 {
        host.push(2, flush());
    }
    host.ring(2);
    assert_eq!(order(&mut host, 5), [2; 5]);
    fill(&mut host, 1, 100, flush());
    for _ in 0..5 {
        host.push(2, flush());
    }
    host.ring(2);
    // 5 of the 7 entries are unread.
    assert_eq!(order(&mut host, 10), [2, 2, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(host.completions(2).len(), 7);
    assert_eq!(order(&mut host, 5), [2, 2, 2, 1, 1]);
}

#[test]
fn halted_queues_are_passed_over_and_come_back() {
    let mut host = host(Cc::AMS_WEIGHTED, &[QPRIO_URGENT, QPRIO_LOW]);
    fill(&mut host, 1, 4, flush());
    fill(&mut host, 2, 4, flush());
    assert_eq!(host.controller.backlog(TOGETHER), 8);
    // After the look, before the fetch.
    host.controller.dma_unmap(RAM_IOVA, RAM_BYTES).expect("mapped");
    assert!(matches!(host.controller.fetch(TOGETHER), Fetch::Empty));
    assert_eq!(host.controller.backlog(TOGETHER), 0);
    host.map_ram();
    assert_eq!(order(&mut host, 8), [1, 1, 1, 1, 2, 2, 2, 2]);
}

#[test]
fn queues_come_and_go_between_the_others_commands() {
    let mut host = host(Cc::AMS_WEIGHTED, &[QPRIO_LOW, QPRIO_LOW]);
    fill(&mut host, 1, 50, flush());
    fill(&mut host, 2, 50, flush());
    order(&mut host, 3);
    // A new one, on the second one's completion queue, is served by its class. The admin queue takes no part.
    let create = host.create_sq_sqe(3, 64, 2);
    let create = Sqe { cdw11: create.cdw11 | u32::from(QPRIO_URGENT) << 1, ..create };
    assert_eq!(execute(&mut host, create).status(), Status::SUCCESS);
    assert_eq!(host.controller.live_vqs(), 0b11);
    host.sqs.insert(3, Sq::new(create.dptr[0], 64, 2));
    fill(&mut host, 3, 5, flush());
    assert_eq!(order(&mut host, 5), [3; 5]);
    // A deleted one is not served, even if it had commands at the last look.
    host.controller.backlog(TOGETHER);
    let delete = |qid: u32| Sqe { opc: admin::DELETE_SQ, cdw10: qid, ..Sqe::zeroed() };
    assert_eq!(execute(&mut host, delete(1)).status(), Status::SUCCESS);
    assert_eq!(order(&mut host, 20), [2; 20]);
    for qid in [2, 3] {
        assert_eq!(execute(&mut host, delete(qid)).status(), Status::SUCCESS);
    }
    assert_eq!(host.controller.live_vqs(), 1, "no I/O queue, no VQ");
    assert!(matches!(host.controller.fetch(TOGETHER), Fetch::Empty));
    assert_eq!(host.controller.backlog(TOGETHER), 0);
}

/// Puts a Dataset Management command of `count` ranges into a queue.
fn deallocate(host: &mut Host, qid: u16, count: u32) {
    let data = host.alloc(4096);
    let ranges: Vec<DsmRange> = (0..count).map(|n| DsmRange { cattr: 0, nlb: 8, slba: u64::from(n) * 8 }).collect();
    host.write(data, bytemuck::cast_slice(&ranges));
    let sqe = Sqe { opc: nvm::DATASET_MANAGEMENT, nsid: 1, cdw10: count - 1, cdw11: dsm::AD, ..Sqe::zeroed() };
    host.submit(qid, Sqe { dptr: [data, 0], ..sqe });
}

#[test]
fn ranges_stay_with_their_queue_and_take_its_turns() {
    let mut host = host(Cc::AMS_WEIGHTED, &[QPRIO_LOW, QPRIO_HIGH]);
    deallocate(&mut host, 1, 100);
    fill(&mut host, 2, 200, flush());
    let fetched = order(&mut host, 80);
    assert_eq!(shares(&fetched, 2), [16, 64]);
    assert_eq!(host.completions(1).len(), 0);
    host.run();
    assert_eq!((host.completions(1).len(), host.completions(2).len()), (1, 200));
    // Deleted between two ranges: the rest is dropped, the others go on.
    deallocate(&mut host, 1, 100);
    fill(&mut host, 2, 200, flush());
    order(&mut host, 40);
    let deleted = execute(&mut host, Sqe { opc: admin::DELETE_SQ, cdw10: 1, ..Sqe::zeroed() });
    assert_eq!(deleted.status(), Status::SUCCESS);
    assert_eq!(host.completions(1)[0].status().code(), Status::ABORTED_SQ_DELETION);
    assert_eq!(order(&mut host, 20), [2; 20]);
}

#[test]
fn a_reset_starts_anew_and_may_choose_another_mechanism() {
    let mut host = host(Cc::AMS_WEIGHTED, &[QPRIO_LOW, QPRIO_HIGH]);
    fill(&mut host, 1, 10, flush());
    fill(&mut host, 2, 10, flush());
    host.controller.backlog(TOGETHER);
    let Fetch::Command(command, buf, token) = host.controller.fetch(TOGETHER) else { panic!("commands wait") };
    host.in_flight.push((token, command, buf));
    host.set32(Reg::Cc, 0);
    assert_eq!(host.controller.live_vqs(), 0);
    assert!(matches!(host.controller.fetch(TOGETHER), Fetch::Empty));
    // Enabled again while a command of before is in flight: it comes up once that has ended.
    host.set32(Reg::Cc, Cc::enable_nvm().with_ams(Cc::AMS_VENDOR).0);
    assert_eq!(host.controller.live_vqs(), 0);
    host.finish_all();
    assert!(host.csts().rdy());
    assert_eq!(host.controller.live_vqs(), 1);
    host.set32(Reg::Cc, 0);
    bring_up(&mut host, Cc::AMS_ROUND_ROBIN, &[QPRIO_LOW, QPRIO_HIGH]);
    assert_eq!(host.controller.live_vqs(), 0b111);
    host.set32(Reg::Cc, 0);
    bring_up(&mut host, Cc::AMS_WEIGHTED, &[QPRIO_LOW, QPRIO_HIGH]);
    // Nothing is fetched after a shutdown.
    fill(&mut host, 1, 10, flush());
    host.controller.backlog(TOGETHER);
    host.set32(Reg::Cc, Cc::enable_nvm().with_ams(Cc::AMS_WEIGHTED).with_shn(Cc::SHN_NORMAL).0);
    assert_eq!(host.controller.live_vqs(), 0);
    assert!(matches!(host.controller.fetch(TOGETHER), Fetch::Empty));
}

#[test]
fn a_restored_controller_keeps_mechanism_priorities_and_weights() {
    for (ams, expected) in [(Cc::AMS_WEIGHTED, [0, 3, 2, 1]), (Cc::AMS_VENDOR, [0, 16, 32, 64])] {
        let mut host = host(ams, &[QPRIO_URGENT, QPRIO_HIGH, QPRIO_MEDIUM, QPRIO_LOW]);
        let weights = ArbitrationValue { ab: 0, hpw: 2, mpw: 1, lpw: 0 }.to_dword();
        assert_eq!(set(&mut host, fid::ARBITRATION, weights), Status::SUCCESS);
        // A flush counts 512 bytes.
        let quanta = Quanta { high_kib: 8, medium_kib: 16, low_kib: 32 }.to_dword().expect("in range");
        assert_eq!(set(&mut host, FID_QUANTA, quanta), Status::SUCCESS);
        host.take_over(config()).expect("a state that was just recorded");
        assert_eq!(host.controller.live_vqs(), 0b11);
        (1..=4).for_each(|qid| fill(&mut host, qid, 500, flush()));
        assert_eq!(order(&mut host, 500), [1; 500]);
        let round: usize = expected.iter().sum();
        assert_eq!(shares(&order(&mut host, 4 * round), 4), expected.map(|count| 4 * count));
        assert_eq!(get(&mut host, fid::ARBITRATION, sel::CURRENT), weights);
        assert_eq!(get(&mut host, FID_QUANTA, sel::CURRENT), quanta);
    }
}
