//! Namespaces beside tenants' own disks: disks without a socket, each a part of the NVMe controllers that it is
//! attached to.

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};

use io_model::units::Size;
use toml::Spanned;
use toml::de::DeValue;

use crate::TENANTS_MAX;
use crate::check::Draft;
use crate::keys::{SCHEMA, Values, namespace as keys};
use crate::nearest::nearest;
use crate::problem::{OUTSIDE, Sink};
use crate::section::{Items, Section, Wrong};

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
    nsid: Option<Spanned<u32>>,
    tenants: Option<Vec<Spanned<String>>>,
    read_only: Option<Vec<Spanned<String>>>,
    shared: Option<bool>,
    lba_bytes: Option<u32>,
    lba_size_mark: Option<Range<usize>>,
    tenants_mark: Option<Range<usize>>,
}

impl NamespaceDraft {
    pub fn finish(self) -> Option<Namespace> {
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
            lba_bytes: self.lba_bytes?,
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
            lba_size_mark: namespace.marks.lba_size.clone(),
            tenants_mark: None,
        }
    }

    /// All that it is attached to.
    fn tenants(&self) -> impl Iterator<Item = &Spanned<String>> {
        self.tenants.iter().chain(&self.read_only).flatten()
    }

    fn title(&self) -> String {
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
        lba_size_mark: section.mark("lba_size"),
        tenants_mark: section.mark("tenants"),
    }
}

fn nsid(value: &DeValue<'_>) -> Result<u32, Wrong> {
    let own = |wrong: Wrong| Wrong { remedy: format!("{}; 1 is a tenant's own disk", wrong.remedy), ..wrong };
    keys::NSID.values.read(value).map_err(own)
}

/// Rules between a namespace and the tenants that have it.
pub(crate) fn check(sink: &mut Sink<'_>, draft: &Draft) {
    let tenants: HashMap<&str, bool> = draft
        .tenants
        .iter()
        .filter_map(|tenant| Some((tenant.name.as_ref()?.get_ref().as_str(), tenant.frontend.frontend.as_ref()?)))
        .map(|(name, frontend)| (name, frontend.is_controller()))
        .collect();
    // What could not be read is told already, and may be a tenant.
    let are_all_known = tenants.len() == draft.tenants.len();
    let mut taken: HashMap<(&str, u32), &NamespaceDraft> = HashMap::new();
    for namespace in &draft.namespaces {
        for (at, tenant) in namespace.tenants().enumerate() {
            let name = tenant.get_ref().as_str();
            if namespace.tenants().take(at).any(|other| other.get_ref() == name) {
                let what = format!("{} names tenant {name:?} twice", namespace.title());
                sink.at(&tenant.span(), what, "name it once, under `tenants` or under `read_only`");
                continue;
            }
            match tenants.get(name) {
                Some(true) => once_on_a_controller(sink, namespace, name, &mut taken),
                Some(false) => no_controller(sink, namespace, tenant),
                None if draft.undecided.iter().any(|undecided| undecided == name) => {}
                None if are_all_known => no_tenant(sink, namespace, tenant, tenants.keys().copied().collect()),
                None => {}
            }
        }
        one_writer(sink, namespace);
    }
}

fn once_on_a_controller<'d>(
    sink: &mut Sink<'_>,
    namespace: &'d NamespaceDraft,
    tenant: &'d str,
    taken: &mut HashMap<(&'d str, u32), &'d NamespaceDraft>,
) {
    let Some(nsid) = &namespace.nsid else { return };
    let Some(other) = taken.insert((tenant, *nsid.get_ref()), namespace) else { return };
    let what = format!("tenant {tenant:?} has {} as its nsid {} already", other.title(), nsid.get_ref());
    let remedy =
        format!("write another nsid, {} to {}, that is free on each of its tenants", NSIDS.start(), NSIDS.end());
    sink.at(&nsid.span(), what, remedy);
}

fn no_controller(sink: &mut Sink<'_>, namespace: &NamespaceDraft, tenant: &Spanned<String>) {
    let title = namespace.title();
    let what = format!("{title} can't be attached to {:?}, which has no NVMe controller", tenant.get_ref());
    sink.at(&tenant.span(), what, "write frontend = \"vfio-user\" for that tenant, or remove it here");
}

fn no_tenant(sink: &mut Sink<'_>, namespace: &NamespaceDraft, tenant: &Spanned<String>, mut known: Vec<&str>) {
    let shown: String = tenant.get_ref().chars().take(80).collect();
    known.sort_unstable();
    let remedy = match nearest(tenant.get_ref(), &known) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => "write the name of a [[tenant]] that is on it, or say which drive the namespace is on".to_owned(),
    };
    sink.at(
        &tenant.span(),
        format!("{} is attached to {shown:?}, and its drive has no such tenant", namespace.title()),
        remedy,
    );
}

fn one_writer(sink: &mut Sink<'_>, namespace: &NamespaceDraft) {
    let (Some(tenants), Some(false)) = (&namespace.tenants, namespace.shared) else { return };
    if tenants.len() > 1 {
        let title = namespace.title();
        let what =
            format!("{} tenants may write to {title}, and most file systems are not made for that", tenants.len());
        let remedy = "put all but one under `read_only`, or write shared = true if they agree on who writes where";
        sink.maybe_at(namespace.tenants_mark.as_ref(), what, remedy);
    }
}
