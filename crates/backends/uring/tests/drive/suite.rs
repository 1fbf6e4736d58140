//! Files (and a block device, if one is offered) pass the common suite.

use std::path::Path;

use backend_uring::{Kind, UringDrive};
use conformance::{Device, MIN_SIZE_BYTES};

const SIZE_BYTES: u64 = MIN_SIZE_BYTES + 4096;

fn conform(drive: &UringDrive) {
    let device = Device { size_bytes: drive.size_bytes(), block_bytes: drive.block_bytes().max(512), keeps_data: true };
    conformance::check(device, |hwqs, depth| drive.open_queues(hwqs, depth).expect("queues"));
}

fn conform_in(directory: &Path) -> UringDrive {
    let directory = tempfile::tempdir_in(directory).expect("a directory");
    let drive = UringDrive::open(&directory.path().join("drive"), Kind::File, Some(SIZE_BYTES)).expect("a new drive");
    assert_eq!(drive.size_bytes(), SIZE_BYTES);
    conform(&drive);
    drive
}

#[test]
fn a_file_conforms() {
    let drive = conform_in(Path::new(env!("CARGO_TARGET_TMPDIR")));
    // The suite uses memory at odd addresses, so with alignment something must have been bounced.
    assert_eq!(drive.bounced_bytes() > 0, drive.is_direct() && drive.memory_align_bytes() > 1);
}

#[test]
fn a_file_in_memory_conforms() {
    assert!(conform_in(Path::new("/dev/shm")).is_on_cpus(), "what is long is done by threads");
}

/// `EVENKEEL_TEST_BLOCK=/dev/loop7 cargo test -p backend-uring -- --ignored`: all data on it is overwritten.
#[test]
#[ignore = "needs a block device to overwrite, named in EVENKEEL_TEST_BLOCK"]
fn a_block_device_conforms() {
    let path = std::env::var_os("EVENKEEL_TEST_BLOCK").expect("EVENKEEL_TEST_BLOCK names a block device");
    let drive = UringDrive::open(Path::new(&path), Kind::Block, None).unwrap();
    eprintln!("{drive:?}");
    conform(&drive);
}
