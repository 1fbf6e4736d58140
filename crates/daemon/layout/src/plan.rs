//! Places disks on the drive.
//!
//! Operators reorder, add and remove tenants. A tenant that was placed once keeps its range until an
//! operator frees it by hand: another range would be another tenant's data.

use std::collections::{HashMap, HashSet};
use std::fmt;

use io_model::units::Size;
use serde::Serialize;

use crate::RANGE_STEP_BYTES;
use crate::layout::{DeviceIdentity, Layout};
use crate::placement::{Placement, serial_of};
use crate::space::{self, Extent};

/// What a tenant asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// Unique among all.
    pub name: &'a str,
    /// A multiple of [`RANGE_STEP_BYTES`], above 0.
    pub size: Size,
    /// A place that the operator chose; the same multiple.
    pub offset: Option<Size>,
    /// LBA size of a new tenant's disk: 512 or 4096.
    pub lba_bytes: u32,
}

/// What a contradiction is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// Which drive it is.
    Device,
    /// How large it is.
    DeviceSize,
    /// The size of a tenant, by its index.
    Size(usize),
    /// Its place.
    Offset(usize),
    /// The plan as a whole.
    Plan,
}

/// What is asked for contradicts the record, or can't be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contradiction {
    /// Where an operator finds it.
    pub about: About,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// What a plan does beside keeping things as they are, for the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// A new tenant got this range.
    Placed(Placement),
    /// A recorded tenant is not in the configuration; its range stays reserved.
    Reserved(Placement),
    /// The configuration names a disk that was made while the daemon ran: its settings are the configuration's now.
    Declared {
        /// The tenant.
        name: String,
    },
    /// The configuration has a larger size than was recorded.
    Grown {
        /// The tenant.
        name: String,
        /// Before.
        from_bytes: u64,
        /// Now.
        to_bytes: u64,
    },
    /// The drive has more room than before.
    DeviceGrew {
        /// Before.
        from_bytes: u64,
        /// Now.
        to_bytes: u64,
    },
    /// The drive is the recorded one under another path.
    DeviceMoved {
        /// Before.
        from: String,
        /// Now.
        to: String,
    },
    /// The configuration's `lba_size` is for new tenants; this one stays as it was formatted.
    LbaSizeKept {
        /// The tenant.
        name: String,
        /// As formatted.
        lba_bytes: u32,
        /// As configured.
        configured_bytes: u32,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |p: &Placement| format!("{} at {}", Size(p.size_bytes()), Size(p.offset_bytes()));
        match self {
            Self::Placed(new) => write!(f, "new tenant {:?} gets {}", new.name, range(new)),
            Self::Reserved(old) => write!(
                f,
                "{} stays reserved for tenant {:?}, which the configuration does not name; `evenkeel disk delete {}` \
                 frees it",
                range(old),
                old.name,
                old.name
            ),
            Self::Declared { name } => {
                write!(f, "disk {name:?}, made by `evenkeel disk create`, is declared in the configuration now")
            }
            Self::Grown { name, from_bytes, to_bytes } => {
                write!(f, "tenant {name:?} grows from {} to {}", Size(*from_bytes), Size(*to_bytes))
            }
            Self::DeviceGrew { from_bytes, to_bytes } => {
                write!(f, "the device grew from {} to {}", Size(*from_bytes), Size(*to_bytes))
            }
            Self::DeviceMoved { from, to } => write!(f, "the device moved from {from} to {to}"),
            Self::LbaSizeKept { name, lba_bytes, configured_bytes } => write!(
                f,
                "tenant {name:?} keeps its LBA size {lba_bytes}; lba_size = {configured_bytes} is for a new tenant, \
                 a guest changes it with `nvme format`"
            ),
        }
    }
}

impl Layout {
    /// Gives every tenant its range on `device`.
    ///
    /// Tenants in `recorded` keep theirs. New ones get the `offset` that they ask for, or else the first free place.
    /// Recorded tenants that nobody asks for keep their range reserved.
    ///
    /// # Errors
    /// All contradictions between what is asked for and the record, and new tenants for which there is no room.
    pub fn plan(
        tenants: &[Wanted<'_>],
        device: &DeviceIdentity,
        recorded: Option<&Layout>,
    ) -> Result<(Layout, Vec<Change>), Vec<Contradiction>> {
        let mut found = Contradictions::default();
        let mut changes = Vec::new();
        let mut layout = Layout::empty(device);
        if let Some(recorded) = recorded {
            same_device(&mut found, device, &recorded.device, &mut changes);
            layout = Layout { device: device.clone(), ..recorded.clone() };
        }
        let placed = recorded.into_iter().flat_map(|layout| &layout.tenants);
        let placed: HashMap<&str, &Placement> = placed.map(|placement| (placement.name.as_str(), placement)).collect();
        let mut new: Vec<Numbered<'_>> = Vec::new();
        for tenant in tenants.iter().enumerate() {
            match placed.get(tenant.1.name) {
                Some(placement) => keep(&mut found, tenant, placement, &mut layout, &mut changes),
                None => new.push(tenant),
            }
        }
        let names: HashSet<&str> = tenants.iter().map(|tenant| tenant.name).collect();
        let gone = layout.tenants.iter().filter(|placement| !names.contains(placement.name.as_str()));
        changes.extend(gone.cloned().map(Change::Reserved));
        // Chosen places first, or a new tenant without one could take them.
        let (fixed, free): (Vec<_>, Vec<_>) = new.into_iter().partition(|(_, tenant)| tenant.offset.is_some());
        for tenant in fixed.into_iter().chain(free) {
            if let Some(extents) = place(&mut found, tenant, &layout, &names) {
                layout.add(placement(tenant.1, extents));
                changes.extend(layout.find(tenant.1.name).cloned().map(Change::Placed));
            }
        }
        if found.0.is_empty()
            && let Err(what) = layout.validate()
        {
            found.add(About::Plan, format!("the planned layout is wrong: {what}"), "please report it");
        }
        if found.0.is_empty() { Ok((layout, changes)) } else { Err(found.0) }
    }
}

/// A tenant with its index.
type Numbered<'a> = (usize, &'a Wanted<'a>);

#[derive(Default)]
struct Contradictions(Vec<Contradiction>);

impl Contradictions {
    fn add(&mut self, about: About, what: impl Into<String>, remedy: impl Into<String>) {
        self.0.push(Contradiction { about, what: what.into(), remedy: remedy.into() });
    }
}

/// Whether an image is the one that was served last, and not a copy of before: what was deleted, wiped and made since
/// then is in the layout and not in that.
fn is_as_last_served(now: &DeviceIdentity, before: &DeviceIdentity) -> bool {
    let known = before.start.iter().chain(&before.former_start);
    before.start.is_none() || now.start.iter().any(|now| known.clone().any(|start| start == now))
}

fn same_device(found: &mut Contradictions, now: &DeviceIdentity, before: &DeviceIdentity, changes: &mut Vec<Change>) {
    if let Some(before_id) = before.id.as_deref().filter(|_| now.id.is_some() || before.is_mark())
        && now.id.as_deref() != Some(before_id)
    {
        let now_id = now.id.as_deref().unwrap_or("without a mark");
        let what =
            format!("{} is drive {now_id}, its layout was made for drive {before_id} at {}", now.path, before.path);
        found.add(
            About::Device,
            what,
            "give the path of the recorded drive, or restore the layout file that belongs to this one",
        );
        return;
    }
    if !is_as_last_served(now, before) {
        let what = format!(
            "{} is not the image that was served last, but another one, an older copy, or a \
             copy without extended attributes: its tenants could see data of others",
            now.path
        );
        let remedy = "restore the layout file saved with it; or, if nothing was served since the copy, \
                      remove the lines `id` and `start` from the layout file";
        found.add(About::Device, what, remedy);
        return;
    }
    if now.size_bytes < before.size_bytes {
        let what = format!("{} has {}, it had {} before", now.path, Size(now.size_bytes), Size(before.size_bytes));
        let remedy = "restore the drive's old size; if it was shrunk on purpose behind the last tenant, write \
                      the new size_bytes into the layout file";
        found.add(About::DeviceSize, what, remedy);
    } else if now.size_bytes > before.size_bytes {
        changes.push(Change::DeviceGrew { from_bytes: before.size_bytes, to_bytes: now.size_bytes });
    }
    if now.path != before.path {
        changes.push(Change::DeviceMoved { from: before.path.clone(), to: now.path.clone() });
    }
}

/// A tenant that was placed before: its range stays, and the configuration may not say otherwise. It may grow.
fn keep(
    found: &mut Contradictions,
    (index, tenant): Numbered<'_>,
    placement: &Placement,
    layout: &mut Layout,
    changes: &mut Vec<Change>,
) {
    let (name, from_bytes, to_bytes) = (tenant.name.to_owned(), placement.size_bytes(), tenant.size.0);
    let recorded = Size(from_bytes);
    if to_bytes < from_bytes {
        let what = format!("tenant {name:?} has {recorded} on the drive, not {}", tenant.size);
        let remedy = format!(
            "write size = \"{recorded}\"; a disk can grow and not shrink, so for a smaller one add a tenant with a new \
             name and copy the data inside a guest"
        );
        found.add(About::Size(index), what, remedy);
    } else if to_bytes > from_bytes {
        match layout.grow(&name, to_bytes - from_bytes) {
            Ok(()) => changes.push(Change::Grown { name, from_bytes, to_bytes }),
            Err(most) => {
                let what = format!(
                    "no room for tenant {name:?} to grow from {recorded} to {}: {} more is available",
                    tenant.size,
                    Size(most - most % RANGE_STEP_BYTES)
                );
                found.add(About::Size(index), what, format!("write size = \"{recorded}\", or make the device larger"));
            }
        }
    }
    if let Some(offset) = tenant.offset.filter(|offset| offset.0 != placement.offset_bytes()) {
        let recorded = Size(placement.offset_bytes());
        let what = format!("tenant {:?} is at {recorded} on the drive, not at {offset}", tenant.name);
        found.add(About::Offset(index), what, format!("write offset = \"{recorded}\", or remove it"));
    }
    if tenant.lba_bytes != placement.lba_bytes {
        changes.push(Change::LbaSizeKept {
            name: tenant.name.to_owned(),
            lba_bytes: placement.lba_bytes,
            configured_bytes: tenant.lba_bytes,
        });
    }
}

fn placement(tenant: &Wanted<'_>, extents: Vec<Extent>) -> Placement {
    Placement {
        name: tenant.name.to_owned(),
        serial: serial_of(tenant.name),
        extents,
        lba_bytes: tenant.lba_bytes,
        formatting_to_lba_bytes: None,
        settings: None,
        zeroed_bytes: None,
        grows_from_bytes: None,
        key: None,
        sanitize: None,
    }
}

/// A place for a new tenant.
fn place(
    found: &mut Contradictions,
    tenant: Numbered<'_>,
    layout: &Layout,
    wanted: &HashSet<&str>,
) -> Option<Vec<Extent>> {
    match tenant.1.offset {
        Some(offset) => fixed_place(found, tenant, offset.0, layout).map(|extent| vec![extent]),
        None => free_place(found, tenant, layout, wanted),
    }
}

fn fixed_place(
    found: &mut Contradictions,
    (index, tenant): Numbered<'_>,
    offset_bytes: u64,
    layout: &Layout,
) -> Option<Extent> {
    let extent = Extent { offset_bytes, size_bytes: tenant.size.0 };
    let device = Size(layout.device.size_bytes);
    if extent.end_bytes() > device.0 {
        let end = Size(extent.end_bytes());
        let what = format!("the range of tenant {:?} ends at {end}, behind the device's end at {device}", tenant.name);
        found.add(About::Offset(index), what, "choose a smaller offset, or remove it to have a place chosen");
        return None;
    }
    if let Some((at, who)) = layout.who_is_at(&extent) {
        let what = format!(
            "the range of tenant {:?} is taken: {who} has {} at {}",
            tenant.name,
            Size(at.size_bytes),
            Size(at.offset_bytes)
        );
        found.add(About::Offset(index), what, "choose another offset, or remove it to have a place chosen");
        return None;
    }
    Some(extent)
}

fn free_place(
    found: &mut Contradictions,
    (index, tenant): Numbered<'_>,
    layout: &Layout,
    wanted: &HashSet<&str>,
) -> Option<Vec<Extent>> {
    let free = layout.free();
    let chosen = space::choose(&free, &layout.clean, tenant.size.0);
    if chosen.is_some() {
        return chosen;
    }
    let most = space::most(&free);
    let what = format!(
        "no room for tenant {:?} of {}: at most {} is available",
        tenant.name,
        tenant.size,
        Size(most - most % RANGE_STEP_BYTES)
    );
    let reserved: Vec<&Placement> =
        layout.tenants.iter().filter(|placement| !wanted.contains(placement.name.as_str())).collect();
    let mut remedy = "make it smaller, or the device larger".to_owned();
    if !reserved.is_empty() {
        let bytes = reserved.iter().map(|placement| placement.size_bytes()).sum();
        remedy += &format!(
            ", or free what {} tenants that are not configured hold ({}) by `evenkeel disk delete`",
            reserved.len(),
            Size(bytes)
        );
    }
    if !layout.wiping.is_empty() {
        let bytes = layout.wiping.iter().map(|range| range.size_bytes).sum();
        remedy += &format!(", or wait until {} of deleted tenants are wiped", Size(bytes));
    }
    found.add(About::Size(index), what, remedy);
    None
}
