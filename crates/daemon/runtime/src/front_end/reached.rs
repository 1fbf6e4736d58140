//! Where a tenant is reached once it is served.

use std::time::Instant;

use client_socket::Server;

use super::block_device::BlockDevice;

/// What clients come by. Dropping it takes that away.
pub enum Reached {
    /// A socket, and the thread that serves it.
    Socket(Server),
    /// A block device of this host's.
    Device(BlockDevice),
}

impl Reached {
    /// Accepts no client from now on, and disconnects the present one. Does not wait.
    pub fn stop(&self) {
        match self {
            Self::Socket(server) => server.stop(),
            // Its queues stop with their pollers; it goes when it is dropped.
            Self::Device(_) => {}
        }
    }

    /// Whether a client has the disk now.
    pub fn has_client(&self) -> bool {
        match self {
            Self::Socket(server) => server.has_client(),
            Self::Device(device) => device.is_open(),
        }
    }

    /// Whether a keeper has its clients too.
    pub fn is_kept(&self) -> bool {
        match self {
            Self::Socket(server) => server.is_kept(),
            Self::Device(_) => false,
        }
    }

    /// The daemon ends: waits until no client comes any more. A device that is open stays for the next daemon.
    pub fn part_by(self, deadline: Instant) {
        match self {
            Self::Socket(server) => {
                server.join_by(deadline);
            }
            Self::Device(device) => device.part(),
        }
    }
}
