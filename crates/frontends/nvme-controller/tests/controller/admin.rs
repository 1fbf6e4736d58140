//! Identify, features, logs, events, Abort.

use std::sync::Arc;

use bytemuck::Zeroable;
use io_model::Source;
use nvme_controller::PromiseSource;
use nvme_spec::feature::{COALESCING_DISABLED, HostBehavior, SAVE, async_event, capability, fid, sel};
use nvme_spec::identify::{IdentifyController, IdentifyControllerNvm, cns, oacs, oncs, vwc};
use nvme_spec::log::{CommandsEffectsLog, ErrorEntry, FirmwareSlotLog, SmartLog, effect, get_log, lid};
use nvme_spec::namespace::{IdentifyNamespaceIndependent, nidt};
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::vendor::{LID_PROMISE, PromiseLog};
use nvme_spec::{NSID_ALL, Sqe, Status};

use crate::bringup::identify;
use crate::host::{Host, SIZE_BYTES, config, rw};

fn command(opc: u8, cdw10: u32, cdw11: u32) -> Sqe {
    Sqe { opc, cdw10, cdw11, ..Sqe::zeroed() }
}

fn log_sqe(id: u8, dwords: u32) -> Sqe {
    command(admin::GET_LOG_PAGE, u32::from(id) | (dwords - 1) << 16, (dwords - 1) >> 16)
}

impl Host {
    pub fn log(&mut self, id: u8, bytes: u32) -> Vec<u8> {
        let data = self.alloc(bytes.into());
        let sqe = Sqe { dptr: self.prps(data, bytes.into()), ..log_sqe(id, bytes / 4) };
        assert_eq!(self.admin(sqe).status(), Status::SUCCESS, "log {id:#x}");
        self.read(data, bytes as usize)
    }

    fn get_feature(&mut self, id: u8, cdw11: u32) -> u32 {
        let cqe = self.admin(Sqe { nsid: 1, ..command(admin::GET_FEATURES, id.into(), cdw11) });
        assert_eq!(cqe.status(), Status::SUCCESS, "feature {id:#x}");
        cqe.dw0
    }

    fn set_feature(&mut self, id: u8, cdw11: u32) -> Status {
        self.admin(command(admin::SET_FEATURES, id.into(), cdw11)).status()
    }
}

#[test]
fn every_bad_admin_command_gets_its_status() {
    let mut host = Host::ready();
    let page = host.alloc(4096);
    let identify = |cns: u8, nsid| Sqe { nsid, dptr: [page, 0], ..command(admin::IDENTIFY, cns.into(), 0) };
    let log = |id, dwords| Sqe { dptr: [page, 0], ..log_sqe(id, dwords) };
    let set = |id: u8, cdw11| command(admin::SET_FEATURES, id.into(), cdw11);
    let get = |id: u8, cdw11| command(admin::GET_FEATURES, id.into(), cdw11);
    let dword = |sqe: Sqe, cdw12| Sqe { cdw12, ..sqe };
    let nsid = |sqe: Sqe, nsid| Sqe { nsid, ..sqe };
    let cases = [
        ("opcode", command(0x7f, 0, 0), Status::INVALID_OPCODE),
        ("firmware download", command(0x11, 0, 0), Status::INVALID_OPCODE),
        ("fused", Sqe { flags: 1, ..identify(1, 0) }, Status::INVALID_FIELD),
        ("SGL", Sqe { flags: 0x40, ..identify(1, 0) }, Status::INVALID_FIELD),
        ("CNS", identify(0xff, 0), Status::INVALID_FIELD),
        ("namespace 0", identify(cns::NAMESPACE, 0), Status::INVALID_NAMESPACE),
        ("namespace 33", identify(cns::NAMESPACE, 33), Status::INVALID_NAMESPACE),
        ("all namespaces", identify(cns::NAMESPACE, NSID_ALL), Status::INVALID_NAMESPACE),
        ("list past the end", identify(cns::ACTIVE_NAMESPACES, 0xffff_fffe), Status::INVALID_NAMESPACE),
        ("descriptors of 2", identify(cns::NAMESPACE_DESCRIPTORS, 2), Status::INVALID_FIELD),
        ("descriptors of 33", identify(cns::NAMESPACE_DESCRIPTORS, 33), Status::INVALID_NAMESPACE),
        ("command set's namespace 33", identify(cns::IOCS_NAMESPACE, 33), Status::INVALID_NAMESPACE),
        ("independent namespace 0", identify(cns::INDEPENDENT_NAMESPACE, 0), Status::INVALID_NAMESPACE),
        ("unknown command set", Sqe { cdw11: 2 << 24, ..identify(cns::IOCS_CONTROLLER, 0) }, Status::IOCS_INVALID),
        ("identify to nowhere", Sqe { dptr: [1 << 40, 0], ..identify(1, 0) }, Status::DATA_TRANSFER_ERROR),
        ("identify to an odd place", Sqe { dptr: [page + 1, 0], ..identify(1, 0) }, Status::PRP_OFFSET_INVALID),
        ("log", log(0x7f, 1), Status::INVALID_LOG_PAGE),
        ("telemetry log", log(0x07, 128), Status::INVALID_LOG_PAGE),
        ("promise of nobody", log(LID_PROMISE, 1024), Status::INVALID_LOG_PAGE),
        ("log past MDTS", log(lid::ERROR, 1 << 28), Status::INVALID_FIELD),
        ("log offset past the end", dword(log(lid::SMART, 1), 516), Status::INVALID_FIELD),
        ("log offset odd", dword(log(lid::SMART, 1), 2), Status::INVALID_FIELD),
        ("log offset huge", Sqe { cdw13: u32::MAX, ..log(lid::SMART, 1) }, Status::INVALID_FIELD),
        ("log offset by index", Sqe { cdw14: 1 << 23, ..log(lid::SMART, 1) }, Status::INVALID_FIELD),
        ("SMART of a namespace", nsid(log(lid::SMART, 1), 1), Status::INVALID_FIELD),
        ("SMART of no namespace", nsid(log(lid::SMART, 1), 33), Status::INVALID_NAMESPACE),
        ("get feature", get(0x7f, 0), Status::INVALID_FIELD),
        ("get selector", get(7 << 5, 0), Status::INVALID_FIELD),
        ("get reserved selector", command(admin::GET_FEATURES, 1 | 4 << 8, 0), Status::INVALID_FIELD),
        ("get recovery of all", nsid(get(fid::ERROR_RECOVERY, 0), NSID_ALL), Status::INVALID_FIELD),
        ("get recovery of 2", nsid(get(fid::ERROR_RECOVERY, 0), 2), Status::INVALID_FIELD),
        ("get recovery of none", get(fid::ERROR_RECOVERY, 0), Status::INVALID_NAMESPACE),
        ("get vector 65", get(fid::INTERRUPT_VECTOR_CONFIG, 65), Status::INVALID_FIELD),
        ("get sensor 1", get(fid::TEMPERATURE_THRESHOLD, 1 << 16), Status::INVALID_FIELD),
        ("set feature", set(0x7f, 0), Status::INVALID_FIELD),
        ("save", command(admin::SET_FEATURES, 1 | SAVE, 0), Status::FEATURE_NOT_SAVEABLE),
        ("set for a namespace", nsid(set(fid::ARBITRATION, 0), 1), Status::FEATURE_NOT_NAMESPACE),
        ("set for no namespace", nsid(set(fid::ARBITRATION, 0), 33), Status::INVALID_NAMESPACE),
        ("set recovery of 2", nsid(set(fid::ERROR_RECOVERY, 0), 2), Status::INVALID_FIELD),
        ("set recovery of none", set(fid::ERROR_RECOVERY, 0), Status::INVALID_NAMESPACE),
        ("deallocated errors", nsid(set(fid::ERROR_RECOVERY, 1 << 16), 1), Status::INVALID_FIELD),
        ("power state 1", set(fid::POWER_MANAGEMENT, 1), Status::INVALID_FIELD),
        ("threshold type", set(fid::TEMPERATURE_THRESHOLD, 2 << 20), Status::INVALID_FIELD),
        ("set sensor 1", set(fid::TEMPERATURE_THRESHOLD, 1 << 16), Status::INVALID_FIELD),
        ("queues too late", set(fid::NUMBER_OF_QUEUES, 0x3_0003), Status::COMMAND_SEQUENCE_ERROR),
        ("65536 queues", set(fid::NUMBER_OF_QUEUES, 0xffff), Status::INVALID_FIELD),
        ("set vector 65", set(fid::INTERRUPT_VECTOR_CONFIG, 65), Status::INVALID_FIELD),
        ("command set combination", set(fid::IOCS_PROFILE, 1), Status::IOCS_COMBINATION_REJECTED),
        ("abort in no queue", command(admin::ABORT, 9, 0), Status::INVALID_FIELD),
        (
            "doorbell pages with offset",
            Sqe { dptr: [page + 8, page], ..command(admin::DOORBELL_BUFFER_CONFIG, 0, 0) },
            Status::INVALID_FIELD,
        ),
        (
            "doorbell pages the same",
            Sqe { dptr: [page, page], ..command(admin::DOORBELL_BUFFER_CONFIG, 0, 0) },
            Status::INVALID_FIELD,
        ),
        (
            "doorbell page nowhere",
            Sqe { dptr: [page, 1 << 40], ..command(admin::DOORBELL_BUFFER_CONFIG, 0, 0) },
            Status::DATA_TRANSFER_ERROR,
        ),
    ];
    for (name, sqe, expected) in cases {
        assert_eq!(host.admin(sqe).status().code(), expected, "{name}");
    }
    assert!(host.seen.is_empty());
}

#[test]
fn identify_tells_what_the_controller_is() {
    let mut host = Host::ready();
    let id: IdentifyController = bytemuck::pod_read_unaligned(&identify(&mut host, cns::CONTROLLER, 0));
    assert_eq!(id.oacs, oacs::FORMAT | oacs::DOORBELL_BUFFER);
    let commands = oncs::COMPARE | oncs::DATASET_MANAGEMENT | oncs::WRITE_ZEROES | oncs::SAVE_SELECT | oncs::VERIFY;
    assert_eq!((id.oncs, id.fuses, id.kas, id.aerl), (commands, 0, 0, 3));
    assert_eq!((id.sqes, id.cqes, id.vwc & vwc::PRESENT), (0x66, 0x44, 1));
    assert!(id.subnqn.starts_with(b"nqn.2026-01.io.evenkeel:test\0"));
    let nvm: IdentifyControllerNvm = bytemuck::pod_read_unaligned(&identify(&mut host, cns::IOCS_CONTROLLER, 0));
    assert_eq!((nvm.vsl, nvm.wzsl, nvm.dmrl), (id.mdts, 0, 255));

    for list in [cns::ACTIVE_NAMESPACES, cns::IOCS_ACTIVE_NAMESPACES] {
        assert_eq!(identify(&mut host, list, 0)[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(identify(&mut host, list, 1), [0; 4096]);
    }
    let independent: IdentifyNamespaceIndependent =
        bytemuck::pod_read_unaligned(&identify(&mut host, cns::INDEPENDENT_NAMESPACE, 1));
    assert_eq!(independent.nstat, 1);
    assert_eq!(identify(&mut host, cns::IOCS_NAMESPACE, 1), [0; 4096]);
    assert_eq!(identify(&mut host, cns::IO_COMMAND_SETS, 0)[0], 1);

    let descriptors = identify(&mut host, cns::NAMESPACE_DESCRIPTORS, 1);
    assert_eq!(descriptors[..4], [nidt::NGUID, 16, 0, 0]);
    assert_eq!(descriptors[20..24], [nidt::UUID, 16, 0, 0]);
    assert_eq!(descriptors[40..45], [nidt::CSI, 1, 0, 0, 0]);
    assert_eq!(identify(&mut host, cns::NAMESPACE, 1)[104..120], descriptors[4..20]);
    // Another serial number is another namespace.
    let mut other = Host::ready_with(nvme_controller::ControllerConfig { serial: "EK0002".into(), ..config() });
    assert_ne!(identify(&mut other, cns::NAMESPACE, 1)[104..120], descriptors[4..20]);
}

#[test]
fn features_keep_what_is_set_and_know_their_defaults() {
    let mut host = Host::ready();
    let granted = 63 | 63 << 16;
    for (id, default, value, kept) in [
        (fid::ARBITRATION, 0x1f0f_0700, 0x0102_0305, 0x0102_0305),
        (fid::POWER_MANAGEMENT, 0, 0, 0),
        (fid::TEMPERATURE_THRESHOLD, 343, 350, 350),
        (fid::VOLATILE_WRITE_CACHE, 1, 0, 0),
        (fid::INTERRUPT_COALESCING, 0, 0x1234, 0x1234),
        (fid::WRITE_ATOMICITY, 0, 1, 1),
        (fid::ASYNC_EVENT_CONFIG, 0, 0xffff_ffff, async_event::SMART | async_event::NAMESPACE_ATTRIBUTE),
        (fid::IOCS_PROFILE, 0, 0, 0),
        (fid::ERROR_RECOVERY, 0, 77, 77),
    ] {
        assert_eq!(host.get_feature(id, 0), default, "feature {id:#x}");
        let nsid = if id == fid::ERROR_RECOVERY { 1 } else { 0 };
        let sqe = Sqe { nsid, ..command(admin::SET_FEATURES, id.into(), value) };
        assert_eq!(host.admin(sqe).status(), Status::SUCCESS, "feature {id:#x}");
        assert_eq!(host.get_feature(id, 0), kept, "feature {id:#x}");
        for select in [sel::DEFAULT, sel::SAVED] {
            let sqe = Sqe { nsid: 1, ..command(admin::GET_FEATURES, u32::from(id) | u32::from(select) << 8, 0) };
            assert_eq!(host.admin(sqe).dw0, default, "feature {id:#x}");
        }
        let sqe = Sqe { nsid: 1, ..command(admin::GET_FEATURES, u32::from(id) | u32::from(sel::SUPPORTED) << 8, 0) };
        let namespace = if nsid == 1 { capability::NAMESPACE } else { 0 };
        assert_eq!(host.admin(sqe).dw0, capability::CHANGEABLE | namespace, "feature {id:#x}");
    }
    assert_eq!(host.get_feature(fid::NUMBER_OF_QUEUES, 0), granted);
    // Under temperature is another threshold.
    assert_eq!(host.set_feature(fid::TEMPERATURE_THRESHOLD, 270 | 1 << 20), Status::SUCCESS);
    assert_eq!(host.get_feature(fid::TEMPERATURE_THRESHOLD, 1 << 20), 270);
    assert_eq!(host.get_feature(fid::TEMPERATURE_THRESHOLD, 0), 350);
    // Vectors one by one.
    assert_eq!(host.set_feature(fid::INTERRUPT_VECTOR_CONFIG, 64 | COALESCING_DISABLED), Status::SUCCESS);
    assert_eq!(host.get_feature(fid::INTERRUPT_VECTOR_CONFIG, 64), 64 | COALESCING_DISABLED);
    assert_eq!(host.get_feature(fid::INTERRUPT_VECTOR_CONFIG, 0), 0);
    // A reset restores defaults.
    host.set32(nvme_spec::regs::Reg::Cc, 0);
    host.enable(32);
    assert_eq!(host.get_feature(fid::TEMPERATURE_THRESHOLD, 0), 343);
    assert_eq!(host.set_feature(fid::NUMBER_OF_QUEUES, 0x3_0003), Status::SUCCESS);
}

#[test]
fn host_behavior_moves_through_memory() {
    let mut host = Host::ready();
    let data = host.alloc(4096);
    let sqe = |opc| Sqe { dptr: [data, 0], ..command(opc, fid::HOST_BEHAVIOR.into(), 0) };
    host.write(data, bytemuck::bytes_of(&HostBehavior { acre: 1, lbafee: 1, ..HostBehavior::zeroed() }));
    assert_eq!(host.admin(sqe(admin::SET_FEATURES)).status(), Status::SUCCESS);
    host.write(data, &[0xff; 512]);
    assert_eq!(host.admin(sqe(admin::GET_FEATURES)).status(), Status::SUCCESS);
    assert_eq!(host.read(data, 5), [1, 0, 1, 0, 0]);
    host.write(data, &[2]);
    assert_eq!(host.admin(sqe(admin::SET_FEATURES)).status().code(), Status::INVALID_FIELD);
}

#[test]
fn without_a_cache_there_is_no_cache_feature() {
    let mut plain = config();
    plain.volatile_write_cache = false;
    let mut host = Host::ready_with(plain);
    for opc in [admin::GET_FEATURES, admin::SET_FEATURES] {
        let sqe = command(opc, fid::VOLATILE_WRITE_CACHE.into(), 1);
        assert_eq!(host.admin(sqe).status().code(), Status::INVALID_FIELD);
    }
    assert_eq!(host.io(crate::host::flush()).status(), Status::SUCCESS);
    assert!(host.seen.is_empty(), "nothing to flush");
}

#[test]
fn the_health_log_counts_what_the_host_did() {
    let mut host = Host::ready();
    let data = host.alloc(8192);
    for _ in 0..3 {
        let read = host.rw(nvm::READ, 0, 16, data, 8192);
        host.io(read);
    }
    let write = host.rw(nvm::WRITE, 0, 8, data, 4096);
    host.io(write);
    host.fail = Some(io_model::DeviceError::Medium);
    host.io(write);
    host.fail = None;
    let log: SmartLog = bytemuck::pod_read_unaligned(&host.log(lid::SMART, 512));
    assert_eq!((log.host_reads[0], log.host_writes[0], log.media_errors[0]), (3, 2, 1));
    assert_eq!((log.data_units_read[0], log.data_units_written[0]), (1, 1));
    assert_eq!((log.power_cycles[0], log.unsafe_shutdowns[0], log.error_entries[0]), (1, 0, 1));
    // The rest of the page, and zeros after its end.
    let whole = host.log(lid::SMART, 1024);
    assert_eq!(whole[512..], [0; 512]);
    let at = host.alloc(4096);
    let tail = Sqe { dptr: [at, 0], cdw12: 176, ..log_sqe(lid::SMART, 2) };
    assert_eq!(host.admin(tail).status(), Status::SUCCESS);
    assert_eq!(host.read(at, 8), 1u64.to_le_bytes());
}

#[test]
fn the_error_log_keeps_the_last_64_failures() {
    let mut host = Host::ready();
    for n in 0..70 {
        host.io(Sqe { cdw10: n, opc: 0x7f, ..rw(nvm::READ, 0, 1) });
    }
    let page = host.log(lid::ERROR, 64 * 64);
    let entries: Vec<ErrorEntry> = page.chunks(64).map(bytemuck::pod_read_unaligned).collect();
    for (n, entry) in (0..64).zip(&entries) {
        assert_eq!((entry.error_count, entry.lba, entry.sqid, entry.nsid), (70 - n, 69 - n, 1, 1));
        assert_eq!(Status(entry.status >> 1).code(), Status::INVALID_OPCODE);
    }
}

#[test]
fn firmware_and_effects_logs() {
    let mut host = Host::ready();
    let firmware: FirmwareSlotLog = bytemuck::pod_read_unaligned(&host.log(lid::FIRMWARE_SLOT, 512));
    assert_eq!((firmware.afi, firmware.frs[0]), (1, *b"1.0     "));
    let effects: CommandsEffectsLog = bytemuck::pod_read_unaligned(&host.log(lid::COMMANDS_EFFECTS, 4096));
    assert_eq!(effects.iocs[usize::from(nvm::WRITE)], effect::SUPPORTED | effect::LBCC);
    assert_eq!(effects.iocs[4], 0);
    assert_ne!(effects.acs[usize::from(admin::FORMAT_NVM)] & effect::NCC, 0);
    let supported = host.log(lid::SUPPORTED_PAGES, 1024);
    let pages: Vec<_> = (0..256).filter(|id| supported[4 * id] & 1 != 0).collect();
    assert_eq!(pages, [0, 1, 2, 3, 4, 5, 0x81]);
    // Every command that the log claims is known: it fails for another reason, if at all.
    for opc in (0..=255u8).filter(|opc| effects.iocs[usize::from(*opc)] != 0) {
        assert_ne!(host.io(rw(opc, u64::MAX, 1)).status().code(), Status::INVALID_OPCODE, "{opc:#x}");
    }
}

/// A tenant with a promise and three commands.
#[derive(Debug)]
struct Figures;

impl PromiseSource for Figures {
    fn fill(&self, log: &mut PromiseLog) {
        (log.target_ns, log.completed, log.counts[31]) = (500_000, 3, 3);
    }
}

#[test]
fn a_promise_is_a_log_page() {
    let mut host = Host::ready();
    host.controller.show_promise(Some(Arc::new(Figures)));
    assert_eq!(host.log(lid::SUPPORTED_PAGES, 1024)[4 * 0xc0], 1);
    let page = host.log(LID_PROMISE, 4096);
    assert_eq!(&page[..16], b"EVENKEEL\x01\0\0\0\0\0\0\0");
    let number = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
    let fields = [(16, 500_000), (72, 3), (128, 256), (136, 512), (376, u64::MAX), (384, 0), (632, 3), (4088, 0)];
    fields.iter().for_each(|(at, wanted)| assert_eq!(number(*at), *wanted, "byte {at}"));
    let data = host.alloc(4096);
    let part = |offset| Sqe { cdw12: offset, dptr: [data, 0], ..log_sqe(LID_PROMISE, 4) };
    assert_eq!(host.admin(part(8)).status(), Status::SUCCESS);
    assert_eq!(host.read(data, 16), page[8..24]);
    assert_eq!(host.admin(part(4100)).status().code(), Status::INVALID_FIELD);
}

#[test]
fn keep_alive_is_answered() {
    let mut host = Host::ready();
    assert_eq!(host.admin(command(admin::KEEP_ALIVE, 0, 0)).status(), Status::SUCCESS);
}

#[test]
fn a_bad_doorbell_value_is_an_event_and_nothing_more() {
    let mut host = Host::ready();
    let aer = command(admin::ASYNC_EVENT_REQUEST, 0, 0);
    let cid = host.submit(0, aer);
    host.run();
    assert_eq!(host.peek_completion(0), None);
    host.store_bell(1, false, 64);
    host.run();
    let cqe = host.next_completion(0).expect("an event");
    assert_eq!((cqe.cid, cqe.dw0), (cid, 0x01_01_00));
    // The next event of the type waits until the log was read.
    host.submit(0, aer);
    host.store_bell(1, true, 5);
    host.store_bell(1, false, u32::MAX);
    host.run();
    host.store_bell(1, false, 0);
    host.run();
    host.store_bell(1, false, 70);
    host.run();
    assert_eq!(host.peek_completion(0), None);
    let data = host.alloc(4096);
    let keep = Sqe { dptr: [data, 0], ..command(admin::GET_LOG_PAGE, u32::from(lid::ERROR) | get_log::RAE, 0) };
    assert_eq!(host.admin(keep).status(), Status::SUCCESS);
    assert_eq!(host.peek_completion(0), None);
    host.submit(0, Sqe { cdw10: lid::ERROR.into(), ..keep });
    host.run();
    assert_eq!(host.completions(0).iter().filter(|cqe| cqe.dw0 == 0x01_01_00).count(), 1);
    // The queue works on.
    host.store_bell(1, false, 0);
    host.store_bell(1, true, 0);
    assert_eq!(host.io(crate::host::flush()).status(), Status::SUCCESS);
}

#[test]
fn an_event_may_take_the_last_completion_entry() {
    let mut host = Host::new(config());
    host.enable(2);
    let event = host.submit(0, command(admin::ASYNC_EVENT_REQUEST, 0, 0));
    host.run();
    let waiting = host.submit(0, command(admin::KEEP_ALIVE, 0, 0));
    host.store_bell(0, true, 99);
    assert_eq!(host.controller.service(), 0);
    assert_eq!(host.next_completion(0).map(|cqe| cqe.cid), Some(event));
    host.run();
    assert_eq!(host.next_completion(0).map(|cqe| cqe.cid), Some(waiting));
}

#[test]
fn a_doorbell_of_no_queue_is_an_event() {
    let mut host = Host::ready();
    host.submit(0, command(admin::ASYNC_EVENT_REQUEST, 0, 0));
    host.run();
    host.controller.bar_write(0, 0x1000 + 8 * 40, &1u32.to_le_bytes());
    assert_eq!(host.next_completion(0).map(|cqe| cqe.dw0), Some(0x01_00_00));
}

#[test]
fn four_event_requests_are_held_and_can_be_aborted() {
    let mut host = Host::ready();
    let aer = command(admin::ASYNC_EVENT_REQUEST, 0, 0);
    let cids: Vec<_> = (0..4).map(|_| host.submit(0, aer)).collect();
    host.run();
    assert_eq!(host.admin(aer).status().code(), Status::AER_LIMIT_EXCEEDED);
    host.submit(0, command(admin::ABORT, u32::from(cids[1]) << 16, 0));
    host.run();
    let done = host.completions(0);
    assert_eq!((done[0].cid, done[0].status()), (cids[1], Status::ABORT_REQUESTED));
    assert_eq!((done[1].dw0, done[1].status()), (0, Status::SUCCESS));
    // It is gone now; and so is an I/O command that the device has.
    assert_eq!(host.admin(command(admin::ABORT, u32::from(cids[1]) << 16, 0)).dw0, 1);
    let cid = host.submit(1, crate::host::flush());
    host.fetch_all();
    host.submit(0, command(admin::ABORT, 1 | u32::from(cid) << 16, 0));
    host.fetch_all();
    assert_eq!(host.next_completion(0).map(|cqe| cqe.dw0), Some(1));
}

#[test]
fn events_wait_for_room_in_the_admin_completion_queue() {
    let mut host = Host::new(config());
    host.enable(2);
    // The only entry: the request must not keep it.
    host.submit(0, command(admin::ASYNC_EVENT_REQUEST, 0, 0));
    host.run();
    host.submit(0, command(admin::KEEP_ALIVE, 0, 0));
    host.run();
    host.controller.bar_write(0, 0x1000 + 8 * 40, &1u32.to_le_bytes());
    host.run();
    assert_eq!(host.next_completion(0).map(|cqe| cqe.dw0), Some(0));
    host.run();
    assert_eq!(host.next_completion(0).map(|cqe| cqe.dw0), Some(0x01_00_00));
}

#[test]
fn namespace_size_follows_the_block_size() {
    let mut large = config();
    large.namespaces[0].1.lba_bytes = 4096;
    let mut host = Host::ready_with(large);
    let id = identify(&mut host, cns::NAMESPACE, 1);
    assert_eq!(id[..8], (SIZE_BYTES / 4096).to_le_bytes());
    assert_eq!(id[26], 1);
}
