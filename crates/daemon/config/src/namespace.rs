//! Namespaces beside tenants' own disks: disks without a socket, each a part of the NVMe controllers that it is
//! attached to.

use std::ops::{Range, RangeInclusive};

use io_model::units::Size;
use toml::Spanned;
use toml::de::DeValue;

use crate::TENANTS_MAX;
use crate::keys::{SCHEMA, Values, namespace as keys};
use crate::problem::{OUTSIDE, Sink};
use crate::section::{Items, Section, Wrong};
use crate::values::Encryption;

/// Identifiers that namespaces can have beside a tenant's own disk, which is 1.
pub const NSIDS: RangeInclusive<u32> = keys::NSID.values.range();

/// A disk without a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// As a tenant's, and unique among all of both; the layout file knows the disk by it.
    pub name: String,
    /// A multiple of [`RANGE_STEP_BYTES`](crate::RANGE_STEP_BYTES), above 0.
    pub size: Size,
    /// Its identifier on every controller, one of [`NSIDS`].
    pub nsid: u32,
    /// NVMe tenants whose controllers have it, each once. May be empty.
    pub attachments: Vec<Attachment>,
    /// Several may write to it.
    pub shared: bool,
    /// LBA size of a new one: 512 or 4096. The layout file has the present one.
    pub lba_bytes: u32,
    /// Of a new one.
    pub encryption: Encryption,
    pub(crate) marks: NamespaceMarks,
}

/// A controller that has a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The NVMe tenant.
    pub tenant: String,
    /// Its guest may not write to the namespace.
    pub read_only: bool,
}

impl Namespace {
    /// How a tenant has it.
    pub fn attachment(&self, tenant: &str) -> Option<&Attachment> {
        self.attachments.iter().find(|attachment| attachment.tenant == tenant)
    }
}

/// Where a namespace stands in the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NamespaceMarks {
    pub name: Range<usize>,
    pub size: Range<usize>,
    pub lba_size: Option<Range<usize>>,
}

/// A namespace as far as it could be read.
pub(crate) struct NamespaceDraft {
    pub name: Option<Spanned<String>>,
    pub size: Option<Spanned<Size>>,
    pub nsid: Option<Spanned<u32>>,
    pub tenants: Option<Vec<Spanned<String>>>,
    read_only: Option<Vec<Spanned<String>>>,
    pub shared: Option<bool>,
    lba_bytes: Option<u32>,
    /// `Some(None)`: the drive's.
    encryption: Option<Option<Encryption>>,
    lba_size_mark: Option<Range<usize>>,
    pub tenants_mark: Option<Range<usize>>,
}

impl NamespaceDraft {
    /// `of_drive`: what new disks of the drive have.
    pub fn finish(self, of_drive: Encryption) -> Option<Namespace> {
        let encryption = self.encryption?.unwrap_or(of_drive);
        let lba_bytes = encryption.lba_bytes(self.lba_bytes?, self.lba_size_mark.is_some());
        let (name, size) = (self.name?, self.size?);
        let marks = NamespaceMarks { name: name.span(), size: size.span(), lba_size: self.lba_size_mark };
        let attach = |read_only| move |it: Spanned<String>| Attachment { tenant: it.into_inner(), read_only };
        let writers = self.tenants?.into_iter().map(attach(false));
        Some(Namespace {
            name: name.into_inner(),
            size: size.into_inner(),
            nsid: self.nsid?.into_inner(),
            attachments: writers.chain(self.read_only?.into_iter().map(attach(true))).collect(),
            shared: self.shared?,
            lba_bytes,
            encryption,
            marks,
        })
    }

    /// A namespace that was read before.
    pub fn of(namespace: &Namespace) -> Self {
        let tenants = |read_only| {
            let its = namespace.attachments.iter().filter(move |it| it.read_only == read_only);
            Some(its.map(|it| Spanned::new(OUTSIDE, it.tenant.clone())).collect())
        };
        Self {
            name: Some(Spanned::new(namespace.marks.name.clone(), namespace.name.clone())),
            size: Some(Spanned::new(namespace.marks.size.clone(), namespace.size)),
            nsid: Some(Spanned::new(OUTSIDE, namespace.nsid)),
            tenants: tenants(false),
            read_only: tenants(true),
            shared: Some(namespace.shared),
            lba_bytes: Some(namespace.lba_bytes),
            encryption: Some(Some(namespace.encryption)),
            lba_size_mark: namespace.marks.lba_size.clone(),
            tenants_mark: None,
        }
    }

    /// All that it is attached to.
    pub fn tenants(&self) -> impl Iterator<Item = &Spanned<String>> {
        self.tenants.iter().chain(&self.read_only).flatten()
    }

    pub fn title(&self) -> String {
        self.name.as_ref().map_or("a namespace without a name".into(), |name| format!("namespace {:?}", name.get_ref()))
    }
}

/// A namespace that stands in no file.
pub(crate) fn outside(namespace: Namespace) -> Namespace {
    let lba_size = namespace.marks.lba_size.map(|_| OUTSIDE);
    Namespace { marks: NamespaceMarks { name: OUTSIDE, size: OUTSIDE, lba_size }, ..namespace }
}

/// Every namespace's section.
pub(crate) fn sections<'t, 'i>(sink: &mut Sink<'_>, top: &Section<'t, 'i>) -> Vec<Section<'t, 'i>> {
    let words = Items {
        one: "namespace",
        each: "each disk that is a part of tenants' controllers",
        keys: "name, size and nsid",
        most: TENANTS_MAX,
        why: "can share a host",
    };
    let items = top.tables(sink, "namespace", &words).into_iter();
    items.map(|(span, table)| Section::new(SCHEMA, "[[namespace]]", keys::NAMES, Some(span), Some(table))).collect()
}

/// Those that are `wanted`. Of others, nothing is told.
pub(crate) fn read_namespaces(
    sink: &mut Sink<'_>,
    top: &Section<'_, '_>,
    wanted: &dyn Fn(&Section<'_, '_>) -> bool,
) -> Vec<NamespaceDraft> {
    let sections = sections(sink, top);
    sections.into_iter().filter(wanted).map(|section| read_namespace(sink, section)).collect()
}

fn read_namespace(sink: &mut Sink<'_>, mut section: Section<'_, '_>) -> NamespaceDraft {
    let name = keys::NAME.require(sink, &section, "add name = \"logs\": it names the place on the drive");
    if let Some(name) = &name {
        section.label = format!("namespace {:?}", name.get_ref());
    }
    let section = section;
    section.reject_unknown(sink);
    NamespaceDraft {
        name,
        size: keys::SIZE.require(sink, &section, "add size = \"16GiB\""),
        nsid: section.require(sink, "nsid", "add nsid = 2: its guests know it as /dev/nvme0n2", nsid),
        tenants: keys::TENANTS.get_or_default(sink, &section),
        read_only: keys::READ_ONLY.get_or_default(sink, &section),
        shared: keys::SHARED.get_or_default(sink, &section),
        lba_bytes: keys::LBA_SIZE.get_or_default(sink, &section),
        encryption: keys::ENCRYPTION.get_if_any(sink, &section),
        lba_size_mark: section.mark("lba_size"),
        tenants_mark: section.mark("tenants"),
    }
}

fn nsid(value: &DeValue<'_>) -> Result<u32, Wrong> {
    let own = |wrong: Wrong| Wrong { remedy: format!("{}; 1 is a tenant's own disk", wrong.remedy), ..wrong };
    keys::NSID.values.read(value).map_err(own)
}
