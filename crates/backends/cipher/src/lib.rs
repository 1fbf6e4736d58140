//! Encryption at rest, with a key of its own for each disk.
//!
//! | module | what |
//! | --- | --- |
//! | `key` | data keys, and the cipher of one disk |
//! | `keys` | the keys that pollers know, by disk |
//! | `change` | a disk on its way from one key to another |
//! | `bounces` | memory for encrypted data on its way to the drive |
//! | `encrypted` | the back end around another one |
//!
//! The cipher is AES-256-XTS. Its tweak is the number of the disk's own sector in units of 512 bytes (dm-crypt's
//! `plain64`), so data may move on the drive, and `cryptsetup` opens a raw copy.
//!
//! Guest memory may vanish at any time, so the cipher never touches it: data passes through memory of ours, and guarded
//! copies move it there and back. A read lands in the guest's memory as the drive has it, and is decrypted there by
//! pieces. A write is encrypted into a bounce buffer.
//!
//! A sector that is all zeros on the drive reads as zeros. So discards, Write Zeroes and new ranges cost what they cost
//! without encryption. The drive shows which sectors are empty.

#![forbid(unsafe_code)]

mod bounces;
mod change;
mod encrypted;
mod key;
mod keys;

pub use change::KeyChange;
pub use encrypted::Encrypted;
pub use key::{DataKey, KeyError};
pub use keys::{Access, Keys};

/// Has OpenSSL read its configuration, which threads behind the daemon's walls may not.
pub fn prepare() {
    openssl::init();
}
