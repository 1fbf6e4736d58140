//! Messages as a client writes them, right or wrong.

#![allow(dead_code, reason = "other crates' tests use the rest")]

pub const VERSION: u16 = 1;
pub const DMA_MAP: u16 = 2;
pub const DMA_UNMAP: u16 = 3;
pub const GET_INFO: u16 = 4;
pub const GET_REGION_INFO: u16 = 5;
pub const GET_IRQ_INFO: u16 = 7;
pub const SET_IRQS: u16 = 8;
pub const REGION_READ: u16 = 9;
pub const REGION_WRITE: u16 = 10;
pub const RESET: u16 = 13;

pub const NO_REPLY: u32 = 1 << 4;

pub fn header(id: u16, command: u16, size_bytes: u32, flags: u32) -> Vec<u8> {
    let mut out = [id.to_ne_bytes(), command.to_ne_bytes()].concat();
    out.extend(words(&[size_bytes, flags, 0]));
    out
}

pub fn message(id: u16, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = header(id, command, 16 + payload.len() as u32, flags);
    out.extend_from_slice(payload);
    out
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}

pub fn version(json: &str) -> Vec<u8> {
    let numbers = [0u16.to_ne_bytes(), 1u16.to_ne_bytes()].concat();
    message(0, VERSION, 0, &[&numbers, json.as_bytes(), &[0]].concat())
}

pub fn dma_map(id: u16, flags: u32, offset: u64, iova: u64, len: u64) -> Vec<u8> {
    message(id, DMA_MAP, 0, &[words(&[32, flags]), longs(&[offset, iova, len])].concat())
}

pub fn dma_unmap(id: u16, flags: u32, iova: u64, len: u64) -> Vec<u8> {
    message(id, DMA_UNMAP, 0, &[words(&[24, flags]), longs(&[iova, len])].concat())
}

pub fn get_region_info(id: u16, argsz: u32, index: u32) -> Vec<u8> {
    message(id, GET_REGION_INFO, 0, &words(&[argsz, 0, index, 0, 0, 0, 0, 0]))
}

pub fn set_irqs(id: u16, flags: u32, index: u32, start: u32, count: u32, bools: &[u8]) -> Vec<u8> {
    let argsz = 20 + bools.len() as u32;
    message(id, SET_IRQS, 0, &[words(&[argsz, flags, index, start, count]), bools.to_vec()].concat())
}

pub fn region_read(id: u16, region: u32, offset: u64, len: u32) -> Vec<u8> {
    message(id, REGION_READ, 0, &[longs(&[offset]), words(&[region, len])].concat())
}

pub fn region_write(id: u16, flags: u32, region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let access = [longs(&[offset]), words(&[region, data.len() as u32]), data.to_vec()].concat();
    message(id, REGION_WRITE, flags, &access)
}

/// The seeds to run: `EVENKEEL_SEED` of the environment, or `count` fixed ones.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("EVENKEEL_SEED") {
        Ok(seed) => vec![seed.parse().expect("EVENKEEL_SEED is a decimal number")],
        Err(_) => (1..=count).collect(),
    }
}
