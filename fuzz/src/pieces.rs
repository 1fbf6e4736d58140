//! The file of thin disks' maps: any bytes, or a sound file with some bytes changed.
//!
//! What must hold: nothing panics; a file that is accepted is accepted again, with the maps that it had, also after a
//! batch; and maps that a pool takes share no piece beyond what it counts.

use std::collections::BTreeMap;
use std::io;

use ::pieces::{Batch, ENTRIES, MapId, Maps, PageKey, PieceFile, Pool, PoolId, Storage};
use arbitrary::{Arbitrary, Result, Unstructured};

const ID: PoolId = PoolId(7);
/// Pieces of the pool, and of each disk.
const PIECES: u32 = 64;
/// The most bytes of a file: it is held in memory.
const MOST_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone, Default)]
struct Memory(Vec<u8>);

impl Storage for Memory {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn grow(&mut self, len_bytes: u64) -> io::Result<()> {
        if len_bytes > MOST_BYTES {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.resize(len_bytes as usize, 0);
        Ok(())
    }

    fn read_at(&self, out: &mut [u8], at_bytes: u64) -> io::Result<()> {
        let from = self.0.get(at_bytes as usize..at_bytes as usize + out.len());
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], at_bytes: u64) -> io::Result<()> {
        let into = self.0.get_mut(at_bytes as usize..at_bytes as usize + bytes.len());
        into.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug, Arbitrary)]
struct Change {
    at: u32,
    value: u64,
}

/// Runs one input.
pub fn run(input: &[u8]) {
    match input.split_first() {
        Some((0, bytes)) => open(Memory(bytes.to_vec())),
        Some((_, changes)) => {
            let Ok(mut sound) = sound() else { return };
            // It is over when the bytes are.
            let _ = change(&mut sound.0, &mut Unstructured::new(changes));
            open(sound);
        }
        None => {}
    }
}

fn change(file: &mut [u8], changes: &mut Unstructured<'_>) -> Result<()> {
    while !changes.is_empty() {
        let Change { at, value } = Change::arbitrary(changes)?;
        let at = at as usize % (file.len() - 8);
        file[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    Ok(())
}

fn page(map: MapId, number: u32, first: u32) -> (PageKey, Box<[u32; ENTRIES]>) {
    let entries = std::array::from_fn(|at| if at < 8 { first + at as u32 } else { 0 });
    (PageKey { map, number }, Box::new(entries))
}

/// Two disks with pieces of their own, and one whose pieces others have, after three batches.
fn sound() -> io::Result<Memory> {
    let kept = Memory::default();
    let mut file = PieceFile::create(kept, ID)?;
    let [one, two, three] = [2, 3, 4].map(MapId);
    let added = vec![one, two];
    file.commit(Batch { pages: vec![page(one, 0, 1), page(two, 0, 9)], added, removed: Vec::new() })?;
    file.commit(Batch { pages: vec![page(three, 0, 1), page(one, 0, 17)], added: vec![three], removed: Vec::new() })?;
    file.commit(Batch { pages: vec![page(MapId::CLEAN, 0, 1)], added: Vec::new(), removed: vec![two] })?;
    Ok(file.into_storage())
}

fn open(storage: Memory) {
    let Ok((mut file, maps)) = PieceFile::open(storage, &[ID]) else { return };
    let counts: BTreeMap<MapId, u32> = maps.keys().map(|map| (*map, PIECES)).collect();
    if let Ok(mut pool) = Pool::new(std::iter::once(0..PIECES).collect(), maps.clone(), &counts) {
        let has = |pool: &Pool| -> u32 { pool.maps().map(|(_, pieces)| pieces).sum() };
        let before = has(&pool);
        assert!(pool.free() + before.min(PIECES) >= PIECES, "a piece is lost");
        if let Some(map) = counts.keys().next().filter(|map| **map >= MapId::FIRST) {
            let _ = pool.write(*map, 0);
            pool.remove(*map);
        }
        if file.commit(pool.take_batch()).is_err() {
            return;
        }
        let again = PieceFile::open(file.into_storage(), &[ID]);
        let maps: Maps = again.map(|(_, maps)| maps).unwrap_or_else(|error| panic!("what was written: {error}"));
        assert!(maps.keys().all(|map| *map < MapId::FIRST || counts.contains_key(map)), "a map comes from nowhere");
        return;
    }
    let again = PieceFile::open(file.into_storage(), &[ID]).map(|(_, maps)| maps);
    assert_eq!(again.unwrap_or_else(|error| panic!("accepted once: {error}")), maps);
}
