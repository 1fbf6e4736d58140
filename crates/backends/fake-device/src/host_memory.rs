//! Host memory that the fake reaches by device address, as a real device does, whichever process mapped it.

use guest_memory::Mapping;
use nvme_driver::Error;

/// Pieces that are lent, by the addresses that the fake was told.
#[derive(Default)]
pub(crate) struct Lent(Vec<Piece>);

struct Piece {
    iova: u64,
    len_bytes: u64,
    /// Where it lies in this process.
    at: usize,
}

impl Lent {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Lends a mapping, which lives until it is taken back, as [`DmaSpace`](nvme_driver::DmaSpace) requires.
    pub fn add(&mut self, iova: u64, mapping: &Mapping) -> Result<(), Error> {
        if !mapping.is_writable() {
            return Err(Error::Memory("it can't be written".into()));
        }
        let piece = Piece { iova, len_bytes: mapping.len_bytes(), at: mapping.addresses().start };
        self.0.push(piece);
        Ok(())
    }

    pub fn remove(&mut self, iova: u64, len_bytes: u64) -> Result<(), Error> {
        let is_it = |piece: &Piece| (piece.iova, piece.len_bytes) == (iova, len_bytes);
        let at = self.0.iter().position(is_it).ok_or(Error::Invalid("that is not lent"))?;
        self.0.swap_remove(at);
        Ok(())
    }

    fn find(&self, iova: u64, len_bytes: usize) -> Option<usize> {
        let piece = self.0.iter().find(|piece| (piece.iova..piece.iova + piece.len_bytes).contains(&iova))?;
        let offset = iova - piece.iova;
        (offset + len_bytes as u64 <= piece.len_bytes).then_some(piece.at + offset as usize)
    }

    /// Reads what was lent. `None`: it was not.
    #[allow(unsafe_code)]
    pub fn read(&self, iova: u64, out: &mut [u8]) -> Option<()> {
        let at = std::ptr::with_exposed_provenance::<u8>(self.find(iova, out.len())?);
        // SAFETY: the bytes are inside of a mapping that lives while it is lent; `out` is ours, and disjoint from it.
        unsafe { std::ptr::copy_nonoverlapping(at, out.as_mut_ptr(), out.len()) };
        Some(())
    }

    /// Writes what was lent. `None`: it was not.
    #[allow(unsafe_code)]
    pub fn write(&self, iova: u64, data: &[u8]) -> Option<()> {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(self.find(iova, data.len())?);
        // SAFETY: as above; the mapping is writable.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at, data.len()) };
        Some(())
    }
}
