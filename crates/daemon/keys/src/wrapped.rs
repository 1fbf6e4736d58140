//! A data key as the layout stores it, wrapped by the host key.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use openssl::symm::{Cipher, decrypt_aead, encrypt_aead};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::host_key::{HostKey, HostKeyId, HostKeys};
use crate::secret::{DATA_KEY_BYTES, DataSecret};

const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
const SEALED_BYTES: usize = NONCE_BYTES + DATA_KEY_BYTES + TAG_BYTES;

/// A data key that only the host key opens, and only for the disk that it was wrapped for: AES-256-GCM, with the disk's
/// serial number as associated data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrappedKey {
    /// The host key that opens it.
    pub host_key: HostKeyId,
    /// Nonce, encrypted key and tag, in base64.
    sealed: String,
}

/// Why a wrapped key does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnwrapError {
    /// Another host key wrapped it.
    #[error("its key was wrapped by host key {wrapped}, and this host has {here}; give the daemon the former host key")]
    OtherHostKey {
        /// The host key that opens it.
        wrapped: HostKeyId,
        /// The one that was tried.
        here: HostKeyId,
    },
    /// The record was changed, cut off, or copied from another disk.
    #[error(
        "its wrapped key is damaged or another disk's; stop the daemon, and copy this disk's [tenant.key.…] lines from \
         a backup of the layout file into the present one (KEYS.md, \"Where keys come from\")"
    )]
    Damaged,
}

impl WrappedKey {
    /// A random key for the disk with that serial number. `None`: the system gives no random bytes.
    pub fn random(host: &HostKey, serial: &str) -> Option<Self> {
        Self::wrap(&DataSecret::random().ok()?, host, serial)
    }

    /// Wraps a disk's key. `None`: OpenSSL has no random bytes or no memory.
    pub fn wrap(secret: &DataSecret, host: &HostKey, serial: &str) -> Option<Self> {
        let mut nonce = [0; NONCE_BYTES];
        openssl::rand::rand_bytes(&mut nonce).ok()?;
        let mut tag = [0; TAG_BYTES];
        let (cipher, about) = (Cipher::aes_256_gcm(), associated(serial));
        let key = encrypt_aead(cipher, host.bytes(), Some(&nonce), &about, secret.bytes(), &mut tag).ok()?;
        let sealed = STANDARD.encode([&nonce[..], &key, &tag].concat());
        Some(Self { host_key: host.id(), sealed })
    }

    /// The disk's key.
    ///
    /// # Errors
    /// See [`UnwrapError`].
    pub fn unwrap(&self, hosts: &HostKeys, serial: &str) -> Result<DataSecret, UnwrapError> {
        let here = hosts.present().id();
        let host = hosts.find(self.host_key).ok_or(UnwrapError::OtherHostKey { wrapped: self.host_key, here })?;
        let sealed = STANDARD.decode(&self.sealed).ok().filter(|sealed| sealed.len() == SEALED_BYTES);
        let sealed = sealed.ok_or(UnwrapError::Damaged)?;
        let (nonce, rest) = sealed.split_at(NONCE_BYTES);
        let (key, tag) = rest.split_at(DATA_KEY_BYTES);
        let (cipher, about) = (Cipher::aes_256_gcm(), associated(serial));
        let opened = decrypt_aead(cipher, host.bytes(), Some(nonce), &about, key, tag);
        let mut opened = Zeroizing::new(opened.map_err(|_| UnwrapError::Damaged)?);
        DataSecret::take(&mut opened).ok_or(UnwrapError::Damaged)
    }

    /// The key wrapped by the present host key. `None`: it is already, or does not open.
    pub fn wrapped_anew(&self, hosts: &HostKeys, serial: &str) -> Option<Self> {
        let is_former = self.host_key != hosts.present().id();
        let secret = is_former.then(|| self.unwrap(hosts, serial).ok()).flatten()?;
        Self::wrap(&secret, hosts.present(), serial)
    }
}

fn associated(serial: &str) -> Vec<u8> {
    [b"evenkeel disk key 1:", serial.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host whose present key is the first of these.
    fn host(fill: &[u8]) -> HostKeys {
        let lines: Vec<String> = fill.iter().map(|fill| format!("{fill:02x}").repeat(32)).collect();
        HostKeys::parse(lines.join("\n").as_bytes()).unwrap()
    }

    fn wrap(secret: &DataSecret, hosts: &HostKeys) -> WrappedKey {
        WrappedKey::wrap(secret, hosts.present(), "db").unwrap()
    }

    #[test]
    fn a_key_opens_for_its_disk_on_its_host_alone() {
        let secret = DataSecret::random().unwrap();
        let (one, other) = (host(&[1]), host(&[2]));
        let wrapped = wrap(&secret, &one);
        assert_eq!(wrapped.unwrap(&one, "db").unwrap().bytes(), secret.bytes());
        assert_eq!(wrapped.unwrap(&one, "batch").unwrap_err(), UnwrapError::Damaged);
        let error = wrapped.unwrap(&other, "db").unwrap_err();
        assert_eq!(error, UnwrapError::OtherHostKey { wrapped: one.present().id(), here: other.present().id() });
        assert_ne!(wrap(&secret, &one), wrapped, "a nonce is never used twice");
    }

    /// A rotation that loses a key, or that leaves it open to the former host key.
    #[test]
    fn a_key_is_wrapped_anew_by_the_present_host_key() {
        let secret = DataSecret::random().unwrap();
        let wrapped = wrap(&secret, &host(&[1]));
        let anew = wrapped.wrapped_anew(&host(&[2, 1]), "db").unwrap();
        assert_eq!(anew.unwrap(&host(&[2]), "db").unwrap().bytes(), secret.bytes());
        assert!(anew.unwrap(&host(&[1]), "db").is_err());
        assert_eq!(anew.wrapped_anew(&host(&[2, 1]), "db"), None, "it is already");
        assert_eq!(wrapped.wrapped_anew(&host(&[2]), "db"), None, "nobody opens it");
    }

    /// Each bit and each length: a damaged key would make garbage of a disk.
    #[test]
    fn no_damaged_key_opens() {
        let (host, secret) = (host(&[1]), DataSecret::random().unwrap());
        let wrapped = wrap(&secret, &host);
        let sealed = STANDARD.decode(&wrapped.sealed).unwrap();
        let opens = |sealed: &[u8]| {
            let damaged = WrappedKey { sealed: STANDARD.encode(sealed), ..wrapped.clone() };
            damaged.unwrap(&host, "db").map(drop)
        };
        assert_eq!(opens(&sealed), Ok(()));
        for bit in 0..8 * sealed.len() {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opens(&flipped), Err(UnwrapError::Damaged), "bit {bit}");
        }
        for len in 0..sealed.len() {
            assert_eq!(opens(&sealed[..len]), Err(UnwrapError::Damaged), "{len} bytes");
        }
        assert_eq!(opens(&[&sealed[..], &[0]].concat()), Err(UnwrapError::Damaged));
    }
}
