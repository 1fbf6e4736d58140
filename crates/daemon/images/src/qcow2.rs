//! Tables of a qcow2 image, checked before anything follows them.
//!
//! Source: `docs/interop/qcow2.rst` of QEMU. Limits on tables are those of QEMU's `block/qcow2.h`.

use std::fs::File;

use crate::opened::read_at;
use crate::{CHECK, CONVERT, Fault};

/// Bytes of a header of version 3 without additional fields.
const HEADER_BYTES: usize = 104;
/// Sizes of clusters: 512 bytes to 2 MiB.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// The most bytes of an L1 table.
const L1_BYTES_MAX: u64 = 32 << 20;
/// The most bytes of a table of reference counts.
const COUNTS_BYTES_MAX: u64 = 8 << 20;
/// Bits of an entry of L1 and L2 tables that are an offset.
pub(crate) const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
/// What it is called.
pub(crate) const COUNTS: &str = "its table of reference counts";
/// Entries of an L1 table that are read at a time.
const ENTRIES_AT_ONCE: u64 = 8192;

/// Header extensions: a file that holds the data, and names of feature bits, which are of 48 bytes each.
const DATA_FILE: u32 = 0x4441_5441;
const FEATURE_NAMES: u32 = 0x6803_f857;
const FEATURE_NAME_BYTES: u64 = 48;

/// Bits that a reader must know, and why an image with one is refused.
const FEATURES: [(u32, &str, &str); 5] = [
    (0, "it was not closed: its dirty bit is set", CHECK),
    (1, "it is marked as corrupt", CHECK),
    (2, "its data is in another file", CONVERT),
    (3, "its compression is not deflate", CONVERT),
    (4, "it has subclusters (extended L2 entries)", CONVERT),
];

/// Checks the header, the L1 table and all L2 tables.
///
/// It reads each L2 table once, so it takes time in proportion to the file.
///
/// # Errors
/// The image is damaged, or has what isn't read: encryption, an external data file, other compression, subclusters.
pub fn check(file: &File) -> Result<(), Fault> {
    let image = Image::of(file)?;
    let header = Header::read(&image)?;
    header.each_l2_table(&image, |_, index, table| header.check_l2(&image, index, table))
}

/// Bytes of a cluster.
///
/// # Errors
/// As for [`check`].
pub fn cluster_bytes(file: &File) -> Result<u64, Fault> {
    Ok(Header::read(&Image::of(file)?)?.cluster_bytes())
}

/// A file with its length.
pub(crate) struct Image<'a> {
    file: &'a File,
    len_bytes: u64,
}

impl<'a> Image<'a> {
    pub fn of(file: &'a File) -> Result<Self, Fault> {
        Ok(Self { file, len_bytes: file.metadata()?.len() })
    }

    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    pub fn read(&self, data: &mut [u8], offset_bytes: u64, what: &str) -> Result<(), Fault> {
        self.refuse_cut(offset_bytes, data.len() as u64, what)?;
        let read = read_at(self.file, data, offset_bytes)?;
        if read < data.len() { Err(self.cut(offset_bytes, data.len() as u64, what)) } else { Ok(()) }
    }

    /// Refuses a range that is not in the file.
    pub fn refuse_cut(&self, offset_bytes: u64, len_bytes: u64, what: &str) -> Result<(), Fault> {
        let end = offset_bytes.checked_add(len_bytes);
        if end.is_some_and(|end| end <= self.len_bytes) {
            return Ok(());
        }
        Err(self.cut(offset_bytes, len_bytes, what))
    }

    fn cut(&self, offset_bytes: u64, len_bytes: u64, what: &str) -> Fault {
        let has = self.len_bytes;
        Fault::new(format!("the file has {has} bytes, and {what} would be {len_bytes} bytes at {offset_bytes}"), CHECK)
    }
}

/// What the header says of tables.
pub(crate) struct Header {
    /// 2 or 3.
    pub version: u32,
    pub cluster_bits: u32,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Where the L1 table is.
    pub l1_at: u64,
    /// Bytes of all of it.
    pub l1_bytes: u64,
    /// Entries that the disk needs.
    l1_entries: u64,
    /// Where the table of reference counts is, and its bytes.
    pub counts_at: u64,
    pub counts_bytes: u64,
    /// A count has 2 to the power of this many bits.
    pub count_order: u32,
    /// Snapshots within the image.
    pub snapshots: u32,
    /// Bits that a program has to clear which writes to the image and does not know them.
    pub autoclear: u64,
}

impl Header {
    pub fn read(image: &Image<'_>) -> Result<Self, Fault> {
        let mut bytes = [0; HEADER_BYTES];
        image.read(&mut bytes, 0, "its header")?;
        let (u32_at, u64_at) = (|at| be_u32(&bytes, at), |at| be_u64(&bytes, at));
        let version = u32_at(4);
        if !bytes.starts_with(b"QFI\xfb") || !matches!(version, 2 | 3) {
            return Err(Fault::new("it is no qcow2 image of version 2 or 3", CONVERT));
        }
        let cluster_bits = u32_at(20);
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return Err(Fault::new(format!("it has clusters of 2^{cluster_bits} bytes, not 512 B to 2 MiB"), CHECK));
        }
        if u32_at(32) != 0 {
            return Err(Fault::new("it is encrypted", CONVERT));
        }
        let is_old = version == 2;
        let l1_entries = u64::from(u32_at(36));
        let header = Self {
            version,
            cluster_bits,
            size_bytes: u64_at(24),
            l1_at: u64_at(40),
            l1_bytes: l1_entries * 8,
            l1_entries,
            counts_at: u64_at(48),
            counts_bytes: u64::from(u32_at(56)) << cluster_bits,
            count_order: if is_old { 4 } else { u32_at(96) },
            snapshots: u32_at(60),
            autoclear: if is_old { 0 } else { u64_at(88) },
        };
        if version == 3 {
            header.check_features(image, u64_at(72))?;
            header.check_extensions(image, u32_at(100).into())?;
        }
        header.check_table(image, "its L1 table", header.l1_at, header.l1_bytes, L1_BYTES_MAX)?;
        header.check_table(image, COUNTS, header.counts_at, header.counts_bytes, COUNTS_BYTES_MAX)?;
        let needed = header.size_bytes.div_ceil(header.cluster_bytes() * header.l2_entries());
        if header.l1_entries < needed {
            let what = format!("its L1 table has {} entries, and its size takes {needed}", header.l1_entries);
            return Err(Fault::new(what, CHECK));
        }
        Ok(Self { l1_entries: needed, ..header })
    }

    pub fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    fn l2_entries(&self) -> u64 {
        self.cluster_bytes() / 8
    }

    fn check_features(&self, image: &Image<'_>, features: u64) -> Result<(), Fault> {
        let is_set = |bit: u32| features & 1 << bit != 0;
        match FEATURES.iter().find(|(bit, ..)| is_set(*bit)) {
            Some((2, what, remedy)) => {
                let name = self.data_file(image)?;
                Err(Fault::new(format!("{what}{}", name.map(|name| format!(", {name}")).unwrap_or_default()), remedy))
            }
            Some((_, what, remedy)) => Err(Fault::new(*what, remedy)),
            None if features != 0 => {
                Err(Fault::new(format!("it has features that are not known: {features:#x}"), CONVERT))
            }
            None => Ok(()),
        }
    }

    /// The name of the file that holds the data, if the header has it.
    fn data_file(&self, image: &Image<'_>) -> Result<Option<String>, Fault> {
        let mut name = None;
        self.extensions(image, HEADER_BYTES as u64, |kind, data| {
            if kind == DATA_FILE {
                name = Some(String::from_utf8_lossy(data).escape_debug().to_string());
            }
            Ok(())
        })?;
        Ok(name)
    }

    fn check_extensions(&self, image: &Image<'_>, at: u64) -> Result<(), Fault> {
        self.extensions(image, at, |kind, data| {
            if kind == FEATURE_NAMES && !(data.len() as u64).is_multiple_of(FEATURE_NAME_BYTES) {
                return Err(Fault::new("its header has a list of features of a wrong size", CHECK));
            }
            Ok(())
        })
    }

    /// Hands over each extension of a header that ends at `at`: its kind and its data.
    fn extensions(
        &self,
        image: &Image<'_>,
        mut at: u64,
        mut each: impl FnMut(u32, &[u8]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        // They are in the first cluster. A reader takes what lies behind the file's end for zeros, which end the list.
        let mut cluster = vec![0; self.cluster_bytes() as usize];
        read_at(image.file, &mut cluster, 0)?;
        let outside = || Fault::new("its header does not end within the first cluster", CHECK);
        if at < HEADER_BYTES as u64 {
            return Err(outside());
        }
        loop {
            if at + 8 > self.cluster_bytes() {
                return Err(outside());
            }
            let (kind, len) = (be_u32(&cluster, at as usize), u64::from(be_u32(&cluster, at as usize + 4)));
            at += 8;
            if at + len > self.cluster_bytes() {
                return Err(outside());
            }
            if kind == 0 {
                return Ok(());
            }
            each(kind, &cluster[at as usize..(at + len) as usize])?;
            at += len.next_multiple_of(8);
        }
    }

    fn check_table(&self, image: &Image<'_>, what: &str, at: u64, len_bytes: u64, max: u64) -> Result<(), Fault> {
        if len_bytes > max {
            return Err(Fault::new(format!("{what} has {len_bytes} bytes, and at most {max} make sense"), CHECK));
        }
        self.check_aligned(at, what)?;
        image.refuse_cut(at, len_bytes, what)
    }

    pub fn check_aligned(&self, at: u64, what: &str) -> Result<(), Fault> {
        if at.is_multiple_of(self.cluster_bytes()) {
            return Ok(());
        }
        Err(Fault::new(format!("{what} at byte {at} does not begin with a cluster"), CHECK))
    }

    /// Hands over each L2 table: where it is, its place in the L1 table, its bytes.
    pub fn each_l2_table(
        &self,
        image: &Image<'_>,
        mut each: impl FnMut(u64, u64, &[u8]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut table = vec![0; self.cluster_bytes() as usize];
        for (at, index) in self.l2_tables(image)? {
            image.read(&mut table, at, "an L2 table")?;
            each(at, index, &table)?;
        }
        Ok(())
    }

    /// Where L2 tables are, each with its place in the L1 table.
    fn l2_tables(&self, image: &Image<'_>) -> Result<Vec<(u64, u64)>, Fault> {
        let mut tables = Vec::new();
        let mut entries = vec![0; (ENTRIES_AT_ONCE * 8) as usize];
        for first in (0..self.l1_entries).step_by(ENTRIES_AT_ONCE as usize) {
            let count = ENTRIES_AT_ONCE.min(self.l1_entries - first);
            let some = &mut entries[..(count * 8) as usize];
            image.read(some, self.l1_at + first * 8, "its L1 table")?;
            let named =
                (first..).zip(some.chunks_exact(8)).map(|(index, entry)| (be_u64(entry, 0) & OFFSET_MASK, index));
            tables.extend(named.filter(|(at, _)| *at != 0));
        }
        tables.sort_unstable();
        // Few tables that are named often would make an image that never ends.
        if let Some([(at, _), _]) = tables.array_windows().find(|[one, next]| one.0 == next.0) {
            return Err(Fault::new(format!("its L1 table names the L2 table at byte {at} twice"), CHECK));
        }
        for (at, _) in &tables {
            self.check_aligned(*at, "an L2 table")?;
            image.refuse_cut(*at, self.cluster_bytes(), "an L2 table")?;
        }
        Ok(tables)
    }

    /// Checks that the file has the data that an L2 table names. A cluster may lack what lies behind the disk's end.
    fn check_l2(&self, image: &Image<'_>, index: u64, table: &[u8]) -> Result<(), Fault> {
        let first = index * self.l2_entries() * self.cluster_bytes();
        for (guest_at, entry) in (first..self.size_bytes).step_by(self.cluster_bytes() as usize).zip(table.chunks(8)) {
            match self.entry(be_u64(entry, 0)) {
                // Its length is only a limit, which may lie behind the file's end. Its own end is in its data.
                Entry::Compressed { at, .. } => image.refuse_cut(at, 1, "a compressed cluster")?,
                Entry::Cluster { at, is_zero: false } => {
                    self.check_aligned(at, "a cluster")?;
                    image.refuse_cut(at, self.cluster_bytes().min(self.size_bytes - guest_at), "a cluster")?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// What an entry of an L2 table names.
pub(crate) enum Entry {
    Nothing,
    Cluster {
        at: u64,
        is_zero: bool,
    },
    /// Data begins at byte `at`. All of it lies before `end`.
    Compressed {
        at: u64,
        end: u64,
    },
}

impl Header {
    pub fn entry(&self, entry: u64) -> Entry {
        let at = entry & OFFSET_MASK;
        if entry & 1 << 62 != 0 {
            let shift = 62 - (self.cluster_bits - 8);
            let at = entry & ((1 << shift) - 1) & (OFFSET_MASK | 0x1ff);
            let sectors = 1 + (entry >> shift & ((1 << (self.cluster_bits - 8)) - 1));
            return Entry::Compressed { at, end: at - at % 512 + sectors * 512 };
        }
        if at == 0 { Entry::Nothing } else { Entry::Cluster { at, is_zero: entry & 1 != 0 } }
    }
}

fn be_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}

pub(crate) fn be_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}
