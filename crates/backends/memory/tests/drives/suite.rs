//! Every back end of this crate passes the common suite.

use backend_memory::{MemoryDrive, ModelDrive, NullDrive};
use conformance::{Device, MIN_SIZE_BYTES};
use ssd_model::Profile;

const SIZE_BYTES: u64 = MIN_SIZE_BYTES + 512;

fn device(keeps_data: bool) -> Device {
    Device { size_bytes: SIZE_BYTES, block_bytes: 512, keeps_data }
}

#[test]
fn null_conforms() {
    let drive = NullDrive::new(SIZE_BYTES);
    conformance::check(device(false), |hwqs, depth| drive.open_queues(hwqs, depth));
}

#[test]
fn memory_conforms() {
    let drive = MemoryDrive::new(SIZE_BYTES).unwrap();
    conformance::check(device(true), |hwqs, depth| drive.open_queues(hwqs, depth));
}

#[test]
fn a_large_empty_memory_drive_costs_nothing() {
    let drive = MemoryDrive::new(1 << 40).unwrap();
    assert_eq!(drive.size_bytes(), 1 << 40);
    assert!(MemoryDrive::new(0).is_err());
}

#[test]
fn every_drive_model_conforms() {
    for profile in Profile::built_in() {
        let drive = ModelDrive::over_memory(profile.clone(), SIZE_BYTES).unwrap();
        conformance::check(device(true), |hwqs, depth| drive.open_queues(hwqs, depth).unwrap());
    }
    let drive = ModelDrive::without_content(Profile::pm1735(), SIZE_BYTES);
    conformance::check(device(false), |hwqs, depth| drive.open_queues(hwqs, depth).unwrap());
}
