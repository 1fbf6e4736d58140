//! What a poller serves: a tenant's NVMe controller, or virtqueues of its virtio-blk disk.

use io_model::{Fetch, IoBuf, Outcome, QueuePriority, Source, Token};

use crate::device::Device;
use crate::disk::DiskQueues;

/// A tenant at one poller, behind either front end.
pub enum Served {
    /// An NVMe controller over vfio-user.
    Nvme(Box<Device>),
    /// Virtqueues over vhost-user.
    Disk(Box<DiskQueues>),
}

impl Served {
    /// The controller, if it is one.
    pub fn nvme(&mut self) -> Option<&mut Device> {
        match self {
            Self::Nvme(device) => Some(device),
            Self::Disk(_) => None,
        }
    }

    /// The virtqueues, if it is these.
    pub fn disk(&mut self) -> Option<&mut DiskQueues> {
        match self {
            Self::Nvme(_) => None,
            Self::Disk(disk) => Some(disk),
        }
    }

    /// Whether a client is attached.
    pub fn has_client(&self) -> bool {
        match self {
            Self::Nvme(device) => device.has_client(),
            Self::Disk(disk) => disk.has_client(),
        }
    }
}

impl Source for Served {
    #[inline]
    fn live_vqs(&self) -> u128 {
        match self {
            Self::Nvme(device) => device.live_vqs(),
            Self::Disk(disk) => disk.live_vqs(),
        }
    }

    fn priority(&self, vq: u16) -> QueuePriority {
        match self {
            Self::Nvme(device) => device.priority(vq),
            Self::Disk(disk) => disk.priority(vq),
        }
    }

    #[inline]
    fn service(&mut self) -> u32 {
        match self {
            Self::Nvme(device) => device.service(),
            Self::Disk(disk) => disk.service(),
        }
    }

    #[inline]
    fn backlog(&mut self, vq: u16) -> u32 {
        match self {
            Self::Nvme(device) => device.backlog(vq),
            Self::Disk(disk) => disk.backlog(vq),
        }
    }

    #[inline]
    fn fetch(&mut self, vq: u16) -> Fetch {
        match self {
            Self::Nvme(device) => device.fetch(vq),
            Self::Disk(disk) => disk.fetch(vq),
        }
    }

    #[inline]
    fn complete(&mut self, token: Token, outcome: Outcome, buf: IoBuf) {
        match self {
            Self::Nvme(device) => device.complete(token, outcome, buf),
            Self::Disk(disk) => disk.complete(token, outcome, buf),
        }
    }

    fn notify(&mut self) {
        match self {
            Self::Nvme(device) => device.notify(),
            Self::Disk(disk) => disk.notify(),
        }
    }

    fn set_wakeup(&mut self, wanted: bool) {
        match self {
            Self::Nvme(device) => device.set_wakeup(wanted),
            Self::Disk(disk) => disk.set_wakeup(wanted),
        }
    }
}
