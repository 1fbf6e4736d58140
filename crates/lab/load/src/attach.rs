//! Attaches to a tenant's socket, or to a drive itself.

use std::path::{Path, PathBuf};

use io_model::QueuePriority;
use nvme_driver::{Arbitration, PciAddress, VfioDevice, VfioUserDevice};

use crate::Error;
use crate::disk::{Buffers, Disk, DiskQueue, Done, Geometry, QueueShape, Request};
use crate::nvme::{NvmeDisk, NvmeQueue};
use crate::vhost::{VhostDisk, VhostQueue};

/// The socket of a vfio-user tenant, in the tenant's directory.
const VFIO_USER_SOCKET: &str = "cntrl";
/// The socket of a vhost-user-blk tenant, in the tenant's directory.
const VHOST_USER_SOCKET: &str = "vhost.sock";

/// The protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Frontend {
    /// vhost-user-blk if the socket is named `vhost.sock`, or if the directory has only that one; else vfio-user.
    #[default]
    Auto,
    /// An NVMe controller.
    VfioUser,
    /// A virtio-blk device.
    VhostUserBlk,
}

impl Frontend {
    /// The socket at `path`, itself a socket or its directory, and whether it is vhost-user-blk.
    fn socket(self, path: &Path) -> (PathBuf, bool) {
        let (vfio, vhost) = (path.join(VFIO_USER_SOCKET), path.join(VHOST_USER_SOCKET));
        let is_directory = path.is_dir();
        let is_vhost = match self {
            Self::VfioUser => false,
            Self::VhostUserBlk => true,
            Self::Auto if is_directory => vhost.exists() && !vfio.exists(),
            Self::Auto => path.file_name().is_some_and(|name| name == VHOST_USER_SOCKET),
        };
        let socket = match (is_directory, is_vhost) {
            (true, true) => vhost,
            (true, false) => vfio,
            (false, _) => path.to_path_buf(),
        };
        (socket, is_vhost)
    }
}

/// A tenant's disk over either protocol, or a drive.
pub enum AnyDisk {
    /// NVMe over vfio-user.
    Nvme(Box<NvmeDisk<VfioUserDevice>>),
    /// A drive that was taken from the kernel, through VFIO.
    Drive(Box<NvmeDisk<VfioDevice>>),
    /// virtio-blk over vhost-user.
    Vhost(VhostDisk),
}

impl AnyDisk {
    /// Attaches to the socket at `path`, to the one in the directory `path`, or to the drive with that PCI address.
    pub fn attach(path: &Path, frontend: Frontend) -> Result<Self, Error> {
        Self::attach_with(path, frontend, None)
    }

    /// As [`AnyDisk::attach`], with a certain arbitration among the queues; virtio-blk has none.
    pub fn attach_with(path: &Path, frontend: Frontend, arbitration: Option<Arbitration>) -> Result<Self, Error> {
        if let Some(address) = PciAddress::named_by(path) {
            return Ok(Self::Drive(Box::new(NvmeDisk::start_with(VfioDevice::open(address)?, arbitration)?)));
        }
        let (socket, is_vhost) = frontend.socket(path);
        Ok(match (is_vhost, arbitration) {
            (true, None) => Self::Vhost(VhostDisk::connect(&socket)?),
            (true, Some(_)) => {
                let problem = "virtio-blk has no arbitration among queues: leave --arbitration out";
                return Err(Error::Spec(format!("{}: {problem}", socket.display())));
            }
            (false, _) => Self::Nvme(Box::new(NvmeDisk::start_with(VfioUserDevice::connect(&socket)?, arbitration)?)),
        })
    }
}

impl Disk for AnyDisk {
    type Queue = AnyQueue;

    fn geometry(&self) -> Geometry {
        match self {
            Self::Nvme(disk) => disk.geometry(),
            Self::Drive(disk) => disk.geometry(),
            Self::Vhost(disk) => disk.geometry(),
        }
    }

    fn open_queues(&mut self, shapes: &[QueueShape]) -> Result<Vec<AnyQueue>, Error> {
        Ok(match self {
            Self::Nvme(disk) => disk.open_queues(shapes)?.into_iter().map(AnyQueue::Nvme).collect(),
            Self::Drive(disk) => disk.open_queues(shapes)?.into_iter().map(AnyQueue::Nvme).collect(),
            Self::Vhost(disk) => disk.open_queues(shapes)?.into_iter().map(AnyQueue::Vhost).collect(),
        })
    }

    fn close_queue(&mut self, queue: AnyQueue) -> Result<(), Error> {
        match (self, queue) {
            (Self::Nvme(disk), AnyQueue::Nvme(queue)) => disk.close_queue(queue),
            (Self::Drive(disk), AnyQueue::Nvme(queue)) => disk.close_queue(queue),
            (Self::Vhost(disk), AnyQueue::Vhost(queue)) => disk.close_queue(queue),
            _ => Err(Error::System("a queue went back to another disk".into())),
        }
    }

    fn check(&mut self) -> Result<(), Error> {
        match self {
            Self::Nvme(disk) => disk.check(),
            Self::Drive(disk) => disk.check(),
            Self::Vhost(disk) => disk.check(),
        }
    }
}

/// A queue of an [`AnyDisk`]: a branch per call, which a processor predicts.
pub enum AnyQueue {
    /// Of an NVMe controller.
    Nvme(NvmeQueue),
    /// Of a virtio-blk device.
    Vhost(VhostQueue),
}

impl DiskQueue for AnyQueue {
    fn depth(&self) -> u16 {
        match self {
            Self::Nvme(queue) => queue.depth(),
            Self::Vhost(queue) => queue.depth(),
        }
    }

    #[inline]
    fn in_flight(&self) -> u16 {
        match self {
            Self::Nvme(queue) => queue.in_flight(),
            Self::Vhost(queue) => queue.in_flight(),
        }
    }

    #[inline]
    fn next_tag(&self) -> Option<u16> {
        match self {
            Self::Nvme(queue) => queue.next_tag(),
            Self::Vhost(queue) => queue.next_tag(),
        }
    }

    fn priority(&self) -> Option<QueuePriority> {
        match self {
            Self::Nvme(queue) => queue.priority(),
            Self::Vhost(queue) => queue.priority(),
        }
    }

    fn buffers(&self) -> Buffers {
        match self {
            Self::Nvme(queue) => queue.buffers(),
            Self::Vhost(queue) => queue.buffers(),
        }
    }

    #[inline]
    fn send(&mut self, request: Request) -> Result<(), Error> {
        match self {
            Self::Nvme(queue) => queue.send(request),
            Self::Vhost(queue) => queue.send(request),
        }
    }

    #[inline]
    fn ring(&mut self) -> Result<(), Error> {
        match self {
            Self::Nvme(queue) => queue.ring(),
            Self::Vhost(queue) => queue.ring(),
        }
    }

    #[inline]
    fn poll(&mut self, done: &mut impl FnMut(Done)) -> Result<u32, Error> {
        match self {
            Self::Nvme(queue) => queue.poll(done),
            Self::Vhost(queue) => queue.poll(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::Frontend::{self, Auto, VfioUser, VhostUserBlk};

    #[test]
    fn the_socket_and_its_protocol_follow_from_names() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let found = |frontend: Frontend, path: &str| {
            let (socket, is_vhost) = frontend.socket(&root.path().join(path));
            (socket.strip_prefix(root.path()).expect("it is inside").display().to_string(), is_vhost)
        };
        assert_eq!(found(Auto, "db/cntrl"), ("db/cntrl".into(), false));
        assert_eq!(found(Auto, "db/vhost.sock"), ("db/vhost.sock".into(), true));
        assert_eq!(found(Auto, "export.sock"), ("export.sock".into(), false));
        assert_eq!(found(VhostUserBlk, "export.sock"), ("export.sock".into(), true));
        for (tenant, socket) in [("db", "cntrl"), ("web", "vhost.sock")] {
            std::fs::create_dir(root.path().join(tenant)).expect("a directory");
            File::create(root.path().join(tenant).join(socket)).expect("a socket's place");
            assert_eq!(found(Auto, tenant), (format!("{tenant}/{socket}"), socket == "vhost.sock"));
        }
        assert_eq!(found(VfioUser, "web"), ("web/cntrl".into(), false));
    }
}
