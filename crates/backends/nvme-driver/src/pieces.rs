//! Small memory as pieces of larger: a device may allow few mappings, and each of ours is a huge page at least.

use crate::device::DmaMemory;

/// Pieces begin at whole pages, as NVMe wants it of queues and lists.
const PIECE_ALIGN: u64 = nvme_spec::PAGE_BYTES;

/// Mappings of which pieces are given away.
#[derive(Debug, Default)]
pub struct Pieces(Vec<Whole>);

#[derive(Debug)]
struct Whole {
    memory: DmaMemory,
    /// From its start. What was given back is not given away again: it may not be zero.
    used_bytes: u64,
    /// Pieces that are away.
    away: usize,
}

/// What is left to do for memory that came back.
#[derive(Debug)]
pub enum Back {
    /// It is a piece of something that is used still.
    Piece,
    /// Nobody uses this mapping any more.
    Whole(DmaMemory),
}

impl Pieces {
    /// A zeroed piece of the newest mapping. `None`: that has no such room.
    pub fn take(&mut self, len_bytes: u64) -> Option<DmaMemory> {
        let whole = self.0.last_mut()?;
        let len_bytes = len_bytes.max(1).checked_next_multiple_of(PIECE_ALIGN)?;
        let piece = whole.memory.slice(whole.used_bytes, len_bytes)?;
        whole.used_bytes += len_bytes;
        whole.away += 1;
        Some(piece)
    }

    /// Another mapping to take pieces of.
    pub fn add(&mut self, memory: DmaMemory) {
        self.0.push(Whole { memory, used_bytes: 0, away: 0 });
    }

    /// Memory comes back, a piece or not.
    pub fn give_back(&mut self, memory: DmaMemory) -> Back {
        let has = |whole: &Whole| {
            let start = whole.memory.iova();
            (start..start + whole.memory.len_bytes()).contains(&memory.iova())
        };
        let Some(at) = self.0.iter().position(has) else { return Back::Whole(memory) };
        self.0[at].away -= 1;
        if self.0[at].away > 0 { Back::Piece } else { Back::Whole(self.0.remove(at).memory) }
    }
}

#[cfg(test)]
mod tests {
    use guest_memory::Mapping;

    use super::*;

    fn memory(iova: u64, len_bytes: usize) -> DmaMemory {
        DmaMemory::new(Mapping::memfd("pieces", len_bytes).expect("memory").0, iova)
    }

    #[test]
    fn a_mapping_goes_back_with_its_last_piece() {
        let mut pieces = Pieces::default();
        assert!(pieces.take(1).is_none());
        pieces.add(memory(1 << 20, 16 << 10));
        let [small, large] = [1, 8_000].map(|len_bytes| pieces.take(len_bytes).expect("room"));
        assert_eq!([small.iova(), large.iova()], [1 << 20, (1 << 20) + 4096]);
        assert_eq!([small.len_bytes(), large.len_bytes()], [4096, 8192]);
        assert!(pieces.take(8192).is_none(), "one page is left");
        pieces.add(memory(8 << 20, 16 << 10));
        let other = pieces.take(4096).expect("room");
        assert!(matches!(pieces.give_back(small), Back::Piece));
        assert!(matches!(pieces.give_back(other), Back::Whole(whole) if whole.iova() == 8 << 20));
        assert!(matches!(pieces.give_back(large), Back::Whole(whole) if whole.len_bytes() == 16 << 10));
        assert!(matches!(pieces.give_back(memory(1 << 20, 4096)), Back::Whole(_)), "no piece of anything");
    }
}
