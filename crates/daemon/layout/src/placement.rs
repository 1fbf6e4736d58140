//! What a range of the drive is taken by.

use io_model::Extents;
use keys::StoredKey;
use serde::{Deserialize, Serialize};

use crate::settings;
use crate::space::{self, Extent};

/// One tenant's ranges, and what they hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Block", from = "Block")]
pub struct Placement {
    /// The tenant's name in the configuration.
    pub name: String,
    /// The serial number of the disk, at most 20 characters: its guest names it by that.
    pub serial: String,
    /// Where its disk lies, in the disk's order; at least one. Neighbours are one.
    pub extents: Vec<Extent>,
    /// LBA size of the namespace as last formatted: 512 or 4096.
    pub lba_bytes: u32,
    /// LBA size of a Format that began and has not ended: 512 or 4096. What the disk holds then is undefined.
    pub formatting_to_lba_bytes: Option<u32>,
    /// A disk that was made while the daemon ran: its `[[tenant]]` section, as a configuration would have it. `None`:
    /// the configuration has it.
    pub settings: Option<String>,
    /// Something of it is new, and only so much from its start is known to need no zeroing. `None`: all of it.
    pub zeroed_bytes: Option<u64>,
    /// It is growing: it has this size until all of it is zeroed.
    pub grows_from_bytes: Option<u64>,
    /// The key of an encrypted disk. `None`: it is not encrypted.
    pub key: Option<StoredKey>,
    /// The latest Sanitize of the tenant's controller.
    pub sanitize: Option<Sanitize>,
    /// It is thin: it has no extents, but pieces of the pool.
    pub thin: Option<Thin>,
}

/// What is recorded of a thin disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thin {
    /// The disk's size.
    pub size_bytes: u64,
    /// The number of its map in the pool's file.
    pub map: u32,
    /// What it held at earlier times, oldest first.
    pub snapshots: Vec<Snapshot>,
}

/// What a thin disk held at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Unique among those of its disk.
    pub name: String,
    /// The number of its map in the pool's file.
    pub map: u32,
    /// The disk's size then.
    pub size_bytes: u64,
    /// When, in seconds since 1970.
    pub made_s: u64,
}

/// A guest's Sanitize of all that its controller has. What it has yet to erase has a `formatting_to_lba_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sanitize {
    /// How far it is.
    pub state: SanitizeState,
    /// Dword 10 of the command.
    pub dword_10: u32,
    /// What an overwrite writes.
    pub pattern: u32,
}

/// See [`Sanitize`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SanitizeState {
    /// It goes on.
    Running,
    /// Everything was erased.
    Completed,
    /// Not everything was; the guest can read and write nothing.
    Failed,
    /// It failed, and the guest goes on without it.
    Exited,
}

/// Characters of a serial number at most (NVMe: SN; virtio: VIRTIO_BLK_ID_BYTES).
pub(crate) const SERIAL_CHARS: usize = 20;

/// The serial number of a new disk: its name. The end of a longer name makes way for a hash of all of it, so that the
/// serial numbers of two disks differ.
pub fn serial_of(name: &str) -> String {
    if name.len() <= SERIAL_CHARS {
        return name.to_owned();
    }
    let hash = format!("-{:08x}", crc32fast::hash(name.as_bytes()));
    name.chars().take(SERIAL_CHARS - hash.len()).chain(hash.chars()).collect()
}

/// The serial number of a disk whose layout names none: versions before this one cut long names off.
fn former_serial_of(name: &str) -> String {
    name.chars().take(SERIAL_CHARS).collect()
}

impl Placement {
    /// Where the disk begins on the drive.
    pub fn offset_bytes(&self) -> u64 {
        self.extents.first().map_or(0, |extent| extent.offset_bytes)
    }

    /// The disk's size, or what it will be once it has grown.
    pub fn size_bytes(&self) -> u64 {
        self.thin.as_ref().map_or_else(|| space::sum(&self.extents), |thin| thin.size_bytes)
    }

    /// The disk's size now.
    pub fn served_bytes(&self) -> u64 {
        self.grows_from_bytes.unwrap_or_else(|| self.size_bytes())
    }

    /// Whether it is on its way from one key to another.
    pub fn is_reencrypted(&self) -> bool {
        self.key.as_ref().is_some_and(StoredKey::is_changing)
    }

    /// All of it, also what it is still to grow by, to look up where a byte lies.
    pub fn to_look_up(&self) -> Extents {
        Extents::new(self.extents.iter().map(|extent| (extent.offset_bytes, extent.size_bytes)))
    }

    /// Whether `next` has the same bytes where they were, with more behind them or not.
    pub(crate) fn is_kept_in(&self, next: &Self) -> bool {
        let map = |placement: &Self| placement.thin.as_ref().map(|thin| thin.map);
        if self.thin.is_some() {
            return map(self) == map(next) && self.size_bytes() <= next.size_bytes();
        }
        let Some((last, others)) = self.extents.split_last() else { return true };
        let its_last = next.extents.get(others.len());
        next.extents.starts_with(others)
            && its_last.is_some_and(|its| its.offset_bytes == last.offset_bytes && its.size_bytes >= last.size_bytes)
    }
}

/// How a released range is overwritten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WipeMethod {
    /// Once, with zeros.
    #[default]
    Zeros,
    /// With ones, with numbers that look random, and with zeros, each read back and compared (after DoD 5220.22-M).
    ThreePasses,
    /// Not at all: without its key the data of an encrypted disk is noise.
    Noise,
}

impl WipeMethod {
    /// After how many passes a range is free.
    pub const fn passes(self) -> u8 {
        match self {
            Self::Zeros | Self::Noise => 1,
            Self::ThreePasses => 3,
        }
    }
}

/// A range that a deleted disk left behind. Nobody gets it before it is overwritten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wiping {
    /// The disk that it was a part of.
    pub former: String,
    /// Start on the drive.
    pub offset_bytes: u64,
    /// Length.
    pub size_bytes: u64,
    /// How.
    pub method: WipeMethod,
    /// Passes that are over.
    pub passes: u8,
    /// So much from its start is overwritten by the present pass, durably.
    pub wiped_bytes: u64,
}

impl Wiping {
    /// Where.
    pub fn extent(&self) -> Extent {
        Extent { offset_bytes: self.offset_bytes, size_bytes: self.size_bytes }
    }
}

/// A [`Placement`] in the file: the usual disk has one extent, which needs no list.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    name: String,
    /// `None`: the disk is thin.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    offset_bytes: Option<u64>,
    size_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    map: Option<u32>,
    lba_bytes: u32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    serial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    formatting_to_lba_bytes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    settings: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    zeroed_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    grows_from_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    more: Vec<Extent>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    key: Option<StoredKey>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    sanitize: Option<Sanitize>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    snapshot: Vec<Snapshot>,
}

impl From<Placement> for Block {
    fn from(placement: Placement) -> Self {
        let Placement { name, extents, lba_bytes, formatting_to_lba_bytes, settings, .. } = placement;
        let Placement { serial, zeroed_bytes, grows_from_bytes, key, sanitize, thin, .. } = placement;
        let serial = Some(serial).filter(|serial| key.is_some() || *serial != former_serial_of(&name));
        let mut extents = extents.into_iter();
        let first = extents.next();
        let offset_bytes = first.map(|extent| extent.offset_bytes);
        let (map, size_bytes, snapshot) = match thin {
            Some(Thin { size_bytes, map, snapshots }) => (Some(map), size_bytes, snapshots),
            None => (None, first.map_or(0, |extent| extent.size_bytes), Vec::new()),
        };
        let more = extents.collect();
        Self {
            name,
            offset_bytes,
            size_bytes,
            map,
            lba_bytes,
            serial,
            formatting_to_lba_bytes,
            settings,
            zeroed_bytes,
            grows_from_bytes,
            more,
            key,
            sanitize,
            snapshot,
        }
    }
}

impl From<Block> for Placement {
    fn from(block: Block) -> Self {
        let Block { name, offset_bytes, size_bytes, lba_bytes, formatting_to_lba_bytes, settings, .. } = block;
        let Block { serial, zeroed_bytes, grows_from_bytes, key, sanitize, map, .. } = block;
        let serial = serial.unwrap_or_else(|| former_serial_of(&name));
        let first = offset_bytes.map(|offset_bytes| Extent { offset_bytes, size_bytes });
        let extents = first.into_iter().chain(block.more).collect();
        let thin = map.map(|map| Thin { size_bytes, map, snapshots: block.snapshot });
        let settings = settings.map(|stored| settings::of_today(&stored).into_owned());
        Self {
            name,
            serial,
            extents,
            lba_bytes,
            formatting_to_lba_bytes,
            settings,
            zeroed_bytes,
            grows_from_bytes,
            key,
            sanitize,
            thin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only here: two disks of one guest with one serial number, or another one after an upgrade.
    #[test]
    fn serial_numbers_differ_and_stay() {
        assert_eq!(serial_of("db"), "db");
        assert_eq!(serial_of("a-name-of-20-letters"), "a-name-of-20-letters");
        let (one, other) = (serial_of("orders-database-2026-a"), serial_of("orders-database-2026-b"));
        assert!(one != other && one.starts_with("orders-data-") && one.len() == 20, "{one} {other}");
        let stored = |more: &str| {
            let name = "orders-database-2026-a";
            let text = format!("name = \"{name}\"\noffset_bytes = 0\nsize_bytes = 4096\nlba_bytes = 512\n{more}");
            toml::from_str::<Placement>(&text).expect("a placement")
        };
        let former = stored("");
        assert_eq!(former.serial, "orders-database-2026");
        assert!(!toml::to_string(&former).expect("text").contains("serial"));
        let new = stored(&format!("serial = \"{one}\"\n"));
        assert_eq!(toml::from_str(&toml::to_string(&new).expect("text")), Ok(new));
    }
}
