//! Keys of encrypted disks: erased by another one, or handed over by their tenants.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result};
use api::{Erasure, Problem, Rest, TenantKey};

use super::listing::one;
use super::{Daemon, is_confirmed};
use crate::output::print;

/// 64 bytes in hexadecimal, and more than an end of line.
const LONGEST_KEY_FILE_BYTES: u64 = 160;

#[derive(Debug, clap::Args)]
pub(super) struct Erase {
    /// Name of the disk.
    name: String,

    /// Don't ask
    #[arg(long)]
    yes: bool,

    /// Erase an attached disk too: its client finds noise
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
pub(super) struct Unlock {
    /// Name of the disk.
    name: String,

    /// File with the key: 64 bytes in hexadecimal. `-`: standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    key_file: PathBuf,

    /// The disk takes this key in place of its former one: nobody can read its data any more
    #[arg(long)]
    erase: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// Erases an encrypted disk.
///
/// # Errors
/// The user does not confirm it, or the daemon refuses.
pub(super) fn erase(erase: &Erase) -> Result<()> {
    let Erase { name, yes, force, daemon } = erase;
    let daemon_at = Rest::new(&daemon.socket);
    if !yes && !is_confirmed(&daemon_at, name, "Erase")? {
        let remedy = "--yes erases it without a question";
        return Err(Problem::new(400, "not-confirmed", "nothing is erased", remedy).into());
    }
    let disk = daemon_at.erase(name, Erasure { force: *force })?;
    print(daemon.json, &disk, || format!("{name} is erased: its former key is gone\n"))
}

/// Hands over a tenant's own key.
///
/// # Errors
/// The key can't be read, or the daemon refuses it.
pub(super) fn unlock(unlock: &Unlock) -> Result<()> {
    let Unlock { name, key_file, erase, daemon } = unlock;
    let mut key = String::with_capacity(LONGEST_KEY_FILE_BYTES as usize);
    let read = if key_file.as_os_str() == "-" {
        std::io::stdin().take(LONGEST_KEY_FILE_BYTES).read_to_string(&mut key)
    } else {
        File::open(key_file).and_then(|file| file.take(LONGEST_KEY_FILE_BYTES).read_to_string(&mut key))
    };
    read.with_context(|| format!("can't read a key from {}", key_file.display()))?;
    let disk = Rest::new(&daemon.socket).unlock(name, &TenantKey { key, erase: *erase })?;
    print(daemon.json, &disk, || one(&disk))
}
