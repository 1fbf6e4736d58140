//! Wrappers pass the common suite: while they do nothing, and where they delay.

use backend_memory::MemoryDrive;
use backend_uring::{Kind, UringDrive};
use backend_wrappers::{Checked, Delay, Faults, Faulty};
use conformance::{Device, MIN_SIZE_BYTES};
use io_model::{Backend, Command, Nanos, Op};

const DEVICE: Device = Device { size_bytes: MIN_SIZE_BYTES, block_bytes: 512, keeps_data: true };

/// The suite over a drive in memory, and over a file, whose completions nobody can foretell.
fn conform<B: Backend, F: Backend>(
    memory: impl Fn(backend_memory::Memory) -> B,
    file: impl Fn(backend_uring::Uring) -> F,
) {
    let drive = MemoryDrive::new(MIN_SIZE_BYTES).expect("memory");
    conformance::check(DEVICE, |hwqs, depth| Checked::new(memory(drive.open_queues(hwqs, depth))));
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let drive = UringDrive::open(&directory.path().join("drive"), Kind::File, Some(MIN_SIZE_BYTES)).expect("a drive");
    let device = Device { block_bytes: drive.block_bytes().max(512), ..DEVICE };
    conformance::check(device, |hwqs, depth| Checked::new(file(drive.open_queues(hwqs, depth).expect("queues"))));
}

#[test]
fn a_delay_of_nothing() {
    conform(|memory| Delay::new(memory, |_| Nanos(0)), |file| Delay::new(file, |_| Nanos(0)));
}

/// Reads overtake writes, and short commands long ones.
fn delay(command: &Command) -> Nanos {
    Nanos(if command.op == Op::Read { 700 } else { 300 } + command.len_bytes / 64)
}

#[test]
fn a_delay() {
    conform(|memory| Delay::new(memory, delay), |file| Delay::new(file, delay));
}

#[test]
fn no_faults() {
    let faults = Faults::default();
    conform(|memory| Faulty::new(memory, &faults), |file| Faulty::new(file, &faults));
}

#[test]
fn all_together() {
    let faults = Faults::default();
    let stack = |memory| Delay::new(Faulty::new(memory, &faults), delay);
    conform(stack, |file| Faulty::new(Delay::new(file, delay), &faults));
}
