//! What the admin queue may cost its poller: counted, not timed.

use allocation_counter::measure;
use bytemuck::Zeroable;
use io_model::Source;
use nvme_spec::identify::cns;
use nvme_spec::log::lid;
use nvme_spec::opcode::admin;
use nvme_spec::regs::{Cc, Csts, Reg};
use nvme_spec::{Sqe, Status};

use crate::host::{Host, RAM_BYTES, RAM_IOVA};

const ANSWER_BYTES: u64 = 1 << 20;
/// What a look may touch.
const LOOK_BYTES: usize = 16 << 10;
const UNTOUCHED: u8 = 0xee;

/// Get Log Page of the error log, with this many bytes, into memory without answers. Returns the command and the place.
fn long_log(host: &mut Host, len_bytes: u64) -> (Sqe, u64) {
    let data = host.alloc(len_bytes);
    host.write(data, &vec![UNTOUCHED; len_bytes as usize]);
    let dwords = (len_bytes / 4 - 1) as u32;
    let (cdw10, cdw11) = (u32::from(lid::ERROR) | dwords << 16, dwords >> 16);
    (Sqe { opc: admin::GET_LOG_PAGE, cdw10, cdw11, dptr: host.prps(data, len_bytes), ..Sqe::zeroed() }, data)
}

fn touched(host: &Host, at: u64) -> usize {
    host.read(at, ANSWER_BYTES as usize).iter().filter(|byte| **byte != UNTOUCHED).count()
}

#[test]
fn a_flood_of_long_answers_costs_each_look_the_same() {
    let mut host = Host::ready();
    let logs: Vec<(Sqe, u64)> = (0..3).map(|_| long_log(&mut host, ANSWER_BYTES)).collect();
    logs.iter().for_each(|(sqe, _)| {
        host.submit(0, *sqe);
    });
    let (mut before, mut looks) = (0, 0);
    while host.controller.service() > 0 {
        looks += 1;
        let now = logs.iter().map(|(_, at)| touched(&host, *at)).sum();
        assert!(now - before <= LOOK_BYTES, "{} bytes in one look", now - before);
        before = now;
    }
    assert_eq!(looks, 3 * ANSWER_BYTES as usize / LOOK_BYTES);
    let done = host.completions(0);
    assert!(done.len() == 3 && done.iter().all(|cqe| cqe.status().is_success()), "{done:?}");
    for (_, at) in logs {
        assert!(host.read(at, ANSWER_BYTES as usize).iter().all(|byte| *byte == 0), "a log without errors, and zeros");
    }
}

#[test]
fn short_commands_take_a_look_each() {
    let mut host = Host::ready();
    for _ in 0..5 {
        host.submit(0, Sqe { opc: admin::KEEP_ALIVE, ..Sqe::zeroed() });
    }
    for done in 1..=5 {
        assert_eq!(host.controller.service(), 1);
        assert_eq!(host.completions(0).len(), 1, "command {done}");
    }
    assert_eq!(host.controller.service(), 0);
}

#[test]
fn a_large_queue_is_worked_off_before_the_next_command() {
    let mut host = Host::ready();
    let cq = host.create_cq_sqe(2, 1024, 2);
    assert_eq!(host.admin(cq).status(), Status::SUCCESS);
    let sq = host.create_sq_sqe(2, 1024, 2);
    host.submit(0, sq);
    host.submit(0, Sqe { opc: admin::KEEP_ALIVE, ..Sqe::zeroed() });
    assert_eq!(host.controller.service(), 1);
    assert_eq!(host.completions(0).len(), 1);
    // Its table is larger than what a look may touch.
    assert_eq!((host.controller.service(), host.completions(0).len()), (1, 0));
    let more = (0..8).find(|_| host.controller.service() == 1 && host.completions(0).len() == 1);
    assert!(more.is_some(), "the debt is never paid");
}

#[test]
fn answers_are_not_made_in_memory_of_our_own() {
    let mut host = Host::ready();
    let (log, _) = long_log(&mut host, ANSWER_BYTES);
    let data = host.alloc(4096);
    let identify = Sqe { opc: admin::IDENTIFY, cdw10: cns::CONTROLLER.into(), dptr: [data, 0], ..Sqe::zeroed() };
    for sqe in [log, identify] {
        host.submit(0, sqe);
        let used = measure(|| while host.controller.service() > 0 {});
        assert!(used.bytes_total < 1024, "{used:?}");
        assert!(host.next_completion(0).is_some_and(|cqe| cqe.status().is_success()));
    }
}

#[test]
fn an_answer_is_given_up_at_a_reset_and_goes_on_after_a_shutdown() {
    let mut host = Host::ready();
    let (log, at) = long_log(&mut host, ANSWER_BYTES);
    host.submit(0, log);
    assert_eq!(host.controller.service(), 1);
    host.set32(Reg::Cc, 0);
    let so_far = touched(&host, at);
    assert_eq!((host.controller.service(), touched(&host, at)), (0, so_far));

    let mut host = Host::ready();
    let (log, _) = long_log(&mut host, ANSWER_BYTES);
    host.submit(0, log);
    assert_eq!(host.controller.service(), 1);
    host.set32(Reg::Cc, Cc::enable_nvm().with_shn(Cc::SHN_NORMAL).0);
    assert_eq!(host.csts().shst(), Csts::SHST_DONE);
    host.run();
    assert_eq!(host.completions(0).len(), 1);
}

#[test]
fn memory_stays_while_an_answer_goes_there() {
    let mut host = Host::ready();
    let (log, _) = long_log(&mut host, ANSWER_BYTES);
    host.submit(0, log);
    assert_eq!(host.controller.service(), 1);
    host.controller.dma_unmap(RAM_IOVA, RAM_BYTES).expect("mapped");
    assert_eq!(host.controller.take_unmapped(&mut ()), None);
    while host.controller.service() > 0 {}
    assert_eq!(host.controller.take_unmapped(&mut ()), Some((RAM_IOVA, RAM_BYTES)));
    host.map_ram();
    assert_eq!(host.completions(0).len(), 1, "it was parked");
}
