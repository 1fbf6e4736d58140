//! Opening, and what goes wrong with files.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use backend_uring::{Kind, OpenError, Uring, UringDrive};
use guest_memory::{IoBuf, Mapping};
use io_model::{Backend, DeviceError, HwqId, Io, Nanos, Op, Outcome, Place, TenantId};

const DRIVE: Place = Place::whole_drive(TenantId(0));

fn directory() -> tempfile::TempDir {
    directory_in(env!("CARGO_TARGET_TMPDIR"))
}

fn directory_in(place: &str) -> tempfile::TempDir {
    tempfile::tempdir_in(place).expect("a directory")
}

/// A new drive of 1 MiB there.
fn drive_in(place: &str) -> (tempfile::TempDir, PathBuf, UringDrive) {
    let directory = directory_in(place);
    let path = directory.path().join("drive");
    let drive = UringDrive::open(&path, Kind::File, Some(1 << 20)).expect("a drive");
    (directory, path, drive)
}

/// A file of a disk's file system, and one that is memory: their data goes different ways.
const PLACES: [&str; 2] = [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"];

fn run(queues: &mut Uring, op: Op, offset_bytes: u64, memory: &Arc<Mapping>) -> Outcome {
    let command = DRIVE.command(op, offset_bytes, memory.len_bytes());
    queues.submit(HwqId(0), Io { tag: 1, command, buf: IoBuf::owned(memory) }, Nanos(0));
    let mut outcome = None;
    loop {
        queues.kick();
        queues.reap(Nanos(0), &mut |_, done| outcome = Some(done.outcome));
        if let Some(outcome) = outcome {
            return outcome;
        }
    }
}

#[test]
fn a_missing_file_is_made_sparse_and_private() {
    let directory = directory();
    let path = directory.path().join("drive");
    assert!(matches!(UringDrive::open(&path, Kind::File, None), Err(OpenError::Os { .. })));
    assert!(!path.exists());
    let drive = UringDrive::open(&path, Kind::File, Some(64 << 30)).unwrap();
    assert_eq!(drive.size_bytes(), 64 << 30);
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (64 << 30, 0o600));
    assert!(meta.blocks() * 512 < 1 << 20, "{} sectors", meta.blocks());
}

#[test]
fn a_file_that_is_there_is_left_as_it_is() {
    let directory = directory();
    let path = directory.path().join("drive");
    File::create(&path).unwrap().set_len((1 << 20) + 100).unwrap();
    assert_eq!(UringDrive::open(&path, Kind::File, None).unwrap().size_bytes() >> 20, 1);
    assert_eq!(UringDrive::open(&path, Kind::File, Some(1 << 19)).unwrap().size_bytes() >> 20, 1);
    let small = UringDrive::open(&path, Kind::File, Some(2 << 20)).unwrap_err();
    assert!(matches!(small, OpenError::TooSmall { wanted_bytes: 0x20_0000, .. }), "{small}");
    assert_eq!(fs::metadata(&path).unwrap().len(), (1 << 20) + 100);
    File::create(&path).unwrap();
    assert!(matches!(UringDrive::open(&path, Kind::File, None), Err(OpenError::TooSmall { found_bytes: 0, .. })));
}

#[test]
fn what_is_no_drive_is_refused() {
    let directory = directory();
    let open = |path: &Path, kind| UringDrive::open(path, kind, None).unwrap_err();
    assert!(matches!(open(directory.path(), Kind::File), OpenError::WrongKind { .. }));
    assert!(matches!(open(Path::new("/dev/null"), Kind::File), OpenError::WrongKind { .. }));
    assert!(matches!(open(Path::new("/dev/null"), Kind::Block), OpenError::WrongKind { .. }));
    let path = directory.path().join("drive");
    let _drive = UringDrive::open(&path, Kind::File, Some(1 << 20)).unwrap();
    assert!(matches!(open(&path, Kind::Block), OpenError::WrongKind { .. }));
}

#[test]
fn a_file_cut_short_behind_our_back_is_a_medium_error() {
    for place in PLACES {
        let (_directory, path, drive) = drive_in(place);
        let mut queues = drive.open_queues(1, 4).unwrap();
        let memory = Mapping::anonymous(8192).unwrap();
        assert_eq!(run(&mut queues, Op::Write, 512 << 10, &memory), Ok(()));
        OpenOptions::new().write(true).open(&path).unwrap().set_len((512 << 10) + 4096).unwrap();
        assert_eq!(run(&mut queues, Op::Read, 512 << 10, &memory), Err(DeviceError::Medium), "{place}");
        assert_eq!(run(&mut queues, Op::Read, (512 << 10) - 4096, &memory), Ok(()), "{place}");
    }
}

#[test]
fn data_reaches_the_file() {
    for place in PLACES {
        let (_directory, path, drive) = drive_in(place);
        let mut queues = drive.open_queues(1, 4).unwrap();
        let memory = Mapping::anonymous(8192).unwrap();
        memory.write_at(0, &[7; 8192]).unwrap();
        assert_eq!(run(&mut queues, Op::Write, 4096, &memory), Ok(()));
        let content = fs::read(&path).unwrap();
        assert!(content[4096..12288].iter().all(|&byte| byte == 7), "{place}");
        assert!(content[..4096].iter().chain(&content[12288..]).all(|&byte| byte == 0), "{place}");
    }
}

/// The poller moves what is short, the kernel's threads what is long.
#[test]
fn of_a_file_in_memory_short_commands_end_as_they_are_submitted() {
    let (_directory, _, drive) = drive_in("/dev/shm");
    let mut queues = drive.open_queues(1, 4).unwrap();
    for (op, len_bytes, at_once) in [
        (Op::Write, 64 << 10, true),
        (Op::Read, 64 << 10, true),
        (Op::Write, (64 << 10) + 4096, false),
        (Op::Read, (64 << 10) + 4096, false),
    ] {
        let memory = Mapping::anonymous(len_bytes).unwrap();
        // In pieces, the way they are on both paths.
        let mut buf = IoBuf::default();
        let half = len_bytes as u64 / 8192 * 4096;
        assert!(buf.push(&memory, half, len_bytes as u64 - half) && buf.push(&memory, 0, half));
        let command = DRIVE.command(op, 4096, len_bytes as u64);
        queues.submit(HwqId(0), Io { tag: 1, command, buf }, Nanos(0));
        let mut outcome = None;
        queues.reap(Nanos(0), &mut |_, done| outcome = Some(done.outcome));
        assert_eq!(outcome, at_once.then_some(Ok(())), "{op:?} of {len_bytes} bytes before it was kicked");
        while outcome.is_none() {
            queues.kick();
            queues.reap(Nanos(0), &mut |_, done| outcome = Some(done.outcome));
        }
        assert_eq!(outcome, Some(Ok(())));
    }
}

#[test]
fn queues_belong_to_the_thread_that_kicks_first() {
    let directory = directory();
    let drive = UringDrive::open(&directory.path().join("drive"), Kind::File, Some(1 << 20)).unwrap();
    let memory = Mapping::anonymous(4096).unwrap();
    let mut queues = drive.open_queues(1, 4).unwrap();
    let mut queues = thread::scope(|scope| {
        let poller = scope.spawn(|| {
            assert_eq!(run(&mut queues, Op::Write, 0, &memory), Ok(()), "opened by another thread");
            queues
        });
        poller.join().unwrap()
    });
    assert_eq!(run(&mut queues, Op::Read, 0, &memory), Err(DeviceError::Gone));
    assert_eq!(run(&mut queues, Op::Read, 0, &memory), Err(DeviceError::Gone), "and from then on");
    drop(queues);
    assert_eq!(Arc::strong_count(&memory), 1);
}

#[test]
fn more_misaligned_commands_than_bounce_buffers_all_end() {
    let directory = directory();
    let drive = UringDrive::open(&directory.path().join("drive"), Kind::File, Some(64 << 20)).unwrap();
    let mut queues = drive.open_queues(2, 64).unwrap();
    let memory = Mapping::anonymous(128 * 8192).unwrap();
    for tag in 0..128u32 {
        let mut buf = IoBuf::default();
        assert!(buf.push(&memory, u64::from(tag) * 8192 + 1, 4096));
        let command = DRIVE.command(Op::Write, u64::from(tag) * 4096, 4096);
        queues.submit(HwqId((tag % 2) as u16), Io { tag, command, buf }, Nanos(0));
    }
    let mut ended = [0; 128];
    while ended.iter().sum::<i32>() < 128 {
        queues.kick();
        queues.reap(Nanos(0), &mut |_, done| {
            assert_eq!(done.outcome, Ok(()));
            ended[done.tag as usize] += 1;
        });
    }
    assert!(ended.iter().all(|&times| times == 1));
}

#[test]
fn a_range_is_zeroed_without_a_ring_and_nothing_beside_it() {
    let directory = directory();
    let path = directory.path().join("drive");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    let drive = UringDrive::open(&path, Kind::File, None).unwrap();
    drive.zero(64 << 10, 256 << 10).unwrap();
    drive.sync().unwrap();
    let content = fs::read(&path).unwrap();
    let zeros = (64 << 10)..(320 << 10);
    assert_eq!(content.len(), 1 << 20);
    assert!(content.iter().enumerate().all(|(at, byte)| *byte == if zeros.contains(&at) { 0 } else { 7 }));
}

#[test]
fn only_what_was_written_is_data() {
    for place in PLACES {
        let (_directory, path, drive) = drive_in(place);
        assert!(drive.data(0, 1 << 20).is_empty(), "{place}");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[7; 100], (256 << 10) + 5000).unwrap();
        file.write_all_at(&[7; 8192], 512 << 10).unwrap();
        let data = drive.data(0, 1 << 20);
        let is_data = |at: u64| data.iter().any(|piece| piece.contains(&at));
        assert!([261, 512, 519].into_iter().all(|kib| is_data(kib << 10)), "{place}: {data:?}");
        assert!([0, 128, 384, 700, 1023].into_iter().all(|kib| !is_data(kib << 10)), "{place}: {data:?}");
        assert!(data.iter().all(|piece| (piece.start | piece.end) % 4096 == 0), "{place}: {data:?}");
        let within = drive.data(516 << 10, 4 << 10);
        assert!(within.len() == 1 && within[0] == ((516 << 10)..(520 << 10)), "{place}: {within:?}");
    }
}
