//! Whether this process may have as many open files as a configuration takes.

use rustix::process::{Resource, getrlimit};

use crate::config::Config;
use crate::problem::Problem;

/// Counted: the process itself, a poller, and a tenant with a client that has few queues. Clients' interrupts come on
/// top, one for each queue that their guests use.
const OF_PROCESS: u64 = 24;
const OF_POLLER: u64 = 2;
const OF_TENANT: u64 = 7;

/// What helps where that is too few.
pub const MORE_OPEN_FILES: &str = "raise LimitNOFILE= of the daemon's unit, or `ulimit -Hn` before its start";

/// How many files this process may have open, as far as it may raise that itself. `None`: any number.
pub fn most_open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum
}

/// Of all drives: whether they take more open files than `most`.
pub fn warn_few_files<'c>(each: impl Iterator<Item = &'c Config>, most: u64) -> Option<Problem> {
    let (mut takes, mut tenants) = (OF_PROCESS, 0);
    for config in each {
        tenants += config.tenants.len();
        takes += OF_POLLER * config.poller_plan().len() as u64 + OF_TENANT * config.tenants.len() as u64;
    }
    let what = || {
        format!("{tenants} disks with their clients take {takes} open files at least, and this process may have {most}")
    };
    (takes > most).then(|| Problem { place: None, what: what(), remedy: MORE_OPEN_FILES.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn more_disks_than_files_are_warned_of() {
        let disk = |at: usize| format!("[[tenant]]\nname = \"t{at}\"\nsize = \"4MiB\"\n");
        let disks: String = (0..10).map(disk).collect();
        let text =
            format!("[device]\nbackend = \"memory\"\nsize = \"1GiB\"\n[policy]\nname = \"passthrough\"\n{disks}");
        let config = Config::parse(Path::new("ek.toml"), &text).unwrap_or_else(|e| panic!("{e}"));
        let told = |most: u64| warn_few_files([&config].into_iter(), most).map(|problem| problem.what);
        let what = "10 disks with their clients take 96 open files at least, and this process may have 95";
        assert_eq!((told(96), told(95).as_deref()), (None, Some(what)));
    }
}
