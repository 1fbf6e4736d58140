//! What one controller is to look like.

use io_model::TenantId;
use nvme_spec::PAGE_BYTES;

use crate::admin::Sanitize;
use crate::parts::Part;

/// The most I/O queue pairs that a controller can offer.
pub const MAX_IO_QUEUES: u16 = 64;

/// The deepest queue that a controller can offer, in entries.
pub const MAX_DEPTH: u16 = 16384;

/// The most namespaces that a controller has at a time; their identifiers are 1 to this.
pub const MAX_NAMESPACES: u32 = 32;

/// How the guest's doorbell writes reach the doorbell page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doorbells {
    /// The guest stores into the page itself.
    Mapped,
    /// Another thread stores what the guest wrote. Event indexes then tell the guest when it need not write.
    Trapped,
}

/// One of a tenant's disks: a part of the device. In commands, that of NSID `n` is [disk](io_model::Command::disk)
/// `n - 1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Where it starts on the device; 0 if that is looked up by disk ([`io_model::Placed`]).
    pub base_bytes: u64,
    /// How long it is.
    pub size_bytes: u64,
    /// Current logical block size; one of `lba_sizes`.
    pub lba_bytes: u32,
    /// Logical block sizes that the guest may format to: 512, 4096 or both.
    pub lba_sizes: Vec<u32>,
    /// The guest may read it only.
    pub read_only: bool,
    /// Other controllers may have it too.
    pub shared: bool,
    /// Another one has it now: its guest would not see a Format coming, so there is none.
    pub elsewhere: bool,
    /// Its NGUID, where that must be the same on several controllers ([`nguid`](crate::nguid)). `None`: it is made of
    /// the subsystem's name, the serial number and the NSID.
    pub nguid: Option<[u8; 16]>,
    /// A Format was cut short: nothing but another Format is done.
    pub format_cut_short: bool,
    /// Its data is encrypted, and another key can be given to it where Formats are recorded: Format offers SES = 2.
    pub erases_by_key: bool,
}

/// One tenant's controller, with one device behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerConfig {
    /// Serial number: at most 20 printable ASCII characters.
    pub serial: String,
    /// Model: at most 40 printable ASCII characters.
    pub model: String,
    /// Firmware revision: at most 8 printable ASCII characters.
    pub firmware: String,
    /// NVMe qualified name of the subsystem: at most 223 bytes.
    pub subnqn: String,
    /// The tenant that it belongs to.
    pub tenant: TenantId,
    /// Its disks by NSID: 1 to [`MAX_NAMESPACES`], each once. The usual controller has one, NSID 1.
    pub namespaces: Vec<(u32, NamespaceConfig)>,
    /// The latest Sanitize. One that goes on is taken up again, and erases what is marked by `format_cut_short`.
    pub sanitize: Option<Sanitize>,
    /// The device can discard: Dataset Management is offered.
    pub discard: bool,
    /// The device can write zeroes: Write Zeroes is offered.
    pub write_zeroes: bool,
    /// The device has a volatile write cache, so that Flush and FUA mean something.
    pub volatile_write_cache: bool,
    /// I/O queue pairs offered: 1 to [`MAX_IO_QUEUES`].
    pub max_io_queues: u16,
    /// Entries of an I/O queue at most: 2 to [`MAX_DEPTH`].
    pub max_depth: u16,
    /// Data of one command at most (MDTS): a power of two, 4 KiB to 16 MiB.
    pub max_transfer_bytes: u32,
    /// How doorbell writes arrive.
    pub doorbells: Doorbells,
    /// Submission queues are VQs of their own under every arbitration mechanism, for a policy that heeds the priority
    /// of each. Else weighted arbitration makes one VQ of them and is done here.
    pub queues_singly: bool,
    /// Which part of the controller this is, if several pollers serve it. One in parts has round robin alone, since
    /// what would be weighed is not in one place, and neither Format NVM nor Sanitize.
    pub part: Part,
}

/// Why a configuration was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A text is too long for its field or not printable ASCII.
    #[error("{field} must be at most {max_bytes} printable ASCII characters")]
    Text {
        /// Which.
        field: &'static str,
        /// Its room.
        max_bytes: usize,
    },
    /// A number is out of its range.
    #[error("{field} must be {range}")]
    Range {
        /// Which.
        field: &'static str,
        /// What is allowed.
        range: &'static str,
    },
    /// A namespace identifier is out of range, or there twice.
    #[error("namespaces have identifiers from 1 to 32, each its own; {0} is not one")]
    Nsid(u32),
    /// A namespace is empty, wraps around, or is not whole blocks of every block size offered.
    #[error("a namespace must be at least one block, start and end on a block of every size offered")]
    Namespace,
    /// The doorbell page has not 4096 bytes or can't be written.
    #[error("the doorbell page must be 4096 writable bytes")]
    DoorbellPage,
}

impl ControllerConfig {
    /// Checks every limit that the fields' documentation names.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (field, text, max_bytes) in [
            ("serial", &self.serial, 20),
            ("model", &self.model, 40),
            ("firmware", &self.firmware, 8),
            ("subnqn", &self.subnqn, 223),
        ] {
            if text.len() > max_bytes || !text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
                return Err(ConfigError::Text { field, max_bytes });
            }
        }
        let range = |ok, field, range| if ok { Ok(()) } else { Err(ConfigError::Range { field, range }) };
        range((1..=MAX_IO_QUEUES).contains(&self.max_io_queues), "max_io_queues", "1 to 64")?;
        range((2..=MAX_DEPTH).contains(&self.max_depth), "max_depth", "2 to 16384")?;
        let Part { index, of } = self.part;
        range((1..=self.max_io_queues).contains(&of) && index < of, "part", "one of at most as many as queues")?;
        let transfer = self.max_transfer_bytes;
        range(
            transfer.is_power_of_two() && (4096..=16 << 20).contains(&transfer),
            "max_transfer_bytes",
            "a power of two from 4 KiB to 16 MiB",
        )?;
        for (at, (nsid, namespace)) in self.namespaces.iter().enumerate() {
            check_nsid(*nsid)?;
            if self.namespaces[..at].iter().any(|(other, _)| other == nsid) {
                return Err(ConfigError::Nsid(*nsid));
            }
            namespace.check()?;
        }
        Ok(())
    }

    /// Whether it has Format NVM and Sanitize. A block size would have to change in all parts at once.
    pub(crate) fn has_format(&self) -> bool {
        self.part.of == 1
    }

    /// MDTS: the largest transfer as a power of two in pages.
    pub(crate) fn mdts(&self) -> u8 {
        (u64::from(self.max_transfer_bytes) / PAGE_BYTES).ilog2() as u8
    }
}

pub(crate) fn check_nsid(nsid: u32) -> Result<(), ConfigError> {
    if (1..=MAX_NAMESPACES).contains(&nsid) { Ok(()) } else { Err(ConfigError::Nsid(nsid)) }
}

impl NamespaceConfig {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let sizes_ok = !self.lba_sizes.is_empty() && self.lba_sizes.iter().all(|size| [512, 4096].contains(size));
        if !sizes_ok || !self.lba_sizes.contains(&self.lba_bytes) {
            return Err(ConfigError::Range { field: "lba_sizes", range: "512, 4096 or both, lba_bytes one of them" });
        }
        let whole = |bytes: u64| self.lba_sizes.iter().all(|size| bytes.is_multiple_of(u64::from(*size)));
        let fits = self.base_bytes.checked_add(self.size_bytes).is_some();
        if self.size_bytes == 0 || !fits || !whole(self.base_bytes) || !whole(self.size_bytes) {
            return Err(ConfigError::Namespace);
        }
        Ok(())
    }
}
