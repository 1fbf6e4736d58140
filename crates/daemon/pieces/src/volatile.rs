//! A storage in memory whose power may fail.

use std::collections::BTreeMap;
use std::io;

use fastrand::Rng;

use crate::file::Storage;

const SECTOR_BYTES: usize = 512;

/// A storage whose power may fail: sectors that were written since the last sync are there or not, each for itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Volatile {
    pub durable: Vec<u8>,
    written: BTreeMap<usize, [u8; SECTOR_BYTES]>,
    pub len: usize,
    /// The power fails with the write that makes it 0.
    pub writes_left: Option<u32>,
}

impl Volatile {
    /// What is there after a power failure.
    pub(crate) fn after_failure(&self, random: &mut Rng) -> Self {
        let mut durable = self.durable.clone();
        if durable.len() < self.len && random.bool() {
            durable.resize(self.len, 0);
        }
        for (at, sector) in &self.written {
            if random.bool() && durable.len() >= at + SECTOR_BYTES {
                durable[*at..at + SECTOR_BYTES].copy_from_slice(sector);
            }
        }
        Self { len: durable.len(), durable, written: BTreeMap::new(), writes_left: None }
    }

    fn spend(&mut self) -> io::Result<()> {
        match &mut self.writes_left {
            Some(0) => Err(io::Error::other("the power has failed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Storage for Volatile {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len as u64)
    }

    fn grow(&mut self, len_bytes: u64) -> io::Result<()> {
        self.spend()?;
        self.len = len_bytes as usize;
        self.durable.resize(self.len, 0);
        Ok(())
    }

    fn read_at(&self, out: &mut [u8], at_bytes: u64) -> io::Result<()> {
        for (at, sector) in out.chunks_mut(SECTOR_BYTES).enumerate() {
            let at = at_bytes as usize + at * SECTOR_BYTES;
            let durable = self.durable.get(at..at + SECTOR_BYTES);
            let found = self.written.get(&at).map(|sector| &sector[..]).or(durable);
            sector.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        }
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], at_bytes: u64) -> io::Result<()> {
        for (at, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
            self.spend()?;
            self.written.insert(at_bytes as usize + at * SECTOR_BYTES, sector.try_into().expect("whole sectors"));
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.spend()?;
        for (at, sector) in std::mem::take(&mut self.written) {
            self.durable[at..at + SECTOR_BYTES].copy_from_slice(&sector);
        }
        Ok(())
    }
}
