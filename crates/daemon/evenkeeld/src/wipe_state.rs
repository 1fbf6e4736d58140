//! Where the wiper is, and how fast it comes on.

use std::time::Instant;

use io_model::TenantId;
use layout::Wiping;
use poller::TenantProbes;

use runtime::pollers::PollerId;

/// Where the wiper is.
#[derive(Debug, Default)]
pub(crate) enum State {
    /// There is none.
    #[default]
    Away,
    /// At a poller, with the range that starts there.
    Busy(PollerId, TenantId, u64, Begun),
    /// It was told to go.
    Leaving(TenantId),
}

/// When the wiper began with a range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    pub(crate) at: Instant,
    /// What was done before.
    pub(crate) done_bytes: u64,
    /// What is written from then on. `None`: a thread still looks.
    pub(crate) write_bytes: Option<u64>,
}

/// Over all passes.
pub(crate) fn done_bytes(range: &Wiping) -> u64 {
    range.size_bytes * u64::from(range.passes) + range.wiped_bytes
}

/// What overwrites the ranges that deleted disks left, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Wiper {
    pub(crate) state: State,
    /// What measures it, while it is there.
    pub(crate) probes: Option<TenantProbes>,
    /// The drive was allowed to make zeros itself, and did not: until the next start it is not asked again.
    pub(crate) drive_makes_no_zeros: bool,
}

impl Wiper {
    /// Bytes per second since it was begun.
    pub(crate) fn rate(&self, range: &Wiping) -> Option<u64> {
        let State::Busy(.., offset_bytes, begun) = &self.state else { return None };
        let done = done_bytes(range).checked_sub(begun.done_bytes)?;
        let rate = (done as f64 / begun.at.elapsed().as_secs_f64()) as u64;
        (*offset_bytes == range.offset_bytes && rate > 0).then_some(rate)
    }

    /// What is written of a range since it was begun.
    pub(crate) fn write_bytes(&self, range: &Wiping) -> Option<u64> {
        let State::Busy(.., offset_bytes, begun) = &self.state else { return None };
        begun.write_bytes.filter(|_| *offset_bytes == range.offset_bytes)
    }
}
