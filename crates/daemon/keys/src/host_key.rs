//! The key of this host, and the file that it is read from.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use openssl::hash::{MessageDigest, hash};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::secret::Secret;

/// Bytes of a host key: AES-256.
const BYTES: usize = 32;
/// Keys in a file: the present one, and former ones while disks' keys are wrapped anew.
const KEYS_MAX: usize = 8;
/// Longest file, in bytes: 64 hexadecimal digits and an end of line for each key.
pub const LONGEST_FILE_BYTES: u64 = KEYS_MAX as u64 * (2 * BYTES as u64 + 2);

/// Names a host key without telling anything about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostKeyId(u32);

/// The key that wraps the data keys of a host.
#[derive(Debug)]
pub struct HostKey {
    secret: Secret<BYTES>,
    id: HostKeyId,
}

/// The key of a host, and former ones, which open what they have wrapped.
#[derive(Debug)]
pub struct HostKeys {
    present: HostKey,
    former: Vec<HostKey>,
}

/// Why a host key can't be used.
#[derive(Debug, thiserror::Error)]
pub enum HostKeyError {
    /// The file can't be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
    /// Other users may read or change it.
    #[error("{}: other users may read it (mode {mode:04o}, owner {owner}); run `chmod 0400` and `chown root` on it",
            path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// Its owner's number.
        owner: u32,
    },
    /// Something else than a key.
    #[error("{}: no key; write 32 random bytes, or 64 hexadecimal digits: `openssl rand -hex 32`; further lines are \
             former keys", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
}

impl HostKeys {
    /// Reads a systemd credential, or a file that only root or this user may read: 32 bytes; or lines of 64 hexadecimal
    /// digits, the present key first.
    ///
    /// # Errors
    /// See [`HostKeyError`].
    pub fn read(path: &Path) -> Result<Self, HostKeyError> {
        let unreadable = |error| HostKeyError::Unreadable { path: path.to_owned(), error };
        // A FIFO would block.
        let file = File::options().read(true).custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits()).open(path);
        let file = file.map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        if !about.is_file() {
            return Err(HostKeyError::NoKey { path: path.to_owned() });
        }
        let (mode, owner) = (about.mode() & 0o7777, about.uid());
        if mode & 0o077 != 0 || (owner != 0 && owner != nix::unistd::geteuid().as_raw()) {
            return Err(HostKeyError::Exposed { path: path.to_owned(), mode, owner });
        }
        // With room for all of it: a vector that grows leaves copies behind.
        let mut text = Zeroizing::new(Vec::with_capacity(LONGEST_FILE_BYTES as usize + 1));
        file.take(LONGEST_FILE_BYTES + 1).read_to_end(&mut text).map_err(unreadable)?;
        Self::parse(&text).ok_or_else(|| HostKeyError::NoKey { path: path.to_owned() })
    }

    /// What such a file holds. `None`: no key, or too many.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() == BYTES {
            let mut secret = Secret::zeros();
            secret.bytes_mut().copy_from_slice(text);
            return Some(Self { present: HostKey::new(secret)?, former: Vec::new() });
        }
        let lines = text.strip_suffix(b"\n").unwrap_or(text).split(|byte| *byte == b'\n');
        let mut keys = lines.map(|line| HostKey::new(Secret::from_hex(line)?));
        let present = keys.next()??;
        let former = keys.collect::<Option<Vec<_>>>()?;
        (former.len() < KEYS_MAX).then_some(Self { present, former })
    }

    /// The key that wraps.
    pub fn present(&self) -> &HostKey {
        &self.present
    }

    /// The key of that number.
    pub(crate) fn find(&self, id: HostKeyId) -> Option<&HostKey> {
        [&self.present].into_iter().chain(&self.former).find(|key| key.id == id)
    }
}

impl HostKey {
    /// `None`: all bytes are zero, or OpenSSL can't hash.
    pub(crate) fn new(secret: Secret<BYTES>) -> Option<Self> {
        if secret.bytes() == &[0; BYTES] {
            return None;
        }
        let named = Zeroizing::new([b"evenkeel host key".as_slice(), secret.bytes()].concat());
        let digest = hash(MessageDigest::sha256(), &named).ok()?;
        let id = HostKeyId(u32::from_be_bytes(digest.first_chunk().copied()?));
        Some(Self { secret, id })
    }

    /// Which key it is.
    pub fn id(&self) -> HostKeyId {
        self.id
    }

    pub(crate) fn bytes(&self) -> &[u8; BYTES] {
        self.secret.bytes()
    }
}

impl fmt::Display for HostKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl fmt::Debug for HostKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostKeyId({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn read(content: &[u8], mode: u32) -> Result<HostKeys, String> {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("host.key");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        HostKeys::read(&path).map_err(|error| error.to_string().replace(path.to_str().unwrap(), "KEY"))
    }

    #[test]
    fn bytes_and_digits_are_one_key() {
        let bytes: Vec<u8> = (100..132).collect();
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let id = read(&bytes, 0o400).unwrap().present().id();
        for text in [digits.clone(), digits.to_uppercase(), digits.clone() + "\n", digits + "\r\n"] {
            assert_eq!(read(text.as_bytes(), 0o600).unwrap().present().id(), id);
        }
        assert_ne!(read(&[1; 32], 0o400).unwrap().present().id(), id);
    }

    #[test]
    fn the_first_of_several_keys_is_the_present_one() {
        let lines = |count: usize| -> String { (1..=count).map(|at| format!("{at:02x}").repeat(32) + "\n").collect() };
        let keys = read(lines(3).as_bytes(), 0o400).unwrap();
        let id = |digits: &str| read(digits.repeat(32).as_bytes(), 0o400).unwrap().present().id();
        assert_eq!(keys.present().id(), id("01"));
        assert!(
            ["01", "02", "03"].iter().all(|digits| keys.find(id(digits)).is_some()) && keys.find(id("04")).is_none()
        );
        assert!(read(lines(8).as_bytes(), 0o400).is_ok() && read(lines(9).as_bytes(), 0o400).is_err());
    }

    #[test]
    fn files_that_are_no_key_or_not_private_are_refused() {
        let no_key = "KEY: no key; write 32 random bytes, or 64 hexadecimal digits: `openssl rand -hex 32`; further \
                      lines are former keys";
        for content in [&[][..], &[1; 31], &[1; 33], &[0; 32], &[b'g'; 64], &[b'1'; 63], &[b'1'; 4096]] {
            assert_eq!(read(content, 0o400).unwrap_err(), no_key, "{content:?}");
        }
        for mode in [0o440, 0o404, 0o620] {
            assert!(read(&[1; 32], mode).unwrap_err().contains("other users may read it (mode 0"), "{mode:o}");
        }
        let missing = HostKeys::read(Path::new("/nonexistent/host.key")).unwrap_err().to_string();
        assert!(missing.starts_with("/nonexistent/host.key: No such file"), "{missing}");
        assert!(matches!(HostKeys::read(Path::new("/dev/zero")), Err(HostKeyError::NoKey { .. })));
    }
}
