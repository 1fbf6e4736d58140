//! Several namespaces of one controller.

use std::collections::HashSet;

use bytemuck::Zeroable;
use io_model::{DeviceError, Op};
use nvme_controller::{ControllerConfig, MAX_NAMESPACES, NamespaceError, nguid};
use nvme_spec::data::DsmRange;
use nvme_spec::feature::fid;
use nvme_spec::identify::{IdentifyController, cns};
use nvme_spec::log::{ErrorEntry, lid};
use nvme_spec::namespace::{IdentifyNamespace, IdentifyNamespaceIndependent, nidt, nmic, nsattr};
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::{NSID_ALL, Sqe, Status};

use crate::bringup::identify;
use crate::host::{Host, OTHERS_BYTES, SIZE_BYTES, base_of, config, namespace, rw};

/// The command, for another namespace.
pub fn of(nsid: u32, sqe: Sqe) -> Sqe {
    Sqe { nsid, ..sqe }
}

/// The active namespaces above one.
pub fn active(host: &mut Host, above: u32) -> Vec<u32> {
    let [list, same] = [cns::ACTIVE_NAMESPACES, cns::IOCS_ACTIVE_NAMESPACES].map(|cns| identify(host, cns, above));
    assert_eq!(list, same);
    let list = list.chunks_exact(4).map(bytemuck::pod_read_unaligned);
    list.take_while(|nsid| *nsid != 0).collect()
}

/// How many blocks a namespace has; 0 if it is not active.
pub fn blocks(host: &mut Host, nsid: u32) -> u64 {
    let id: IdentifyNamespace = bytemuck::pod_read_unaligned(&identify(host, cns::NAMESPACE, nsid));
    assert_eq!((id.ncap, id.nuse), (id.nsze, id.nsze));
    id.nsze
}

/// Namespaces of different lengths and block sizes.
fn several(nsids: impl IntoIterator<Item = u32>) -> ControllerConfig {
    let its = |nsid: u32| {
        let size_bytes = if nsid == 1 { SIZE_BYTES } else { OTHERS_BYTES / 4 + u64::from(nsid) * 4096 };
        (nsid, namespace(nsid, size_bytes, if nsid.is_multiple_of(2) { 4096 } else { 512 }))
    };
    ControllerConfig { namespaces: nsids.into_iter().map(its).collect(), ..config() }
}

#[test]
fn each_namespace_is_found_and_has_its_own_data() {
    for nsids in [vec![1, 2], vec![3, 17, 32], (1..=MAX_NAMESPACES).collect()] {
        let config = several(nsids.iter().copied());
        let mut host = Host::ready_with(config.clone());
        assert_eq!((active(&mut host, 0), active(&mut host, nsids[0])), (nsids.clone(), nsids[1..].to_vec()));
        assert_eq!(active(&mut host, 32), []);
        let id: IdentifyController = bytemuck::pod_read_unaligned(&identify(&mut host, cns::CONTROLLER, 0));
        let all_bytes: u64 = config.namespaces.iter().map(|(_, namespace)| namespace.size_bytes).sum();
        assert_eq!((id.nn, id.mnan, id.fna, id.tnvmcap), (32, 32, 0, [all_bytes, 0]));
        let data = host.alloc(4096);
        for (nsid, namespace) in &config.namespaces {
            let lba_bytes = u64::from(namespace.lba_bytes);
            let count = namespace.size_bytes / lba_bytes;
            assert_eq!(blocks(&mut host, *nsid), count);
            host.write(data, &vec![*nsid as u8; lba_bytes as usize]);
            let write = of(*nsid, host.rw(nvm::WRITE, count - 1, 1, data, lba_bytes));
            assert_eq!(host.io(write).status(), Status::SUCCESS);
            assert_eq!(host.seen.last().map(|command| u32::from(command.disk) + 1), Some(*nsid));
            let past = of(*nsid, rw(nvm::WRITE_ZEROES, count, 1));
            assert_eq!(host.io(past).status().code(), Status::LBA_OUT_OF_RANGE);
        }
        for (nsid, namespace) in &config.namespaces {
            let last = (base_of(*nsid) + namespace.size_bytes - u64::from(namespace.lba_bytes)) as usize;
            assert!(host.disk[last..][..namespace.lba_bytes as usize].iter().all(|byte| *byte == *nsid as u8));
        }
    }
}

#[test]
fn no_two_namespaces_have_the_same_identity_and_none_changes_it() {
    let mut host = Host::ready_with(several(1..=MAX_NAMESPACES));
    let ids: Vec<_> = (1..=MAX_NAMESPACES)
        .map(|nsid| {
            let descriptors = identify(&mut host, cns::NAMESPACE_DESCRIPTORS, nsid);
            assert_eq!((descriptors[0], descriptors[20]), (nidt::NGUID, nidt::UUID));
            assert_eq!(identify(&mut host, cns::NAMESPACE, nsid)[104..120], descriptors[4..20]);
            (descriptors[4..20].to_vec(), descriptors[24..40].to_vec())
        })
        .collect();
    let (nguids, uuids): (HashSet<_>, HashSet<_>) = ids.iter().cloned().unzip();
    assert_eq!((nguids.len(), uuids.len()), (32, 32));
    // Neither by what other namespaces there are, nor by how long it is.
    for nsid in [1, 5] {
        let mut other = Host::ready_with(ControllerConfig {
            namespaces: vec![(nsid, namespace(nsid, OTHERS_BYTES / 2, 4096))],
            ..config()
        });
        let descriptors = identify(&mut other, cns::NAMESPACE_DESCRIPTORS, nsid);
        assert_eq!(descriptors[4..20], ids[nsid as usize - 1].0);
    }
}

#[test]
fn a_namespace_of_several_controllers_is_the_same_on_each() {
    let described = |serial: &str, nsid: u32| {
        let mut shared = ControllerConfig { serial: serial.into(), ..several([1, nsid]) };
        shared.namespaces[1].1.nguid = Some(nguid("logs"));
        let mut host = Host::ready_with(shared);
        let described = identify(&mut host, cns::NAMESPACE_DESCRIPTORS, nsid);
        assert_eq!(identify(&mut host, cns::NAMESPACE, nsid)[104..120], described[4..20]);
        assert_ne!(identify(&mut host, cns::NAMESPACE_DESCRIPTORS, 1)[4..20], described[4..20]);
        described
    };
    assert_eq!(described("one", 2), described("other", 3));
    assert_eq!(described("one", 2)[4..20], nguid("logs"));
    assert_ne!(nguid("logs"), nguid("more"));
}

#[test]
fn what_another_controller_has_too_is_not_formatted() {
    let mut shared = several([1, 2]);
    (shared.namespaces[1].1.shared, shared.namespaces[1].1.elsewhere) = (true, true);
    let mut host = Host::ready_with(shared);
    let format = |nsid| Sqe { opc: admin::FORMAT_NVM, nsid, ..Sqe::zeroed() };
    for nsid in [2, NSID_ALL] {
        assert_eq!(host.admin(format(nsid)).status().code(), Status::OPERATION_DENIED);
    }
    assert!(host.seen.is_empty() && host.events.is_empty());
    assert_eq!(host.controller.set_elsewhere(3, false), Err(NamespaceError::Absent(3)));
    assert_eq!(host.controller.set_elsewhere(2, false), Ok(()));
    assert_eq!(host.admin(format(2)).status(), Status::SUCCESS);
    assert_eq!(host.controller.set_elsewhere(2, true), Ok(()));
    assert_eq!(host.admin(format(2)).status().code(), Status::OPERATION_DENIED);
}

#[test]
fn an_inactive_namespace_is_all_zeros_or_an_invalid_field() {
    let mut host = Host::ready_with(several([1, 3]));
    for cns in [cns::NAMESPACE, cns::IOCS_NAMESPACE, cns::INDEPENDENT_NAMESPACE] {
        assert_eq!(identify(&mut host, cns, 2), [0; 4096]);
    }
    for opc in
        [nvm::READ, nvm::WRITE, nvm::FLUSH, nvm::COMPARE, nvm::VERIFY, nvm::WRITE_ZEROES, nvm::DATASET_MANAGEMENT]
    {
        assert_eq!(host.io(of(2, rw(opc, 0, 1))).status().code(), Status::INVALID_FIELD);
        assert_eq!(host.io(of(33, rw(opc, 0, 1))).status().code(), Status::INVALID_NAMESPACE);
    }
    assert!(host.seen.is_empty());
}

#[test]
fn what_may_only_be_read_is_not_changed() {
    let mut half = several([1, 2]);
    (half.namespaces[1].1.read_only, half.namespaces[0].1.shared) = (true, true);
    let mut host = Host::ready_with(half);
    for (nsid, its_nsattr, its_nmic) in [(1, 0, nmic::SHARED), (2, nsattr::WRITE_PROTECTED, 0)] {
        let id: IdentifyNamespace = bytemuck::pod_read_unaligned(&identify(&mut host, cns::NAMESPACE, nsid));
        let independent: IdentifyNamespaceIndependent =
            bytemuck::pod_read_unaligned(&identify(&mut host, cns::INDEPENDENT_NAMESPACE, nsid));
        assert_eq!((id.nsattr, id.nmic), (its_nsattr, its_nmic));
        assert_eq!((independent.nsattr, independent.nmic), (its_nsattr, its_nmic));
    }
    let data = host.alloc(4096);
    host.write(data, bytemuck::bytes_of(&DsmRange { cattr: 0, nlb: 1, slba: 0 }));
    let pointing = |opc| Sqe { dptr: [data, 0], ..of(2, rw(opc, 0, 1)) };
    let discard = Sqe { cdw10: 0, cdw11: 4, cdw12: 0, ..pointing(nvm::DATASET_MANAGEMENT) };
    for sqe in [pointing(nvm::WRITE), pointing(nvm::WRITE_ZEROES), discard] {
        assert_eq!(host.io(sqe).status(), Status::NAMESPACE_WRITE_PROTECTED.dnr());
    }
    for nsid in [2, NSID_ALL] {
        let format = Sqe { opc: admin::FORMAT_NVM, nsid, ..Sqe::zeroed() };
        assert_eq!(host.admin(format).status().code(), Status::NAMESPACE_WRITE_PROTECTED);
    }
    assert!(host.seen.is_empty());
    let hint = Sqe { cdw11: 1, ..discard };
    let flush = of(2, Sqe { opc: nvm::FLUSH, ..Sqe::zeroed() });
    for sqe in [hint, pointing(nvm::READ), pointing(nvm::COMPARE), pointing(nvm::VERIFY), flush] {
        assert_eq!(host.io(sqe).status(), Status::SUCCESS);
    }
    assert_eq!(host.io(of(1, pointing(nvm::WRITE))).status(), Status::SUCCESS, "the other one is its own");
}

#[test]
fn one_flush_of_the_drive_is_a_flush_of_all_namespaces() {
    let mut host = Host::ready_with(several([1, 2, 3]));
    for nsid in [1, 3, NSID_ALL] {
        assert_eq!(host.io(Sqe { opc: nvm::FLUSH, nsid, ..Sqe::zeroed() }).status(), Status::SUCCESS);
    }
    assert_eq!(host.seen.iter().map(|command| command.op).collect::<Vec<_>>(), [Op::Flush; 3]);
}

#[test]
fn the_time_limit_of_recovery_is_each_namespaces_own() {
    let mut host = Host::ready_with(several([1, 2]));
    let feature = |opc, nsid, cdw11| Sqe { opc, nsid, cdw10: fid::ERROR_RECOVERY.into(), cdw11, ..Sqe::zeroed() };
    let set = |host: &mut Host, nsid, value| {
        assert_eq!(host.admin(feature(admin::SET_FEATURES, nsid, value)).status(), Status::SUCCESS);
        [1, 2].map(|nsid| host.admin(feature(admin::GET_FEATURES, nsid, 0)).dw0)
    };
    assert_eq!(set(&mut host, 2, 7), [0, 7]);
    assert_eq!(set(&mut host, 1, 3), [3, 7]);
    assert_eq!(set(&mut host, NSID_ALL, 9), [9, 9]);
}

fn format(nsid: u32, index: u32) -> Sqe {
    Sqe { opc: admin::FORMAT_NVM, nsid, cdw10: index, ..Sqe::zeroed() }
}

#[test]
fn others_go_on_while_one_is_formatted() {
    let mut host = Host::ready_with(several([1, 2, 3]));
    host.records = None;
    let first = host.submit(0, format(1, 1));
    let second = host.submit(0, format(2, 0));
    host.fetch_all();
    let records = host.take_records();
    assert_eq!(records.iter().map(|record| record.nsid).collect::<Vec<_>>(), [1, 2]);
    records.iter().for_each(|record| host.controller.format_recorded(*record, true));
    assert_eq!(host.io(of(3, rw(nvm::VERIFY, 0, 1))).status(), Status::SUCCESS);
    for nsid in [1, 2] {
        assert_eq!(host.io(of(nsid, rw(nvm::VERIFY, 0, 1))).status(), Status::FORMAT_IN_PROGRESS);
        assert_eq!(host.admin(format(nsid, 0)).status(), Status::FORMAT_IN_PROGRESS);
    }
    assert_eq!(host.admin(format(NSID_ALL, 0)).status(), Status::FORMAT_IN_PROGRESS);
    host.run();
    host.take_records().iter().rev().for_each(|record| host.controller.format_recorded(*record, true));
    let ended = host.completions(0);
    assert_eq!(ended.iter().map(|cqe| cqe.cid).collect::<Vec<_>>(), [second, first]);
    assert!(ended.iter().all(|cqe| cqe.status().is_success()));
    let now: Vec<_> = host.controller.config().namespaces.iter().map(|(_, its)| its.lba_bytes).collect();
    assert_eq!(now, [4096, 512, 512]);
    assert!(host.tenant().iter().all(|byte| *byte == 0));
    assert!(host.disk[base_of(2) as usize..][..(OTHERS_BYTES / 4) as usize].iter().all(|byte| *byte == 0));
    assert_eq!(host.disk[base_of(3) as usize], crate::host::GUARD);
}

#[test]
fn a_format_of_all_ends_with_the_last_and_fails_with_any() {
    for fails in [false, true] {
        let mut host = Host::ready_with(several([1, 2, 3]));
        host.submit(0, format(NSID_ALL, 1));
        host.fetch_all();
        let records = host.take_records();
        assert!(records.iter().all(|record| record.format == 1 && record.lba_bytes == 4096) && records.len() == 3);
        assert_eq!((host.fetch_all(), host.in_flight.len()), (0, 3), "a step of each");
        host.fail = fails.then_some(DeviceError::Medium);
        let at = host.in_flight.iter().position(|(_, command, _)| command.disk == 1).expect("a step of namespace 2");
        host.in_flight.swap(0, at);
        host.finish_one();
        host.fail = None;
        assert_eq!(host.peek_completion(0), None, "others go on");
        host.run();
        let expected = if fails { Status::WRITE_FAULT } else { Status::SUCCESS };
        assert_eq!(host.completions(0).iter().map(|cqe| cqe.status()).collect::<Vec<_>>(), [expected]);
        for nsid in [1, 2, 3] {
            let cut_short = fails && nsid == 2;
            let expected = if cut_short { Status::NAMESPACE_NOT_READY } else { Status::SUCCESS };
            assert_eq!(host.io(of(nsid, rw(nvm::VERIFY, 0, 1))).status().code(), expected, "namespace {nsid}");
        }
        assert_eq!(host.admin(format(2, 1)).status(), Status::SUCCESS);
        assert_eq!(host.io(of(2, rw(nvm::VERIFY, 0, 1))).status(), Status::SUCCESS);
    }
}

#[test]
fn the_error_log_names_the_namespace() {
    let mut host = Host::ready_with(several([1, 2]));
    host.fail = Some(DeviceError::Medium);
    assert_eq!(host.io(of(2, rw(nvm::VERIFY, 3, 1))).status(), Status::UNRECOVERED_READ);
    host.fail = None;
    let data = host.alloc(4096);
    let log = Sqe { opc: admin::GET_LOG_PAGE, cdw10: u32::from(lid::ERROR) | 15 << 16, ..Sqe::zeroed() };
    assert_eq!(host.admin(Sqe { dptr: [data, 0], ..log }).status(), Status::SUCCESS);
    let newest: ErrorEntry = bytemuck::pod_read_unaligned(&host.read(data, 64));
    assert_eq!((newest.nsid, newest.lba), (2, 3));
}
