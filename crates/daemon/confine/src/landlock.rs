//! Which files the process may still open: a wall around what the filters let through.

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};

/// What is known today; an older kernel enforces what it has.
const KNOWN: ABI = ABI::V6;

/// What the daemon itself is asked about while it runs: its threads' waits, and how many CPUs its group has.
const READ: [&str; 2] = ["/proc/self", "/sys/fs/cgroup"];

/// How much of it the kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// All.
    Whole,
    /// An older kernel: files, but not all that can be done to them, or no sockets.
    Partial,
    /// It has no Landlock.
    None,
}

/// From now on this thread, and those that it starts, open nothing outside of `directories`, in which they may do
/// everything but execute, and of one in which they may read files; connect to nothing by TCP; and reach no abstract
/// socket of others. What is open stays so.
///
/// # Errors
/// A directory is not there.
pub fn fence(directories: &[PathBuf], readable_directory: Option<&Path>) -> io::Result<Fence> {
    let readable = AccessFs::ReadFile | AccessFs::ReadDir;
    let all = AccessFs::from_all(KNOWN);
    let rules = |ruleset: landlock::RulesetCreated| -> Result<landlock::RulesetCreated, io::Error> {
        let mut ruleset = ruleset;
        for directory in directories {
            let path = PathFd::new(directory).map_err(io::Error::other)?;
            ruleset = add(ruleset, path, all & !AccessFs::Execute)?;
        }
        if let Some(directory) = readable_directory {
            ruleset = add(ruleset, PathFd::new(directory).map_err(io::Error::other)?, AccessFs::ReadFile.into())?;
        }
        for path in READ.iter().map(Path::new).filter(|path| path.exists()) {
            let path = PathFd::new(path).map_err(io::Error::other)?;
            ruleset = add(ruleset, &path, readable)?;
            // Kept open: the kernel forgets a directory of /proc that nobody uses, and the rule with it.
            std::mem::forget(path);
        }
        Ok(ruleset)
    };
    let handled = Ruleset::default()
        .handle_access(all)
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(KNOWN)))
        .and_then(|ruleset| ruleset.scope(Scope::AbstractUnixSocket))
        .and_then(Ruleset::create);
    let status = rules(handled.map_err(io::Error::other)?)?.restrict_self().map_err(io::Error::other)?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Fence::Whole,
        RulesetStatus::PartiallyEnforced => Fence::Partial,
        RulesetStatus::NotEnforced => Fence::None,
    })
}

fn add(
    ruleset: landlock::RulesetCreated,
    path: impl std::os::fd::AsFd,
    access: BitFlags<AccessFs>,
) -> io::Result<landlock::RulesetCreated> {
    ruleset.add_rule(PathBeneath::new(path, access)).map_err(io::Error::other)
}
