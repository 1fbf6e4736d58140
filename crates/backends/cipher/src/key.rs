//! Data keys, and the cipher of one disk.

use std::fmt;

use openssl::cipher::Cipher;
use openssl::cipher_ctx::CipherCtx;
use openssl::error::ErrorStack;
use zeroize::Zeroizing;

/// The unit that tweaks count, as dm-crypt's `plain64`.
pub(crate) const TWEAK_BYTES: u64 = 512;

/// Why a key can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyError {
    /// XTS needs two different halves.
    EqualHalves,
    /// Sectors of this many bytes: neither 512 nor 4096.
    SectorBytes(u32),
    /// OpenSSL refused. Without the key.
    Library(String),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EqualHalves => f.write_str("both halves of the key are equal; XTS needs different ones"),
            Self::SectorBytes(bytes) => write!(f, "sectors of {bytes} bytes; write 512 or 4096"),
            Self::Library(why) => write!(f, "OpenSSL: {why}"),
        }
    }
}

impl std::error::Error for KeyError {}

impl From<ErrorStack> for KeyError {
    fn from(error: ErrorStack) -> Self {
        Self::Library(error.to_string())
    }
}

/// The key of a disk's data, and the size of its sectors. Its memory is overwritten when it is dropped, and no `Debug`
/// output has it.
pub struct DataKey {
    bytes: Zeroizing<[u8; Self::BYTES]>,
    sector_bytes: u32,
}

impl DataKey {
    /// Length of a key: two AES-256 keys.
    pub const BYTES: usize = 64;

    /// A key for a disk with sectors of 512 or 4096 bytes.
    ///
    /// # Errors
    /// Equal halves, or sectors of another size.
    pub fn new(bytes: Zeroizing<[u8; Self::BYTES]>, sector_bytes: u32) -> Result<Self, KeyError> {
        let (data, tweak) = bytes.split_at(Self::BYTES / 2);
        if openssl::memcmp::eq(data, tweak) {
            return Err(KeyError::EqualHalves);
        }
        if !matches!(sector_bytes, 512 | 4096) {
            return Err(KeyError::SectorBytes(sector_bytes));
        }
        Ok(Self { bytes, sector_bytes })
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataKey").field("sector_bytes", &self.sector_bytes).finish_non_exhaustive()
    }
}

/// Both directions of one disk's cipher, for one poller. OpenSSL overwrites its contexts when they are freed.
pub(crate) struct DiskCipher {
    encrypts: CipherCtx,
    decrypts: CipherCtx,
    sector_bytes: usize,
}

impl DiskCipher {
    pub fn new(key: &DataKey) -> Result<Self, KeyError> {
        let cipher = Some(Cipher::aes_256_xts());
        let (mut encrypts, mut decrypts) = (CipherCtx::new()?, CipherCtx::new()?);
        encrypts.encrypt_init(cipher, Some(&*key.bytes), None)?;
        decrypts.decrypt_init(cipher, Some(&*key.bytes), None)?;
        Ok(Self { encrypts, decrypts, sector_bytes: key.sector_bytes as usize })
    }

    /// Bytes of a sector.
    pub fn sector_bytes(&self) -> u64 {
        self.sector_bytes as u64
    }

    /// Encrypts whole sectors in place; the first one is at `offset_bytes` of the disk.
    pub fn encrypt(&mut self, offset_bytes: u64, data: &mut [u8]) -> Result<(), ErrorStack> {
        let Self { encrypts, sector_bytes, .. } = self;
        for (at, sector) in (offset_bytes..).step_by(*sector_bytes).zip(data.chunks_exact_mut(*sector_bytes)) {
            encrypts.encrypt_init(None, None, Some(&tweak(at)))?;
            encrypts.cipher_update_inplace(sector, sector.len())?;
        }
        Ok(())
    }

    /// Decrypts whole sectors in place; the first one is at `offset_bytes` of the disk. Zeros stay zeros: noise equals
    /// them once in 2^4096 sectors.
    pub fn decrypt(&mut self, offset_bytes: u64, data: &mut [u8]) -> Result<(), ErrorStack> {
        let Self { decrypts, sector_bytes, .. } = self;
        for (at, sector) in (offset_bytes..).step_by(*sector_bytes).zip(data.chunks_exact_mut(*sector_bytes)) {
            if is_zero(sector) {
                continue;
            }
            decrypts.decrypt_init(None, None, Some(&tweak(at)))?;
            decrypts.cipher_update_inplace(sector, sector.len())?;
        }
        Ok(())
    }
}

/// The tweak of the sector at `offset_bytes`: little-endian, in units of 512 bytes.
fn tweak(offset_bytes: u64) -> [u8; 16] {
    u128::from(offset_bytes / TWEAK_BYTES).to_le_bytes()
}

/// Of most sectors the first 16 bytes tell.
fn is_zero(sector: &[u8]) -> bool {
    sector.chunks_exact(16).all(|chunk| chunk == [0; 16])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(data: [u8; 32], tweak: [u8; 32], sector_bytes: u32) -> Result<DataKey, KeyError> {
        let mut bytes = Zeroizing::new([0; 64]);
        bytes[..32].copy_from_slice(&data);
        bytes[32..].copy_from_slice(&tweak);
        DataKey::new(bytes, sector_bytes)
    }

    fn hex(digits: &str) -> Vec<u8> {
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }

    /// IEEE 1619-2007, Annex B, vector 10: AES-256, data unit ff.
    #[test]
    fn the_standards_vector() {
        let data = hex("2718281828459045235360287471352662497757247093699959574966967627");
        let tweak = hex("3141592653589793238462643383279502884197169399375105820974944592");
        let key = key(data.try_into().unwrap(), tweak.try_into().unwrap(), 512).unwrap();
        let mut cipher = DiskCipher::new(&key).unwrap();
        let plain: Vec<u8> = (0..512).map(|at| at as u8).collect();
        let mut sector = plain.clone();
        cipher.encrypt(0xff * 512, &mut sector).unwrap();
        assert_eq!(sector[..32], hex("1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b"));
        assert_eq!(sector[496..], hex("c4f36ffda9fcea70b9c6e693e148c151"));
        cipher.decrypt(0xff * 512, &mut sector).unwrap();
        assert_eq!(sector, plain);
    }

    #[test]
    fn sectors_of_4096_bytes_count_as_eight() {
        let key = |bytes| key([1; 32], [2; 32], bytes).unwrap();
        let (mut large, mut small) = (DiskCipher::new(&key(4096)).unwrap(), DiskCipher::new(&key(512)).unwrap());
        let (mut one, mut other) = (vec![7; 8192], vec![7; 8192]);
        large.encrypt(1 << 40, &mut one).unwrap();
        small.encrypt(1 << 40, &mut other).unwrap();
        assert_eq!((&one[..512], &one[4096..4608]), (&other[..512], &other[4096..4608]));
        assert_ne!(one[512..1024], other[512..1024]);
    }

    #[test]
    fn zeros_on_the_drive_are_zeros_and_zeros_of_a_guest_are_noise() {
        let mut cipher = DiskCipher::new(&key([1; 32], [2; 32], 4096).unwrap()).unwrap();
        let mut data = vec![0; 8192];
        cipher.decrypt(0, &mut data).unwrap();
        assert!(is_zero(&data));
        cipher.encrypt(0, &mut data[..4096]).unwrap();
        assert!(!is_zero(&data[..4096]));
        cipher.decrypt(0, &mut data).unwrap();
        assert!(is_zero(&data));
    }

    #[test]
    fn keys_that_cannot_work_are_refused_and_none_is_shown() {
        assert_eq!(key([3; 32], [3; 32], 4096).unwrap_err(), KeyError::EqualHalves);
        assert_eq!(key([3; 32], [4; 32], 1024).unwrap_err(), KeyError::SectorBytes(1024));
        let shown = format!("{:?}", key([0xab; 32], [0xcd; 32], 4096).unwrap());
        assert_eq!(shown, "DataKey { sector_bytes: 4096, .. }");
    }
}
