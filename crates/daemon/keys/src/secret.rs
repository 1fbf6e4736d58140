//! Key bytes that leave no trace in memory.

use std::fmt::{self, Write};

use zeroize::{Zeroize, Zeroizing};

/// Length of a disk's data key: two AES-256 keys.
pub const DATA_KEY_BYTES: usize = 64;

/// A disk's data key.
pub type DataSecret = Secret<DATA_KEY_BYTES>;

/// The system gave no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes for a key")]
pub struct NoRandomBytes;

/// Secret bytes at one address, which is not swapped where the system allows that. They are overwritten when dropped,
/// and no `Debug` output has them.
pub struct Secret<const N: usize>(Box<[u8; N]>);

impl<const N: usize> Secret<N> {
    /// Random bytes from the system.
    ///
    /// # Errors
    /// The system gives none.
    pub fn random() -> Result<Self, NoRandomBytes> {
        let mut secret = Self::zeros();
        openssl::rand::rand_priv_bytes(secret.bytes_mut()).map_err(|_| NoRandomBytes)?;
        Ok(secret)
    }

    /// To be filled by [`bytes_mut`](Self::bytes_mut).
    pub fn zeros() -> Self {
        let secret = Self(Box::new([0; N]));
        guest_memory::keep_in_memory(secret.bytes());
        secret
    }

    /// A copy of these bytes; others are overwritten. `None`: another length.
    pub fn take(bytes: &mut [u8]) -> Option<Self> {
        let mut secret = Self::zeros();
        let is_whole = bytes.len() == N;
        if is_whole {
            secret.0.copy_from_slice(bytes);
        }
        bytes.zeroize();
        is_whole.then_some(secret)
    }

    /// Bytes in hexadecimal; an end of line may follow. `None`: other text, or another length.
    pub fn from_hex(text: &[u8]) -> Option<Self> {
        let digits = text.strip_suffix(b"\n").unwrap_or(text);
        let digits = digits.strip_suffix(b"\r").unwrap_or(digits);
        if digits.len() != 2 * N {
            return None;
        }
        let mut secret = Self::zeros();
        for (byte, pair) in secret.0.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = (digit(0)? * 16 + digit(1)?) as u8;
        }
        Some(secret)
    }

    /// The bytes in hexadecimal.
    pub fn to_hex(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(2 * N));
        for byte in self.bytes() {
            // Writing to a text can't fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// The bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8; N] {
        &mut self.0
    }
}

impl<const N: usize> Drop for Secret<N> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl<const N: usize> fmt::Debug for Secret<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_keys_are_alike_and_none_is_shown() {
        let (one, other) = (DataSecret::random().unwrap(), DataSecret::random().unwrap());
        assert_ne!(one.bytes(), other.bytes());
        assert_eq!(format!("{one:?}"), "Secret");
    }

    #[test]
    fn the_bytes_that_were_taken_are_gone() {
        let mut bytes = vec![7; 32];
        assert_eq!(Secret::<32>::take(&mut bytes).unwrap().bytes(), &[7; 32]);
        assert_eq!(bytes, [0; 32]);
        let mut short = vec![7; 31];
        assert!(Secret::<32>::take(&mut short).is_none() && short == [0; 31]);
    }

    #[test]
    fn hexadecimal_digits_are_read_or_refused() {
        let secret = Secret::<2>::from_hex(b"0aFf\r\n").unwrap();
        assert_eq!((secret.bytes(), secret.to_hex().as_str()), (&[0x0a, 0xff], "0aff"));
        for wrong in ["", "0aff0", "0aff00", "0aXf", "0aff\n\n", "+aff"] {
            assert!(Secret::<2>::from_hex(wrong.as_bytes()).is_none(), "{wrong:?}");
        }
    }
}
