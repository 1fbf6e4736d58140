//! A controller that several pollers serve: where its queues are, and what must wait for all of them.

use bytemuck::Zeroable;
use io_model::{Op, Source};
use nvme_controller::{ControllerConfig, Part};
use nvme_spec::feature::fid;
use nvme_spec::log::{AsyncEvent, SmartLog, lid};
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::regs::{Cc, Csts, Reg};
use nvme_spec::{Sqe, Status};

use crate::host::{Host, RAM_BYTES, RAM_IOVA, config, flush, rw};

/// A host with a queue pair for each of three parts, and a fourth one with the first part.
fn host() -> Host {
    let mut host = Host::new(ControllerConfig { part: Part { index: 0, of: 3 }, ..config() });
    host.enable(32);
    (1..=4).for_each(|qid| host.create_pair(qid, 16));
    host
}

fn delete(opc: u8, qid: u16) -> Sqe {
    Sqe { opc, cdw10: qid.into(), ..Sqe::zeroed() }
}

fn event_request() -> Sqe {
    Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::zeroed() }
}

impl Host {
    /// A read in flight of each of these queues.
    fn begin(&mut self, qids: &[u16]) {
        let page = self.alloc(4096);
        qids.iter().for_each(|qid| _ = self.submit(*qid, Sqe { dptr: [page, 0], ..rw(nvm::READ, 0, 8) }));
        self.fetch_all();
        assert_eq!(self.in_flight.len(), qids.len());
    }

    fn smart(&mut self) -> SmartLog {
        let data = self.alloc(512);
        let cdw10 = u32::from(lid::SMART) | 127 << 16;
        let log = Sqe { opc: admin::GET_LOG_PAGE, cdw10, dptr: [data, 0], ..Sqe::zeroed() };
        assert_eq!(self.admin(log).status(), Status::SUCCESS);
        bytemuck::pod_read_unaligned(&self.read(data, 512))
    }
}

#[test]
fn a_submission_queue_is_with_its_completion_queue() {
    let mut host = host();
    // Its own number would be the second part's, its completion queue is the third one's.
    host.create_sq(5, 16, 3);
    host.controller.set_msix_armed(true);
    let live: Vec<u128> = (0..3).map(|part| host.controller.at(part).live_vqs()).collect();
    assert_eq!(live, [1 | 1 << 1 | 1 << 4, 1 << 2, 1 << 3 | 1 << 5]);
    host.controller.notify();
    host.vectors.take();
    for qid in 1..=5 {
        assert_eq!(host.command(qid, flush()).status(), Status::SUCCESS);
    }
    let mut raised = host.vectors.take();
    raised.sort_unstable();
    raised.dedup();
    assert_eq!(raised, [1, 2, 3, 4]);
}

#[test]
fn queues_elsewhere_are_refused_as_those_here() {
    let mut host = host();
    let (cq, sq) = (host.create_cq_sqe(2, 16, 2), host.create_sq_sqe(2, 16, 2));
    let nowhere = |sqe: Sqe, qid: u32| Sqe { dptr: [0x4000_0000_0000, 0], cdw10: sqe.cdw10 & !0xffff | qid, ..sqe };
    let count = Sqe { opc: admin::SET_FEATURES, cdw10: fid::NUMBER_OF_QUEUES.into(), ..Sqe::zeroed() };
    for (name, sqe, expected) in [
        ("CQ that exists", cq, Status::INVALID_QUEUE_ID),
        ("SQ that exists", sq, Status::INVALID_QUEUE_ID),
        ("CQ nowhere", nowhere(cq, 5), Status::DATA_TRANSFER_ERROR),
        ("SQ nowhere", nowhere(sq, 5), Status::DATA_TRANSFER_ERROR),
        (
            "SQ on no CQ",
            Sqe { cdw10: sq.cdw10 & !0xffff | 5, cdw11: 1 | 5 << 16, ..sq },
            Status::COMPLETION_QUEUE_INVALID,
        ),
        ("delete CQ in use", delete(admin::DELETE_CQ, 2), Status::INVALID_QUEUE_DELETION),
        ("delete no CQ", delete(admin::DELETE_CQ, 5), Status::INVALID_QUEUE_ID),
        ("delete no SQ", delete(admin::DELETE_SQ, 5), Status::INVALID_QUEUE_ID),
        ("number of queues", count, Status::COMMAND_SEQUENCE_ERROR),
        ("abort of no queue", Sqe { opc: admin::ABORT, cdw10: 5, ..Sqe::zeroed() }, Status::INVALID_FIELD),
        ("Format", Sqe { opc: admin::FORMAT_NVM, nsid: 1, ..Sqe::zeroed() }, Status::INVALID_OPCODE),
        ("Sanitize", Sqe { opc: admin::SANITIZE, cdw10: 3, ..Sqe::zeroed() }, Status::INVALID_OPCODE),
    ] {
        assert_eq!(host.admin(sqe).status().code(), expected, "{name}");
    }
    for opc in [admin::DELETE_SQ, admin::DELETE_CQ] {
        assert_eq!(host.admin(delete(opc, 2)).status(), Status::SUCCESS);
        assert_eq!(host.admin(delete(opc, 2)).status().code(), Status::INVALID_QUEUE_ID);
    }
    // Rings at 0 again, whatever was rung there before.
    host.create_pair(2, 16);
    assert_eq!(host.command(2, flush()).status(), Status::SUCCESS);
}

#[test]
fn a_deletion_waits_for_what_is_in_flight_elsewhere_and_holds_up_nobody() {
    let mut host = host();
    host.begin(&[2]);
    let deletion = host.submit(0, delete(admin::DELETE_SQ, 2));
    host.fetch_all();
    let alive = host.submit(0, Sqe { opc: admin::KEEP_ALIVE, ..Sqe::zeroed() });
    host.fetch_all();
    assert_eq!(host.completions(0).iter().map(|cqe| cqe.cid).collect::<Vec<_>>(), [alive]);
    let again = host.submit(0, delete(admin::DELETE_SQ, 2));
    host.fetch_all();
    assert_eq!(host.completions(0)[0].cid, again, "it is refused: it goes already");
    host.run();
    assert_eq!(host.completions(0).iter().map(|cqe| cqe.cid).collect::<Vec<_>>(), [deletion]);
    assert_eq!(host.completions(2).len(), 1);
}

#[test]
fn a_command_elsewhere_is_not_aborted() {
    let mut host = host();
    host.begin(&[3]);
    let cqe = host.admin(Sqe { opc: admin::ABORT, cdw10: 3 | 1 << 16, ..Sqe::zeroed() });
    assert_eq!((cqe.status(), cqe.dw0), (Status::SUCCESS, 1));
    host.run();
    assert_eq!(host.completions(3).len(), 1);
}

#[test]
fn a_reset_waits_for_all_parts() {
    let mut host = host();
    host.begin(&[1, 2, 3]);
    host.set32(Reg::Cc, 0);
    // Enabled at once: that waits too.
    let (sq, cq) = host.prepare_admin(32);
    host.set64(Reg::Asq, sq);
    host.set64(Reg::Acq, cq);
    host.set32(Reg::Cc, Cc::enable_nvm().0);
    for left in (0..3).rev() {
        assert!(!host.controller.is_idle());
        assert_eq!(host.controller.at(0).live_vqs(), 0);
        host.finish_one();
        host.wire();
        assert_eq!(host.in_flight.len(), left);
    }
    assert!(host.csts().rdy() && host.controller.is_idle());
    (1..=4).for_each(|qid| host.create_pair(qid, 16));
    for qid in 1..=4 {
        assert_eq!(host.command(qid, flush()).status(), Status::SUCCESS);
        assert_eq!(host.completions(qid), [], "what was in flight before completes to nobody");
    }
}

#[test]
fn a_queue_that_was_asked_for_before_a_reset_is_not_made_after_it() {
    let mut host = host();
    let sqe = host.create_cq_sqe(5, 16, 5);
    host.submit(0, sqe);
    assert_eq!(host.controller.at(0).service(), 1);
    // No message was carried: the other part hears of the reset first.
    host.controller.at(1).bar_write(0, Reg::Cc.offset(), &0u32.to_le_bytes());
    host.controller.carry_all();
    host.controller.at(2).bar_write(0, Reg::Cc.offset(), &0u32.to_le_bytes());
    host.controller.at(0).bar_write(0, Reg::Cc.offset(), &0u32.to_le_bytes());
    host.controller.carry_all();
    assert!(!host.csts().rdy());
    host.enable(32);
    host.create_pair(5, 16);
    assert_eq!(host.command(5, flush()).status(), Status::SUCCESS);
}

#[test]
fn a_shutdown_waits_for_a_flush_of_each_part_that_wrote() {
    let mut host = host();
    let page = host.alloc(4096);
    for qid in [2, 3] {
        let write = Sqe { dptr: [page, 0], ..rw(nvm::WRITE, 0, 8) };
        assert_eq!(host.command(qid, write).status(), Status::SUCCESS);
    }
    host.seen.clear();
    host.set32(Reg::Cc, Cc::enable_nvm().with_shn(Cc::SHN_NORMAL).0);
    host.wire();
    assert_eq!(host.csts().shst(), Csts::SHST_BUSY);
    host.fetch_all();
    host.finish_one();
    host.wire();
    assert_eq!(host.csts().shst(), Csts::SHST_BUSY);
    host.run();
    assert_eq!(host.csts().shst(), Csts::SHST_DONE);
    assert_eq!(host.seen.iter().map(|command| command.op).collect::<Vec<_>>(), [Op::Flush, Op::Flush]);
}

#[test]
fn a_client_that_goes_leaves_nothing_anywhere() {
    let mut host = host();
    host.begin(&[1, 2, 3]);
    host.controller.client_gone();
    assert!(!host.controller.is_idle());
    assert_eq!(host.controller.take_unmapped(&mut ()), None);
    host.run();
    assert!(host.controller.is_idle());
    assert_eq!(host.controller.take_unmapped(&mut ()), Some((RAM_IOVA, RAM_BYTES)));
    host.map_ram();
    host.enable(32);
    host.create_pair(2, 16);
    assert_eq!(host.command(2, flush()).status(), Status::SUCCESS);
}

#[test]
fn memory_is_let_go_of_when_no_part_uses_it() {
    let mut host = host();
    host.begin(&[1, 3]);
    host.controller.dma_unmap(RAM_IOVA, RAM_BYTES).unwrap();
    for _ in 0..2 {
        assert_eq!(host.controller.take_unmapped(&mut ()), None);
        host.finish_one();
    }
    assert_eq!(host.controller.take_unmapped(&mut ()), Some((RAM_IOVA, RAM_BYTES)));
    // Queues of all parts go on where they were.
    host.map_ram();
    for qid in [1, 3] {
        assert_eq!(host.completions(qid).len(), 1);
        assert_eq!(host.command(qid, flush()).status(), Status::SUCCESS);
    }
}

#[test]
fn an_impossible_doorbell_elsewhere_is_reported_and_floods_nobody() {
    let mut host = host();
    let request = host.submit(0, event_request());
    host.fetch_all();
    for value in 100..200 {
        host.store_bell(2, false, value);
        assert_eq!(host.controller.at(1).backlog(2), 0);
    }
    assert!(host.controller.at(1).take_message().is_some());
    assert!(host.controller.at(1).take_message().is_none(), "one is on its way");
    // Nobody says that it was heard, since it was not carried. Another part's is.
    host.store_bell(3, false, 100);
    host.controller.at(2).backlog(3);
    host.controller.carry_all();
    let cqe = host.completions(0)[0];
    assert_eq!((cqe.cid, cqe.dw0), (request, AsyncEvent::INVALID_DOORBELL_VALUE.dw0()));
}

#[test]
fn a_doorbell_of_a_queue_elsewhere_is_one() {
    let mut host = host();
    host.submit(0, event_request());
    host.fetch_all();
    host.controller.bar_write(0, 0x1000 + 8 * 2, &0u32.to_le_bytes());
    host.run();
    assert_eq!(host.completions(0), []);
    host.controller.bar_write(0, 0x1000 + 8 * 60, &0u32.to_le_bytes());
    host.run();
    assert_eq!(host.completions(0)[0].dw0, AsyncEvent::INVALID_DOORBELL_REGISTER.dw0());
}

#[test]
fn log_pages_tell_what_all_parts_counted() {
    let mut host = host();
    let page = host.alloc(4096);
    for qid in 1..=4 {
        assert_eq!(host.command(qid, Sqe { dptr: [page, 0], ..rw(nvm::READ, 0, 8) }).status(), Status::SUCCESS);
        assert_eq!(host.command(qid, rw(nvm::READ, u64::MAX / 2, 8)).status().code(), Status::LBA_OUT_OF_RANGE);
    }
    for _ in 0..2 {
        let smart = host.smart();
        assert_eq!((smart.host_reads[0], smart.error_entries[0], smart.power_cycles[0]), (4, 4, 1));
    }
}

#[test]
fn the_write_cache_is_off_in_all_parts() {
    let mut host = host();
    let page = host.alloc(4096);
    let off = Sqe { opc: admin::SET_FEATURES, cdw10: fid::VOLATILE_WRITE_CACHE.into(), ..Sqe::zeroed() };
    assert_eq!(host.admin(off).status(), Status::SUCCESS);
    for qid in 1..=4 {
        host.command(qid, Sqe { dptr: [page, 0], ..rw(nvm::WRITE, 0, 8) });
        assert!(host.seen.last().is_some_and(|command| command.fua), "queue {qid}");
    }
}

#[test]
fn doorbells_move_in_all_parts() {
    let mut host = host();
    let pages = [host.alloc(4096), host.alloc(4096)];
    let moved = Sqe { opc: admin::DOORBELL_BUFFER_CONFIG, dptr: pages, ..Sqe::zeroed() };
    assert_eq!(host.admin(moved).status(), Status::SUCCESS);
    host.shadow = Some(pages[0]);
    for qid in 1..=4 {
        assert_eq!(host.command(qid, flush()).status(), Status::SUCCESS);
    }
}

#[test]
fn masked_vectors_are_pending_where_they_were_raised() {
    let mut host = host();
    host.controller.set_msix_armed(true);
    host.vectors.take();
    host.controller.set_vector_masked(2, true);
    assert_eq!(host.command(2, flush()).status(), Status::SUCCESS);
    assert!(!host.vectors.take().contains(&2));
    host.controller.set_vector_masked(2, false);
    assert_eq!(host.vectors.take(), [2]);
}

#[test]
fn only_round_robin_is_offered() {
    let mut host = Host::new(ControllerConfig { part: Part { index: 0, of: 2 }, ..config() });
    host.enable_with(32, Cc::enable_nvm().with_ams(Cc::AMS_WEIGHTED));
    assert!(host.csts().cfs() && !host.csts().rdy());
}
