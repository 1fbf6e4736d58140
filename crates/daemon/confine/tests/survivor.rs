//! What a process leaves behind that has a survivor. The trial is a process of its own, this test's binary once more.

#![allow(clippy::disallowed_methods, reason = "it waits for processes")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use confine::leave_memory_to_a_survivor;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

/// The file that the trial locks.
const LOCKED: &str = "CONFINE_TEST_LOCKED";
/// More memory than any process has without it.
const BYTES: usize = 64 << 20;

/// The trial's side: not a test of its own.
#[test]
fn trial() {
    let Ok(locked) = std::env::var(LOCKED) else { return };
    let locked = File::open(locked).expect("it is there");
    flock(&locked, FlockOperation::NonBlockingLockExclusive).expect("nobody else has it");
    let _survivor = leave_memory_to_a_survivor().expect("a survivor");
    let memory = vec![1_u8; BYTES];
    println!("ready {}", std::hint::black_box(&memory).len());
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Resident bytes of a process; `None`: it has none any more.
fn resident_bytes(pid: u32) -> Option<usize> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim_end_matches("kB").trim().parse::<usize>().ok()? << 10)
}

fn child_of(pid: u32) -> u32 {
    let is_child = |entry: &fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        parent == Some(pid)
    };
    let all = fs::read_dir("/proc").expect("processes").flatten();
    let child = all.filter(is_child).find_map(|entry| entry.file_name().to_str()?.parse().ok());
    child.expect("a child")
}

#[test]
fn the_end_of_a_process_does_not_wait_until_its_memory_is_taken_apart() {
    let locked = tempfile::NamedTempFile::new().expect("a file");
    let mut trial = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "trial", "--nocapture"])
        .env(LOCKED, locked.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let output = trial.stdout.take().expect("its output");
    let is_ready = BufReader::new(output).lines().map_while(Result::ok).any(|line| line.contains("ready"));
    assert!(is_ready);
    let survivor = child_of(trial.id());
    let pid = Pid::from_raw(survivor.cast_signed()).expect("a number");
    let files = || fs::read_dir(format!("/proc/{survivor}/fd")).expect("its files").count();
    assert_eq!(files(), 1, "nothing but the pipe is open");
    // It stands still, so that nobody takes the memory apart; and the trial ends all the same, with its lock.
    kill_process(pid, Signal::STOP).expect("stopped");
    trial.kill().expect("killed");
    trial.wait().expect("it has ended");
    flock(locked.as_file(), FlockOperation::NonBlockingLockExclusive).expect("the lock is free");
    assert!(resident_bytes(survivor).is_some_and(|resident| resident > BYTES));
    kill_process(pid, Signal::CONT).expect("it goes on");
    while resident_bytes(survivor).is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
}
