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

/// Names a host key without telling anything about it. Stored as eight hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "WrittenId")]
pub struct HostKeyId(u32);

/// A number as layouts have it.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenId {
    Digits(String),
    /// Of layouts before they had digits.
    Number(u32),
}

impl TryFrom<WrittenId> for HostKeyId {
    type Error = String;

    fn try_from(written: WrittenId) -> Result<Self, String> {
        match written {
            WrittenId::Digits(digits) => u32::from_str_radix(&digits, 16)
                .map(Self)
                .map_err(|_| format!("{digits:?} is not the number of a host key: write its 8 hexadecimal digits")),
            WrittenId::Number(number) => Ok(Self(number)),
        }
    }
}

impl From<HostKeyId> for String {
    fn from(id: HostKeyId) -> Self {
        id.to_string()
    }
}

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
        Self::read_of(path, nix::unistd::geteuid().as_raw())
    }

    /// As [`read`](Self::read), of a file that belongs to root or `user`.
    ///
    /// # Errors
    /// See [`HostKeyError`].
    pub fn read_of(path: &Path, user: u32) -> Result<Self, HostKeyError> {
        let unreadable = |error| HostKeyError::Unreadable { path: path.to_owned(), error };
        // A FIFO would block.
        let file = File::options().read(true).custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits()).open(path);
        let file = file.map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        if !about.is_file() {
            return Err(HostKeyError::NoKey { path: path.to_owned() });
        }
        let (mode, owner) = (about.mode() & 0o7777, about.uid());
        if mode & 0o077 != 0 || (owner != 0 && owner != user) {
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

    /// The keys in hexadecimal, one a line, the present one first.
    pub fn lines(&self) -> Zeroizing<String> {
        let keys = [&self.present].into_iter().chain(&self.former);
        let mut lines = Zeroizing::new(String::with_capacity(LONGEST_FILE_BYTES as usize));
        for key in keys {
            lines.push_str(&key.secret.to_hex());
            lines.push('\n');
        }
        lines
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

    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, StringDeserializer, U32Deserializer};

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

    /// Keys that are handed over in another form than the file has, or in another order.
    #[test]
    fn lines_are_what_the_file_says() {
        for content in [&[7; 32][..], format!("{}\n{}\r\n", "0A".repeat(32), "0b".repeat(32)).as_bytes()] {
            let keys = read(content, 0o400).unwrap();
            let again = HostKeys::parse(keys.lines().as_bytes()).unwrap();
            assert_eq!(again.present.id, keys.present.id);
            assert!(again.former.iter().map(HostKey::id).eq(keys.former.iter().map(HostKey::id)));
        }
    }

    /// A layout whose number of a host key is not the one that the log has; or one that an update can't read.
    #[test]
    fn a_layout_has_the_number_in_digits() {
        let id = HostKeyId(0x00c0_ffee);
        let of_text = |text: String| HostKeyId::deserialize(text.into_deserializer() as StringDeserializer<Error>).ok();
        assert_eq!(String::from(id), format!("{id}"));
        assert_eq!((of_text(id.into()), of_text("c0ffgg".into())), (Some(id), None));
        let number: U32Deserializer<Error> = 0x00c0_ffee_u32.into_deserializer();
        assert_eq!(HostKeyId::deserialize(number), Ok(id));
    }
}
