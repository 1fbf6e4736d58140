//! A drive model in virtual time, and calibrations of it.

use std::sync::atomic::AtomicBool;

use backend_memory::{Model, ModelDrive};
use calibrate::{DEPTH, Effort, Facts, Fit, HWQS, Rig, Session, VirtualClock, fit};
use ssd_model::Profile;

/// Of every drive here.
pub const SIZE_BYTES: u64 = 16 << 30;

/// A range to write to.
pub const WRITABLE: Option<(u64, u64)> = Some((1 << 30, 4 << 30));

/// Nobody interrupts.
pub static NEVER: AtomicBool = AtomicBool::new(false);

pub fn facts(overwrite: Option<(u64, u64)>) -> Facts {
    Facts { size_bytes: SIZE_BYTES, block_bytes: 512, overwrite, own_ns: (0.0, 0.0) }
}

pub fn drive(profile: &Profile) -> ModelDrive {
    ModelDrive::without_content(profile.clone(), SIZE_BYTES)
}

/// A session on a drive, about to begin.
pub fn session(drive: &ModelDrive, facts: Facts) -> Session<'static, Model, VirtualClock> {
    let queues = drive.open_queues(HWQS, DEPTH).expect("queues");
    let rig = Rig::new(queues, VirtualClock::default(), facts, &NEVER).expect("memory");
    Session::new(rig, Effort::QUICK, Default::default())
}

/// A whole calibration.
pub fn calibrate(profile: &Profile, overwrite: Option<(u64, u64)>) -> Fit {
    let mut session = session(&drive(profile), facts(overwrite));
    session.run_all().expect("measured");
    fit(&session.seen, facts(overwrite), "found", "").expect("seen")
}
