//! What is asked of a drive, and of which one.

use engine::HostCosts;
use io_model::QueuePriority;
use policy::{Class, Floor, Limits};
use ssd_model::Profile;

/// How a tenant asks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// It keeps this many commands outstanding over all its queues: 1 or more.
    Closed {
        /// Commands.
        depth: u32,
    },
    /// It asks so often, at random moments (Poisson), whatever comes back.
    Open {
        /// Commands per second, above 0.
        rate_iops: f64,
    },
}

/// Part of a tenant's commands have this length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    /// Bytes, a multiple of 512.
    pub len_bytes: u64,
    /// Its part of all commands; the parts of a tenant's sizes sum to 1.
    pub part: f64,
}

/// Writes of a thin disk to pieces that it does not have for itself yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstWrites {
    /// Their part of the disk's writes, 0 to 1.
    pub share: f64,
    /// Bytes of a piece.
    pub piece_bytes: u64,
    /// Whether snapshots or clones share the pieces, so that each is copied before. Otherwise it is new.
    pub are_shared: bool,
}

/// One tenant: what it was promised and what it will ask for, at random addresses.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// For reports.
    pub name: String,
    /// The promise or the weight.
    pub class: Class,
    /// What it gets at least while it asks for it, under a policy that keeps floors.
    pub floor: Floor,
    /// What it gets at most.
    pub limits: Limits,
    /// Its priority under `wrr` and `drr`.
    pub priority: QueuePriority,
    /// How it asks.
    pub load: Load,
    /// Reads of all commands, 0 to 1; the others are writes.
    pub read_share: f64,
    /// At least one.
    pub sizes: Vec<Size>,
    /// The sectors that its data is encrypted in, in bytes. `None`: it is not encrypted.
    pub encrypted_sector_bytes: Option<u32>,
    /// Of a thin disk.
    pub first_writes: Option<FirstWrites>,
    /// The guest's CPUs, at least 1, each with a queue of its own. A closed load is spread over them evenly.
    pub vcpus: u16,
}

impl Tenant {
    /// Commands per second that its floor comes to.
    pub(crate) fn floor_iops(&self) -> f64 {
        self.floor.iops(self.mean_len_bytes())
    }

    /// Commands per second that its limits let through; none without one.
    pub(crate) fn most_iops(&self) -> Option<f64> {
        self.limits.most_iops(self.read_share, self.mean_len_bytes())
    }

    /// The cipher's time for its longest command.
    pub(crate) fn longest_cipher_ns(&self, profile: &Profile) -> u64 {
        let longest_bytes = self.sizes.iter().map(|size| size.len_bytes).max().unwrap_or(0);
        let block_ns = self.encrypted_sector_bytes.map_or(0, |bytes| profile.cipher_ns(bytes));
        block_ns.saturating_mul(longest_bytes) / 4096
    }

    /// Whether pieces are copied for it.
    pub(crate) fn has_copies(&self) -> bool {
        self.first_writes.is_some_and(|first| first.are_shared)
    }

    /// Mean length of its commands.
    pub fn mean_len_bytes(&self) -> f64 {
        self.sizes.iter().map(|size| size.part * size.len_bytes as f64).sum()
    }
}

/// A drive and its host.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// The drive.
    pub profile: Profile,
    /// What commands cost the host's CPUs; pollers are the mediated ones.
    pub costs: HostCosts,
}
