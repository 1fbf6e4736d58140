//! Enable, identify, queues, I/O, interrupts: the way a Linux guest starts.

use bytemuck::Zeroable;
use nvme_controller::{Event, Fatal};
use nvme_spec::identify::{IdentifyController, cns};
use nvme_spec::namespace::IdentifyNamespace;
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::regs::{Cap, Cc, Csts, Reg};
use nvme_spec::{Sqe, Status};

use crate::host::{BASE_BYTES, Host, SIZE_BYTES, config, flush};

pub fn identify(host: &mut Host, cns: u8, nsid: u32) -> Vec<u8> {
    let data = host.alloc(4096);
    let sqe = Sqe { opc: admin::IDENTIFY, nsid, dptr: [data, 0], cdw10: cns.into(), ..Sqe::zeroed() };
    assert_eq!(host.admin(sqe).status(), Status::SUCCESS);
    host.read(data, 4096)
}

/// A poller thread owns the controller.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<nvme_controller::Controller<crate::host::Vectors>>();
};

#[test]
fn a_guest_brings_the_controller_up_and_does_io() {
    let mut host = Host::new(config());
    let cap = Cap(host.reg64(Reg::Cap));
    assert_eq!((cap.mqes(), cap.dstrd(), cap.mpsmin()), (1023, 0, 0));
    assert!(cap.cqr() && cap.to() > 0);
    assert_eq!(host.reg32(Reg::Vs), 0x2_0000);
    assert!(!host.csts().rdy());
    host.enable(32);
    assert!(host.csts().rdy());

    let id: IdentifyController = bytemuck::pod_read_unaligned(&identify(&mut host, cns::CONTROLLER, 0));
    assert_eq!(&id.sn, b"EK0001              ");
    assert_eq!((id.nn, id.mnan, id.mdts, id.cntrltype), (32, 32, 8, 1));
    let ns: IdentifyNamespace = bytemuck::pod_read_unaligned(&identify(&mut host, cns::NAMESPACE, 1));
    assert_eq!((ns.nsze, ns.flbas, ns.nlbaf, ns.lbaf[0].lbads), (SIZE_BYTES / 512, 0, 1, 9));

    host.create_pair(1, 64);
    host.vectors.take();
    let data = host.alloc(4096);
    host.write(data, &[7; 4096]);
    let write = host.rw(nvm::WRITE, 16, 8, data, 4096);
    assert_eq!(host.io(write).status(), Status::SUCCESS);
    assert_eq!(host.tenant()[16 * 512..][..4096], [7; 4096]);
    assert_eq!(host.seen.last().map(|command| command.offset_bytes), Some(BASE_BYTES + 16 * 512));

    let back = host.alloc(4096);
    let read = host.rw(nvm::READ, 16, 8, back, 4096);
    assert_eq!(host.io(read).status(), Status::SUCCESS);
    assert_eq!(host.read(back, 4096), [7; 4096]);
    assert_eq!(host.io(flush()).status(), Status::SUCCESS);
    // MSI-X is off: each completion raised the pin.
    assert_eq!(host.vectors.take(), [0, 0, 0]);
    host.check_guards();
}

#[test]
fn a_controller_refuses_to_start_with_a_bad_configuration() {
    let good = Cc::enable_nvm().0;
    for (name, cc) in [("page size", good | 1 << 7), ("command set", good | 1 << 4), ("arbitration", good | 2 << 11)] {
        let mut host = Host::new(config());
        host.enable(32);
        host.set32(Reg::Cc, 0);
        assert_eq!(host.csts(), Csts(0));
        host.set32(Reg::Cc, cc);
        assert_eq!(host.csts(), Csts(Csts::CFS), "{name}");
        assert!(matches!(host.controller.take_event(), Some(Event::Fatal(Fatal::Settings { .. }))), "{name}");
        host.set32(Reg::Cc, 0);
        assert_eq!(host.csts(), Csts(0), "{name}");
        host.enable(32);
        assert!(host.csts().rdy(), "{name}");
    }
    for (name, reg, value) in [("queue size", Reg::Aqa, 0x1f), ("queue memory", Reg::Acq, 0x4000_0000)] {
        let mut host = Host::new(config());
        host.enable(32);
        host.set32(Reg::Cc, 0);
        host.set32(reg, value);
        host.set32(Reg::Cc, good);
        assert!(host.csts().cfs() && !host.csts().rdy(), "{name}");
    }
}
