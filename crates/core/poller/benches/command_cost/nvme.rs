//! A guest with an NVMe controller, and that controller.

#[allow(dead_code)]
#[path = "../../../../frontends/nvme-controller/tests/controller/host.rs"]
mod host;

use guest_memory::Mapping;
use io_model::{Extents, Placed};
use nvme_controller::{Controller, ControllerConfig, NamespaceConfig};
use nvme_spec::Sqe;
use nvme_spec::opcode::{create, nvm};

use self::host::{Host, RAM_BYTES, RAM_IOVA, Vectors};
use crate::{DISK_BYTES, Guest, TENANT};

const ENTRIES: u16 = 1024;

/// Its queue is polled: it asks for no interrupts.
pub struct NvmeGuest {
    host: Host,
}

impl Guest for NvmeGuest {
    fn offer(&mut self, count: u16) {
        for n in 0..count {
            let data = RAM_IOVA + RAM_BYTES / 2 + u64::from(n) * 4096;
            self.host.push(1, Sqe { dptr: [data, 0], ..host::rw(nvm::READ, 0, 8) });
        }
        if count > 0 {
            self.host.ring(1);
        }
    }

    fn take(&mut self) -> u16 {
        (0..).take_while(|_| self.host.next_completion(1).is_some()).count() as u16
    }
}

/// One queue with commands, and `idle_queues` without.
pub fn attach(idle_queues: u16) -> (NvmeGuest, Placed<Controller<Vectors>>) {
    let namespace = NamespaceConfig { base_bytes: 0, ..host::namespace(1, DISK_BYTES, 512) };
    let config = ControllerConfig { tenant: TENANT, namespaces: vec![(1, namespace)], ..host::config() };
    let mut host = Host::without_journal(config);
    host.enable(32);
    for qid in 1..=idle_queues + 1 {
        let mut cq = host.create_cq_sqe(qid, ENTRIES, 1);
        cq.cdw11 = create::PC;
        assert!(host.admin(cq).status().is_success());
        host.track_cq(&cq);
        host.create_sq_with(qid, ENTRIES, qid, create::QPRIO_URGENT);
    }
    // The driver stays, its controller goes to the poller.
    let (doorbells, _) = Mapping::memfd("unused", 4096).expect("memfd");
    let unused = Controller::new(host::config(), doorbells, Vectors::default()).expect("a good configuration");
    let controller = std::mem::replace(host.controller.at(0), unused);
    (NvmeGuest { host }, Placed::new(controller, vec![Extents::one(0, DISK_BYTES)]))
}
