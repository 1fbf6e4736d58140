//! Who is where on the drive.
//!
//! Operators reorder, add and remove tenants. A tenant that was placed once keeps its range until an
//! operator frees it by hand: another range would be another tenant's data.

use std::collections::HashSet;

use io_model::units::Size;
use serde::{Deserialize, Serialize};

use crate::RANGE_STEP_BYTES;

/// New tenants start on a multiple of this: larger than any drive's page or stripe unit that matters.
const ALIGN_BYTES: u64 = 1 << 20;

/// The layout files that this build reads and writes.
const VERSION: u32 = 1;

/// Which drive, so that a layout is never applied to another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceIdentity {
    /// The file or block device, links resolved; the back end's name where it has no path.
    pub path: String,
    /// What the drive itself says who it is (its WWID or serial number), where the kernel knows.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<String>,
    /// Bytes that tenants may use.
    pub size_bytes: u64,
}

/// One tenant's range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// The tenant's name in the configuration.
    pub name: String,
    /// Start on the drive, a multiple of [`RANGE_STEP_BYTES`].
    pub offset_bytes: u64,
    /// Length, a multiple of [`RANGE_STEP_BYTES`].
    pub size_bytes: u64,
    /// LBA size of the namespace as last formatted: 512 or 4096.
    pub lba_bytes: u32,
    /// LBA size of a Format that began and has not ended: 512 or 4096. What the range holds then is undefined.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub formatting_to_lba_bytes: Option<u32>,
    /// A disk that was made while the daemon ran: its `[[tenant]]` section, as a configuration would have it. `None`:
    /// the configuration has it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub settings: Option<String>,
    /// The range is new, and only so much from its start is known to be zeroed. `None`: all that it needs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub zeroed_bytes: Option<u64>,
}

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

/// Every range that is taken on one drive, by present tenants and by those that the configuration does not
/// name any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    version: u32,
    pub(crate) device: DeviceIdentity,
    #[serde(rename = "tenant", default)]
    pub(crate) tenants: Vec<Placement>,
}

/// What a plan does beside keeping things as they are, for the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// A new tenant got this range.
    Placed(Placement),
    /// A recorded tenant is not in the configuration; its range stays reserved.
    Reserved(Placement),
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
        /// Whose.
        name: String,
        /// As formatted.
        lba_bytes: u32,
        /// As configured.
        configured_bytes: u32,
    },
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let range = |p: &Placement| format!("{} at {}", Size(p.size_bytes), Size(p.offset_bytes));
        match self {
            Self::Placed(new) => write!(f, "new tenant {:?} gets {}", new.name, range(new)),
            Self::Reserved(old) => write!(
                f,
                "{} stays reserved for tenant {:?}, which the configuration does not name; to free it, remove its \
                 [[tenant]] from the layout file",
                range(old),
                old.name
            ),
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

impl Placement {
    /// The first byte behind the range. Saturates, for ranges that were not checked yet.
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes.saturating_add(self.size_bytes)
    }
}

impl Layout {
    /// The drive.
    pub fn device(&self) -> &DeviceIdentity {
        &self.device
    }

    /// All ranges, by their place. None overlap, all end within the drive.
    pub fn placements(&self) -> &[Placement] {
        &self.tenants
    }

    /// A tenant's range.
    pub fn find(&self, name: &str) -> Option<&Placement> {
        self.tenants.iter().find(|placement| placement.name == name)
    }

    /// The sections of the disks that were made while the daemon ran, with their names.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tenants.iter().filter_map(|placement| Some((placement.name.as_str(), placement.settings.as_deref()?)))
    }

    /// A disk that was made while the daemon ran has these settings from now on. `false`: there is no such tenant.
    pub fn set_settings(&mut self, name: &str, settings: &str) -> bool {
        let found = self.tenants.iter_mut().find(|placement| placement.name == name);
        found.map(|placement| placement.settings = Some(settings.to_owned())).is_some()
    }

    /// A range that was given to a tenant which nobody was ever served as is free again. `false`: there is no such
    /// tenant.
    pub(crate) fn withdraw(&mut self, name: &str) -> bool {
        let before = self.tenants.len();
        self.tenants.retain(|placement| placement.name != name);
        self.tenants.len() < before
    }

    /// Nothing has to be zeroed: the drive is empty, or tenants are to see what it holds.
    pub fn accept_content(&mut self) {
        self.tenants.iter_mut().for_each(|placement| placement.zeroed_bytes = None);
    }

    /// So much of a tenant's range is zeroed. `false`: there is no such tenant.
    pub(crate) fn zeroed(&mut self, name: &str, zeroed_bytes: u64) -> bool {
        let found = self.tenants.iter_mut().find(|placement| placement.name == name);
        let Some(placement) = found else { return false };
        placement.zeroed_bytes = (zeroed_bytes < placement.size_bytes).then_some(zeroed_bytes);
        true
    }

    /// A tenant's guest formats its namespace to this LBA size, or has done so if `ended`. False, and nothing changes,
    /// where the tenant is not known or the size is neither 512 nor 4096.
    pub(crate) fn format(&mut self, name: &str, lba_bytes: u32, ended: bool) -> bool {
        let found = self.tenants.iter_mut().find(|placement| placement.name == name);
        let Some(placement) = found.filter(|_| matches!(lba_bytes, 512 | 4096)) else { return false };
        placement.formatting_to_lba_bytes = (!ended).then_some(lba_bytes);
        if ended {
            placement.lba_bytes = lba_bytes;
        }
        true
    }

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
        let mut layout = Layout { version: VERSION, device: device.clone(), tenants: Vec::new() };
        if let Some(recorded) = recorded {
            same_device(&mut found, device, &recorded.device, &mut changes);
            layout.tenants.clone_from(&recorded.tenants);
        }
        let (known, new): (Vec<Numbered<'_>>, Vec<Numbered<'_>>) =
            tenants.iter().enumerate().partition(|(_, tenant)| layout.find(tenant.name).is_some());
        for tenant in known {
            keep(&mut found, tenant, &layout, &mut changes);
        }
        let names: HashSet<&str> = tenants.iter().map(|tenant| tenant.name).collect();
        let gone = layout.tenants.iter().filter(|placement| !names.contains(placement.name.as_str()));
        changes.extend(gone.cloned().map(Change::Reserved));
        // Chosen places first, or a new tenant without one could take them.
        let (fixed, free): (Vec<_>, Vec<_>) = new.into_iter().partition(|(_, tenant)| tenant.offset.is_some());
        for tenant in fixed.into_iter().chain(free) {
            layout.tenants.sort_by_key(|placement| placement.offset_bytes);
            if let Some(placement) = place(&mut found, tenant, &layout, &names) {
                changes.push(Change::Placed(placement.clone()));
                layout.tenants.push(placement);
            }
        }
        layout.tenants.sort_by_key(|placement| placement.offset_bytes);
        if found.0.is_empty()
            && let Err(what) = layout.validate()
        {
            found.add(About::Plan, format!("the planned layout is wrong: {what}"), "please report it");
        }
        if found.0.is_empty() { Ok((layout, changes)) } else { Err(found.0) }
    }

    /// What a layout must hold, wherever it comes from; says what is wrong.
    pub(crate) fn validate(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("its version is {}, this build knows {VERSION}", self.version));
        }
        let mut names = HashSet::new();
        let mut sorted: Vec<&Placement> = self.tenants.iter().collect();
        sorted.sort_by_key(|placement| placement.offset_bytes);
        let mut last: Option<&Placement> = None;
        for placement in sorted {
            let Placement { name, offset_bytes, size_bytes, lba_bytes, formatting_to_lba_bytes, zeroed_bytes, .. } =
                placement;
            if !names.insert(name.as_str()) {
                return Err(format!("tenant {name:?} is in it twice"));
            }
            if !offset_bytes.is_multiple_of(RANGE_STEP_BYTES) || !size_bytes.is_multiple_of(RANGE_STEP_BYTES) {
                return Err(format!("the range of tenant {name:?} is not in steps of {RANGE_STEP_BYTES} bytes"));
            }
            if *size_bytes == 0 || !matches!(lba_bytes, 512 | 4096) {
                return Err(format!("tenant {name:?} has size_bytes = {size_bytes} and lba_bytes = {lba_bytes}"));
            }
            if zeroed_bytes.is_some_and(|zeroed_bytes| zeroed_bytes > *size_bytes) {
                return Err(format!("tenant {name:?} has zeroed_bytes above its size_bytes"));
            }
            if !matches!(formatting_to_lba_bytes, None | Some(512 | 4096)) {
                return Err(format!("tenant {name:?} has a formatting_to_lba_bytes that is neither 512 nor 4096"));
            }
            if offset_bytes.checked_add(*size_bytes).is_none_or(|end| end > self.device.size_bytes) {
                return Err(format!("the range of tenant {name:?} ends behind the device"));
            }
            if let Some(last) = last.filter(|last| last.end_bytes() > *offset_bytes) {
                return Err(format!("tenants {:?} and {name:?} overlap", last.name));
            }
            last = Some(placement);
        }
        Ok(())
    }

    /// The first range that `self` has and `next` lacks or has elsewhere.
    pub(crate) fn first_lost<'s>(&'s self, next: &Layout) -> Option<&'s Placement> {
        self.tenants.iter().find(|old| {
            let kept = next.find(&old.name);
            kept.is_none_or(|kept| (kept.offset_bytes, kept.size_bytes) != (old.offset_bytes, old.size_bytes))
        })
    }

    /// Bytes that no range holds.
    pub fn free_bytes(&self) -> u64 {
        self.gaps().iter().map(|(start, end)| end - start).sum()
    }

    /// Free ranges, from and to. Expects the ranges in order.
    fn gaps(&self) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = 0;
        for placement in &self.tenants {
            if placement.offset_bytes > at {
                gaps.push((at, placement.offset_bytes));
            }
            at = at.max(placement.end_bytes());
        }
        if self.device.size_bytes > at {
            gaps.push((at, self.device.size_bytes));
        }
        gaps
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

fn same_device(found: &mut Contradictions, now: &DeviceIdentity, before: &DeviceIdentity, changes: &mut Vec<Change>) {
    if let (Some(now_id), Some(before_id)) = (&now.id, &before.id)
        && now_id != before_id
    {
        let what = format!("{} is drive {now_id}, its layout was made for drive {before_id}", now.path);
        found.add(
            About::Device,
            what,
            "give the path of the recorded drive, or move the layout file away to start anew",
        );
        return;
    }
    if now.size_bytes < before.size_bytes {
        let what = format!("{} has {}, it had {} before", now.path, Size(now.size_bytes), Size(before.size_bytes));
        let remedy = "give the drive its old size back; if it was shrunk on purpose behind the last tenant, write \
                      the new size_bytes into the layout file";
        found.add(About::DeviceSize, what, remedy);
    } else if now.size_bytes > before.size_bytes {
        changes.push(Change::DeviceGrew { from_bytes: before.size_bytes, to_bytes: now.size_bytes });
    }
    if now.path != before.path {
        changes.push(Change::DeviceMoved { from: before.path.clone(), to: now.path.clone() });
    }
}

/// A tenant that was placed before: its range stays, and the configuration may not say otherwise.
fn keep(found: &mut Contradictions, (index, tenant): Numbered<'_>, layout: &Layout, changes: &mut Vec<Change>) {
    let Some(placement) = layout.find(tenant.name) else { return };
    if tenant.size.0 != placement.size_bytes {
        let recorded = Size(placement.size_bytes);
        let what = format!("tenant {:?} has {recorded} on the drive, not {}", tenant.name, tenant.size);
        let remedy = format!(
            "write size = \"{recorded}\"; a size can't be changed, so for another one add a tenant with a new name and \
             copy the data inside a guest"
        );
        found.add(About::Size(index), what, remedy);
    }
    if let Some(offset) = tenant.offset.filter(|offset| offset.0 != placement.offset_bytes) {
        let recorded = Size(placement.offset_bytes);
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

/// A place for a new tenant.
fn place(
    found: &mut Contradictions,
    (index, tenant): Numbered<'_>,
    layout: &Layout,
    wanted: &HashSet<&str>,
) -> Option<Placement> {
    let offset_bytes = match tenant.offset {
        Some(offset) => fixed_place(found, (index, tenant), offset.0, layout)?,
        None => free_place(found, (index, tenant), layout, wanted)?,
    };
    let (name, size_bytes) = (tenant.name.to_owned(), tenant.size.0);
    let (lba_bytes, zeroed_bytes) = (tenant.lba_bytes, Some(0));
    let (formatting_to_lba_bytes, settings) = (None, None);
    Some(Placement { name, offset_bytes, size_bytes, lba_bytes, formatting_to_lba_bytes, settings, zeroed_bytes })
}

fn fixed_place(
    found: &mut Contradictions,
    (index, tenant): Numbered<'_>,
    offset_bytes: u64,
    layout: &Layout,
) -> Option<u64> {
    let end = offset_bytes.saturating_add(tenant.size.0);
    if end > layout.device.size_bytes {
        let device = Size(layout.device.size_bytes);
        let what =
            format!("the range of tenant {:?} ends at {}, behind the device's end at {device}", tenant.name, Size(end));
        found.add(About::Offset(index), what, "choose a smaller offset, or remove it to have a place chosen");
        return None;
    }
    let taken = layout.tenants.iter().find(|p| p.offset_bytes < end && offset_bytes < p.end_bytes());
    if let Some(other) = taken {
        let what = format!(
            "the range of tenant {:?} is taken: tenant {:?} has {} at {}",
            tenant.name,
            other.name,
            Size(other.size_bytes),
            Size(other.offset_bytes)
        );
        found.add(About::Offset(index), what, "choose another offset, or remove it to have a place chosen");
        return None;
    }
    Some(offset_bytes)
}

fn free_place(
    found: &mut Contradictions,
    (index, tenant): Numbered<'_>,
    layout: &Layout,
    wanted: &HashSet<&str>,
) -> Option<u64> {
    let gaps = layout.gaps();
    let aligned = gaps.iter().filter_map(|(start, end)| {
        let start = start.checked_next_multiple_of(ALIGN_BYTES)?;
        end.checked_sub(start).map(|room| (start, room))
    });
    if let Some((start, _)) = aligned.clone().find(|(_, room)| *room >= tenant.size.0) {
        return Some(start);
    }
    let largest = aligned.map(|(_, room)| room).max().unwrap_or(0);
    let what = format!(
        "no room for tenant {:?} of {}: the largest free range has {}",
        tenant.name,
        tenant.size,
        Size(largest - largest % RANGE_STEP_BYTES)
    );
    let reserved: Vec<&Placement> =
        layout.tenants.iter().filter(|placement| !wanted.contains(placement.name.as_str())).collect();
    let remedy = if reserved.is_empty() {
        "make it smaller, or the device larger".to_owned()
    } else {
        let bytes = reserved.iter().map(|placement| placement.size_bytes).sum();
        format!(
            "make it smaller, or the device larger, or free what {} tenants that are not configured hold ({}) by \
             removing them from the layout file",
            reserved.len(),
            Size(bytes)
        )
    };
    found.add(About::Size(index), what, remedy);
    None
}
