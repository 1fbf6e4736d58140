//! A part of a map, as the file has it.

/// Bytes of a page: what drives write at a time, at least.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Entries of a page.
pub const ENTRIES: usize = 1000;

const MAGIC: u32 = u32::from_le_bytes(*b"EKpg");
/// Magic, map, number, spare, batch.
const HEAD_BYTES: usize = 24;
const DIGEST_AT: usize = PAGE_BYTES - 4;

/// A map of a pool, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapId(pub u32);

impl MapId {
    /// Not a disk's: the entries are the maps that there are.
    pub(crate) const DIRECTORY: Self = Self(0);
    /// Not a disk's: the entries are bits, one per piece of the pool that is free and known to be zero.
    pub const CLEAN: Self = Self(1);
    /// The first of a disk.
    pub const FIRST: Self = Self(2);
}

/// Which part of which map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageKey {
    /// The map.
    pub map: MapId,
    /// The page has the entries from `number` times [`ENTRIES`] on.
    pub number: u32,
}

/// A page of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    pub key: PageKey,
    pub batch: u64,
    pub entries: Box<[u32; ENTRIES]>,
}

impl Page {
    pub(crate) fn to_bytes(&self) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        let numbers = [MAGIC, self.key.map.0, self.key.number, 0].map(u32::to_le_bytes);
        bytes[..16].copy_from_slice(numbers.as_flattened());
        bytes[16..HEAD_BYTES].copy_from_slice(&self.batch.to_le_bytes());
        let entries = self.entries.map(u32::to_le_bytes);
        bytes[HEAD_BYTES..][..4 * ENTRIES].copy_from_slice(entries.as_flattened());
        let digest = crc32fast::hash(&bytes[..DIGEST_AT]);
        bytes[DIGEST_AT..].copy_from_slice(&digest.to_le_bytes());
        bytes
    }

    /// `None`: these bytes are no whole page.
    pub(crate) fn from_bytes(bytes: &[u8; PAGE_BYTES]) -> Option<Self> {
        let (numbers, _) = bytes.as_chunks::<4>();
        let number = |at: usize| u32::from_le_bytes(numbers[at]);
        if number(0) != MAGIC || number(DIGEST_AT / 4) != crc32fast::hash(&bytes[..DIGEST_AT]) {
            return None;
        }
        let batch = u64::from(number(4)) | u64::from(number(5)) << 32;
        let entries = Box::new(std::array::from_fn(|at| number(HEAD_BYTES / 4 + at)));
        Some(Self { key: PageKey { map: MapId(number(1)), number: number(2) }, batch, entries })
    }

    /// What it adds to the sum of all pages: another version of it adds another number.
    pub(crate) fn weight(bytes: &[u8; PAGE_BYTES]) -> u64 {
        let (numbers, _) = bytes.as_chunks::<4>();
        u64::from(u32::from_le_bytes(numbers[DIGEST_AT / 4])) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_page_is_read() {
        let key = PageKey { map: MapId(7), number: 3 };
        let page = Page { key, batch: 1 << 40, entries: Box::new(std::array::from_fn(|at| at as u32 * 3)) };
        let bytes = page.to_bytes();
        assert_eq!(Page::from_bytes(&bytes), Some(page));
        for at in [0, 5, 16, 24, 2000, 4023, 4030, 4092, 4095] {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(Page::from_bytes(&damaged), None, "{at}");
        }
        assert_eq!(Page::from_bytes(&[0; PAGE_BYTES]), None);
    }
}
