//! The namespaces as the model knows them. Each has its place on the drive, with a guard around it, whatever its
//! length.

use nvme_controller::NamespaceConfig;

/// Bytes on both sides of a namespace's place.
pub const GUARD_BYTES: u64 = 64 << 10;

/// NSIDs that there can be. The first of them has the last place: its length is the program's choice.
pub const NSIDS: [u32; 3] = [1, 2, 5];

/// The most bytes of a namespace, but for the first.
const ROOM_BYTES: u64 = 128 << 10;

/// What the first can grow by.
const FIRST_GROWTH_BYTES: u64 = 64 << 10;

/// A Format that is going on.
#[derive(Debug)]
pub struct Formatting {
    /// The command's, which may format others too.
    pub serial: u64,
    pub lba_shift: u32,
    pub done_bytes: u64,
    /// One of the others failed.
    pub failed: bool,
}

/// An attached namespace.
#[derive(Debug)]
pub struct Namespace {
    pub base_bytes: u64,
    pub size_bytes: u64,
    pub room_bytes: u64,
    pub lba_shift: u32,
    pub read_only: bool,
    pub formatting: Option<Formatting>,
    /// A Format began and has not ended: I/O is refused.
    pub cut_short: bool,
}

impl Namespace {
    /// As it is when it is attached.
    pub fn new(nsid: u32, config: &NamespaceConfig) -> Self {
        let size_bytes = config.size_bytes;
        let lba_shift = config.lba_bytes.trailing_zeros();
        let (base_bytes, room_bytes) =
            (config.base_bytes, if nsid == 1 { size_bytes + FIRST_GROWTH_BYTES } else { ROOM_BYTES });
        let (read_only, cut_short) = (config.read_only, config.format_cut_short);
        Self { base_bytes, size_bytes, room_bytes, lba_shift, read_only, formatting: None, cut_short }
    }
}

/// Where one lies on the drive.
pub fn base_of(nsid: u32) -> u64 {
    let places = NSIDS.len() - 1;
    let at = NSIDS.iter().position(|known| *known == nsid).unwrap_or(0);
    // The first is behind the others.
    let before = if at == 0 { places } else { at - 1 };
    GUARD_BYTES + before as u64 * (ROOM_BYTES + GUARD_BYTES)
}

/// The drive's length, if the first namespace has this many bytes.
pub fn drive_bytes(first_bytes: u64) -> usize {
    (base_of(1) + first_bytes + FIRST_GROWTH_BYTES + GUARD_BYTES) as usize
}

/// A namespace in its place.
pub fn config(nsid: u32, size_bytes: u64, big_blocks: bool, read_only: bool) -> NamespaceConfig {
    NamespaceConfig {
        base_bytes: base_of(nsid),
        size_bytes,
        lba_bytes: if big_blocks { 4096 } else { 512 },
        lba_sizes: vec![512, 4096],
        read_only,
        shared: false,
        elsewhere: false,
        nguid: None,
        format_cut_short: false,
        erases_by_key: false,
    }
}
