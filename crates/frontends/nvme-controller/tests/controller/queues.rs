//! Creating, filling, wrapping and deleting queues.

use bytemuck::Zeroable;
use io_model::Source;
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::regs::{Cc, Reg};
use nvme_spec::{Sqe, Status};
use test_clients::rings::Cq;

use crate::host::{Host, config, flush, rw};

fn delete(opc: u8, qid: u16) -> Sqe {
    Sqe { opc, cdw10: qid.into(), ..Sqe::zeroed() }
}

#[test]
fn every_bad_create_gets_its_status() {
    let mut host = Host::ready();
    let cq = host.create_cq_sqe(2, 16, 2);
    let sq = host.create_sq_sqe(2, 16, 1);
    let qid = |sqe: Sqe, qid: u32| Sqe { cdw10: sqe.cdw10 & !0xffff | qid, ..sqe };
    let size = |sqe: Sqe, size: u32| Sqe { cdw10: sqe.cdw10 & 0xffff | size << 16, ..sqe };
    let dw11 = |sqe: Sqe, cdw11: u32| Sqe { cdw11, ..sqe };
    let at = |sqe: Sqe, iova: u64| Sqe { dptr: [iova, 0], ..sqe };
    let cases = [
        ("CQ 0", qid(cq, 0), Status::INVALID_QUEUE_ID),
        ("CQ 65", qid(cq, 65), Status::INVALID_QUEUE_ID),
        ("CQ that exists", qid(cq, 1), Status::INVALID_QUEUE_ID),
        ("CQ of one entry", size(cq, 0), Status::INVALID_QUEUE_SIZE),
        ("CQ too large", size(cq, 1024), Status::INVALID_QUEUE_SIZE),
        ("CQ not contiguous", dw11(cq, 2), Status::INVALID_FIELD),
        ("CQ vector 65", dw11(cq, 3 | 65 << 16), Status::INVALID_INTERRUPT_VECTOR),
        ("CQ with offset", at(cq, cq.dptr[0] + 16), Status::PRP_OFFSET_INVALID),
        ("CQ nowhere", at(cq, 0x4000_0000_0000), Status::DATA_TRANSFER_ERROR),
        ("CQ at the very end", at(cq, !4095), Status::DATA_TRANSFER_ERROR),
        ("SQ 0", qid(sq, 0), Status::INVALID_QUEUE_ID),
        ("SQ 65", qid(sq, 65), Status::INVALID_QUEUE_ID),
        ("SQ that exists", qid(sq, 1), Status::INVALID_QUEUE_ID),
        ("SQ too large", size(sq, 0xffff), Status::INVALID_QUEUE_SIZE),
        ("SQ of one entry", size(sq, 0), Status::INVALID_QUEUE_SIZE),
        ("SQ not contiguous", dw11(sq, 1 << 16), Status::INVALID_FIELD),
        ("SQ on the admin CQ", dw11(sq, 1), Status::INVALID_QUEUE_ID),
        ("SQ on CQ 65", dw11(sq, 1 | 65 << 16), Status::INVALID_QUEUE_ID),
        ("SQ on no CQ", dw11(sq, 1 | 2 << 16), Status::COMPLETION_QUEUE_INVALID),
        ("SQ with offset", at(sq, sq.dptr[0] + 64), Status::PRP_OFFSET_INVALID),
        ("SQ nowhere", at(sq, 0x4000_0000_0000), Status::DATA_TRANSFER_ERROR),
        ("delete CQ in use", delete(admin::DELETE_CQ, 1), Status::INVALID_QUEUE_DELETION),
        ("delete no CQ", delete(admin::DELETE_CQ, 9), Status::INVALID_QUEUE_ID),
        ("delete admin CQ", delete(admin::DELETE_CQ, 0), Status::INVALID_QUEUE_ID),
        ("delete no SQ", delete(admin::DELETE_SQ, 9), Status::INVALID_QUEUE_ID),
        ("delete admin SQ", delete(admin::DELETE_SQ, 0), Status::INVALID_QUEUE_ID),
        ("delete far SQ", delete(admin::DELETE_SQ, 0xffff), Status::INVALID_QUEUE_ID),
    ];
    for (name, sqe, expected) in cases {
        assert_eq!(host.admin(sqe).status().code(), expected, "{name}");
    }
    // Entry sizes are checked when queues are created.
    host.set32(Reg::Cc, Cc::EN | 5 << 16 | 5 << 20);
    assert_eq!(host.admin(cq).status().code(), Status::INVALID_QUEUE_SIZE);
    assert_eq!(host.admin(sq).status().code(), Status::INVALID_QUEUE_SIZE);
    host.set32(Reg::Cc, Cc::enable_nvm().0);
    assert_eq!(host.admin(cq).status(), Status::SUCCESS);
    assert_eq!(host.admin(sq).status(), Status::SUCCESS);
}

#[test]
fn rings_wrap_many_times() {
    let mut host = Host::ready();
    for n in 0..1000 {
        let burst = 1 + n % 7;
        for _ in 0..burst {
            host.submit(1, flush());
        }
        host.run();
        let completions = host.completions(1);
        assert_eq!(completions.len(), burst, "burst {n}");
        let head = host.sqs[&1].tail;
        assert_eq!(completions.last().map(|cqe| cqe.sqhd), Some(head));
    }
}

#[test]
fn nothing_is_fetched_without_a_completion_entry() {
    let mut host = Host::ready();
    let cq = host.create_cq_sqe(2, 4, 2);
    host.admin(cq);
    host.cqs.insert(2, Cq::new(cq.dptr[0], 4));
    host.create_sq(2, 16, 2);
    for _ in 0..10 {
        host.submit(2, flush());
    }
    host.run();
    // Three completions fill a queue of four; the host has read none.
    assert_eq!(host.seen.len(), 3);
    assert_eq!(host.controller.backlog(2), 0);
    for done in 1..=7 {
        assert!(host.next_completion(2).is_some());
        assert_eq!(host.controller.backlog(2), 8 - done);
        host.run();
        assert_eq!(host.seen.len(), 3 + done as usize);
    }
    assert_eq!(host.completions(2).len(), 3);
}

#[test]
fn queues_share_a_completion_queue_and_its_interrupt() {
    let mut host = Host::ready();
    host.create_sq(2, 16, 1);
    host.create_sq(3, 16, 1);
    host.vectors.take();
    for qid in [1, 2, 3] {
        host.submit(qid, flush());
    }
    host.fetch_all();
    host.finish_all();
    let mut queues: Vec<_> = host.completions(1).iter().map(|cqe| cqe.sqid).collect();
    queues.sort_unstable();
    assert_eq!(queues, [1, 2, 3]);
    assert_eq!(host.vectors.take().len(), 1);
    assert_eq!(host.admin(delete(admin::DELETE_SQ, 1)).status(), Status::SUCCESS);
    assert_eq!(host.admin(delete(admin::DELETE_CQ, 1)).status().code(), Status::INVALID_QUEUE_DELETION);
}

#[test]
fn a_deletion_waits_for_what_is_in_flight() {
    let mut host = Host::ready();
    for _ in 0..3 {
        host.submit(1, flush());
    }
    host.fetch_all();
    host.submit(1, flush());
    host.submit(0, delete(admin::DELETE_SQ, 1));
    host.fetch_all();
    assert_eq!(host.controller.live_vqs(), 1);
    assert_eq!(host.in_flight.len(), 3, "nothing more is fetched");
    host.finish_one();
    assert_eq!(host.peek_completion(0), None);
    assert_eq!(host.admin_twice_deleted(), Status::INVALID_QUEUE_ID);
    host.finish_all();
    assert_eq!(host.completions(1).len(), 3);
    assert!(host.next_completion(0).is_some_and(|cqe| cqe.status().is_success()));
    assert_eq!(host.admin(delete(admin::DELETE_CQ, 1)).status(), Status::SUCCESS);
    host.cqs.remove(&1);
    host.create_pair(1, 32);
    assert_eq!(host.io(flush()).status(), Status::SUCCESS);
}

impl Host {
    /// Deletes queue 1 once more; what is in flight stays so.
    fn admin_twice_deleted(&mut self) -> Status {
        self.submit(0, delete(admin::DELETE_SQ, 1));
        self.fetch_all();
        self.next_completion(0).expect("refused at once").status().code()
    }
}

#[test]
fn a_deletion_ends_a_deallocation_that_was_handed_out_in_part() {
    let mut host = Host::ready();
    let data = host.alloc(4096);
    host.write(data, &[0; 4096]);
    for at in 0..4u64 {
        host.write(data + at * 16 + 4, &1u32.to_le_bytes());
    }
    let sqe = Sqe { dptr: [data, 0], cdw10: 3, cdw11: 4, ..rw(nvm::DATASET_MANAGEMENT, 0, 1) };
    host.submit(1, sqe);
    let first = host.controller.fetch(1);
    let io_model::Fetch::Command(command, buf, token) = first else { panic!("{first:?}") };
    host.in_flight.push((token, command, buf));
    host.submit(0, delete(admin::DELETE_SQ, 1));
    host.fetch_all();
    assert_eq!(host.peek_completion(0), None);
    host.finish_all();
    assert_eq!(host.next_completion(1).map(|cqe| cqe.status()), Some(Status::ABORTED_SQ_DELETION));
    assert!(host.next_completion(0).is_some());
}

#[test]
fn sixty_four_queues_of_1024_are_filled_and_drained() {
    let mut host = Host::new(config());
    host.enable(64);
    for qid in 1..=64 {
        host.create_pair(qid, 1024);
    }
    for round in 0..3 {
        for qid in 1..=64 {
            for _ in 0..1023 {
                host.push(qid, flush());
            }
            host.ring(qid);
            assert_eq!(host.controller.backlog(qid), 1023, "queue {qid}, round {round}");
        }
        host.fetch_all();
        assert_eq!(host.in_flight.len(), 64 * 1023);
        for (token, _, buf) in std::mem::take(&mut host.in_flight) {
            host.controller.complete(token, Ok(()), buf);
        }
        for qid in 1..=64 {
            assert_eq!(host.completions(qid).len(), 1023, "queue {qid}, round {round}");
        }
    }
    assert!(host.controller.is_idle());
}
