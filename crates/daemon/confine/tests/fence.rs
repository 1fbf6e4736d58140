//! A fence is for good: each trial is a process of its own, this test's binary once more.

#![allow(clippy::disallowed_methods, reason = "what a thread may still do")]

use std::fs::{self, File};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;

use confine::{Fence, fence};

/// Where the trial's process is to be fenced in.
const DIRECTORY: &str = "CONFINE_TEST_DIRECTORY";

/// The trial's side: not a test of its own.
#[test]
fn trial() {
    let Ok(directory) = std::env::var(DIRECTORY).map(PathBuf::from) else { return };
    let outside = directory.with_file_name("outside");
    let readable = directory.with_file_name("readable");
    let open_before = File::open(&outside).expect("it is there");
    if fence(std::slice::from_ref(&directory), Some(&readable)).expect("a fence") == Fence::None {
        println!("skipped: this kernel has no Landlock");
        return;
    }
    // What the daemon does while it runs.
    let (new, layout) = (directory.join("l.toml.tmp"), directory.join("l.toml"));
    fs::write(&new, "layout").expect("written");
    fs::rename(&new, &layout).expect("replaced");
    fs::create_dir(directory.join("db")).expect("made");
    drop(UnixListener::bind(directory.join("db/cntrl")).expect("bound"));
    fs::remove_file(directory.join("db/cntrl")).expect("removed");
    let me = std::thread::current();
    let thread = std::thread::spawn(|| fs::read_to_string("/proc/thread-self/schedstat"));
    thread.join().expect("no panic").expect("what the kernel counts of our threads");
    assert!(me.name().is_some() && open_before.metadata().is_ok(), "what is open stays so");

    assert_eq!(fs::read_to_string(readable.join("config.toml")).expect("read again"), "config");
    assert!(fs::write(readable.join("config.toml"), "x").is_err() && fs::read_dir(&readable).is_err());

    // And what it never does.
    for path in [outside.as_path(), "/etc/passwd".as_ref(), "/proc/1/status".as_ref()] {
        assert!(File::open(path).is_err(), "{path:?}");
    }
    assert!(fs::write(directory.with_file_name("new"), "x").is_err());
    assert!(fs::remove_file(&outside).is_err());
    assert!(fs::create_dir("/tmp/evenkeel-outside").is_err());
    assert!(Command::new("/bin/true").status().is_err());
}

#[test]
fn nothing_outside_of_the_fence_is_opened() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let inside = dir.path().join("inside");
    fs::create_dir(&inside).expect("made");
    fs::write(dir.path().join("outside"), "secret").expect("written");
    fs::create_dir(dir.path().join("readable")).expect("made");
    fs::write(dir.path().join("readable/config.toml"), "config").expect("written");
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "trial", "--nocapture"])
        .env(DIRECTORY, &inside)
        .output()
        .expect("a process");
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
    if !told.contains("skipped") {
        assert!(inside.join("l.toml").exists() && !dir.path().join("new").exists(), "{told}");
    }
}
