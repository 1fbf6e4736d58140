//! Sanitize.

use bytemuck::Zeroable;
use io_model::{DeviceError, Op, Source};
use nvme_controller::{ControllerConfig, EraseRecord, FormatStep, Sanitize, SanitizeRecord, SanitizeState};
use nvme_spec::identify::{IdentifyController, cns, sanicap};
use nvme_spec::log::{SanitizeLog, lid, sstat};
use nvme_spec::opcode::{admin, nvm, sanitize};
use nvme_spec::regs::Reg;
use nvme_spec::{Sqe, Status};

use crate::bringup::identify;
use crate::host::{BASE_BYTES, GUARD, Host, OTHERS_BYTES, SIZE_BYTES, base_of, config, namespace, rw};

/// Without a write since.
const COMPLETED: u16 = sstat::COMPLETED | sstat::NOTHING_WRITTEN;
const OVERWRITE: u32 = sanitize::OVERWRITE | 1 << sanitize::OWPASS_SHIFT;

fn sanitize(cdw10: u32) -> Sqe {
    Sqe { opc: admin::SANITIZE, cdw10, ..Sqe::zeroed() }
}

/// Two namespaces, which erase by key or not.
fn two(by_key: [bool; 2]) -> ControllerConfig {
    let mut config = config();
    config.namespaces.push((2, namespace(2, OTHERS_BYTES / 2, 4096)));
    config.namespaces.iter_mut().zip(by_key).for_each(|((_, its), by_key)| its.erases_by_key = by_key);
    config
}

/// The Sanitize Status log page.
fn log(host: &mut Host) -> SanitizeLog {
    bytemuck::pod_read_unaligned(&host.log(lid::SANITIZE_STATUS, 512))
}

/// A host whose command has begun, and whose records come by hand from now on.
fn begun(config: ControllerConfig, sqe: Sqe) -> Host {
    let mut host = Host::ready_with(config);
    host.records = None;
    host.submit(0, sqe);
    host.fetch_all();
    let [begins] = host.take_erase_records()[..] else { panic!("one record") };
    assert_eq!((host.peek_completion(0), host.seen.len()), (None, 0), "nothing is done before it is durable");
    host.controller.recorded(begins, true);
    assert!(host.next_completion(0).is_some_and(|cqe| cqe.status().is_success()), "the command only begins");
    host
}

#[test]
fn what_is_offered_depends_on_every_namespace() {
    for by_key in [[false, false], [true, false], [true, true]] {
        let mut host = Host::ready_with(two(by_key));
        let data: IdentifyController = bytemuck::pod_read_unaligned(&identify(&mut host, cns::CONTROLLER, 0));
        let crypto = if by_key == [true, true] { sanicap::CRYPTO_ERASE } else { 0 };
        assert_eq!(data.sanicap, sanicap::OVERWRITE | sanicap::NOT_MODIFIED_AFTER | crypto);
        let status = host.admin(sanitize(sanitize::CRYPTO_ERASE)).status().code();
        assert_eq!(status, if crypto == 0 { Status::INVALID_FIELD } else { Status::SUCCESS });
    }
}

#[test]
fn every_bad_sanitize_gets_its_status() {
    let change = |change: fn(&mut nvme_controller::NamespaceConfig)| {
        let mut config = two([true, true]);
        change(&mut config.namespaces[1].1);
        config
    };
    let good = two([true, true]);
    for (name, config, cdw10, expected) in [
        ("action 0", good.clone(), 0, Status::INVALID_FIELD),
        ("block erase", good.clone(), sanitize::BLOCK_ERASE, Status::INVALID_FIELD),
        ("a reserved bit", good, OVERWRITE | 1 << 10, Status::INVALID_FIELD),
        ("read only", change(|it| it.read_only = true), OVERWRITE, Status::NAMESPACE_WRITE_PROTECTED),
        ("another controller's too", change(|it| it.elsewhere = true), OVERWRITE, Status::OPERATION_DENIED),
    ] {
        let mut host = Host::ready_with(config);
        assert_eq!(host.admin(sanitize(cdw10)).status().code(), expected, "{name}");
        assert!(host.seen.is_empty() && host.events.is_empty(), "{name}");
    }
    // Out of no failure there is nothing to exit.
    let mut host = Host::ready();
    assert_eq!(host.admin(sanitize(sanitize::EXIT_FAILURE)).status(), Status::SUCCESS);
    assert_eq!((log(&mut host).sstat, log(&mut host).sprog), (0, u16::MAX));
}

#[test]
fn a_crypto_erase_replaces_all_keys_before_it_is_over() {
    let mut host = begun(two([true, true]), sanitize(sanitize::CRYPTO_ERASE));
    let event = host.submit(0, Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::zeroed() });
    host.run();
    let records = host.take_records();
    assert!(records.iter().all(|it| it.by_key && it.step == FormatStep::Ends) && host.seen.is_empty());
    assert_eq!(records.iter().map(|it| (it.nsid, it.lba_bytes)).collect::<Vec<_>>(), [(1, 512), (2, 4096)]);
    host.controller.format_recorded(records[0], true);
    host.run();
    assert!(host.take_erase_records().is_empty(), "the second key is not replaced");
    // Half a MiB of 8.5 MiB is left.
    assert_eq!((log(&mut host).sprog, log(&mut host).sstat), (61680, sstat::IN_PROGRESS));
    host.controller.format_recorded(records[1], true);
    host.run();
    let [ends @ EraseRecord::Sanitize(SanitizeRecord { sanitize: Sanitize { state, .. }, .. })] =
        host.take_erase_records()[..]
    else {
        panic!("one record")
    };
    assert_eq!((state, host.peek_completion(0)), (SanitizeState::Completed, None), "not told yet");
    assert_eq!(host.io(rw(nvm::VERIFY, 0, 1)).status(), Status::SANITIZE_IN_PROGRESS);
    host.controller.recorded(ends, true);
    assert_eq!(host.next_completion(0).map(|cqe| (cqe.cid, cqe.dw0)), Some((event, 0x81_01_06)));
    assert_eq!(host.io(rw(nvm::VERIFY, 0, 1)).status(), Status::SUCCESS);
    let SanitizeLog { sprog, sstat, scdw10, .. } = log(&mut host);
    assert_eq!((sprog, sstat, scdw10), (u16::MAX, COMPLETED, sanitize::CRYPTO_ERASE));
    let data = host.alloc(4096);
    let write = host.rw(nvm::WRITE, 0, 1, data, 512);
    assert_eq!(host.io(write).status(), Status::SUCCESS);
    assert_eq!(log(&mut host).sstat, sstat::COMPLETED);
}

#[test]
fn an_overwrite_writes_each_pass_and_only_what_is_of_the_tenant() {
    let (passes, pattern) = (2, 0x1234_5678_u32);
    let mut host = Host::ready_with(two([false, false]));
    let cdw10 = sanitize::OVERWRITE | passes << sanitize::OWPASS_SHIFT | sanitize::INVERT | sanitize::NO_DEALLOCATE;
    assert_eq!(host.admin(Sqe { cdw11: pattern, ..sanitize(cdw10) }).status(), Status::SUCCESS);
    host.run();
    assert!(host.seen.iter().all(|command| command.op == Op::Write && command.fua));
    let written: u64 = host.seen.iter().map(|command| command.len_bytes).sum();
    assert_eq!(written, u64::from(passes) * (SIZE_BYTES + OTHERS_BYTES / 2));
    assert!(host.tenant().chunks(4).all(|word| word == (!pattern).to_le_bytes()), "the last pass inverts");
    let (first, second) = (BASE_BYTES..BASE_BYTES + SIZE_BYTES, base_of(2)..base_of(2) + OTHERS_BYTES / 2);
    let is_others = |at: &u64| !first.contains(at) && !second.contains(at);
    assert!((0..).zip(&host.disk).filter(|(at, _)| is_others(at)).all(|(_, byte)| *byte == GUARD));
    assert_eq!(log(&mut host).sstat, COMPLETED | 2 << sstat::PASSES_SHIFT);
}

/// Only here: a write from before that lands on what is erased already, or a command that gets through meanwhile.
#[test]
fn nothing_is_done_beside_a_sanitize() {
    let mut host = Host::ready();
    let data = host.alloc(4096);
    let write = host.rw(nvm::WRITE, 0, 1, data, 512);
    host.submit(1, write);
    host.fetch_all();
    host.submit(0, sanitize(OVERWRITE));
    host.fetch_all();
    host.fetch_all();
    assert_eq!((host.in_flight.len(), host.controller.backlog(0)), (1, 0), "the write is still with the drive");
    host.finish_one();
    host.fetch_all();
    assert_eq!((host.in_flight.len(), host.controller.backlog(0)), (1, 0), "one step at a time");
    assert!(host.completions(0).iter().chain(&host.completions(1)).all(|cqe| cqe.status().is_success()));
    let page = u32::from;
    for (name, sqe, is_allowed) in [
        ("Sanitize", sanitize(OVERWRITE), false),
        ("Exit Failure Mode", sanitize(sanitize::EXIT_FAILURE), false),
        ("Format", Sqe { opc: admin::FORMAT_NVM, nsid: 1, ..Sqe::zeroed() }, false),
        ("Doorbell Buffer Config", Sqe { opc: admin::DOORBELL_BUFFER_CONFIG, ..Sqe::zeroed() }, false),
        ("effects", Sqe { opc: admin::GET_LOG_PAGE, cdw10: page(lid::COMMANDS_EFFECTS), ..Sqe::zeroed() }, false),
        ("errors", Sqe { opc: admin::GET_LOG_PAGE, cdw10: page(lid::ERROR), dptr: [data, 0], ..Sqe::zeroed() }, true),
        ("Keep Alive", Sqe { opc: admin::KEEP_ALIVE, ..Sqe::zeroed() }, true),
        ("Get Features", Sqe { opc: admin::GET_FEATURES, cdw10: 7, ..Sqe::zeroed() }, true),
    ] {
        host.submit(0, sqe);
        host.fetch_all();
        let status = host.next_completion(0).expect("at once").status();
        assert_eq!(status, if is_allowed { Status::SUCCESS } else { Status::SANITIZE_IN_PROGRESS }, "{name}");
    }
    for opc in [nvm::READ, nvm::WRITE, nvm::FLUSH, nvm::DATASET_MANAGEMENT] {
        host.submit(1, rw(opc, 9, 1));
        host.fetch_all();
        assert_eq!(host.next_completion(1).map(|cqe| cqe.status()), Some(Status::SANITIZE_IN_PROGRESS), "{opc:#x}");
    }
    host.run();
    assert_eq!(host.io(rw(nvm::VERIFY, 0, 1)).status(), Status::SUCCESS);
}

#[test]
fn a_format_and_a_sanitize_keep_each_other_out() {
    let mut host = Host::ready();
    host.records = None;
    host.submit(0, Sqe { opc: admin::FORMAT_NVM, nsid: 1, ..Sqe::zeroed() });
    host.fetch_all();
    let status = host.admin(sanitize(OVERWRITE)).status();
    assert_eq!((status, status.0 & Status::DNR), (Status::FORMAT_IN_PROGRESS, 0));
}

/// Only here: a reset, a guest that left or another process that ends what must go on.
#[test]
fn it_goes_on_across_resets_without_a_client_and_in_another_process() {
    let mut host = begun(two([false, false]), sanitize(OVERWRITE));
    host.records = Some(true);
    for round in 0..20 {
        host.fetch_all();
        match round % 4 {
            0 => host.set32(Reg::Cc, 0),
            1 => host.controller.reset(),
            2 => {
                host.finish_one();
                assert!(host.controller.is_reset());
                host.controller.client_gone();
                while host.controller.take_unmapped(&mut ()).is_some() {}
                host.map_ram();
            }
            _ => {
                let config = host.controller.config();
                host.take_over(config).expect("a state that was just recorded");
            }
        }
        host.fetch_all();
        assert_eq!(host.in_flight.len(), 1, "round {round}");
        host.finish_all();
    }
    host.run();
    let state = host.controller.config().sanitize.map(|it| it.state);
    assert_eq!(state, Some(SanitizeState::Completed), "disabled, with no guest");
    assert!(host.tenant().iter().all(|byte| *byte == 0));
    host.enable(32);
    host.create_pair(1, 64);
    assert_eq!(log(&mut host).sstat, COMPLETED | 1 << sstat::PASSES_SHIFT);
    assert_eq!(host.io(rw(nvm::VERIFY, 0, 1)).status(), Status::SUCCESS);
}

/// Only here: a guest that waits for ever, or is told that another Sanitize runs, after a kill at the wrong moment.
#[test]
fn a_process_that_ends_before_it_could_tell_has_its_successor_tell() {
    for was_written in [false, true] {
        let mut host = Host::ready();
        host.records = None;
        let cid = host.submit(0, sanitize(OVERWRITE));
        host.fetch_all();
        let begins = host.take_erase_records()[0];
        let EraseRecord::Sanitize(SanitizeRecord { sanitize, nsids: 1 }) = begins else { panic!("{begins:?}") };
        let mut config = host.controller.config();
        if was_written {
            config.sanitize = Some(sanitize);
            config.namespaces[0].1.format_cut_short = true;
        }
        host.take_over(config).expect("a state that was recorded");
        host.records = Some(true);
        host.run();
        assert_eq!(host.next_completion(0).map(|cqe| (cqe.cid, cqe.status())), Some((cid, Status::SUCCESS)));
        assert_eq!(log(&mut host).sstat, COMPLETED | 1 << sstat::PASSES_SHIFT);
    }
}

#[test]
fn a_failure_lasts_until_another_one_completes_or_the_guest_may_leave_it() {
    for unrestricted in [0, sanitize::UNRESTRICTED_EXIT] {
        let mut host = Host::ready();
        host.fail = Some(DeviceError::Medium);
        assert_eq!(host.admin(sanitize(OVERWRITE | unrestricted)).status(), Status::SUCCESS);
        host.run();
        host.fail = None;
        assert_eq!(log(&mut host).sstat & sstat::STATUS, sstat::FAILED);
        assert_eq!(host.io(rw(nvm::VERIFY, 0, 1)).status().code(), Status::SANITIZE_FAILED);
        let format = Sqe { opc: admin::FORMAT_NVM, nsid: 1, ..Sqe::zeroed() };
        assert_eq!(host.admin(format).status().code(), Status::SANITIZE_FAILED);
        let exit = host.admin(sanitize(sanitize::EXIT_FAILURE)).status().code();
        if unrestricted == 0 {
            assert_eq!(exit, Status::SANITIZE_FAILED);
            let again = sanitize(OVERWRITE | sanitize::UNRESTRICTED_EXIT);
            assert_eq!(host.admin(again).status().code(), Status::SANITIZE_FAILED);
            assert_eq!(host.admin(sanitize(OVERWRITE)).status(), Status::SUCCESS);
            host.run();
        } else {
            assert_eq!(exit, Status::SUCCESS);
            // What is not erased is not shown.
            assert_eq!(host.io(rw(nvm::VERIFY, 0, 1)).status().code(), Status::NAMESPACE_NOT_READY);
            assert_eq!(host.admin(format).status(), Status::SUCCESS);
        }
        assert_eq!(host.io(rw(nvm::VERIFY, 0, 1)).status(), Status::SUCCESS);
    }
}

#[test]
fn a_namespace_that_leaves_and_one_that_comes_do_not_hold_it_up() {
    let mut host = begun(two([false, false]), sanitize(OVERWRITE));
    host.disk.resize(base_of(4) as usize, GUARD);
    host.records = Some(true);
    host.fetch_all();
    host.controller.detach(1).expect("attached");
    assert!(!host.controller.is_detached(1), "a step is with the drive");
    host.controller.attach(3, namespace(3, OTHERS_BYTES / 2, 512)).expect("free");
    host.finish_all();
    assert!(host.controller.is_detached(1));
    host.run();
    let erased = |command: &io_model::Command| command.disk == 1;
    assert_eq!(host.seen.iter().filter(|command| erased(command)).count() as u64, OTHERS_BYTES / 2 / (128 << 10));
    assert!(host.seen.iter().all(|command| command.disk < 2), "it came later");
    assert_eq!(log(&mut host).sstat & sstat::STATUS, sstat::COMPLETED);
    assert_eq!(host.io(Sqe { nsid: 3, ..rw(nvm::VERIFY, 0, 1) }).status(), Status::SUCCESS);
}

/// Only here: steps that keep a daemon from ending.
#[test]
fn a_controller_that_goes_begins_nothing_more() {
    let mut host = begun(config(), sanitize(OVERWRITE));
    host.fetch_all();
    host.controller.halt();
    host.controller.client_gone();
    host.records = Some(true);
    host.finish_all();
    host.run();
    assert_eq!((host.controller.live_vqs(), host.controller.is_idle()), (0, true));
    let state = host.controller.config().sanitize.map(|it| it.state);
    assert_eq!(state, Some(SanitizeState::Running), "the next one goes on");
}
