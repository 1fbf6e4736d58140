//! How well a profile predicts what was measured.

use serde::Serialize;
use ssd_model::Profile;

use crate::model;
use crate::rig::Facts;
use crate::seen::{Cell, Seen};
use crate::session::Effort;

/// One load, as measured and as the profile predicts it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Compared {
    /// On the drive.
    pub measured: Cell,
    /// By the profile.
    pub predicted: Cell,
}

impl Compared {
    /// Predicted over measured throughput, less 1.
    pub fn iops_off(&self) -> f64 {
        self.predicted.iops / self.measured.iops.max(f64::MIN_POSITIVE) - 1.0
    }

    /// Predicted over measured mean latency, less 1.
    pub fn mean_off(&self) -> f64 {
        self.predicted.mean_ns / self.measured.mean_ns.max(f64::MIN_POSITIVE) - 1.0
    }
}

/// Does the measured loads on the profile. Loads that one of both could not finish are left out.
pub fn judge(profile: &Profile, facts: Facts, effort: Effort, seen: &Seen) -> Vec<Compared> {
    let cells = |session: Option<Vec<Cell>>| session.unwrap_or_default();
    let Ok(mut session) = model::session(profile, facts, effort, seen) else { return Vec::new() };
    let mut predicted = cells(seen.read_cells.is_some().then(|| session.read_cells().ok()).flatten());
    predicted.extend(cells(seen.write_cells.is_some().then(|| session.write_cells().ok()).flatten()));
    let measured = seen.read_cells.iter().chain(&seen.write_cells).flatten();
    let key = |cell: &Cell| (cell.read_percent, cell.len_bytes, cell.depth);
    let pair = |measured: &Cell| {
        let predicted = predicted.iter().find(|predicted| key(predicted) == key(measured))?;
        Some(Compared { measured: *measured, predicted: *predicted })
    };
    measured.filter_map(pair).collect()
}
