//! The ranges of each disk on the drive, and how they may change.

use std::collections::{HashMap, HashSet};

use io_model::units::Size;
use keys::StoredKey;
use serde::{Deserialize, Serialize};

use crate::RANGE_STEP_BYTES;
use crate::placement::{Placement, SERIAL_CHARS, Sanitize, WipeMethod, Wiping};
use crate::pool::Pool;
use crate::space::{self, Extent};

/// The layout files that this build reads and writes.
pub(crate) const VERSION: u32 = 2;

/// Which drive, so that a layout is never applied to another one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceIdentity {
    /// The file or block device, links resolved; the back end's name where it has no path.
    pub path: String,
    /// What the drive itself says who it is (its WWID or serial number), where the kernel knows; the mark of an image.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<String>,
    /// Which start served it last: a second mark of an image, by which an older copy of it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub start: Option<String>,
    /// The start before, until the image is known to have the new mark.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub former_start: Option<String>,
    /// Bytes that tenants may use.
    pub size_bytes: u64,
}

/// Every range that is taken on one drive, by present tenants, by those that the configuration does not name any more,
/// and by what deleted ones left behind; and which of the rest is known to be clean.
///
/// A range goes from free to a tenant, from the tenant to the wiper, and from there, clean, back to free. That of an
/// encrypted disk goes from the tenant, as noise, back to free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    pub(crate) version: u32,
    pub(crate) device: DeviceIdentity,
    #[serde(rename = "tenant", skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) tenants: Vec<Placement>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) wiping: Vec<Wiping>,
    /// Free ranges that read as zeros, sorted and merged. What is free beside them holds nobody knows what.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) clean: Vec<Extent>,
    /// Free ranges of deleted encrypted disks, sorted and merged: nobody has the key to what they hold.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) noise: Vec<Extent>,
    /// What thin disks share.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) pool: Option<Pool>,
}

impl DeviceIdentity {
    /// What an identity begins with that is a mark of ours on a drive that has no other one.
    pub const MARK: &str = "mark-";

    /// Whether it is such a mark: a drive without that is another one.
    pub fn is_mark(&self) -> bool {
        is_mark(self.id.as_deref())
    }
}

/// As [`DeviceIdentity::is_mark`], of an identity alone.
pub fn is_mark(id: Option<&str>) -> bool {
    id.is_some_and(|id| id.starts_with(DeviceIdentity::MARK))
}

impl Layout {
    /// From now on the drive is known by its mark too.
    pub fn identify(&mut self, id: String) {
        self.device.id = Some(id);
    }

    /// It is served once more: its image has that mark from now on, or still the one before.
    pub fn begin_start(&mut self, start: String) {
        self.device.former_start = self.device.start.replace(start);
    }

    /// Its image has that mark for sure; `None`: it can't have one.
    pub fn end_start(&mut self, start: Option<String>) {
        (self.device.start, self.device.former_start) = (start, None);
    }

    /// A copy with the marks of the start that `other` has.
    pub(crate) fn with_start_of(&self, other: &Self) -> Self {
        let DeviceIdentity { start, former_start, .. } = other.device.clone();
        Self { device: DeviceIdentity { start, former_start, ..self.device.clone() }, ..self.clone() }
    }

    /// Nobody is on the drive, and nobody knows what it holds.
    pub(crate) fn empty(device: &DeviceIdentity) -> Self {
        let device = device.clone();
        let (tenants, wiping, clean, noise) = Default::default();
        Self { version: VERSION, device, tenants, wiping, clean, noise, pool: None }
    }

    /// The drive.
    pub fn device(&self) -> &DeviceIdentity {
        &self.device
    }

    /// All tenants, by the places where their disks begin.
    pub fn placements(&self) -> &[Placement] {
        &self.tenants
    }

    /// Ranges that deleted disks left behind and that are not overwritten yet, oldest first.
    pub fn wiping(&self) -> &[Wiping] {
        &self.wiping
    }

    /// A tenant's disk.
    pub fn find(&self, name: &str) -> Option<&Placement> {
        self.tenants.iter().find(|placement| placement.name == name)
    }

    fn find_mut(&mut self, name: &str) -> Option<&mut Placement> {
        self.tenants.iter_mut().find(|placement| placement.name == name)
    }

    /// The sections of the disks that were made while the daemon ran, with their names.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tenants.iter().filter_map(|placement| Some((placement.name.as_str(), placement.settings.as_deref()?)))
    }

    /// Bytes that nobody has and that need no overwriting.
    pub fn free_bytes(&self) -> u64 {
        space::sum(&self.free())
    }

    /// A disk that was made while the daemon ran has these settings from now on. `false`: there is no such tenant.
    pub fn set_settings(&mut self, name: &str, settings: &str) -> bool {
        self.find_mut(name).map(|placement| placement.settings = Some(settings.to_owned())).is_some()
    }

    /// A new disk is encrypted. What its ranges hold is noise under its key, so they need no zeroing. `false`: there is
    /// no such disk.
    pub fn set_key(&mut self, name: &str, key: StoredKey) -> bool {
        let Some(placement) = self.find_mut(name) else { return false };
        (placement.key, placement.zeroed_bytes) = (Some(key), None);
        true
    }

    /// An encrypted disk gets another key. `false`: there is no such disk.
    pub fn replace_key(&mut self, name: &str, key: StoredKey) -> bool {
        self.find_mut(name).map(|placement| placement.key = Some(key)).is_some()
    }

    /// A disk that was made while the daemon ran is declared in the configuration from now on. `false`: there is no
    /// such disk.
    pub fn declare(&mut self, name: &str) -> bool {
        self.find_mut(name).is_some_and(|placement| placement.settings.take().is_some())
    }

    /// Nothing that tenants have has to be zeroed: they are to see what the drive holds.
    pub fn accept_content(&mut self) {
        for placement in &mut self.tenants {
            (placement.zeroed_bytes, placement.grows_from_bytes) = (None, None);
        }
    }

    /// All of the drive reads as zeros: it was made just now.
    pub fn is_all_zeros(&mut self) {
        self.accept_content();
        self.wiping.clear();
        self.noise.clear();
        self.clean = self.free();
        if let Some(pool) = &mut self.pool {
            pool.clean = pool.extents.clone();
        }
    }

    /// Gives a tenant `bytes` more, right behind its disk where that is free, or else in up to 16 other places. It has
    /// them at once where they are clean; or once they are zeroed ([`Placement::grows_from_bytes`]).
    ///
    /// # Errors
    /// So much more is available.
    pub fn grow(&mut self, name: &str, bytes: u64) -> Result<(), u64> {
        if let Some(thin) = self.thin_mut(name) {
            thin.size_bytes += bytes;
            return Ok(());
        }
        let free = self.free();
        let Some(placement) = self.find(name) else { return Err(0) };
        let end = placement.extents.last().map_or(0, Extent::end_bytes);
        let behind = free.iter().find(|range| range.offset_bytes == end).copied();
        let next_to_it = behind.map(|range| Extent { size_bytes: range.size_bytes.min(bytes), ..range });
        let elsewhere = space::subtract(&free, next_to_it.as_slice());
        let clean = space::subtract(&self.clean, next_to_it.as_slice());
        let missing = bytes - space::sum(next_to_it.as_slice());
        let more = if missing == 0 { Some(Vec::new()) } else { space::choose(&elsewhere, &clean, missing) };
        let Some(more) = more else {
            return Err(space::sum(next_to_it.as_slice()) + space::most(&elsewhere));
        };
        let new: Vec<Extent> = next_to_it.into_iter().chain(more).collect();
        let is_clean = self.take(&new);
        let Some(placement) = self.find_mut(name) else { return Err(0) };
        let before = placement.size_bytes();
        new.into_iter().for_each(|extent| space::push(&mut placement.extents, extent));
        // A range that is still to be zeroed as a whole is just longer.
        if !is_clean && placement.zeroed_bytes.is_none() && placement.key.is_none() {
            (placement.zeroed_bytes, placement.grows_from_bytes) = (Some(before), Some(before));
        }
        Ok(())
    }

    /// A new tenant has its disk. One that lies on clean ranges needs no zeroing.
    pub(crate) fn add(&mut self, placement: Placement) {
        let is_clean = self.take(&placement.extents);
        self.tenants.push(Placement { zeroed_bytes: (!is_clean).then_some(0), ..placement });
        self.tenants.sort_by_key(Placement::offset_bytes);
    }

    /// These ranges are free no more. `true`: they were clean.
    pub(crate) fn take(&mut self, extents: &[Extent]) -> bool {
        let were_clean = extents.iter().all(|extent| space::covers(&self.clean, extent));
        self.clean = space::subtract(&self.clean, extents);
        self.noise = space::subtract(&self.noise, extents);
        were_clean
    }

    /// A tenant that came to nothing: nobody was ever served as it. `false`: there is no such tenant.
    pub fn withdraw(&mut self, name: &str) -> bool {
        let Some(placement) = self.remove(name) else { return false };
        // An encrypted disk's ranges were not zeroed.
        if placement.zeroed_bytes.is_none() && placement.key.is_none() {
            placement.extents.into_iter().for_each(|extent| space::add(&mut self.clean, extent));
        }
        true
    }

    fn remove(&mut self, name: &str) -> Option<Placement> {
        let at = self.tenants.iter().position(|placement| placement.name == name)?;
        Some(self.tenants.remove(at))
    }

    /// A tenant is deleted: its ranges wait for the wiper. `wipe`: by that method; `None`: with zeros, or, if the disk
    /// was encrypted, not at all. `false`: there is no such tenant.
    pub fn release(&mut self, name: &str, wipe: Option<WipeMethod>) -> bool {
        let Some(placement) = self.remove(name) else { return false };
        let unless_said = if placement.key.is_some() { WipeMethod::Noise } else { WipeMethod::Zeros };
        let method = wipe.unwrap_or(unless_said);
        let wiping = placement.extents.into_iter().map(|Extent { offset_bytes, size_bytes }| Wiping {
            former: placement.name.clone(),
            offset_bytes,
            size_bytes,
            method,
            passes: 0,
            wiped_bytes: 0,
        });
        self.wiping.extend(wiping);
        true
    }

    /// The wiper has come so far with the range that starts at `offset_bytes`; after its last pass it is free. `false`:
    /// no such range waits for it.
    pub fn set_wiped(&mut self, offset_bytes: u64, passes: u8, wiped_bytes: u64) -> bool {
        let found = self.wiping.iter().position(|range| range.offset_bytes == offset_bytes);
        let Some(at) = found else { return false };
        let range = &mut self.wiping[at];
        (range.passes, range.wiped_bytes) = (passes, wiped_bytes);
        if passes >= range.method.passes() {
            let range = self.wiping.remove(at);
            let ends_as = if range.method == WipeMethod::Noise { &mut self.noise } else { &mut self.clean };
            space::add(ends_as, range.extent());
        }
        true
    }

    /// So much of a tenant's disk needs no zeroing any more. `false`: there is no such tenant.
    pub fn set_zeroed(&mut self, name: &str, zeroed_bytes: u64) -> bool {
        let Some(placement) = self.find_mut(name) else { return false };
        placement.zeroed_bytes = (zeroed_bytes < placement.size_bytes()).then_some(zeroed_bytes);
        if placement.zeroed_bytes.is_none() {
            placement.grows_from_bytes = None;
        }
        true
    }

    /// A tenant's guest formats its namespace to this LBA size, or has done so if `ended`. False, and nothing changes,
    /// where the tenant is not known or the size is neither 512 nor 4096.
    pub fn format(&mut self, name: &str, lba_bytes: u32, ended: bool) -> bool {
        let found = self.find_mut(name);
        let Some(placement) = found.filter(|_| matches!(lba_bytes, 512 | 4096)) else { return false };
        placement.formatting_to_lba_bytes = (!ended).then_some(lba_bytes);
        if ended {
            placement.lba_bytes = lba_bytes;
        }
        true
    }

    /// The state of a Sanitize of a tenant's controller. `false`: there is no such tenant.
    pub fn set_sanitize(&mut self, name: &str, sanitize: Sanitize) -> bool {
        let found = self.find_mut(name);
        found.map(|placement| placement.sanitize = Some(sanitize)).is_some()
    }

    /// Every range that something is in, by its place, with what it is.
    fn taken(&self) -> Vec<(Extent, String)> {
        let of = |placement: &Placement| format!("tenant {:?}", placement.name);
        let tenants = self.tenants.iter().flat_map(|it| it.extents.iter().map(move |extent| (*extent, of(it))));
        let wiping = self.wiping.iter().map(|it| (it.extent(), format!("what deleted tenant {:?} left", it.former)));
        let pool = self.pool.iter().flat_map(|pool| pool.extents.iter().map(|it| (*it, "the pool".to_owned())));
        let mut taken: Vec<_> = tenants.chain(wiping).chain(pool).collect();
        taken.sort_by_key(|(extent, _)| extent.offset_bytes);
        taken
    }

    /// What is in the way of a range.
    pub(crate) fn who_is_at(&self, range: &Extent) -> Option<(Extent, String)> {
        self.taken().into_iter().find(|(extent, _)| extent.overlaps(range))
    }

    /// Free ranges, by their place.
    pub(crate) fn free(&self) -> Vec<Extent> {
        let mut taken: Vec<Extent> =
            self.tenants.iter().flat_map(|placement| placement.extents.iter().copied()).collect();
        taken.extend(self.wiping.iter().map(Wiping::extent));
        taken.extend(self.pool.iter().flat_map(|pool| pool.extents.iter().copied()));
        taken.sort_by_key(|extent| extent.offset_bytes);
        space::gaps(&taken, self.device.size_bytes)
    }

    /// What a layout must hold, wherever it comes from; says what is wrong.
    pub(crate) fn validate(&self) -> Result<(), String> {
        if self.version != VERSION {
            let newer = if self.version > VERSION { ": a newer evenkeel wrote it, so start that one" } else { "" };
            return Err(format!("its version is {}, and this build knows {VERSION}{newer}", self.version));
        }
        let mut names = HashSet::new();
        for placement in &self.tenants {
            if !names.insert(placement.name.as_str()) {
                return Err(format!("tenant {:?} is in it twice", placement.name));
            }
        }
        let mut taken = self.taken();
        let free = |extents: &[Extent], what: &str| extents.iter().map(|it| (*it, what.to_owned())).collect::<Vec<_>>();
        taken.extend(free(&self.clean, "what is said to be clean"));
        taken.extend(free(&self.noise, "what is said to be noise"));
        taken.sort_by_key(|(extent, _)| extent.offset_bytes);
        taken.iter().try_for_each(|(extent, what)| self.validate_extent(extent, what))?;
        if let Some([(_, one), (_, other)]) =
            taken.array_windows().find(|[(one, _), (other, _)]| one.end_bytes() > other.offset_bytes)
        {
            return Err(format!("{one} and {other} overlap"));
        }
        self.tenants.iter().try_for_each(validate_tenant)?;
        self.pool.iter().try_for_each(Pool::validate)?;
        self.validate_maps()?;
        let done = |range: &&Wiping| range.passes >= range.method.passes() || range.wiped_bytes > range.size_bytes;
        match self.wiping.iter().find(done) {
            Some(range) => Err(format!("what deleted tenant {:?} left has more wiped than there is", range.former)),
            None => Ok(()),
        }
    }

    /// A map of two disks would have one write where the other one reads.
    fn validate_maps(&self) -> Result<(), String> {
        let next = self.pool.as_ref().map_or(0, |pool| pool.next_map);
        let mut maps = HashSet::new();
        match self.maps().find(|(map, _)| *map >= next || !maps.insert(*map)) {
            Some((map, _)) => Err(format!("map {map} of the pool is in it twice, or of no pool")),
            None => Ok(()),
        }
    }

    fn validate_extent(&self, extent: &Extent, what: &str) -> Result<(), String> {
        let Extent { offset_bytes, size_bytes } = extent;
        if !offset_bytes.is_multiple_of(RANGE_STEP_BYTES) || !size_bytes.is_multiple_of(RANGE_STEP_BYTES) {
            return Err(format!("the range of {what} is not in steps of {RANGE_STEP_BYTES} bytes"));
        }
        if *size_bytes == 0 {
            return Err(format!("{what} has size_bytes = 0"));
        }
        if offset_bytes.checked_add(*size_bytes).is_none_or(|end| end > self.device.size_bytes) {
            return Err(format!("the range of {what} ends behind the device"));
        }
        Ok(())
    }

    /// What `self` has and `next` lost, or has elsewhere: a tenant's bytes, or a range that is not wiped yet.
    pub(crate) fn first_lost(&self, next: &Self) -> Option<String> {
        let released: Vec<Extent> = next.wiping.iter().map(Wiping::extent).collect();
        let is_free = |extent: &Extent| space::covers(&next.clean, extent) || space::covers(&next.noise, extent);
        let is_released = |placement: &Placement| {
            // A disk that was not served is not waited for: its noise is free at once.
            let is_noise = |extent| placement.key.is_some() && space::covers(&next.noise, extent);
            placement.extents.iter().all(|extent| released.contains(extent) || is_noise(extent))
        };
        let kept: HashMap<&str, &Placement> = next.tenants.iter().map(|it| (it.name.as_str(), it)).collect();
        let is_lost = |old: &&Placement| match kept.get(old.name.as_str()) {
            Some(kept) => !old.is_kept_in(kept),
            None => !is_released(old),
        };
        let lost = self.tenants.iter().find(is_lost);
        let unwiped = |old: &&Wiping| !released.contains(&old.extent()) && !is_free(&old.extent());
        let lost = lost.map(|old| format!("tenant {:?}", old.name));
        let is_pool_lost = self.pool.as_ref().is_some_and(|pool| !pool.is_kept_in(next.pool.as_ref()));
        let lost = lost.or_else(|| is_pool_lost.then(|| "the pool".to_owned()));
        lost.or_else(|| self.wiping.iter().find(unwiped).map(|old| format!("deleted tenant {:?}", old.former)))
    }
}

fn validate_tenant(placement: &Placement) -> Result<(), String> {
    let Placement { name, serial, lba_bytes, formatting_to_lba_bytes, zeroed_bytes, grows_from_bytes, .. } = placement;
    if serial.len() > SERIAL_CHARS || !serial.is_ascii() {
        return Err(format!(
            "tenant {name:?} has the serial number {serial:?}, not one of up to {SERIAL_CHARS} letters"
        ));
    }
    let size_bytes = placement.size_bytes();
    if placement.thin.is_some() != placement.extents.is_empty() {
        return Err(format!("tenant {name:?} has both a range and a map, or neither"));
    }
    if !matches!(lba_bytes, 512 | 4096) {
        return Err(format!("tenant {name:?} of {} has lba_bytes = {lba_bytes}", Size(size_bytes)));
    }
    if zeroed_bytes.is_some_and(|zeroed_bytes| zeroed_bytes > size_bytes) {
        return Err(format!("tenant {name:?} has zeroed_bytes above its size_bytes"));
    }
    if grows_from_bytes.is_some_and(|from| from == 0 || from > zeroed_bytes.unwrap_or(0)) {
        return Err(format!("tenant {name:?} has a grows_from_bytes that is 0 or above its zeroed_bytes"));
    }
    if !matches!(formatting_to_lba_bytes, None | Some(512 | 4096)) {
        return Err(format!("tenant {name:?} has a formatting_to_lba_bytes that is neither 512 nor 4096"));
    }
    Ok(())
}
