//! What encryption costs this host: the daemon's cipher around a drive that takes no time.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use backend_cipher::{Access, DataKey, Encrypted, Keys};
use backend_memory::NullDrive;
use io_model::{Backend, TenantId};
use ssd_model::Cipher;

use crate::clock::Clock;
use crate::estimate::Estimate;
use crate::fit::{Fit, Parameter, Source};
use crate::rig::{DEPTH, Facts, HWQS, Rig, Shot};
use crate::session::{BLOCK_BYTES, median};

/// Writes in a burst, and bursts.
const BURST: usize = 64;
const ROUNDS: usize = 101;
const SIZE_BYTES: u64 = 1 << 20;

/// A poller's time for a sector of 512 and of 4096 bytes, ns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CipherTimes([Estimate; 2]);

impl CipherTimes {
    /// Measures on this core, by `clock`, until `stop` is set. `None`: no memory for it, or stopped.
    pub fn measure<C: Clock>(clock: impl Fn() -> C, stop: &AtomicBool) -> Option<Self> {
        let plain = block_time(null(), clock(), stop)?;
        let encrypted = |sector_bytes: u32| {
            let mut key = [1; DataKey::BYTES];
            key[0] = 2;
            let keys = Arc::new(Keys::default());
            keys.set(TenantId(0), 0, Access::Key(Arc::new(DataKey::new(key.into(), sector_bytes).ok()?)));
            let block = block_time(Encrypted::new(null(), keys), clock(), stop)?.minus(plain);
            Some(block.times(f64::from(sector_bytes) / BLOCK_BYTES as f64))
        };
        Some(Self([encrypted(512)?, encrypted(4096)?]))
    }

    /// A fit that has these times too.
    #[must_use]
    pub fn in_fit(self, mut fit: Fit) -> Fit {
        let [sector_512_ns, sector_4096_ns] = self.0.map(|time| time.value.max(0.0).round() as u64);
        fit.profile.cipher = Some(Cipher { sector_512_ns, sector_4096_ns });
        let names = ["cipher.sector_512_ns", "cipher.sector_4096_ns"];
        let found = names.into_iter().zip(self.0);
        fit.add(found.map(|(name, time)| Parameter { name, source: Source::Measured(time) }));
        fit
    }
}

fn null() -> impl Backend {
    NullDrive::new(SIZE_BYTES).open_queues(HWQS, DEPTH)
}

/// Time between two completions of a burst of writes of 4 KiB. What is written is no zeros, which reads might skip.
fn block_time<B: Backend, C: Clock>(backend: B, clock: C, stop: &AtomicBool) -> Option<Estimate> {
    let facts = Facts { size_bytes: SIZE_BYTES, block_bytes: BLOCK_BYTES, overwrite: None, own_ns: (0.0, 0.0) };
    let mut rig = Rig::new(backend, clock, facts, stop).ok()?;
    let shots = [Shot::write(0, BLOCK_BYTES); BURST];
    let mut round = || Some(*rig.burst(&shots).ok()?.iter().max()? as f64 / BURST as f64);
    let rounds: Option<Vec<f64>> = (0..ROUNDS).map(|_| round()).collect();
    rounds.map(median)
}
