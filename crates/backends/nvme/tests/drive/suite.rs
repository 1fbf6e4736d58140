//! Drives of every kind pass the common suite.

#![allow(clippy::disallowed_methods, reason = "the drive's thread is the test's")]

use std::thread;

use backend_nvme::{NvmeDrive, Options};
use conformance::{Device, MIN_SIZE_BYTES};
use fake_device::Fake;
use nvme_spec::identify::sgls;

const SIZE_BYTES: u64 = MIN_SIZE_BYTES + 4096;

/// Runs the suite on a drive; gives how many bytes were copied.
fn conform(fake: &Fake) -> u64 {
    let (drive, thread) = NvmeDrive::start(fake.device(), Options::default()).expect("a drive");
    let running = thread::spawn(move || thread.run(|notice| panic!("{notice:?}")));
    let block_bytes = drive.block_bytes().into();
    let device = Device { size_bytes: drive.size_bytes(), block_bytes, keeps_data: true };
    conformance::check(device, |hwqs, depth| drive.open_queues(hwqs, depth).expect("queues"));
    let copied_bytes = drive.copied_bytes();
    assert_eq!(fake.lent_mappings(), 0, "memory that nobody uses is still mapped");
    drop(drive);
    running.join().expect("the drive's thread ends with its last user");
    copied_bytes
}

fn fake() -> Fake {
    Fake::new(SIZE_BYTES / 512).with_dma_space()
}

#[test]
fn a_drive_that_reaches_guest_memory_conforms() {
    assert!(conform(&fake()) > 0, "the suite has data at odd addresses");
}

#[test]
fn a_drive_that_reaches_no_memory_of_others_conforms() {
    let all_copied = conform(&Fake::new(SIZE_BYTES / 512));
    assert!(all_copied > conform(&fake()));
}

#[test]
fn a_drive_with_sgls_conforms_and_copies_less() {
    let fake_sgl = fake();
    fake_sgl.state().sgls = sgls::SUPPORTED;
    let copied = conform(&fake_sgl);
    assert!(copied < conform(&fake()), "{copied}");
}

#[test]
fn a_drive_with_small_commands_large_blocks_and_a_cache_conforms() {
    let fake = fake().with_blocks_of(4096);
    (fake.state().mdts, fake.state().vwc) = (2, 1);
    conform(&fake);
}

#[test]
fn a_drive_without_write_zeroes_and_discard_conforms() {
    let fake = fake();
    fake.state().oncs = 0;
    conform(&fake);
}

#[test]
fn a_drive_with_shadow_doorbells_conforms() {
    conform(&fake().with_shadow_doorbells());
}
