//! What tells a tenant's own key from a wrong one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use openssl::hash::MessageDigest;
use openssl::memcmp;
use openssl::pkey::PKey;
use openssl::sign::Signer;
use serde::{Deserialize, Serialize};

use crate::secret::DataSecret;

/// Bytes of HMAC-SHA256 that are stored.
const BYTES: usize = 16;

/// A value that a disk's key gives, and no other key: the start of an HMAC over the disk's serial number. It tells
/// nothing about the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CheckValue(String);

/// The key is not the disk's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the key is not this disk's")]
pub struct WrongKey;

impl CheckValue {
    /// That of a disk's key. `None`: OpenSSL has no memory.
    pub fn of(secret: &DataSecret, serial: &str) -> Option<Self> {
        value(secret, serial).map(|value| Self(STANDARD.encode(value)))
    }

    /// Whether a key is the disk's.
    ///
    /// # Errors
    /// It is another one, or the stored value is damaged.
    pub fn check(&self, secret: &DataSecret, serial: &str) -> Result<(), WrongKey> {
        let stored = STANDARD.decode(&self.0).map_err(|_| WrongKey)?;
        let its = value(secret, serial).ok_or(WrongKey)?;
        // memcmp::eq panics where lengths differ.
        if stored.len() == its.len() && memcmp::eq(&stored, &its) { Ok(()) } else { Err(WrongKey) }
    }
}

fn value(secret: &DataSecret, serial: &str) -> Option<[u8; BYTES]> {
    let key = PKey::hmac(secret.bytes()).ok()?;
    let mut signer = Signer::new(MessageDigest::sha256(), &key).ok()?;
    signer.update(b"evenkeel check 1:").ok()?;
    signer.update(serial.as_bytes()).ok()?;
    signer.sign_to_vec().ok()?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_disks_own_key_passes() {
        let (own, other) = (DataSecret::random().unwrap(), DataSecret::random().unwrap());
        let check = CheckValue::of(&own, "db").unwrap();
        assert_eq!(check.check(&own, "db"), Ok(()));
        assert_eq!((check.check(&other, "db"), check.check(&own, "batch")), (Err(WrongKey), Err(WrongKey)));
        for damaged in ["", "AAAA", "no base64"] {
            assert_eq!(CheckValue(damaged.to_owned()).check(&own, "db"), Err(WrongKey));
        }
    }
}
