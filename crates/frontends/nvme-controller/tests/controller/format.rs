//! Format NVM.

use bytemuck::Zeroable;
use io_model::{DeviceError, Fetch, Op, Source};
use nvme_controller::{FormatRecord, FormatStep};
use nvme_spec::data::DsmRange;
use nvme_spec::feature::{async_event, fid};
use nvme_spec::identify::cns;
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::regs::{Cc, Csts, Reg};
use nvme_spec::{NSID_ALL, Sqe, Status};

use crate::bringup::identify;
use crate::host::{BASE_BYTES, Host, SIZE_BYTES, config, rw};

fn format(cdw10: u32) -> Sqe {
    Sqe { opc: admin::FORMAT_NVM, nsid: 1, cdw10, ..Sqe::zeroed() }
}

#[test]
fn every_bad_format_gets_its_status() {
    let mut host = Host::ready();
    for (name, sqe, expected) in [
        ("namespace 0", Sqe { nsid: 0, ..format(0) }, Status::INVALID_NAMESPACE),
        ("namespace 2", Sqe { nsid: 2, ..format(0) }, Status::INVALID_FIELD),
        ("namespace 33", Sqe { nsid: 33, ..format(0) }, Status::INVALID_NAMESPACE),
        ("format 2", format(2), Status::INVALID_FORMAT),
        ("format 16", format(1 << 12), Status::INVALID_FORMAT),
        ("metadata", format(1 << 4), Status::INVALID_FORMAT),
        ("protection", format(1 << 5), Status::INVALID_FORMAT),
        ("cryptographic erase", format(2 << 9), Status::INVALID_FIELD),
        ("reserved erase", format(7 << 9), Status::INVALID_FIELD),
    ] {
        assert_eq!(host.admin(sqe).status().code(), expected, "{name}");
    }
    assert!(host.seen.is_empty() && host.events.is_empty());
}

#[test]
fn a_format_zeroes_everything_and_changes_the_block_size() {
    let mut host = Host::ready();
    assert_eq!(host.admin(Sqe { nsid: NSID_ALL, ..format(1 | 1 << 9) }).status(), Status::SUCCESS);
    assert!(host.tenant().iter().all(|byte| *byte == 0));
    host.check_guards();
    let record = |step| FormatRecord { format: 1, nsid: 1, step, lba_bytes: 4096, by_key: false };
    assert_eq!(host.take_records(), [record(FormatStep::Begins), record(FormatStep::Ends)]);
    assert_eq!(host.controller.config().namespaces[0].1.lba_bytes, 4096);
    assert_eq!(identify(&mut host, cns::NAMESPACE, 1)[..8], (SIZE_BYTES / 4096).to_le_bytes());
    let data = host.alloc(4096);
    let last = Sqe { dptr: [data, 0], ..rw(nvm::WRITE, SIZE_BYTES / 4096 - 1, 1) };
    assert_eq!(host.io(last).status(), Status::SUCCESS);
    assert_eq!(host.io(Sqe { cdw10: last.cdw10 + 1, ..last }).status().code(), Status::LBA_OUT_OF_RANGE);
}

#[test]
fn a_device_without_write_zeroes_gets_zeroes_written() {
    let mut plain = config();
    plain.write_zeroes = false;
    let mut host = Host::ready_with(plain);
    assert_eq!(host.admin(format(0)).status(), Status::SUCCESS);
    assert_eq!(host.seen.len() as u64, SIZE_BYTES / (128 << 10));
    assert!(host.seen.iter().all(|command| command.op == Op::Write));
    assert!(host.tenant().iter().all(|byte| *byte == 0));
    host.check_guards();
}

#[test]
fn io_is_refused_and_admin_goes_on_while_a_format_runs() {
    let mut plain = config();
    plain.write_zeroes = false;
    let mut host = Host::ready_with(plain);
    host.submit(0, format(1));
    host.fetch_all();
    // One step in flight; the queue has nothing to give until it ends.
    assert_eq!((host.in_flight.len(), host.controller.backlog(0)), (1, 0));
    host.submit(1, rw(nvm::VERIFY, 0, 1));
    host.submit(0, format(0));
    host.submit(0, Sqe { opc: admin::KEEP_ALIVE, ..Sqe::zeroed() });
    host.fetch_all();
    let io = host.next_completion(1).expect("refused at once").status();
    assert_eq!((io, io.0 & Status::DNR), (Status::FORMAT_IN_PROGRESS, 0));
    assert_eq!(host.next_completion(0).map(|cqe| cqe.status()), Some(Status::FORMAT_IN_PROGRESS));
    assert!(host.next_completion(0).is_some_and(|cqe| cqe.status().is_success()));
    host.finish_one();
    assert_eq!(host.controller.backlog(0), 1);
    host.run();
    assert!(host.next_completion(0).is_some_and(|cqe| cqe.status().is_success()));
    assert_eq!(host.io(rw(nvm::VERIFY, 0, 1)).status(), Status::SUCCESS);
}

/// Identify Namespace's FPI.
fn progress(host: &mut Host) -> u8 {
    let fpi = identify(host, cns::NAMESPACE, 1)[32];
    assert_eq!(identify(host, cns::INDEPENDENT_NAMESPACE, 1)[3], fpi);
    fpi
}

/// Every I/O command is refused, and would be again; nothing reaches the device.
fn assert_cut_short(host: &mut Host) {
    assert_eq!(progress(host), 0x80 | 100);
    host.seen.clear();
    for opc in [nvm::READ, nvm::WRITE, nvm::VERIFY, nvm::WRITE_ZEROES] {
        assert_eq!(host.io(rw(opc, 0, 1)).status(), Status::NAMESPACE_NOT_READY.dnr(), "opcode {opc}");
    }
    assert!(host.seen.is_empty() && host.controller.config().namespaces[0].1.format_cut_short);
}

/// Another Format brings it back.
fn assert_remedied(host: &mut Host) {
    assert_eq!(host.admin(format(1)).status(), Status::SUCCESS);
    assert_eq!((progress(host), host.io(rw(nvm::VERIFY, 0, 1)).status()), (0x80, Status::SUCCESS));
    let namespace = host.controller.config().namespaces[0].1.clone();
    assert_eq!((namespace.lba_bytes, namespace.format_cut_short), (4096, false));
}

#[test]
fn a_format_that_the_device_fails_is_cut_short() {
    let mut host = Host::ready();
    host.fail = Some(DeviceError::Medium);
    assert_eq!(host.admin(format(1)).status(), Status::WRITE_FAULT);
    host.fail = None;
    assert_eq!(host.take_records().len(), 1, "it began and did not end");
    assert_eq!(identify(&mut host, cns::NAMESPACE, 1)[..8], (SIZE_BYTES / 512).to_le_bytes());
    assert_cut_short(&mut host);
    assert_remedied(&mut host);
}

#[test]
fn a_reset_cuts_a_format_short() {
    let mut host = Host::ready();
    host.submit(0, format(1));
    host.fetch_all();
    host.set32(Reg::Cc, 0);
    host.finish_all();
    assert!(!host.csts().rdy());
    host.enable(32);
    host.create_pair(1, 64);
    assert_eq!(host.take_records().len(), 1);
    assert_cut_short(&mut host);
    assert_remedied(&mut host);
}

#[test]
fn a_format_that_was_cut_short_in_an_earlier_life_is_seen() {
    let mut half = config();
    half.namespaces[0].1.format_cut_short = true;
    let mut host = Host::ready_with(half);
    assert_cut_short(&mut host);
    assert_remedied(&mut host);
}

#[test]
fn a_format_waits_for_its_records() {
    let mut host = Host::ready();
    host.records = None;
    host.submit(0, format(1));
    host.run();
    let [begins] = host.take_records()[..] else { panic!("one record") };
    assert_eq!((begins.step, host.seen.len()), (FormatStep::Begins, 0), "nothing is erased before");
    assert_eq!(host.io(rw(nvm::VERIFY, 0, 1)).status(), Status::FORMAT_IN_PROGRESS);
    assert_eq!(host.peek_completion(0), None);
    host.controller.format_recorded(begins, true);
    host.run();
    let [ends] = host.take_records()[..] else { panic!("one record") };
    assert_eq!((ends.step, host.peek_completion(0)), (FormatStep::Ends, None), "erased, and not done");
    assert!(host.tenant().iter().all(|byte| *byte == 0));
    let fpi = identify(&mut host, cns::NAMESPACE, 1)[32];
    assert_eq!((fpi, host.io(rw(nvm::VERIFY, 0, 1)).status()), (0x81, Status::FORMAT_IN_PROGRESS));
    host.controller.format_recorded(ends, true);
    assert!(host.next_completion(0).is_some_and(|cqe| cqe.status().is_success()));
    assert_eq!(host.io(rw(nvm::VERIFY, 0, 1)).status(), Status::SUCCESS);
}

#[test]
fn a_record_that_fails_fails_the_format() {
    let mut host = Host::ready();
    host.records = Some(false);
    assert_eq!(host.admin(format(1)).status(), Status::INTERNAL_ERROR);
    assert_eq!(host.seen.len(), 0, "nothing was erased");
    assert_eq!((progress(&mut host), host.io(rw(nvm::VERIFY, 0, 1)).status()), (0x80, Status::SUCCESS));
    host.take_records();

    host.records = None;
    host.submit(0, format(1));
    host.run();
    let begins = host.take_records()[0];
    host.controller.format_recorded(begins, true);
    host.run();
    let ends = host.take_records()[0];
    host.controller.format_recorded(ends, false);
    assert_eq!(host.next_completion(0).map(|cqe| cqe.status()), Some(Status::INTERNAL_ERROR));
    host.records = Some(true);
    assert_cut_short(&mut host);
    assert_remedied(&mut host);
}

#[test]
fn the_answer_to_a_format_that_went_with_a_reset_ends_no_other() {
    let mut host = Host::ready();
    host.records = None;
    host.submit(0, format(1));
    host.run();
    let first = host.take_records()[0];
    host.set32(Reg::Cc, 0);
    host.enable(32);
    host.create_pair(1, 64);
    host.submit(0, format(0));
    host.run();
    let second = host.take_records()[0];
    assert_ne!(first.format, second.format);
    host.controller.format_recorded(first, true);
    host.run();
    assert!(host.take_records().is_empty() && host.seen.is_empty(), "it goes on for its own record alone");
    host.controller.format_recorded(second, true);
    host.records = Some(true);
    host.run();
    assert!(host.next_completion(0).is_some_and(|cqe| cqe.status().is_success()));
    assert_eq!(host.controller.config().namespaces[0].1.lba_bytes, 512);
}

#[test]
fn the_host_is_told_that_its_namespace_changed_if_it_wants_to_know() {
    for wanted in [false, true] {
        let mut host = Host::ready();
        let enable = if wanted { async_event::NAMESPACE_ATTRIBUTE } else { 0 };
        let set =
            Sqe { opc: admin::SET_FEATURES, cdw10: fid::ASYNC_EVENT_CONFIG.into(), cdw11: enable, ..Sqe::zeroed() };
        assert_eq!(host.admin(set).status(), Status::SUCCESS);
        host.submit(0, Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::zeroed() });
        host.run();
        host.submit(0, format(1));
        host.run();
        let notices = host.completions(0).iter().filter(|cqe| cqe.dw0 == 0x04_00_02).count();
        assert_eq!(notices, usize::from(wanted));
        // The list names the namespace once, whether or not there was a notice.
        for expected in [1, 0] {
            let data = host.alloc(4096);
            let log = Sqe { opc: admin::GET_LOG_PAGE, cdw10: 4 | 1023 << 16, dptr: [data, 0], ..Sqe::zeroed() };
            assert_eq!(host.admin(log).status(), Status::SUCCESS);
            assert_eq!(host.read(data, 4), [expected, 0, 0, 0]);
        }
    }
}

#[test]
fn ranges_to_discard_stay_where_they_were_when_the_blocks_change() {
    let mut host = Host::ready();
    let list = host.alloc(4096);
    let range = |slba| DsmRange { cattr: 0, nlb: 8, slba };
    host.write(list, bytemuck::bytes_of(&[range(0), range(1000)]));
    let discard = Sqe { opc: nvm::DATASET_MANAGEMENT, nsid: 1, dptr: [list, 0], cdw10: 1, cdw11: 4, ..Sqe::zeroed() };
    let cid = host.submit(1, discard);
    let Fetch::Command(command, buf, token) = host.controller.fetch(1) else { panic!("the first range") };
    host.in_flight.push((token, command, buf));
    assert_eq!(host.admin(format(1)).status(), Status::SUCCESS);
    assert_eq!(host.seen.last().map(|command| command.offset_bytes), Some(BASE_BYTES + 1000 * 512));
    assert_eq!(host.next_completion(1).map(|cqe| (cqe.cid, cqe.status())), Some((cid, Status::SUCCESS)));
    assert_eq!(host.controller.config().namespaces[0].1.lba_bytes, 4096);
}

#[test]
fn a_format_stops_at_a_shutdown() {
    let mut plain = config();
    plain.write_zeroes = false;
    let mut host = Host::ready_with(plain);
    host.submit(0, format(0));
    host.records = None;
    host.run();
    let begins = host.take_records()[0];
    host.controller.format_recorded(begins, true);
    assert_eq!(host.controller.backlog(0), 1);
    host.set32(Reg::Cc, Cc::enable_nvm().with_shn(Cc::SHN_NORMAL).0);
    assert_eq!(host.csts().shst(), Csts::SHST_DONE);
    assert!(matches!(host.controller.fetch(0), Fetch::Empty), "device work after the shutdown");
}
