//! Namespaces that come, grow and go while the guest runs.

use bytemuck::Zeroable;
use nvme_controller::{ConfigError, NamespaceError};
use nvme_spec::feature::{async_event, fid};
use nvme_spec::identify::{IdentifyController, cns};
use nvme_spec::log::{get_log, lid};
use nvme_spec::namespace::IdentifyNamespace;
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::{Sqe, Status};

use crate::bringup::identify;
use crate::host::{Host, SIZE_BYTES, config, rw};

/// Dword 0 of a Namespace Attribute Changed notice (NVMe Base 2.0, 5.2.1): type 2h, information 0h, log page 4h.
const CHANGED: u32 = 0x02 | 0x04 << 16;

impl Host {
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

    fn blocks(&mut self, nsid: u32) -> u64 {
        let id: IdentifyNamespace = bytemuck::pod_read_unaligned(&identify(self, cns::NAMESPACE, nsid));
        assert_eq!((id.ncap, id.nuse), (id.nsze, id.nsze));
        id.nsze
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
    host.vectors.take();
    assert_eq!(host.blocks(1), SIZE_BYTES / 512 + 8);
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
    for (nsid, size_bytes, expected) in [
        (0, SIZE_BYTES, NamespaceError::Absent(0)),
        (7, SIZE_BYTES, NamespaceError::Absent(7)),
        (
            1,
            SIZE_BYTES - 4096,
            NamespaceError::Shrinks { nsid: 1, has_bytes: SIZE_BYTES, asked_bytes: SIZE_BYTES - 4096 },
        ),
        (1, SIZE_BYTES + 512, NamespaceError::Config(ConfigError::Namespace)),
        (1, !4095, NamespaceError::Config(ConfigError::Namespace)),
    ] {
        assert_eq!(host.controller.grow(nsid, size_bytes), Err(expected));
    }
    assert_eq!(host.controller.grow(1, SIZE_BYTES), Ok(()), "it is that long");
    assert_eq!((host.changed(false), host.blocks(1)), (vec![], SIZE_BYTES / 512));
    assert_eq!(host.controller.config(), config());
}
