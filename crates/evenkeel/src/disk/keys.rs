//! Files with keys that are handed over to the daemon, by `evenkeel disk unlock` and `rewrap`.

use std::fs::File;
use std::io::{self, Read, stdin};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Result;
use api::Problem;
use keys::{DATA_KEY_BYTES, DataSecret, HostKeyError, HostKeys};
use zeroize::Zeroizing;

/// Eight lines of 64 hexadecimal digits, and more.
const LONGEST_FILE_BYTES: usize = 1024;

/// A tenant's key in hexadecimal, from a file that has it so or as bytes.
///
/// # Errors
/// The file can't be read, or has no key.
pub(super) fn tenant_key(file: &Path) -> Result<Zeroizing<String>> {
    let mut content = read(file).map_err(|error| unusable(file, &error.to_string()))?;
    if file.as_os_str() != "-" {
        warn_if_exposed(file);
    }
    // Digits that are too few are no bytes.
    if content.len() == DATA_KEY_BYTES && !content.iter().all(u8::is_ascii_hexdigit) {
        return Ok(DataSecret::take(&mut content).map(|secret| secret.to_hex()).unwrap_or_default());
    }
    let text = std::str::from_utf8(&content).map(|text| Zeroizing::new(text.to_owned()));
    text.map_err(|_| unusable(file, "no key; write 64 bytes, or 128 hexadecimal digits: `openssl rand -hex 64`").into())
}

/// Host keys from a file that root or the daemon's user alone may read. The daemon's user owns `socket`.
///
/// # Errors
/// The file can't be read, others may read it, or it has no key.
pub(super) fn host_keys(file: &Path, socket: &Path) -> Result<HostKeys> {
    let keys = if file.as_os_str() == "-" {
        let parsed = read(file).map(|text| HostKeys::parse(&text));
        let unreadable = |error| HostKeyError::Unreadable { path: file.to_owned(), error };
        parsed.map_err(unreadable).and_then(|keys| keys.ok_or_else(|| HostKeyError::NoKey { path: file.to_owned() }))
    } else {
        // Without a socket there is no daemon either, which is told next.
        let daemon = socket.metadata().map_or(0, |about| about.uid());
        HostKeys::read_of(file, daemon)
    };
    keys.map_err(|error| match error {
        HostKeyError::Unreadable { error, .. } => unusable(file, &error.to_string()).into(),
        error => {
            let error = error.to_string();
            let (what, remedy) = error.split_once("; ").unwrap_or((&error, "check the file"));
            Problem::new(400, "unusable-key", format!("can't use {what}"), remedy).into()
        }
    })
}

/// The content of a file with keys; `-`: of standard input.
fn read(file: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    // With room for all of it: a vector that grows leaves copies behind.
    let mut content = Zeroizing::new(Vec::with_capacity(LONGEST_FILE_BYTES));
    let limit = LONGEST_FILE_BYTES as u64;
    if file.as_os_str() == "-" {
        stdin().take(limit).read_to_end(&mut content)?;
    } else {
        File::open(file)?.take(limit).read_to_end(&mut content)?;
    }
    Ok(content)
}

fn unusable(file: &Path, why: &str) -> Problem {
    Problem::new(400, "unusable-key", format!("can't read a key from {}: {why}", file.display()), "check the file")
}

fn warn_if_exposed(file: &Path) {
    let mode = file.metadata().ok().filter(|about| about.is_file()).map_or(0, |about| about.mode() & 0o7777);
    if mode & 0o077 != 0 {
        eprintln!("warning: {}: other users may read it (mode {mode:04o}); `chmod 0400` prevents that", file.display());
    }
}
