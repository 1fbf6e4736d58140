//! What happens, as the fuzzer chooses it, and the requests that a driver builds.

use arbitrary::Arbitrary;
use test_clients::rings::{Desc, INDIRECT, NEXT, WRITE};

use super::meaning::{Ram, SIZE, ring};

/// One thing that happens.
#[derive(Debug, Arbitrary)]
pub enum Step {
    /// The driver offers a request.
    Offer {
        queue: u8,
        request: Request,
    },
    /// It offers a head, whatever is there.
    OfferHead {
        queue: u8,
        head: u8,
    },
    /// Another program writes into guest memory.
    Poke {
        at: u32,
        word: u16,
    },
    /// Another program writes into the rings.
    PokeRing {
        queue: u8,
        at: u16,
        word: u16,
    },
    /// The poller looks and fetches.
    Fetch {
        queue: u8,
        count: u8,
    },
    /// The drive ends a command.
    Complete {
        which: u8,
        fails: bool,
    },
    Notify,
    Sleep(bool),
    Enable {
        queue: u8,
        enabled: bool,
    },
    /// Maps equal memory once more.
    SetMemory,
    WriteCache(bool),
    /// The process ends, and another one takes over.
    Kill,
}

/// A request of three parts, or with a field that is wrong.
#[derive(Debug, Arbitrary)]
pub struct Request {
    head: u8,
    kind: u8,
    sector: u8,
    /// Data in units of 256 bytes: half of all requests are not whole blocks.
    len: u8,
    data_at: u8,
    indirect: bool,
    in_two: bool,
    flags: u8,
    spoil: Option<Spoil>,
}

#[derive(Debug, Arbitrary)]
struct Spoil {
    descriptor: u8,
    field: u8,
    value: u32,
    /// Once in a while only.
    rare: u8,
}

/// Where a head's header, status and table lie.
fn private(queue: u16, head: u16) -> u64 {
    ring(queue).end() + 512 * u64::from(head)
}

impl Request {
    /// Writes the request and offers it.
    pub fn offer(&self, ram: &mut Ram, queue: u16) {
        let head = u16::from(self.head) % SIZE;
        let at = private(queue, head);
        let kind = [0, 1, 0, 1, 4, 8, 11, 13, 77][usize::from(self.kind) % 9];
        let mut header = [0; 16];
        header[..4].copy_from_slice(&u32::to_le_bytes(kind));
        header[8..].copy_from_slice(&u64::from(self.sector).to_le_bytes());
        ram.write(at, &header);
        ram.write(at + 16, &[0xee]);
        let data = 0x2_0000 - 0x800 + 64 * u64::from(self.data_at);
        let mut len_bytes = if self.len < 200 { 512 * u32::from(self.len % 4) } else { 256 * u32::from(self.len % 16) };
        if kind >= 11 && kind != 77 {
            len_bytes = self.write_ranges(ram, data);
        }
        let write = if kind == 0 || kind == 8 { WRITE } else { 0 };
        let mut pieces = vec![(at, 16, 0)];
        if self.in_two {
            pieces.push((data, len_bytes / 2, write));
            pieces.push((data + u64::from(len_bytes / 2), len_bytes - len_bytes / 2, write));
        } else {
            pieces.push((data, len_bytes, write));
        }
        pieces.push((at + 16, 1, WRITE));
        self.write_table(ram, queue, head, &pieces);
        offer(ram, queue, head);
    }

    fn write_ranges(&self, ram: &mut Ram, data: u64) -> u32 {
        let count = u32::from(self.len % 5);
        for n in 0..count {
            let mut range = [0; 16];
            range[..8].copy_from_slice(&u64::from(self.sector.wrapping_add(n as u8)).to_le_bytes());
            range[8..12].copy_from_slice(&u32::from(self.data_at % 4).to_le_bytes());
            range[12..].copy_from_slice(&u32::from(self.flags % 3).to_le_bytes());
            ram.write(data + 16 * u64::from(n), &range);
        }
        16 * count
    }

    fn write_table(&self, ram: &mut Ram, queue: u16, head: u16, pieces: &[(u64, u32, u16)]) {
        let table = private(queue, head) + 64;
        let place = |n: usize| if self.indirect { n as u16 } else { (head + n as u16) % SIZE };
        let base = if self.indirect { table } else { ring(queue).desc };
        for (n, (address, len_bytes, flags)) in pieces.iter().enumerate() {
            let next = if n + 1 < pieces.len() { NEXT } else { 0 };
            let (len_bytes, flags) = (*len_bytes, flags | next);
            let mut desc = Desc { address: *address, len_bytes, flags, next: place(n + 1) };
            match &self.spoil {
                Some(Spoil { descriptor, field, value, rare }) if *rare < 64 && usize::from(*descriptor) % 5 == n => {
                    match field % 5 {
                        0 => desc.address = u64::from(*value % 0x3_8000),
                        1 => desc.address = u64::MAX - u64::from(*value),
                        2 => desc.len_bytes = *value,
                        3 => desc.flags = *value as u16,
                        _ => desc.next = *value as u16 % (SIZE + 1),
                    }
                }
                _ => {}
            }
            ram.write(base + 16 * u64::from(place(n)), &desc.bytes());
        }
        if self.indirect {
            let len_bytes = match &self.spoil {
                Some(spoil) if spoil.rare >= 224 => spoil.value % 100,
                _ => 16 * pieces.len() as u32,
            };
            let desc = Desc { address: table, len_bytes, flags: INDIRECT, next: 0 };
            ram.write(ring(queue).desc + 16 * u64::from(head), &desc.bytes());
        }
    }
}

/// Puts a head into the available ring.
pub fn offer(ram: &mut Ram, queue: u16, head: u16) {
    let ring = ring(queue);
    let idx = ram.u16(ring.avail + 2);
    ram.write(ring.avail + 4 + 2 * u64::from(idx % SIZE), &head.to_le_bytes());
    ram.write(ring.avail + 2, &idx.wrapping_add(1).to_le_bytes());
}
