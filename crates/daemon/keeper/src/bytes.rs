//! The form of what a keeper saves: numbers and bytes in a row.

/// Of what is saved. A program reads its own and those before.
pub const VERSION: u64 = 1;

/// Writes them.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// All that was written.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    /// A number.
    pub fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// Yes or no.
    pub fn flag(&mut self, value: bool) {
        self.u64(value.into());
    }

    /// Bytes, after how many there are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.0.extend(bytes);
    }

    /// What there may be.
    pub fn maybe<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Reads them. `None`: they are not there.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// A number.
    pub fn u64(&mut self) -> Option<u64> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*value))
    }

    /// The next number, if it fits.
    pub fn u32(&mut self) -> Option<u32> {
        self.u64()?.try_into().ok()
    }

    /// Yes or no.
    pub fn flag(&mut self) -> Option<bool> {
        match self.u64()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Bytes.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u64()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// What there may be.
    pub fn maybe<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Some(None) }
    }

    /// Several, of which none is shorter than a number.
    pub fn several<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.u64()?).ok().filter(|count| *count <= self.0.len() / size_of::<u64>())?;
        (0..count).map(|_| read(self)).collect()
    }
}
