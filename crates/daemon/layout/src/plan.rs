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
use crate::placement::{Placement, Thin, serial_of};
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
    /// A new tenant's disk gets pieces of the pool as it is written.
    pub is_thin: bool,
}

/// The pool that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedPool {
    /// At least the size that is recorded.
    pub size: Size,
    /// Bytes of a piece of a new pool: a power of two.
    pub piece_bytes: u64,
    /// How much larger than the pool all thin disks together may be, in percent.
    pub overcommit_percent: u64,
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
    /// The size of the pool.
    Pool,
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
    /// The pool of thin disks is new, or larger than before.
    PoolGrew {
        /// Before; 0: there was none.
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
        let range = |p: &Placement| match p.thin {
            Some(_) => format!("{} of the pool", Size(p.size_bytes())),
            None => format!("{} at {}", Size(p.size_bytes()), Size(p.offset_bytes())),
        };
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
            Self::PoolGrew { from_bytes: 0, to_bytes } => write!(f, "the pool gets {}", Size(*to_bytes)),
            Self::PoolGrew { from_bytes, to_bytes } => {
                write!(f, "the pool grows from {} to {}", Size(*from_bytes), Size(*to_bytes))
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
    /// The pool comes first. Tenants in `recorded` keep their ranges. New ones get the `offset` that they ask for, or
    /// else the first free place. Recorded tenants that nobody asks for keep their range reserved.
    ///
    /// # Errors
    /// All contradictions between what is asked for and the record, and new tenants for which there is no room.
    pub fn plan(
        tenants: &[Wanted<'_>],
        pool: Option<WantedPool>,
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
        plan_pool(&mut found, pool, &mut layout, &mut changes);
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
            let new = if tenant.1.is_thin {
                thin_placement(&mut found, tenant, &mut layout)
            } else {
                place(&mut found, tenant, &layout, &names).map(|extents| placement(tenant.1, extents))
            };
            if let Some(new) = new {
                layout.add(new);
                changes.extend(layout.find(tenant.1.name).cloned().map(Change::Placed));
            }
        }
        refuse_overcommit(&mut found, tenants, pool, &layout);
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

/// The pool gets the room that is asked for.
fn plan_pool(found: &mut Contradictions, wanted: Option<WantedPool>, layout: &mut Layout, changes: &mut Vec<Change>) {
    let recorded = layout.pool().map(|pool| (pool.size_bytes(), pool.piece_bytes));
    let (from_bytes, piece_bytes) = recorded.unwrap_or((0, wanted.map_or(0, |wanted| wanted.piece_bytes)));
    let Some(WantedPool { size, piece_bytes: wanted_bytes, .. }) = wanted else {
        if from_bytes > 0 {
            let what = format!("the pool has {} on the drive, and the configuration names none", Size(from_bytes));
            found.add(About::Pool, what, format!("write pool = \"{}\": a pool can grow and not go", Size(from_bytes)));
        }
        return;
    };
    if wanted_bytes != piece_bytes {
        let pieces = Size(piece_bytes);
        let what = format!("the pool has pieces of {pieces} on the drive, not of {}", Size(wanted_bytes));
        found.add(About::Pool, what, format!("write pool_piece = \"{pieces}\": pieces stay as they were made"));
    }
    let to_bytes = size.0.next_multiple_of(piece_bytes);
    if to_bytes < from_bytes {
        let what = format!("the pool has {} on the drive, not {size}", Size(from_bytes));
        found.add(About::Pool, what, format!("write pool = \"{}\": a pool can grow and not shrink", Size(from_bytes)));
    } else if to_bytes > from_bytes {
        match layout.grow_pool(piece_bytes, to_bytes - from_bytes) {
            Ok(()) => changes.push(Change::PoolGrew { from_bytes, to_bytes }),
            Err(most) => {
                let what = format!("no room for a pool of {size}: {} more is available", Size(most));
                found.add(About::Pool, what, "make the pool smaller, or the device larger");
            }
        }
    }
}

/// A place for a new thin disk, which takes no room yet.
fn thin_placement(found: &mut Contradictions, (index, tenant): Numbered<'_>, layout: &mut Layout) -> Option<Placement> {
    if tenant.offset.is_some() {
        let what = format!("tenant {:?} is thin, and has no place of its own", tenant.name);
        found.add(About::Offset(index), what, "remove the offset, or thin = true");
        return None;
    }
    let Some(map) = layout.new_map() else {
        let what = format!("tenant {:?} is thin, and the drive has no pool", tenant.name);
        found.add(About::Size(index), what, "write pool = \"100GiB\" under the drive, or remove thin = true");
        return None;
    };
    let thin = Thin { size_bytes: tenant.size.0, map, snapshots: Vec::new() };
    Some(Placement { thin: Some(thin), ..placement(tenant, Vec::new()) })
}

/// Thin disks may be larger than the pool, but only as much as the operator allows.
fn refuse_overcommit(found: &mut Contradictions, tenants: &[Wanted<'_>], pool: Option<WantedPool>, layout: &Layout) {
    let (Some(wanted), Some(pool)) = (pool, layout.pool()) else { return };
    let most = u128::from(pool.size_bytes()) * u128::from(wanted.overcommit_percent) / 100;
    let all = layout.thin_bytes();
    let last = tenants
        .iter()
        .enumerate()
        .rev()
        .find(|(_, tenant)| layout.find(tenant.name).is_some_and(|placement| placement.thin.is_some()));
    if let Some((index, _)) = last.filter(|_| u128::from(all) > most) {
        let what = format!(
            "all thin disks together have {}, and a pool of {} allows {}",
            Size(all),
            Size(pool.size_bytes()),
            Size(most as u64)
        );
        found.add(About::Size(index), what, "make the pool larger, or allow more by overcommit");
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
    if tenant.is_thin != placement.thin.is_some() {
        let (is, thin) = if tenant.is_thin { ("has a range of its own", false) } else { ("is thin", true) };
        let what = format!("tenant {:?} {is} on the drive", tenant.name);
        let remedy =
            format!("write thin = {thin}: a disk stays thin or not; for another one copy the data inside a guest");
        found.add(About::Size(index), what, remedy);
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
        thin: None,
    }
}

/// A place for a new tenant whose disk is not thin.
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
