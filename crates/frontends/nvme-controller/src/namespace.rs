//! The tenant's disks: block addresses to ranges of bytes in them.

use io_model::{Place, TenantId};
use nvme_spec::{NSID_ALL, Status};

use crate::NamespaceConfig;
use crate::admin::Format;
use crate::config::MAX_NAMESPACES;

/// What an I/O command has to know of its namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocks {
    pub place: Place,
    /// A block's bytes, as a power of two.
    pub shift: u32,
    pub count: u64,
    pub read_only: bool,
}

impl Blocks {
    /// Where `blocks` from `slba` lie in the disk: offset and length in bytes.
    #[inline]
    pub fn range(&self, slba: u64, blocks: u64) -> Result<(u64, u64), Status> {
        match slba.checked_add(blocks) {
            // No shift overflows: the end is inside of a namespace that was checked.
            Some(end) if end <= self.count => Ok((slba << self.shift, blocks << self.shift)),
            _ => Err(Status::LBA_OUT_OF_RANGE),
        }
    }

    /// Whether a command may change what is there.
    #[inline]
    pub fn check_writable(&self) -> Result<(), Status> {
        if self.read_only { Err(Status::NAMESPACE_WRITE_PROTECTED) } else { Ok(()) }
    }
}

/// An attached namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    config: NamespaceConfig,
    /// What follows from the configuration.
    pub blocks: Blocks,
    /// A Format of it that is going on.
    pub format: Option<Box<Format>>,
    /// Formats up to this number were of an earlier namespace with its identifier.
    pub formats_before: u32,
    /// Error Recovery (feature 05h).
    pub error_recovery: u32,
}

impl Namespace {
    pub fn new(tenant: TenantId, nsid: u32, config: NamespaceConfig, formats_before: u32) -> Self {
        let place = Place { tenant, disk: nsid.saturating_sub(1) as u16, base_bytes: config.base_bytes };
        let blocks = Blocks { place, shift: 0, count: 0, read_only: config.read_only };
        let mut this = Self { config: config.clone(), blocks, format: None, formats_before, error_recovery: 0 };
        this.set_config(config);
        this
    }

    pub fn config(&self) -> &NamespaceConfig {
        &self.config
    }

    /// It stays where it is.
    pub fn set_config(&mut self, config: NamespaceConfig) {
        let shift = config.lba_bytes.trailing_zeros();
        self.blocks = Blocks { shift, count: config.size_bytes >> shift, ..self.blocks };
        self.config = config;
    }

    pub fn set_lba_bytes(&mut self, lba_bytes: u32) {
        self.set_config(NamespaceConfig { lba_bytes, ..self.config.clone() });
    }

    pub fn set_cut_short(&mut self, format_cut_short: bool) {
        self.config.format_cut_short = format_cut_short;
    }

    /// Index of the current LBA format in the list that Identify Namespace reports.
    pub fn format_index(&self) -> u8 {
        let sizes = &self.config.lba_sizes;
        sizes.iter().position(|size| *size == self.config.lba_bytes).unwrap_or(0) as u8
    }
}

/// The namespaces that are attached, by identifier.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    /// That of NSID `n` at `n - 1`; as long as it had to be so far.
    by_nsid: Vec<Option<Namespace>>,
    /// How many are being formatted.
    formatting: u32,
}

impl Namespaces {
    #[inline]
    pub fn get(&self, nsid: u32) -> Option<&Namespace> {
        self.by_nsid.get(nsid.wrapping_sub(1) as usize)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, nsid: u32) -> Option<&mut Namespace> {
        self.by_nsid.get_mut(nsid.wrapping_sub(1) as usize)?.as_mut()
    }

    /// The one that a command names, and only that.
    pub fn named(&self, nsid: u32) -> Result<&Namespace, Status> {
        self.get(nsid).ok_or(not_attached(nsid))
    }

    /// In the order of their identifiers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Namespace)> {
        (1..).zip(&self.by_nsid).filter_map(|(nsid, namespace)| Some((nsid, namespace.as_ref()?)))
    }

    /// All namespaces with their identifiers, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Namespace)> {
        (1..).zip(&mut self.by_nsid).filter_map(|(nsid, namespace)| Some((nsid, namespace.as_mut()?)))
    }

    /// Attaches one whose identifier was checked.
    pub fn insert(&mut self, nsid: u32, namespace: Namespace) {
        let at = nsid.wrapping_sub(1) as usize;
        if at >= self.by_nsid.len() {
            self.by_nsid.resize_with(at + 1, || None);
        }
        self.by_nsid[at] = Some(namespace);
    }

    /// Takes one out whose Format was ended, if it had any.
    pub fn remove(&mut self, nsid: u32) {
        if let Some(place) = self.by_nsid.get_mut(nsid.wrapping_sub(1) as usize) {
            *place = None;
        }
    }

    /// Begins a Format of a namespace that has none.
    pub fn begin_format(&mut self, nsid: u32, format: Format) {
        if let Some(namespace) = self.get_mut(nsid) {
            namespace.format = Some(Box::new(format));
            self.formatting += 1;
        }
    }

    pub fn end_format(&mut self, nsid: u32) -> Option<Format> {
        let format = self.get_mut(nsid)?.format.take()?;
        self.formatting -= 1;
        Some(*format)
    }

    #[inline]
    pub fn is_any_formatting(&self) -> bool {
        self.formatting > 0
    }

    /// Formats that go on.
    pub fn formats(&self) -> impl Iterator<Item = &Format> {
        self.iter().filter_map(|(_, namespace)| namespace.format.as_deref())
    }

    /// All formats that are under way, mutable.
    pub fn formats_mut(&mut self) -> impl Iterator<Item = &mut Format> {
        self.iter_mut().filter_map(|(_, namespace)| namespace.format.as_deref_mut())
    }

    /// A namespace that a Sanitize has to erase and does not yet, with its block size.
    pub fn next_to_sanitize(&self) -> Option<(u32, u32)> {
        let is_left = |it: &Namespace| it.config.format_cut_short && it.format.is_none();
        self.iter().find(|(_, it)| is_left(it)).map(|(nsid, it)| (nsid, it.config.lba_bytes))
    }

    /// Ends all Formats, but for those of a Sanitize if it goes on.
    pub fn give_up_formats(&mut self, sanitize_goes_on: bool) {
        let mut left = 0;
        for (_, namespace) in self.iter_mut() {
            namespace.format.take_if(|format| !sanitize_goes_on || !format.is_of_sanitize());
            left += u32::from(namespace.format.is_some());
        }
        self.formatting = left;
    }

    /// What a controller reset clears.
    pub fn reset(&mut self) {
        self.iter_mut().for_each(|(_, namespace)| namespace.error_recovery = 0);
        self.give_up_formats(true);
    }
}

/// What a command gets that names an NSID with nothing attached: one that is inactive (NVMe Base 2.0, 3.2.1.4), all
/// of them where it can name but one (3.2.1.2), or one that can't be (3.2.1.1).
#[cold]
pub(crate) fn not_attached(nsid: u32) -> Status {
    match nsid {
        1..=MAX_NAMESPACES | NSID_ALL => Status::INVALID_FIELD,
        _ => Status::INVALID_NAMESPACE,
    }
}
