//! Nobody reads what the daemon prints: it serves, ends when it is told to, and dies of a panic all the same.

use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use nvme_driver::VfioUserDevice;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Home, evenkeel, wait_for};

const FILE: &str = "[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n[policy]\nname = \"passthrough\"\n\
                    [[tenant]]\nname = \"db\"\nsize = \"16MiB\"\n";
const PAGE_BYTES: usize = 4096;

/// A pipe with room for this many pages, and its end that is never read.
fn full_pipe(pages_left: usize) -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    let mut pages = 0;
    while writer.write(&[b'x'; PAGE_BYTES]).is_ok() {
        pages += 1;
    }
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    let mut taken = vec![0; pages_left * PAGE_BYTES];
    assert!(pages > pages_left);
    std::io::Read::read_exact(&mut &reader, &mut taken).unwrap();
    (reader, writer)
}

/// Ends it by force if the test fails first.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(mut command: Command) -> Killed {
    Killed(command.spawn().unwrap())
}

#[test]
fn nobody_reads_what_is_served() {
    for on_stdout in [true, false] {
        let home = Home::new();
        let config = home.configure(FILE);
        let (_reader, writer) = full_pipe(0);
        let mut command = evenkeel();
        command.arg("serve").arg(config).stdout(Stdio::null()).stderr(Stdio::null());
        if on_stdout {
            command.stdout(writer)
        } else {
            command.stderr(writer)
        };
        let mut daemon = start(command);
        wait_for("the socket", || UnixStream::connect(home.runtime_dir().join("control")).ok());
        wait_for("the tenant", || VfioUserDevice::connect(&home.runtime_dir().join("db")).ok());
        kill_process(Pid::from_child(&daemon.0), Signal::TERM).unwrap();
        let status = wait_for("the daemon's end", || daemon.0.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

#[test]
fn nobody_reads_why_it_can_not_start() {
    let home = Home::new();
    let (_reader, writer) = full_pipe(0);
    let mut command = evenkeel();
    command.arg("serve").arg(home.configure("[device]\n")).stderr(writer);
    let mut daemon = start(command);
    let status = wait_for("the daemon's end", || daemon.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(2));
}

#[test]
fn a_panic_with_a_backtrace_ends_it() {
    let home = Home::new();
    let config = home.configure(FILE);
    let (_reader, writer) = full_pipe(1);
    let mut command = evenkeel();
    command.arg("serve").arg(config).args(["--log-level", "error"]).stdout(Stdio::null()).stderr(writer);
    // Confined it has none.
    command.arg("--unconfined");
    command.env("EVENKEELD_PANIC_IN", "vfio-db").env("RUST_BACKTRACE", "1");
    let mut daemon = start(command);
    let status = wait_for("the daemon's end", || {
        drop(VfioUserDevice::connect(&home.runtime_dir().join("db")));
        daemon.0.try_wait().unwrap()
    });
    assert_eq!(status.signal(), Some(6), "{status}");
}
