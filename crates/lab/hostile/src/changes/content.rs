//! What a disk's blocks must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::MIB;

/// What is stamped, and written at a time.
pub const BLOCK_BYTES: u64 = 4096;
/// What nobody wrote.
pub const ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// The content of an owner's block in one version.
pub fn block(owner: u64, at: u64, version: u32) -> Vec<u8> {
    let mut line = [0; 32];
    line[..8].copy_from_slice(b"evenkeel");
    line[8..16].copy_from_slice(&owner.to_le_bytes());
    line[16..24].copy_from_slice(&at.to_le_bytes());
    line[24..28].copy_from_slice(&version.to_le_bytes());
    line.repeat(BLOCK_BYTES as usize / line.len())
}

/// What is known of a disk's blocks.
#[derive(Debug)]
pub struct Content {
    /// The owner of the blocks.
    pub owner: u64,
    /// The version that was acknowledged last; 0: zeros.
    pub versions: Vec<u32>,
    /// Blocks whose writes were never answered, with the versions that they may have.
    unsettled: BTreeMap<usize, Vec<u32>>,
    /// Blocks with a command in flight, including those that lost their client until that is over for sure.
    busy: BTreeSet<usize>,
    /// The last version number given out: no number is used twice, whichever client writes.
    version: u32,
}

/// A disk's content, for all who write and read it.
pub type Shared = Arc<Mutex<Content>>;

/// Nobody panics with it locked and half changed.
pub fn lock(content: &Mutex<Content>) -> MutexGuard<'_, Content> {
    content.lock().unwrap_or_else(PoisonError::into_inner)
}

fn blocks_of(mib: u64) -> usize {
    (mib * MIB / BLOCK_BYTES) as usize
}

impl Content {
    /// Of a new disk.
    pub fn new(owner: u64, mib: u64) -> Shared {
        let (versions, unsettled, busy) = (vec![0; blocks_of(mib)], BTreeMap::new(), BTreeSet::new());
        Arc::new(Mutex::new(Self { owner, versions, unsettled, busy, version: 0 }))
    }

    /// The disk has grown, by zeros.
    pub fn grow(&mut self, mib: u64) {
        self.versions.resize(blocks_of(mib), 0);
    }

    /// Whether the block is the caller's for one command.
    pub fn claim(&mut self, at: usize) -> bool {
        self.busy.insert(at)
    }

    /// A command on a claimed block is over.
    pub fn release(&mut self, at: usize) {
        self.busy.remove(&at);
    }

    /// The daemon is gone, and all commands with it.
    pub fn release_all(&mut self) {
        self.busy.clear();
    }

    /// A block that was written, and of which all is known.
    pub fn settled_block(&self) -> Option<u64> {
        let is_settled = |at: &usize| self.versions[*at] > 0 && !self.unsettled.contains_key(at);
        (0..self.versions.len()).find(is_settled).map(|at| at as u64)
    }

    /// A write of a block begins: what is to be written.
    pub fn stamp(&mut self, at: usize) -> (u32, Vec<u8>) {
        self.version += 1;
        self.unsettled.entry(at).or_default().push(self.version);
        (self.version, block(self.owner, at as u64, self.version))
    }

    /// That write was acknowledged.
    pub fn written(&mut self, at: usize, version: u32) {
        self.versions[at] = version;
        self.unsettled.remove(&at);
    }

    /// Whether a block may look so; settles what was not known.
    pub fn fits(&mut self, at: usize, found: &[u8]) -> bool {
        let known = self.versions[at];
        let is = |version: u32| match version {
            0 => found == ZEROS,
            version => found == block(self.owner, at as u64, version),
        };
        let may_be = self.unsettled.remove(&at).into_iter().flatten().chain([known]);
        let found = may_be.into_iter().find(|version| is(*version));
        self.versions[at] = found.unwrap_or(known);
        found.is_some()
    }
}
