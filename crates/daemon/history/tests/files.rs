//! What is written is read, and files that were cut, damaged, written by others or at another time are told of.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use history::{
    FILES, Flaw, INTERVALS_PER_FILE, Interval, MOST_EVENT_BYTES_PER_FILE, Past, PastEvent, Promise, Store, Summary,
};

/// Some moment; everything else is told from it.
const START: u64 = 1_700_000_000_000;

fn interval(at_s: u64) -> Interval {
    let tenant = Summary {
        name: "db".into(),
        promise: Promise::Target { ns: 50_000, late_ppm: 10_000 },
        reads: at_s as u32,
        ..Summary::default()
    };
    Interval {
        at_unix_ms: START + at_s * 1000,
        span_ms: 10_000,
        starved_ppm: 1,
        drive: "fast".into(),
        policy: "lpns".into(),
        tenants: vec![tenant],
    }
}

fn event(at_s: u64, what: &str) -> PastEvent {
    PastEvent { at_unix_ms: START + at_s * 1000, what: what.as_bytes().to_vec() }
}

fn append(store: &mut Store, at_s: impl IntoIterator<Item = u64>) {
    at_s.into_iter().for_each(|at_s| store.append(&[interval(at_s)], &[]).unwrap());
}

fn read(directory: &Path, span_s: std::ops::Range<u64>, now_s: u64) -> Past {
    history::read(directory, START + span_s.start * 1000..START + span_s.end * 1000, START + now_s * 1000, None)
        .unwrap()
}

/// Seconds after the start at which its intervals began.
fn seconds(past: &Past) -> Vec<u64> {
    past.intervals.iter().map(|it| (it.at_unix_ms - START) / 1000).collect()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "summaries"));
    files.sort();
    files
}

#[test]
fn what_was_kept_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("history");
    let mut store = Store::open(&dir).unwrap();
    store.append(&[interval(0)], &[event(3, "a")]).unwrap();
    append(&mut store, [10, 20]);
    drop(store);
    let mut store = Store::open(&dir).unwrap();
    append(&mut store, [40, 50]);
    let past = read(&dir, 0..60, 60);
    assert_eq!((seconds(&past), past.flaws), (vec![0, 10, 20, 40, 50], Vec::new()));
    assert_eq!(past.intervals[1], interval(10));
    assert_eq!(past.events, [event(3, "a")]);
    assert_eq!(files(&dir).len(), 1, "the file is gone on with");
    // Those that overlap the span, and the events in it.
    let past = read(&dir, 15..41, 60);
    assert_eq!((seconds(&past), past.events.len()), (vec![10, 20, 40], 0));
}

#[test]
fn files_are_a_ring() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    let more = FILES as u64 + 3;
    let all = more * u64::from(INTERVALS_PER_FILE);
    append(&mut store, (0..all).map(|n| n * 10));
    assert_eq!(files(directory.path()).len(), FILES);
    let past = read(directory.path(), 0..all * 10, all * 10);
    assert_eq!(past.intervals.len(), FILES * INTERVALS_PER_FILE as usize);
    assert_eq!(seconds(&past)[0], 3 * u64::from(INTERVALS_PER_FILE) * 10, "the oldest went");
}

#[test]
fn a_day_of_a_busy_tenant_takes_no_more_than_it_may() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    let long = Summary { name: "x".repeat(63), reads: u32::MAX, max_ns: u64::MAX, ..Summary::default() };
    let bytes = |tenants: usize, from: u64, store: &mut Store| {
        let interval = Interval { tenants: vec![long.clone(); tenants], ..interval(from) };
        let before: u64 = files(directory.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        store.append(&[interval], &[]).unwrap();
        files(directory.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>() - before
    };
    bytes(1, 0, &mut store);
    let more = bytes(101, 10, &mut store) - bytes(1, 20, &mut store);
    assert!(more / 100 * FILES as u64 * u64::from(INTERVALS_PER_FILE) <= history::MOST_BYTES_PER_TENANT, "{more}");
}

#[test]
fn events_without_end_take_no_more_than_they_may() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    let flood: Vec<PastEvent> = (0..1000).map(|n| event(1, &format!("{n:0100}"))).collect();
    store.append(&[interval(0)], &flood).unwrap();
    store.append(&[interval(10)], &flood).unwrap();
    let size = fs::metadata(&files(directory.path())[0]).unwrap().len();
    assert!(size < MOST_EVENT_BYTES_PER_FILE + 1024, "{size}");
    let past = read(directory.path(), 0..20, 20);
    assert_eq!((past.intervals.len(), past.flaws.len()), (2, 0));
    assert_eq!(past.events.len() as u64 + store.events_left_out(), 2000);
    drop(store);
    // Nor does a daemon that begins again and again make room for more.
    let mut store = Store::open(directory.path()).unwrap();
    store.append(&[interval(20)], &flood).unwrap();
    assert_eq!(store.events_left_out(), 1000);
}

#[test]
fn a_file_that_is_cut_anywhere_loses_only_what_is_cut() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    append(&mut store, [0, 10, 20]);
    drop(store);
    let path = &files(directory.path())[0];
    let whole = fs::read(path).unwrap();
    for len in 0..whole.len() {
        fs::write(path, &whole[..len]).unwrap();
        let past = read(directory.path(), 0..60, 60);
        let kept = seconds(&past);
        assert!([0, 10, 20].starts_with(&kept) && kept.len() < 3, "{len}: {kept:?}");
        // Cut between two intervals it is just shorter.
        let is_told = matches!(&past.flaws[..], [Flaw::Damaged { good_bytes, .. }] if *good_bytes <= len as u64);
        assert!(is_told || past.flaws.is_empty() && len >= 24, "{len}: {:?}", past.flaws);
        // The next store removes the rest, or leaves the file alone and begins another.
        let mut store = Store::open(directory.path()).unwrap();
        append(&mut store, [30]);
        drop(store);
        let past = read(directory.path(), 0..60, 60);
        assert_eq!(seconds(&past), [&kept[..], &[30]].concat(), "{len}");
        assert_eq!(past.flaws.is_empty(), len >= 24, "{len}: {:?}", past.flaws);
        files(directory.path()).iter().filter(|other| *other != path).for_each(|other| fs::remove_file(other).unwrap());
    }
}

#[test]
fn a_damaged_file_gives_no_wrong_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    append(&mut store, [0, 10, 20]);
    drop(store);
    let path = &files(directory.path())[0];
    let whole = fs::read(path).unwrap();
    let right = read(directory.path(), 0..60, 60).intervals;
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..2_000 {
        let mut broken = whole.clone();
        // Behind the header, which has no checksum: its time only says which file to open.
        let at = random.usize(24..broken.len());
        broken[at] ^= random.u8(1..);
        fs::write(path, &broken).unwrap();
        let past = read(directory.path(), 0..60, 60);
        assert!(right.starts_with(&past.intervals) && past.intervals.len() < 3, "byte {at}");
        assert!(matches!(past.flaws[..], [Flaw::Damaged { .. }]), "byte {at}: {:?}", past.flaws);
    }
}

#[test]
fn files_of_others_are_told_of_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let mut store = Store::open(dir).unwrap();
    append(&mut store, [0]);
    drop(store);
    let first = files(dir).remove(0);
    let mut newer = fs::read(&first).unwrap();
    newer[8] = 2;
    fs::write(dir.join("00000005.summaries"), &newer).unwrap();
    fs::write(dir.join("00000006.summaries"), "[[tenant]]\nname = \"db\"\n").unwrap();
    fs::create_dir(dir.join("00000007.summaries")).unwrap();
    fs::write(dir.join("notes"), "mine").unwrap();
    let pipe = dir.join("00000008.summaries");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let past = read(dir, 0..60, 60);
    assert_eq!(seconds(&past), [0]);
    let told: Vec<String> = past.flaws.iter().map(ToString::to_string).collect();
    assert!(told[0].contains("00000005.summaries is of version 2, this daemon reads version 1"), "{told:?}");
    assert!(told[1..].iter().all(|it| it.contains("holds no summaries")) && told.len() == 4, "{told:?}");
    // The daemon goes on in a file of its own.
    let mut store = Store::open(dir).unwrap();
    append(&mut store, [10]);
    assert_eq!(fs::read(dir.join("00000005.summaries")).unwrap(), newer);
    assert!(dir.join("00000009.summaries").exists());
    assert_eq!(seconds(&read(dir, 0..60, 60)), [0, 10]);
}

#[test]
fn two_daemons_cannot_have_one_directory() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let told = Store::open(directory.path()).unwrap_err().to_string();
    assert!(told.contains("another daemon keeps its summaries there"), "{told}");
    drop(store);
    Store::open(directory.path()).unwrap();
}

#[test]
fn a_clock_that_was_ahead_or_set_back_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    append(&mut store, [0, 10, 20, 30]);
    // Set back by 20 s: those seconds come again.
    append(&mut store, [12, 22]);
    assert_eq!(files(directory.path()).len(), 2, "time does not go back within a file");
    let past = read(directory.path(), 0..60, 60);
    assert_eq!(seconds(&past), [0, 10, 12, 22]);
    assert_eq!(past.flaws, [Flaw::SetBack { intervals: 2 }]);
    // Far ahead, and right again.
    append(&mut store, [90_000, 90_010]);
    append(&mut store, [32]);
    let past = read(directory.path(), 0..60, 60);
    assert_eq!(seconds(&past), [0, 10, 12, 22, 32]);
    assert_eq!(past.flaws, [Flaw::Future { intervals: 2 }, Flaw::SetBack { intervals: 2 }]);
    // A file of nothing but a header does not make their time come again.
    let first = fs::read(directory.path().join("00000001.summaries")).unwrap();
    let empty = directory.path().join("0000000a.summaries");
    fs::write(&empty, &first[..24]).unwrap();
    assert_eq!(read(directory.path(), 0..60, 60), past);
    fs::remove_file(&empty).unwrap();
    // A daemon that starts after the clock was set right does not go on in the file from the future.
    append(&mut store, [90_000]);
    drop(store);
    let mut store = Store::open(directory.path()).unwrap();
    append(&mut store, [42]);
    assert_eq!(seconds(&read(directory.path(), 35..60, 60)), [32, 42]);
}

#[test]
fn what_is_being_appended_is_no_damage() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    append(&mut store, [0, 10]);
    let written = store.written();
    let file = OpenOptions::new().write(true).open(&files(directory.path())[0]).unwrap();
    file.write_all_at(b"half of", file.metadata().unwrap().len()).unwrap();
    let span = START..START + 60_000;
    let past = history::read(directory.path(), span.clone(), span.end, written).unwrap();
    assert_eq!((seconds(&past), past.flaws), (vec![0, 10], Vec::new()));
    let past = history::read(directory.path(), span.clone(), span.end, None).unwrap();
    assert!(matches!(past.flaws[..], [Flaw::Damaged { .. }]));
}

#[test]
fn a_full_file_system_costs_what_found_no_room_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    // 64 KiB, which takes root.
    let mounted = std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(dir).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("skipped: a small tmpfs can't be mounted without root");
        return;
    }
    let _mount = Mounted(dir.to_owned());
    let mut store = Store::open(dir).unwrap();
    append(&mut store, [0, 10]);
    let filler = dir.join("filler");
    File::create(&filler).unwrap();
    let mut size = 64 << 10;
    while size > 0 {
        // As much as there is.
        let more = vec![1; size];
        let mut file = OpenOptions::new().append(true).open(&filler).unwrap();
        size = if std::io::Write::write_all(&mut file, &more).is_ok() { size } else { size / 2 };
    }
    // Large enough not to fit into what is left of a page.
    let tenant = interval(20).tenants.remove(0);
    let crowd = |at_s: u64| Interval { tenants: vec![tenant.clone(); 100], ..interval(at_s) };
    for at_s in [20, 30] {
        let error = store.append(&[crowd(at_s)], &[]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    }
    let past = read(dir, 0..60, 60);
    assert_eq!((seconds(&past), past.flaws), (vec![0, 10], Vec::new()));
    fs::remove_file(&filler).unwrap();
    store.append(&[crowd(40)], &[]).unwrap();
    let past = read(dir, 0..60, 60);
    assert_eq!((seconds(&past), past.flaws), (vec![0, 10, 40], Vec::new()));
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_file_that_somebody_removed_is_not_gone_on_with() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("history");
    let mut store = Store::open(&dir).unwrap();
    append(&mut store, [0]);
    fs::remove_file(&files(&dir)[0]).unwrap();
    append(&mut store, [10]);
    assert_eq!(seconds(&read(&dir, 0..20, 20)), [10]);

    fs::remove_dir_all(&dir).unwrap();
    store.append(&[interval(20)], &[]).expect_err("its directory is gone");
    drop(store);
    append(&mut Store::open(&dir).unwrap(), [30]);
    assert_eq!(seconds(&read(&dir, 0..40, 40)), [30]);
}

#[test]
fn a_file_of_the_last_number_that_there_is_stops_nobody() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("ffffffff.summaries"), "junk").unwrap();
    append(&mut Store::open(directory.path()).unwrap(), [0]);
    append(&mut Store::open(directory.path()).unwrap(), [10]);
    assert_eq!(seconds(&read(directory.path(), 0..20, 20)), [0, 10]);
}
