//! The driver inside libblkio as a client that was written by others: it shares memory of its own process, and
//! names it by the addresses that it has there.

use virtio_driver::{VhostUser, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags};

use crate::common::{Running, VERSION_1};

#[test]
fn its_queue_starts() {
    let server = Running::start("vm");
    let path = server.socket.to_str().unwrap();
    let transport = VhostUser::new(path, VirtioFeatureFlags::VERSION_1.bits()).unwrap();
    let mut transport = Box::new(transport) as Box<VirtioBlkTransport>;
    let queue = VirtioBlkQueue::<()>::setup_queues(&mut *transport, 1, 128).unwrap();
    assert_eq!(server.next(), "connected");
    assert_eq!(server.next(), format!("features {VERSION_1:#x}"));
    assert!(server.next().starts_with("memory 0x"));
    assert!(server.next().starts_with("start 0: 128 at 0x"));
    assert_eq!(server.next(), "call 0 true");
    assert_eq!(server.next(), "enable 0 true");
    drop((queue, transport));
    assert_eq!(server.disconnection(), "the client went away");
}
