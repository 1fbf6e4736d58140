//! Namespaces that come, grow and go while the guest runs.

use bytemuck::Zeroable;
use io_model::{Op, Source};
use nvme_controller::{ConfigError, ControllerConfig, FormatStep, NamespaceError};
use nvme_spec::data::DsmRange;
use nvme_spec::feature::{async_event, fid};
use nvme_spec::identify::{IdentifyController, cns};
use nvme_spec::log::{get_log, lid};
use nvme_spec::namespace::IdentifyNamespace;
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::regs::{Cc, Reg};
use nvme_spec::{Sqe, Status};

use crate::bringup::identify;
use crate::host::{BASE_BYTES, Host, OTHERS_BYTES, SIZE_BYTES, base_of, config, namespace, rw};
use crate::namespaces::{active, blocks, of};

/// Dword 0 of a Namespace Attribute Changed notice (NVMe Base 2.0, 5.2.1): type 2h, information 0h, log page 4h.
const CHANGED: u32 = 0x02 | 0x04 << 16;

const SMALL_BYTES: u64 = OTHERS_BYTES / 4;

impl Host {
    /// With namespaces 1 and 2, the latter small and of blocks of 4 KiB.
    fn with_two() -> Self {
        let mut two = config();
        two.namespaces.push((2, namespace(2, SMALL_BYTES, 4096)));
        Self::ready_with(two)
    }

    fn wants_notices(&mut self) {
        let configure = u32::from(fid::ASYNC_EVENT_CONFIG);
        let set = Sqe { opc: admin::SET_FEATURES, cdw10: configure, ..Sqe::zeroed() };
        assert_eq!(self.admin(Sqe { cdw11: async_event::NAMESPACE_ATTRIBUTE, ..set }).status(), Status::SUCCESS);
    }

    fn hold_event_request(&mut self) {
        self.submit(0, Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::zeroed() });
        self.run();
    }

    /// Dword 0 of the event requests that came back.
    fn notices(&mut self) -> Vec<u32> {
        self.run();
        self.completions(0).iter().map(|cqe| cqe.dw0).collect()
    }

    /// The Changed Namespace List up to its end. `keep`: with RAE.
    fn changed(&mut self, keep: bool) -> Vec<u32> {
        let data = self.alloc(4096);
        let rae = if keep { get_log::RAE } else { 0 };
        let cdw10 = u32::from(lid::CHANGED_NAMESPACES) | rae | 1023 << 16;
        let log = Sqe { opc: admin::GET_LOG_PAGE, cdw10, dptr: [data, 0], ..Sqe::zeroed() };
        assert_eq!(self.admin(log).status(), Status::SUCCESS);
        let raw = self.read(data, 4096);
        let list: Vec<u32> = raw.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        let (named, rest) = list.split_at(list.iter().position(|nsid| *nsid == 0).expect("not full"));
        assert!(rest.iter().all(|nsid| *nsid == 0));
        named.to_vec()
    }

    fn disable(&mut self) {
        self.set32(Reg::Cc, 0);
    }
}

#[test]
fn a_namespace_grows_and_the_host_is_told_once() {
    let mut host = Host::ready();
    host.wants_notices();
    host.hold_event_request();
    let past = rw(nvm::WRITE_ZEROES, SIZE_BYTES / 512, 1);
    assert_eq!(host.io(past).status().code(), Status::LBA_OUT_OF_RANGE);
    assert_eq!(host.controller.grow(1, SIZE_BYTES + 4096), Ok(()));
    assert_eq!(host.notices(), [CHANGED]);
    assert_eq!(blocks(&mut host, 1), SIZE_BYTES / 512 + 8);
    let id: IdentifyController = bytemuck::pod_read_unaligned(&identify(&mut host, cns::CONTROLLER, 0));
    assert_eq!(id.tnvmcap, [SIZE_BYTES + 4096, 0]);
    assert_eq!(host.io(past).status(), Status::SUCCESS);
    assert_eq!(host.seen.last().map(|command| command.tenant_offset_bytes), Some(SIZE_BYTES));
    assert_eq!(host.io(Sqe { cdw10: past.cdw10 + 8, ..past }).status().code(), Status::LBA_OUT_OF_RANGE);

    // It was reported: further ones wait until the list was read, which names what they would tell.
    host.hold_event_request();
    assert_eq!(host.controller.grow(1, SIZE_BYTES + 8192), Ok(()));
    assert_eq!(host.notices(), []);
    assert_eq!((host.changed(true), host.changed(false), host.changed(false)), (vec![1], vec![1], vec![]));
    assert_eq!(host.notices(), []);
    assert_eq!(host.controller.grow(1, SIZE_BYTES + 12288), Ok(()));
    assert_eq!(host.notices(), [CHANGED]);
}

#[test]
fn nobody_is_told_who_does_not_want_to_know_but_the_list_says_it() {
    let mut host = Host::ready();
    host.hold_event_request();
    assert_eq!(host.controller.grow(1, SIZE_BYTES + 4096), Ok(()));
    assert_eq!((host.notices(), host.changed(false), host.changed(false)), (vec![], vec![1], vec![]));
}

#[test]
fn what_can_not_grow_is_refused_and_nothing_happens() {
    let mut host = Host::ready();
    let shrinks = NamespaceError::Shrinks { nsid: 1, has_bytes: SIZE_BYTES, asked_bytes: SIZE_BYTES - 4096 };
    for (nsid, size_bytes, expected) in [
        (0, SIZE_BYTES, NamespaceError::Absent(0)),
        (7, SIZE_BYTES, NamespaceError::Absent(7)),
        (33, SIZE_BYTES, NamespaceError::Absent(33)),
        (1, SIZE_BYTES - 4096, shrinks),
        (1, SIZE_BYTES + 512, NamespaceError::Config(ConfigError::Namespace)),
        (1, !4095, NamespaceError::Config(ConfigError::Namespace)),
    ] {
        assert_eq!(host.controller.grow(nsid, size_bytes), Err(expected));
    }
    assert_eq!(host.controller.grow(1, SIZE_BYTES), Ok(()), "it is that long");
    assert_eq!((host.changed(false), blocks(&mut host, 1)), (vec![], SIZE_BYTES / 512));
    assert_eq!(host.controller.config(), config());
}

#[test]
fn a_namespace_comes_and_goes_and_the_host_is_told() {
    let mut host = Host::with_two();
    host.wants_notices();
    host.hold_event_request();
    host.controller.detach(2).expect("it is there");
    assert!(host.controller.is_detached(2), "nothing is in flight");
    host.controller.attach(32, namespace(32, SMALL_BYTES, 512)).expect("it is not there");
    assert_eq!(host.notices(), [CHANGED], "one notice for all that the list names");
    assert_eq!((active(&mut host, 0), host.changed(false)), (vec![1, 32], vec![2, 32]));
    assert_eq!(host.io(of(2, rw(nvm::WRITE_ZEROES, 0, 1))).status().code(), Status::INVALID_FIELD);
    assert_eq!((blocks(&mut host, 2), blocks(&mut host, 32)), (0, SMALL_BYTES / 512));
    // It comes back as another one.
    host.controller.attach(2, namespace(2, SMALL_BYTES * 2, 512)).expect("its place is free");
    assert_eq!((active(&mut host, 1), blocks(&mut host, 2)), (vec![2, 32], SMALL_BYTES * 2 / 512));
    assert_eq!(host.io(of(2, rw(nvm::WRITE_ZEROES, SMALL_BYTES * 2 / 512 - 1, 1))).status(), Status::SUCCESS);
    host.hold_event_request();
    assert_eq!((host.notices(), host.changed(false)), (vec![CHANGED], vec![2]));
}

#[test]
fn what_can_not_come_or_go_is_refused_and_nothing_happens() {
    let mut host = Host::with_two();
    let good = namespace(3, SMALL_BYTES, 512);
    let odd = ControllerConfig { namespaces: Vec::new(), ..config() };
    for nsid in [0, 33, u32::MAX] {
        let refused = NamespaceError::Config(ConfigError::Nsid(nsid));
        assert_eq!(host.controller.attach(nsid, good.clone()), Err(refused));
        assert_eq!(host.controller.detach(nsid), Err(NamespaceError::Absent(nsid)));
        assert_eq!(
            ControllerConfig { namespaces: vec![(nsid, good.clone())], ..odd.clone() }.check(),
            Err(ConfigError::Nsid(nsid))
        );
    }
    let twice = vec![(4, good.clone()), (4, good.clone())];
    assert_eq!(ControllerConfig { namespaces: twice, ..odd }.check(), Err(ConfigError::Nsid(4)));
    assert_eq!(host.controller.attach(2, good.clone()), Err(NamespaceError::Present(2)));
    assert_eq!(host.controller.detach(3), Err(NamespaceError::Absent(3)));
    let mut short = good;
    short.size_bytes = 512;
    assert_eq!(host.controller.attach(3, short), Err(NamespaceError::Config(ConfigError::Namespace)));
    assert_eq!((host.changed(false), active(&mut host, 0)), (vec![], vec![1, 2]));
}

#[test]
fn a_namespace_is_detached_when_what_is_in_flight_has_ended() {
    let mut host = Host::with_two();
    host.create_pair(2, 16);
    let data = host.alloc(4096);
    host.write(data, &[7; 4096]);
    let write = |host: &mut Host, nsid| of(nsid, host.rw(nvm::WRITE, 0, 1, data, if nsid == 1 { 512 } else { 4096 }));
    for (qid, nsid) in [(1, 2), (2, 2), (1, 1)] {
        let sqe = write(&mut host, nsid);
        host.submit(qid, sqe);
    }
    assert_eq!(host.fetch_all(), 3);
    // In the ring only.
    let late = write(&mut host, 2);
    let late = host.submit(1, late);
    host.controller.detach(2).expect("it is there");
    assert!(!host.controller.is_detached(2));
    assert_eq!(host.controller.attach(2, namespace(2, SMALL_BYTES, 512)), Err(NamespaceError::Leaving(2)));
    assert_eq!(host.controller.detach(2), Err(NamespaceError::Absent(2)), "it goes already");
    assert_eq!(host.fetch_all(), 1, "it is refused");
    host.finish_one();
    assert!(!host.controller.is_detached(2), "one is left");
    // Order: of namespace 2, of namespace 1, of namespace 2.
    let at = host.in_flight.iter().position(|(_, command, _)| command.disk == 1).expect("in flight");
    host.in_flight.swap(0, at);
    host.finish_one();
    assert!(host.controller.is_detached(2), "what is in flight is another namespace's");
    host.controller.attach(2, namespace(2, SMALL_BYTES, 512)).expect("its place is free");
    host.finish_all();
    let ended = host.completions(1).iter().map(|cqe| (cqe.cid == late, cqe.status().code())).collect::<Vec<_>>();
    assert_eq!(ended.len(), 3);
    assert!(ended.contains(&(true, Status::INVALID_FIELD)));
    assert_eq!(ended.iter().filter(|(_, status)| status.is_success()).count(), 2);
    assert!(host.completions(2).iter().all(|cqe| cqe.status().is_success()));
    assert_eq!(host.disk[base_of(2) as usize..][..4096], [7; 4096], "what was accepted was done");
}

#[test]
fn ranges_that_the_drive_has_not_got_are_given_up() {
    let mut host = Host::with_two();
    let list = host.alloc(4096);
    let ranges = [0, 2, 4].map(|slba| DsmRange { cattr: 0, nlb: 1, slba });
    host.write(list, bytemuck::cast_slice(&ranges));
    let discard = Sqe { opc: nvm::DATASET_MANAGEMENT, nsid: 2, dptr: [list, 0], cdw10: 2, cdw11: 4, ..Sqe::zeroed() };
    let cid = host.submit(1, discard);
    assert_eq!(host.controller.backlog(1), 1);
    let io_model::Fetch::Command(command, buf, token) = host.controller.fetch(1) else { panic!("the first range") };
    host.in_flight.push((token, command, buf));
    host.controller.detach(2).expect("it is there");
    assert_eq!((host.fetch_all(), host.controller.is_detached(2)), (0, false));
    host.finish_all();
    assert!(host.controller.is_detached(2));
    let ended = host.next_completion(1).map(|cqe| (cqe.cid, cqe.status().code()));
    assert_eq!(ended, Some((cid, Status::INVALID_NAMESPACE)));
    // None of it is with the drive: it ends at once.
    host.controller.attach(2, namespace(2, SMALL_BYTES, 4096)).expect("its place is free");
    host.submit(1, discard);
    assert_eq!(host.controller.backlog(1), 1);
    let io_model::Fetch::Command(command, buf, token) = host.controller.fetch(1) else { panic!("the first range") };
    host.in_flight.push((token, command, buf));
    host.finish_one();
    host.controller.detach(2).expect("it is there");
    assert!(host.controller.is_detached(2) && host.next_completion(1).is_some());
}

#[test]
fn a_format_ends_with_its_namespace() {
    let mut host = Host::with_two();
    host.records = None;
    let format = Sqe { opc: admin::FORMAT_NVM, nsid: 2, ..Sqe::zeroed() };
    let cid = host.submit(0, format);
    host.fetch_all();
    let begins = host.take_records()[0];
    host.controller.format_recorded(begins, true);
    assert_eq!(host.fetch_all(), 1);
    host.controller.detach(2).expect("it is there");
    let ended = host.next_completion(0).map(|cqe| (cqe.cid, cqe.status().code()));
    assert_eq!((ended, host.controller.is_detached(2)), (Some((cid, Status::INVALID_NAMESPACE)), false));
    host.finish_all();
    assert!(host.controller.is_detached(2));
    // An answer that comes too late is not for the next namespace with that identifier.
    host.controller.attach(2, namespace(2, SMALL_BYTES, 4096)).expect("its place is free");
    host.controller.format_recorded(begins, true);
    host.controller.format_recorded(nvme_controller::FormatRecord { step: FormatStep::Ends, ..begins }, true);
    assert_eq!(host.controller.config().namespaces[1].1, namespace(2, SMALL_BYTES, 4096));
    assert_eq!(host.io(of(2, rw(nvm::VERIFY, 0, 1))).status(), Status::SUCCESS);
}

#[test]
fn a_reset_does_not_hide_what_is_in_flight_of_a_namespace() {
    for reset_first in [false, true] {
        let mut host = Host::with_two();
        host.submit(1, of(2, rw(nvm::WRITE_ZEROES, 0, 1)));
        host.fetch_all();
        if reset_first {
            host.disable();
            host.controller.detach(2).expect("it is there");
        } else {
            host.controller.detach(2).expect("it is there");
            host.disable();
        }
        host.enable(32);
        assert!(!host.controller.is_detached(2));
        host.finish_all();
        assert!(host.controller.is_detached(2) && host.csts().rdy());
        assert_eq!((active(&mut host, 0), host.controller.is_idle()), (vec![1], true));
        // Without a guest it is gone at once.
        host.disable();
        host.controller.detach(1).expect("it is there");
        assert!(host.controller.is_detached(1));
    }
}

#[test]
fn a_shutdown_does_not_keep_a_namespace_from_going() {
    let mut host = Host::with_two();
    let list = host.alloc(4096);
    host.write(list, bytemuck::cast_slice(&[0, 2].map(|slba| DsmRange { cattr: 0, nlb: 1, slba })));
    let discard = Sqe { opc: nvm::DATASET_MANAGEMENT, nsid: 2, dptr: [list, 0], cdw10: 1, cdw11: 4, ..Sqe::zeroed() };
    host.submit(1, discard);
    assert_eq!(host.controller.backlog(1), 1);
    let io_model::Fetch::Command(command, buf, token) = host.controller.fetch(1) else { panic!("the first range") };
    assert_eq!(command.op, Op::Discard);
    host.in_flight.push((token, command, buf));
    host.set32(Reg::Cc, Cc::enable_nvm().with_shn(Cc::SHN_NORMAL).0);
    host.controller.detach(2).expect("it is there");
    assert!(!host.controller.is_detached(2));
    host.finish_all();
    assert!(host.controller.is_detached(2));
}

#[test]
fn a_controller_without_namespaces_gets_one() {
    let mut host = Host::ready_with(ControllerConfig { namespaces: Vec::new(), ..config() });
    assert_eq!(active(&mut host, 0), []);
    let id: IdentifyController = bytemuck::pod_read_unaligned(&identify(&mut host, cns::CONTROLLER, 0));
    assert_eq!((id.nn, id.tnvmcap), (32, [0, 0]));
    assert_eq!(host.io(rw(nvm::VERIFY, 0, 1)).status().code(), Status::INVALID_FIELD);
    let everywhere = Sqe { opc: nvm::FLUSH, nsid: nvme_spec::NSID_ALL, ..Sqe::zeroed() };
    assert_eq!(host.io(everywhere).status(), Status::SUCCESS);
    let format = Sqe { opc: admin::FORMAT_NVM, nsid: nvme_spec::NSID_ALL, ..Sqe::zeroed() };
    assert_eq!(host.admin(format).status(), Status::SUCCESS, "all of none");
    host.controller.attach(1, namespace(1, SIZE_BYTES, 512)).expect("its place is free");
    assert_eq!(host.io(rw(nvm::VERIFY, 0, 1)).status(), Status::SUCCESS);
    let id: IdentifyNamespace = bytemuck::pod_read_unaligned(&identify(&mut host, cns::NAMESPACE, 1));
    assert_eq!((id.nsze, id.nvmcap, host.changed(false)), (SIZE_BYTES / 512, [SIZE_BYTES, 0], vec![1]));
    assert_eq!(host.seen.last().map(|command| command.offset_bytes), Some(BASE_BYTES));
}
