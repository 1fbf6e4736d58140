//! A daemon that was stopped leaves no thread behind. Alone in its process.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(clippy::disallowed_methods, reason = "it waits for threads of a real daemon, not for ever")]

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{Config, Prepared};
use evenkeeld::daemon::Daemon;
use ssd_model::Profile;

/// Nothing that works takes this long.
const HANG: Duration = Duration::from_secs(60);

fn threads() -> Vec<String> {
    let names = fs::read_dir("/proc/self/task").unwrap().flatten();
    // A thread that ends meanwhile has no name any more.
    let names = names.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

#[test]
fn a_daemon_that_was_stopped_leaves_no_thread_behind() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let text = format!(
        "runtime_dir = {dir:?}\nstate_dir = {dir:?}\n[device]\nbackend = \"null\"\nsize = \"64MiB\"\n\
         [policy]\nname = \"passthrough\"\n[[tenant]]\nname = \"one\"\nsize = \"1MiB\"\n\
         [[tenant]]\nname = \"two\"\nsize = \"1MiB\"\nfrontend = \"vhost-user-blk\"\n"
    );
    let before = threads();
    let prepared = Prepared::new(Config::parse(&dir.join("ek.toml"), &text).unwrap()).unwrap();
    let daemon = Daemon::start(vec![(prepared, Profile::p5800x())], Arc::new(|_, _| {})).unwrap();
    // A thread that begins has no name of its own yet.
    wait_until(|| {
        let served = threads();
        let wanted = ["owner", "control", "api", "metrics", "verdicts", "live", "poller-0", "vfio-one", "vhost-two"];
        wanted
            .into_iter()
            .find(|wanted| !served.iter().any(|name| name == wanted))
            .map(|missing| vec![missing.to_owned()])
    });
    assert_eq!(daemon.stop(), 0);
    // What serves all tenants of a process may stay: it waits, and costs nothing.
    let shared = ["doorbells", "watchdog"];
    wait_until(|| {
        let left = threads().into_iter().filter(|name| !shared.contains(&name.as_str()));
        let left: Vec<_> = left.filter(|name| !before.contains(name)).collect();
        (!left.is_empty()).then_some(left)
    });
}

/// Nothing is wrong any more.
fn wait_until(wrong: impl Fn() -> Option<Vec<String>>) {
    let start = Instant::now();
    while let Some(names) = wrong() {
        assert!(start.elapsed() < HANG, "{names:?}");
        std::thread::yield_now();
    }
}
