//! A drive that may make zeros by itself, one that only says that it did, and an image with holes.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use api::{Deletion, DiskSpec, Rest, Wipe, api_path};
use backend_memory::MemoryDrive;
use backend_wrappers::{Fate, Fault, Faults, Faulty, Record, Recorded};
use guest_memory::{IoBuf, Mapping};
use io_model::{Backend, DeviceError, Done, HwqId, Io, Nanos, Op, Place};

use super::*;
use crate::startup::Engine;
use config::Config;
use io_model::TenantId;
use policy::PolicyConfig;
use runtime::drive::AnyDrive;
use runtime::drive::Wrapped;

const DRIVE_BYTES: usize = 4 << 20;
const DISK_BYTES: usize = 1 << 20;
const FORMER: u8 = 0xee;
const FILE: &str = "[device]\nbackend = \"memory\"\nsize = \"4MiB\"\nwipe = \"write-zeroes\"\n\
                    [policy]\nname = \"passthrough\"\n";

/// Answers Write Zeroes, and does nothing.
struct Liar<B>(B);

impl<B: Backend> Backend for Liar<B> {
    fn hwqs(&self) -> u16 {
        self.0.hwqs()
    }

    fn depth(&self) -> u32 {
        self.0.depth()
    }

    fn submit(&mut self, hwq: HwqId, mut io: Io, now: Nanos) {
        if io.command.op == Op::WriteZeroes {
            io.command = Place::whole_drive(io.command.tenant).flush();
        }
        self.0.submit(hwq, io, now);
    }

    fn kick(&mut self) {
        self.0.kick();
    }

    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        self.0.reap(now, done);
    }
}

/// Moves all of the drive's bytes.
fn move_all(drive: &MemoryDrive, op: Op, memory: &Arc<Mapping>) {
    let mut queues = drive.open_queues(1, 1);
    let mut buf = IoBuf::default();
    assert!(buf.push(memory, 0, DRIVE_BYTES as u64));
    let command = Place::whole_drive(TenantId(u32::MAX)).command(op, 0, DRIVE_BYTES as u64);
    queues.submit(HwqId(0), Io { tag: 0, command, buf }, Nanos(0));
    queues.kick();
    let mut outcome = None;
    queues.reap(Nanos(0), &mut |_, done| outcome = Some(done.outcome));
    assert_eq!(outcome, Some(Ok(())));
}

/// What the wiper asked of a drive, full of what others left, until a disk that was there was free.
fn wipe<B, W>(wrap: W, method: Wipe) -> Vec<Op>
where
    B: Backend + Send + 'static,
    W: Fn(backend_memory::Memory) -> B + Clone + Send + 'static,
{
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let text = format!("runtime_dir = {dir:?}\nstate_dir = {dir:?}\n{FILE}");
    let config = Config::parse(&dir.join("ek.toml"), &text).unwrap();
    let (drive, record) = (MemoryDrive::new(DRIVE_BYTES as u64).unwrap(), Record::default());
    let (of_daemon, of_queues) = (drive.clone(), record.clone());
    let open = move |_: &Config, _: &Profile, _| {
        let wrap = move |queues| Recorded::new(wrap(queues), &of_queues);
        Ok(Box::new(Wrapped { drive: of_daemon, wrap }) as Box<dyn AnyDrive>)
    };
    let engine = Engine { policy: PolicyConfig::Passthrough, open };
    let prepared = Prepared::new(config).unwrap();
    let daemon = Daemon::start_on(engine, prepared, Profile::p5800x(), Arc::new(|_, _| {})).unwrap();

    let rest = Rest::new(api_path(dir));
    rest.create(&DiskSpec { name: "old".into(), size: "1MiB".into(), ..DiskSpec::default() }).unwrap();
    let memory = Mapping::anonymous(DRIVE_BYTES).unwrap();
    let mut content = vec![FORMER; DRIVE_BYTES];
    memory.write_at(0, &content).unwrap();
    move_all(&drive, Op::Write, &memory);
    rest.delete("old", Deletion { wipe: Some(method), ..Deletion::default() }).unwrap();
    while !rest.operations().unwrap().is_empty() {
        std::thread::yield_now();
    }
    move_all(&drive, Op::Read, &memory);
    memory.read_at(0, &mut content).unwrap();
    assert_eq!(content.iter().filter(|byte| **byte == 0).count(), DISK_BYTES);
    assert_eq!(content.iter().filter(|byte| **byte == FORMER).count(), DRIVE_BYTES - DISK_BYTES);
    assert_eq!(daemon.stop(), 0);
    record.ended().into_iter().map(|(command, _)| command.op).collect()
}

fn count(ops: &[Op], of: Op) -> usize {
    ops.iter().filter(|op| **op == of).count()
}

#[test]
fn the_drive_makes_zeros_in_bounded_pieces_and_they_are_read_back() {
    let ops = wipe(|queues| queues, Wipe::Zeros);
    let pieces = DISK_BYTES / (128 << 10);
    let found = [Op::WriteZeroes, Op::Read, Op::Flush, Op::Write].map(|op| count(&ops, op));
    assert_eq!(found, [pieces, pieces, 1, 0]);
}

#[test]
fn what_a_drive_only_says_to_have_zeroed_is_overwritten() {
    let ops = wipe(Liar, Wipe::Zeros);
    assert_eq!(count(&ops, Op::Write), DISK_BYTES / (128 << 10));
}

#[test]
fn what_a_drive_can_t_zero_is_overwritten() {
    let faults = Faults::default();
    faults.add(Fault { op: Some(Op::WriteZeroes), ..Fault::new(Fate::Fails(DeviceError::Unsupported)) });
    let ops = wipe(move |queues| Faulty::new(queues, &faults), Wipe::Zeros);
    assert_eq!(count(&ops, Op::Write), DISK_BYTES / (128 << 10));
}

#[test]
fn three_passes_are_written_whatever_the_drive_may() {
    let ops = wipe(|queues| queues, Wipe::ThreePasses);
    assert_eq!((count(&ops, Op::WriteZeroes), count(&ops, Op::Write)), (0, 3 * DISK_BYTES / (128 << 10)));
}

#[test]
fn of_an_image_what_was_never_written_stays_a_hole() {
    const IMAGE_BYTES: u64 = 256 << 20;
    let directory = tempfile::tempdir().unwrap();
    let (dir, image) = (directory.path(), directory.path().join("drive.img"));
    File::create(&image).unwrap().set_len(IMAGE_BYTES).unwrap();
    let text = format!(
        "runtime_dir = {dir:?}\nstate_dir = {dir:?}\n[device]\nbackend = \"file\"\npath = {image:?}\n\
         [policy]\nname = \"passthrough\"\n"
    );
    let prepared = Prepared::new(Config::parse(&dir.join("ek.toml"), &text).unwrap()).unwrap();
    let daemon = Daemon::start(vec![(prepared, Profile::p5800x())], Arc::new(|_, _| {})).unwrap();
    let rest = Rest::new(api_path(dir));
    let file = File::options().read(true).write(true).open(&image).unwrap();
    let allocated_bytes = || file.metadata().unwrap().blocks() * 512;
    let delete = || {
        rest.delete("old", Deletion::default()).unwrap();
        let mut write_bytes = None;
        loop {
            let left = rest.operations().unwrap();
            let Some(one) = left.first() else { return write_bytes };
            write_bytes = one.write_bytes.or(write_bytes);
        }
    };
    let disk = DiskSpec { name: "old".into(), size: "192MiB".into(), ..DiskSpec::default() };

    rest.create(&disk).unwrap();
    let before = allocated_bytes();
    delete();
    assert_eq!(allocated_bytes(), before, "nothing was ever written");

    rest.create(&disk).unwrap();
    let pieces = [(0u64, 4096usize), (100 << 20, 300 << 10)];
    for (at, len) in pieces {
        file.write_all_at(&vec![FORMER; len], at).unwrap();
    }
    file.sync_all().unwrap();
    let before = allocated_bytes();
    let write_bytes = delete();
    assert!(write_bytes.is_none_or(|bytes| (304 << 10..=1 << 20).contains(&bytes)), "{write_bytes:?}");
    assert!(allocated_bytes() <= before, "only where data was");
    for (at, len) in pieces {
        let mut content = vec![FORMER; len];
        file.read_exact_at(&mut content, at).unwrap();
        assert!(content.iter().all(|byte| *byte == 0), "at {at}");
    }
    assert_eq!(daemon.stop(), 0);
}
