//! A dead thread is a dead daemon: a panic says what and where, and ends the process at once. Debug builds of the
//! daemon panic where EVENKEELD_PANIC_IN says.

use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use nvme_driver::VfioUserDevice;

use crate::harness::{Home, evenkeel, wait_for};

const FILE: &str = "[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n[policy]\nname = \"passthrough\"\n\
                    [[tenant]]\nname = \"db\"\nsize = \"16MiB\"\n\
                    [[tenant]]\nname = \"web\"\nsize = \"16MiB\"\nfrontend = \"vhost-user-blk\"\n";

/// Starts a daemon in which `thread` panics, does what makes every thread work, and gives its last words.
fn last_words(thread: &str) -> String {
    let home = Home::new();
    let config = home.configure(FILE);
    let mut daemon = evenkeel();
    daemon.arg("serve").arg(config).env("EVENKEELD_PANIC_IN", thread).env_remove("RUST_BACKTRACE");
    let mut daemon = daemon.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let status = wait_for("the daemon's end", || {
        // Each of these finds a daemon that is not there yet, that serves, or that has just died.
        drop(VfioUserDevice::connect(&home.runtime_dir().join("db")));
        drop(UnixStream::connect(home.runtime_dir().join("web/vhost.sock")));
        drop(UnixStream::connect(home.runtime_dir().join("api.sock")));
        daemon.try_wait().unwrap()
    });
    assert_eq!(status.signal(), Some(6), "{thread}: {status}");
    std::io::read_to_string(daemon.stderr.take().unwrap()).unwrap()
}

#[test]
fn a_panic_in_any_thread_ends_the_daemon() {
    for thread in ["poller-", "owner", "api", "vfio-db", "vhost-web", "observer", "doorbells", "log"] {
        let words = last_words(thread);
        let told = words.lines().find(|line| line.contains("panicked")).unwrap_or_else(|| panic!("{thread}: {words}"));
        assert!(told.starts_with(&format!("evenkeeld: thread {thread}")), "{told}");
        assert!(told.contains(".rs:") && told.contains("as EVENKEELD_PANIC_IN asked"), "{told}");
    }
}
