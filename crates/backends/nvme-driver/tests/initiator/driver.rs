//! The driver against a controller in memory.

use std::time::Duration;

use fake_device::{BLOCK_BYTES, Fake};
use io_model::{QueuePriority, WrrWeights};
use nvme_driver::{
    Arbitration, Blocks, Completion, Controller, Data, DmaMemory, Error, MAX_TRANSFER_BYTES, PciDevice, QueuePair,
    Status, SubmitError, priority_of_this_thread,
};
use nvme_spec::data::DsmRange;
use nvme_spec::feature::{ArbitrationValue, fid};
use nvme_spec::log::{SmartLog, lid};
use nvme_spec::opcode::nvm;
use nvme_spec::regs::Cc;
use nvme_spec::vendor::{FID_QUANTA, Quanta};

type FakeController = Controller<fake_device::FakeDevice>;

fn start(fake: &Fake) -> FakeController {
    Controller::start(fake.device()).expect("the fake starts")
}

fn blocks(lba: u64, count: u32) -> Blocks {
    Blocks { nsid: 1, lba, count }
}

fn data(memory: &DmaMemory, offset: u64, len_bytes: u64) -> Data {
    Data { iova: memory.iova() + offset, len_bytes }
}

/// Rings and collects what completes.
fn reap(queue: &mut QueuePair) -> Vec<Completion> {
    queue.ring().expect("the doorbell works");
    let mut done = Vec::new();
    queue.poll(&mut |completion| done.push(completion)).expect("the queue works");
    done
}

fn one_status(queue: &mut QueuePair) -> Status {
    let done = reap(queue);
    assert_eq!(done.len(), 1);
    done[0].status
}

#[test]
fn brings_the_controller_up_and_shuts_it_down() {
    let fake = Fake::new(2048);
    let mut controller = start(&fake);
    let ns = controller.first_namespace().unwrap();
    assert_eq!((ns.nsid, ns.block_bytes, ns.blocks), (1, 512, 2048));
    assert_eq!(controller.max_transfer_bytes(), 1 << 20);
    assert_eq!(controller.queues_left(), 8);
    let smart: Box<SmartLog> = controller.admin().log_page(lid::SMART).unwrap();
    assert_eq!(smart.media_errors, [0, 0]);
    controller.check().unwrap();
    drop(controller);
    // A second user finds the controller enabled and shut down, and resets it first.
    start(&fake).check().unwrap();
}

#[test]
fn whatever_the_largest_transfer_is_said_to_be_data_can_be_moved() {
    for mdts in 0..=u8::MAX {
        let fake = Fake::new(64);
        fake.state().mdts = mdts;
        let most = start(&fake).max_transfer_bytes();
        let expected = if (1..9).contains(&mdts) { 4096 << mdts } else { MAX_TRANSFER_BYTES };
        assert_eq!(most, expected, "MDTS {mdts}");
    }
}

#[test]
fn both_queues_wrap_with_every_depth() {
    let fake = Fake::new(64);
    for entries in [2, 3, 8, 33] {
        let mut controller = start(&fake);
        let mut queue = controller.create_queue_pair(entries, None).unwrap();
        let depth = usize::from(queue.depth());
        for round in 0..2 * usize::from(entries) + 1 {
            let batch = 1 + round % depth;
            for _ in 0..batch {
                queue.flush(1).unwrap();
            }
            assert_eq!(usize::from(queue.in_flight()), batch);
            let done = reap(&mut queue);
            assert_eq!(done.len(), batch);
            assert!(done.iter().all(|done| done.status.is_success()));
        }
        for _ in 0..depth {
            queue.flush(1).unwrap();
        }
        assert_eq!(queue.flush(1), Err(SubmitError::Full));
        assert_eq!(reap(&mut queue).len(), depth);
        controller.delete_queue_pair(queue).unwrap();
    }
}

#[test]
fn one_batch_rings_each_doorbell_once() {
    let fake = Fake::new(64);
    let mut controller = start(&fake);
    let mut queue = controller.create_queue_pair(64, None).unwrap();
    let before = fake.state().doorbell_writes;
    for _ in 0..32 {
        queue.flush(1).unwrap();
    }
    reap(&mut queue);
    queue.ring().unwrap();
    queue.poll(&mut |_| {}).unwrap();
    assert_eq!(fake.state().doorbell_writes - before, 2);
}

#[test]
fn data_goes_through_prps_of_every_shape() {
    let fake = Fake::new(8192);
    // 2 MiB, all that one page of PRP entries describes.
    fake.state().mdts = 9;
    let mut controller = start(&fake);
    let mut queue = controller.create_queue_pair(8, None).unwrap();
    let memory = controller.allocate_dma(4 << 20).unwrap();
    for (offset, len) in [
        (0, 512),
        (0, 4096),
        (512, 4096),
        (0, 8192),
        (2048, 8192),
        (512, 12288),
        (0, 1 << 20),
        (4092, 1 << 20),
        (3584, 2 << 20),
    ] {
        let pattern: Vec<u8> = (0..len).map(|at: u64| (at * 31 + at / 251) as u8).collect();
        memory.write(offset, &pattern).unwrap();
        let range = blocks(7, (len / BLOCK_BYTES) as u32);
        queue.write(range, data(&memory, offset, len), false).unwrap();
        assert!(one_status(&mut queue).is_success());
        let start = (7 * BLOCK_BYTES) as usize;
        assert_eq!(fake.state().disk[start..start + pattern.len()], pattern, "offset {offset}, {len} bytes");

        memory.write(offset, &vec![0; pattern.len()]).unwrap();
        queue.read(range, data(&memory, offset, len)).unwrap();
        assert!(one_status(&mut queue).is_success());
        let mut back = vec![0; pattern.len()];
        memory.read(offset, &mut back).unwrap();
        assert!(back == pattern, "offset {offset}, {len} bytes");
    }
}

#[test]
fn refuses_what_one_command_cannot_carry() {
    let fake = Fake::new(64);
    let mut controller = start(&fake);
    let mut queue = controller.create_queue_pair(8, None).unwrap();
    let memory = controller.allocate_dma(4096).unwrap();
    let bad = Err(SubmitError::BadLength);
    assert_eq!(queue.read(blocks(0, 1), data(&memory, 0, 0)), bad);
    assert_eq!(queue.read(blocks(0, 1), data(&memory, 0, (2 << 20) + 1)), bad);
    assert_eq!(queue.read(blocks(0, 0), data(&memory, 0, 512)), bad);
    assert_eq!(queue.write_zeroes(blocks(0, 65537), false), bad);
    assert_eq!(queue.deallocate(1, &[]), bad);
    assert_eq!(queue.deallocate(1, &[DsmRange::default(); 257]), bad);
    assert_eq!(queue.in_flight(), 0, "nothing was sent");
}

#[test]
fn commands_without_data_do_what_they_say() {
    let fake = Fake::new(64);
    fake.state().disk.fill(0xee);
    let mut controller = start(&fake);
    let mut queue = controller.create_queue_pair(8, None).unwrap();
    queue.write_zeroes(blocks(2, 2), true).unwrap();
    queue.deallocate(1, &[DsmRange { cattr: 0, nlb: 1, slba: 5 }, DsmRange { cattr: 0, nlb: 3, slba: 10 }]).unwrap();
    assert!(reap(&mut queue).iter().all(|done| done.status.is_success()));
    let zeroed = |state: &fake_device::State| -> Vec<u64> {
        let block = |lba: u64| &state.disk[(lba * BLOCK_BYTES) as usize..((lba + 1) * BLOCK_BYTES) as usize];
        (0..64).filter(|&lba| block(lba).iter().all(|&byte| byte == 0)).collect()
    };
    assert_eq!(zeroed(&fake.state()), [2, 3, 5, 10, 11, 12]);
    let log: Vec<u8> = fake.state().log.iter().map(|sqe| sqe.opc).collect();
    assert_eq!(log, [nvm::WRITE_ZEROES, nvm::DATASET_MANAGEMENT]);
}

#[test]
fn statuses_come_back_as_the_device_sent_them() {
    let fake = Fake::new(64);
    let mut controller = start(&fake);
    let mut queue = controller.create_queue_pair(8, None).unwrap();
    let memory = controller.allocate_dma(4096).unwrap();
    queue.read(blocks(64, 1), data(&memory, 0, 512)).unwrap();
    assert_eq!(one_status(&mut queue), Status::LBA_OUT_OF_RANGE.dnr());
    fake.state().failures.push_back(Status::UNRECOVERED_READ);
    queue.read(blocks(0, 1), data(&memory, 0, 512)).unwrap();
    assert_eq!(one_status(&mut queue), Status::UNRECOVERED_READ);
    memory.write(0, &[1; 512]).unwrap();
    queue.compare(blocks(0, 1), data(&memory, 0, 512)).unwrap();
    assert_eq!(one_status(&mut queue), Status::COMPARE_FAILURE);
    let error = controller.admin().identify_namespace(9).unwrap_err();
    assert!(matches!(error, Error::Command { status, .. } if status.code() == Status::INVALID_NAMESPACE));
}

#[test]
fn a_queue_without_room_or_number_is_refused() {
    let fake = Fake::new(64);
    let mut controller = start(&fake);
    assert!(matches!(controller.create_queue_pair(1, None), Err(Error::Invalid(_))));
    assert!(matches!(controller.create_queue_pair(1025, None), Err(Error::Invalid(_))));
    let queues: Vec<_> = (0..8).map(|_| controller.create_queue_pair(4, None).unwrap()).collect();
    assert!(matches!(controller.create_queue_pair(4, None), Err(Error::Invalid(_))));
    let ids: Vec<u16> = queues.iter().map(QueuePair::id).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_controller_that_never_gets_ready_is_an_error() {
    let fake = Fake::new(64);
    fake.state().never_ready = true;
    let error = Controller::start(fake.device()).err().unwrap();
    assert!(matches!(error, Error::NoAnswer { what: "CSTS.RDY = 1", .. }), "{error}");
}

#[test]
fn a_controller_that_vanishes_is_an_error() {
    let fake = Fake::new(64);
    let mut controller = start(&fake);
    fake.state().gone = true;
    assert!(matches!(controller.check(), Err(Error::Gone { .. })));
    // Its admin queues lie in our memory, and there nothing changes any more.
    assert!(matches!(controller.admin().identify_controller(), Err(Error::Gone { .. })));
}

#[test]
fn a_controller_that_somebody_reset_answers_no_command() {
    let fake = Fake::new(64);
    let mut controller = start(&fake);
    fake.device().reset().unwrap();
    assert!(matches!(controller.admin().identify_controller(), Err(Error::NotReady)));
}

#[test]
fn a_completion_for_nothing_is_an_error_not_a_panic() {
    let fake = Fake::new(64);
    let mut controller = start(&fake);
    let mut queue = controller.create_queue_pair(4, None).unwrap();
    for cid in [0, 3, u16::MAX] {
        fake.forge_completion(queue.id(), cid);
        assert!(matches!(queue.poll(&mut |_| {}), Err(Error::Protocol(_))), "cid {cid}");
    }
}

#[test]
fn mapped_doorbells_send_no_message() {
    let fake = Fake::new(64).with_mapped_doorbells();
    let mut controller = start(&fake);
    assert!(!controller.has_shadow_doorbells());
    let mut queue = controller.create_queue_pair(4, None).unwrap();
    let before = fake.state().doorbell_writes;
    for _ in 0..10 {
        queue.flush(1).unwrap();
        queue.ring().unwrap();
        fake.scan_doorbells();
        assert_eq!(reap(&mut queue).len(), 1);
    }
    assert_eq!(fake.state().doorbell_writes, before);
}

#[test]
fn shadow_doorbells_wake_only_a_sleeping_device() {
    let fake = Fake::new(64).with_shadow_doorbells();
    let mut controller = start(&fake);
    assert!(controller.has_shadow_doorbells());
    let mut queue = controller.create_queue_pair(4, None).unwrap();
    let mut writes = fake.state().doorbell_writes;
    let mut writes_since = || {
        let now = fake.state().doorbell_writes;
        now - std::mem::replace(&mut writes, now)
    };
    // Asleep: each first command of a batch is a register write; completions are not, after the first
    // (whose event index 0 the fake never moves).
    for round in 0..10 {
        queue.flush(1).unwrap();
        queue.flush(1).unwrap();
        queue.ring().unwrap();
        assert_eq!(writes_since(), 1, "round {round}");
        assert_eq!(reap(&mut queue).len(), 2);
        writes_since();
    }
    // Awake: the device scans doorbells, and its event index stays behind.
    fake.state().awake = true;
    for round in 0..3 {
        queue.flush(1).unwrap();
        queue.ring().unwrap();
        let rung = writes_since();
        assert!(round == 0 || rung == 0, "round {round}");
        fake.scan_doorbells();
        assert_eq!(reap(&mut queue).len(), 1);
        writes_since();
    }
}

#[test]
fn weighted_round_robin_is_asked_for_where_it_is_offered() {
    for (fake, expected) in [(Fake::new(64), Cc::AMS_ROUND_ROBIN), (Fake::new(64).with_arbitration(), Cc::AMS_WEIGHTED)]
    {
        let controller = start(&fake);
        assert_eq!(fake.state().ams(), expected);
        assert_eq!(controller.has_priorities(), expected == Cc::AMS_WEIGHTED);
        drop(controller);
        // The shutdown changes nothing else in CC.
        assert_eq!(fake.state().ams(), expected);
    }
    let plain = Fake::new(64);
    for missing in [Arbitration::Weighted(None), Arbitration::Deficit(None)] {
        let refused = Controller::start_with(plain.device(), Some(missing));
        assert!(matches!(refused.err(), Some(Error::Unsuitable(_))));
    }
    let fake = Fake::new(64).with_arbitration();
    let controller = Controller::start_with(fake.device(), Some(Arbitration::RoundRobin)).unwrap();
    assert_eq!((fake.state().ams(), controller.has_priorities()), (Cc::AMS_ROUND_ROBIN, false));
}

#[test]
fn queues_get_the_priority_asked_for_or_that_of_their_thread() {
    let fake = Fake::new(64).with_arbitration();
    let mut controller = start(&fake);
    let priorities = [QueuePriority::Urgent, QueuePriority::High, QueuePriority::Medium, QueuePriority::Low];
    let mut queues: Vec<QueuePair> =
        priorities.map(|priority| controller.create_queue_pair_with(8, None, priority).unwrap()).into();
    queues.push(controller.create_queue_pair(8, None).unwrap());
    let own = match priority_of_this_thread() {
        QueuePriority::High => 1,
        QueuePriority::Low => 3,
        _ => 2,
    };
    assert_eq!(fake.state().qprios.values().copied().collect::<Vec<_>>(), [0, 1, 2, 3, own]);
}

#[test]
fn weights_are_set_at_the_start_and_later() {
    let fake = Fake::new(64).with_arbitration();
    fake.state().features.insert(fid::ARBITRATION, 0x0101_0105);
    let weights = |high| WrrWeights { high, medium: 16, low: 8 };
    let mut controller = Controller::start_with(fake.device(), Some(Arbitration::Weighted(Some(weights(32))))).unwrap();
    assert_eq!(controller.admin().feature(fid::ARBITRATION).unwrap(), 0x1f0f_0705, "the burst is kept");
    assert!(matches!(controller.set_weights(weights(0)), Err(Error::Invalid(_))));
    controller.set_weights(weights(256)).unwrap();
    assert_eq!(controller.arbitration_feature().unwrap(), ArbitrationValue { ab: 5, hpw: 255, mpw: 15, lpw: 7 });
    drop(controller);
    let quanta = Quanta { high_kib: 1024, medium_kib: 2, low_kib: 1 };
    let mut controller = Controller::start_with(fake.device(), Some(Arbitration::Deficit(Some(quanta)))).unwrap();
    assert_eq!(fake.state().ams(), Cc::AMS_VENDOR);
    assert_eq!(fake.state().features[&FID_QUANTA], 1023 << 20 | 1 << 10);
    for bad in [Quanta { low_kib: 0, ..quanta }, Quanta { high_kib: 1025, ..quanta }] {
        assert!(matches!(controller.set_quanta(bad), Err(Error::Invalid(_))));
    }
}

#[test]
fn an_admin_command_that_is_given_up_keeps_its_page_until_it_ends() {
    let fake = Fake::new(64);
    let mut controller = Controller::start(fake.device()).unwrap();
    let limit = Duration::from_millis(1);
    fake.state().holds_admin = true;
    for _ in 0..2 {
        let error = controller.admin().within(limit).identify_controller().unwrap_err();
        assert!(matches!(error, Error::NoAnswer { .. }), "{error}");
    }
    let pages: Vec<u64> = fake.state().held.iter().map(|(_, sqe)| sqe.dptr[0]).collect();
    assert_ne!(pages[0], pages[1]);

    fake.state().holds_admin = false;
    fake.execute_held();
    let is_mapped = |iova| fake.state().reaches(iova);
    assert!(pages.iter().all(|&page| is_mapped(page)));
    assert_eq!(controller.admin().identify_controller().unwrap().sn[..4], *b"FAKE");
    assert!(!pages.iter().any(|&page| is_mapped(page)), "late answers give their pages back");
}
