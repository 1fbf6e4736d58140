//! A drive's disks, and what a command changes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use api::{DiskError, Reason};
use config::{Backend, Config, Namespace};
use io_model::TenantId;
use keys::StoredKey;
use layout::{Layout, Placement, Sanitize, Wanted, WantedPool, WipeMethod, Wiping};

use crate::attachments::{At, Attachments, NamespaceOrder};
use crate::command::{Command, Effect, Effects, NewDisk, Record};
use crate::disks::{Disk, Disks, Kind, Phase, zeroing_of};
use crate::errors::{
    being_reencrypted, broken, no_room, no_room_to_grow, no_shrinking, no_such_snapshot, nobody, not_encrypted,
};
use crate::jobs::Jobs;

/// What the daemon knows of the drive itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The smallest block that it reads and writes, in bytes.
    pub block_bytes: u32,
    /// New ranges can be zeroed. Otherwise guests see what the drive holds.
    pub can_zero: bool,
}

/// The disks of one drive: a plain value. A copy is cheap.
#[derive(Debug, Clone)]
pub struct DriveState {
    config: Arc<Config>,
    layout: Option<Arc<Layout>>,
    facts: Facts,
    disks: Disks,
    attachments: Attachments,
    jobs: Jobs,
}

impl DriveState {
    /// No disk is served yet. `layout`: as recorded. `None`: the drive has none.
    pub fn new(config: Config, layout: Option<Layout>, facts: Facts) -> Self {
        let mut state = Self {
            config: Arc::new(config),
            layout: layout.map(Arc::new),
            facts,
            disks: Disks::default(),
            attachments: Attachments::default(),
            jobs: Jobs::default(),
        };
        state.free_noise();
        state
    }

    /// The file's view of the drive, with the disks that the API made.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// As [`config`](Self::config), to be kept while the state changes.
    pub fn shared_config(&self) -> Arc<Config> {
        Arc::clone(&self.config)
    }

    /// The layout as recorded.
    pub fn layout(&self) -> Option<&Layout> {
        self.layout.as_deref()
    }

    /// What the daemon knows of the drive itself.
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// The disks that are there.
    pub fn disks(&self) -> &Disks {
        &self.disks
    }

    /// Which controllers have which namespaces.
    pub fn attachments(&self) -> &Attachments {
        &self.attachments
    }

    /// Ranges to zero and wipe.
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Where a disk lies on the drive, served or not.
    pub fn placement(&self, name: &str) -> Option<&Placement> {
        self.layout()?.find(name)
    }

    /// The next range to wipe. `None`: there is none that may be written now.
    pub fn next_wipe(&self) -> Option<&Wiping> {
        self.jobs.next(self.layout())
    }

    /// The disks that the API made, each with its section.
    pub fn made_disks(&self) -> impl Iterator<Item = (&str, &str)> {
        self.layout().into_iter().flat_map(Layout::settings)
    }

    /// The section of a disk that the API made.
    pub fn section_of(&self, name: &str) -> Option<&str> {
        self.made_disks().find(|(of, _)| *of == name).map(|(_, section)| section)
    }

    /// Whether there is a disk of that name, served or not.
    pub fn has_disk(&self, name: &str) -> bool {
        self.disks.find(name).is_some() || self.placement(name).is_some()
    }

    /// Sections of namespaces that the API made and that are attached to tenants which are not `is_there`, without
    /// those tenants.
    pub fn detached_sections(&self, is_there: impl Fn(&str) -> bool) -> Vec<(String, String)> {
        self.made_disks()
            .filter_map(|(of, section)| Some((of.to_owned(), config::detached(section, &is_there)?)))
            .collect()
    }

    /// Bytes that would be free with the disks of `config`.
    pub fn free_bytes_with(&self, config: &Config) -> u64 {
        let placed: HashSet<&str> =
            self.layout().into_iter().flat_map(Layout::placements).map(|it| it.name.as_str()).collect();
        let free = self.layout().map_or(0, Layout::free_bytes);
        let new = config.disks().filter(|(name, ..)| !placed.contains(name));
        new.fold(free, |free, (_, size, _)| free.saturating_sub(size.0))
    }

    /// The layout with one more disk. `None`: the drive has no layout.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn placed(&self, disk: &NewDisk) -> Result<Option<Layout>, DiskError> {
        self.planned(Some(disk), self.config.device.pool)
    }

    fn planned(&self, new: Option<&NewDisk>, pool: Option<WantedPool>) -> Result<Option<Layout>, DiskError> {
        let Some(recorded) = self.layout() else { return Ok(None) };
        let names: HashSet<&str> = self.disks.iter().map(|(_, disk)| disk.name.as_str()).collect();
        let there = recorded.placements().iter().filter(|it| names.contains(it.name.as_str()));
        let there = there.map(|it| Wanted {
            name: &it.name,
            size: io_model::units::Size(it.size_bytes()),
            offset: None,
            lba_bytes: it.lba_bytes,
            is_thin: it.thin.is_some(),
        });
        let new = new.map(|NewDisk { name, size, offset, lba_bytes, is_thin, .. }| {
            let (size, offset, lba_bytes, is_thin) = (*size, *offset, *lba_bytes, *is_thin);
            Wanted { name, size, offset, lba_bytes, is_thin }
        });
        let is_there = |it: &Wanted<'_>| new.as_ref().is_none_or(|new| new.name != it.name);
        let wanted: Vec<Wanted<'_>> = there.filter(is_there).chain(new).collect();
        let planned = Layout::plan(&wanted, pool, recorded.device(), Some(recorded));
        planned.map(|(layout, _)| Some(layout)).map_err(|found| no_room(&found))
    }

    /// Whether a command may change the layout. If not, it returns no record.
    pub fn may_record(&self, command: &Command) -> bool {
        match command {
            Command::Create { disk, .. } => self.placement(&disk.name).is_none(),
            Command::Left(_) | Command::Detached(_) => {
                self.layout().is_some_and(|it| it.wiping().iter().any(|range| range.method == WipeMethod::Noise))
            }
            Command::Placed(_) | Command::Remove(_) | Command::Take(_) => false,
            _ => true,
        }
    }

    /// Applies a command.
    ///
    /// # Errors
    /// The command makes no sense now. Nothing has changed.
    pub fn apply(&mut self, command: Command) -> Result<Effects, DiskError> {
        let frees = matches!(command, Command::Delete { .. } | Command::Left(_) | Command::Detached(_));
        let effects = self.carry_out(command)?;
        if frees && self.free_noise() { Ok(self.recorded(effects.then)) } else { Ok(effects) }
    }

    /// Ranges of deleted encrypted disks are free as soon as nothing writes to them.
    fn free_noise(&mut self) -> bool {
        let free: Vec<u64> = self.jobs.noise(self.layout()).collect();
        for offset_bytes in &free {
            self.layout_mut().map(|layout| layout.set_wiped(*offset_bytes, WipeMethod::Noise.passes(), 0));
        }
        !free.is_empty()
    }

    fn carry_out(&mut self, command: Command) -> Result<Effects, DiskError> {
        match command {
            Command::Create { id, disk, section } => self.create(id, disk, section.as_deref()),
            Command::Placed(id) => self.pollers_have(id),
            Command::Withdraw(id) => self.withdraw(id),
            Command::Remove(id) => self.remove(id).map(Effects::only),
            Command::Change { name, section, size_bytes } => self.change(&name, section.as_deref(), size_bytes),
            Command::Delete { name, wipe } => self.delete(&name, wipe),
            Command::ReplaceKeys(keys) => self.replace_keys(keys),
            Command::Snapshot(snapshots) => {
                let layout = self.layout_mut().ok_or_else(broken)?;
                let are_added = snapshots.into_iter().all(|(disk, snapshot)| layout.add_snapshot(&disk, snapshot));
                if are_added { Ok(self.recorded(Vec::new())) } else { Err(broken()) }
            }
            Command::DeleteSnapshot { disk, snapshot } => {
                let removed = self.layout_mut().and_then(|layout| layout.remove_snapshot(&disk, &snapshot));
                let map = removed.ok_or_else(|| no_such_snapshot(&disk, &snapshot))?;
                Ok(self.recorded(vec![Effect::RemoveMaps(vec![map])]))
            }
            Command::RenewPool { former, id } => {
                self.layout_mut().ok_or_else(broken)?.renew_pool(former, id);
                Ok(self.recorded(Vec::new()))
            }
            Command::PoolRenewed => {
                self.layout_mut().ok_or_else(broken)?.end_renewal();
                Ok(self.recorded(Vec::new()))
            }
            Command::SetPool(wanted) => self.set_pool(wanted),
            Command::Declare(name) => self.declare(&name),
            Command::Take(config) => Ok(Effects::only(self.take(*config))),
            Command::Left(id) => Ok(Effects::only(self.left(id))),
            Command::Detached(at) => Ok(Effects::only(self.detached(at))),
            Command::Zeroed { id, result, is_over } => Ok(self.zeroed(id, result, is_over)),
            Command::Wiped { offset_bytes, result } => Ok(self.wiped(offset_bytes, result)),
            Command::Format { id, nsid, lba_bytes, has_ended } => self.format(id, nsid, lba_bytes, has_ended),
            Command::Sanitize { id, sanitize, nsids } => self.sanitize(id, sanitize, nsids),
        }
    }

    /// The layout, to change it.
    fn layout_mut(&mut self) -> Option<&mut Layout> {
        self.layout.as_mut().map(Arc::make_mut)
    }

    /// Record the present layout, if the drive has one.
    fn recorded(&self, then: Vec<Effect>) -> Effects {
        Effects { record: self.layout().cloned().map(Record::Keep), then }
    }

    fn set_pool(&mut self, wanted: Option<WantedPool>) -> Result<Effects, DiskError> {
        let known = self.layout().and_then(Layout::pool).map(|pool| pool.extents.len());
        let mut then = Vec::new();
        if let Some(mut layout) = self.planned(None, wanted)? {
            let more = known.map(|known| layout.take_new_ranges(known)).unwrap_or_default();
            then.extend((!more.is_empty()).then_some(Effect::ExtendPool(more)));
            self.layout = Some(Arc::new(layout));
        }
        Arc::make_mut(&mut self.config).device.pool = wanted;
        Ok(self.recorded(then))
    }

    fn create(&mut self, id: TenantId, disk: NewDisk, section: Option<&str>) -> Result<Effects, DiskError> {
        if self.disks.find(&disk.name).is_some() {
            let title = format!("there is a disk {:?} already", disk.name);
            return Err(DiskError::new(Reason::NameTaken, title, "choose another name, or remove that one first"));
        }
        let is_new = self.layout.is_some() && self.placement(&disk.name).is_none();
        if is_new && let Some(mut layout) = self.placed(&disk)? {
            if !self.facts.can_zero {
                layout.accept_content();
            }
            if let Some(section) = section {
                layout.set_settings(&disk.name, section);
            }
            if let Some(key) = &disk.key {
                layout.set_key(&disk.name, key.clone());
            }
            self.layout = Some(Arc::new(layout));
        }
        let NewDisk { name, kind, .. } = disk;
        let is_tenant = matches!(kind, Kind::Tenant { .. });
        let (needs_zeroing, phase) = zeroing_of(self.placement(&name));
        let phase = if is_tenant { Phase::Coming } else { phase };
        self.disks.insert(id, Disk { name, kind, phase });
        let mut then = Vec::new();
        if !is_tenant {
            self.begin_zeroing(id, needs_zeroing, &mut then);
            then.extend(self.settle());
        }
        Ok(if is_new { self.recorded(then) } else { Effects::only(then) })
    }

    fn begin_zeroing(&mut self, id: TenantId, is_needed: bool, then: &mut Vec<Effect>) {
        if is_needed {
            self.jobs.begin_zeroing(id);
            then.push(Effect::Zero(id));
        }
    }

    fn pollers_have(&mut self, id: TenantId) -> Result<Effects, DiskError> {
        let name = self.disks.get(id).filter(|disk| disk.phase == Phase::Coming).map(|disk| disk.name.clone());
        let name = name.ok_or_else(|| nobody(id))?;
        let (needs_zeroing, phase) = zeroing_of(self.placement(&name));
        if let Some(disk) = self.disks.get_mut(id) {
            disk.phase = phase;
        }
        // Its first client finds its namespaces there.
        let mut then = self.settle();
        self.begin_zeroing(id, needs_zeroing, &mut then);
        then.extend((phase == Phase::Served).then_some(Effect::Connect(id)));
        Ok(Effects::only(then))
    }

    fn withdraw(&mut self, id: TenantId) -> Result<Effects, DiskError> {
        let name = self.disks.get(id).map(|disk| disk.name.clone()).ok_or_else(|| nobody(id))?;
        let maps = self.placement(&name).map(maps_of).unwrap_or_default();
        let then = self.remove(id)?;
        self.jobs.hold(id, Vec::new(), maps);
        // The zeroing may write there for a while: the range stays reserved, and the next start zeroes the rest.
        let is_written = self.jobs.is_zeroed(id);
        let is_withdrawn = !is_written && self.layout_mut().is_some_and(|layout| layout.withdraw(&name));
        let record = self.layout().filter(|_| is_withdrawn).cloned().map(Record::Withdraw);
        Ok(Effects { record, then })
    }

    fn remove(&mut self, id: TenantId) -> Result<Vec<Effect>, DiskError> {
        let disk = self.disks.get_mut(id).filter(|disk| disk.phase != Phase::Leaving).ok_or_else(|| nobody(id))?;
        disk.phase = Phase::Leaving;
        let mut then = Vec::new();
        then.extend(self.jobs.is_zeroed(id).then_some(Effect::StopZeroing(id)));
        if disk.namespace().is_none() {
            then.push(Effect::Leave(id));
            return Ok(then);
        }
        then.extend(self.settle());
        self.forget_deleted(id, &mut then);
        Ok(then)
    }

    fn change(&mut self, name: &str, section: Option<&str>, size_bytes: u64) -> Result<Effects, DiskError> {
        let had_bytes = self.placement(name).map_or(size_bytes, Placement::size_bytes);
        if size_bytes < had_bytes {
            return Err(no_shrinking(name, had_bytes));
        }
        let is_changing = |name| self.placement(name).is_some_and(Placement::is_reencrypted);
        if size_bytes > had_bytes && is_changing(name) {
            return Err(being_reencrypted(name));
        }
        let can_zero = self.facts.can_zero;
        let Some(mut layout) = self.layout().cloned() else { return Ok(Effects::default()) };
        if size_bytes > had_bytes {
            let grown = layout.grow(name, size_bytes - had_bytes);
            grown.map_err(|most| no_room_to_grow(name, had_bytes, most))?;
        }
        if !can_zero {
            layout.accept_content();
        }
        if let Some(section) = section {
            layout.set_settings(name, section);
        }
        let is_changed = self.layout() != Some(&layout);
        self.layout = Some(Arc::new(layout));
        let mut then = Vec::new();
        if let Some(id) = self.disks.find(name).filter(|_| size_bytes > had_bytes) {
            let needs_zeroing = self.placement(name).is_some_and(|it| it.zeroed_bytes.is_some());
            self.begin_zeroing(id, needs_zeroing, &mut then);
            if !needs_zeroing {
                self.show_size(id, &mut then);
            }
        }
        Ok(if is_changed { self.recorded(then) } else { Effects::only(then) })
    }

    /// Guests see the size that a disk has now.
    fn show_size(&self, id: TenantId, then: &mut Vec<Effect>) {
        if self.disks.get(id).is_some_and(|disk| disk.namespace().is_none()) {
            then.push(Effect::ShowSize(id));
        }
        let grow = |(controller, nsid)| Effect::Order(controller, NamespaceOrder::Grow(nsid, id));
        then.extend(self.attachments.of(id).map(grow));
    }

    fn delete(&mut self, name: &str, wipe: Option<WipeMethod>) -> Result<Effects, DiskError> {
        let placement = self.placement(name).ok_or_else(|| DiskError::no_such_disk(name))?;
        let offsets = placement.extents.iter().map(|extent| extent.offset_bytes).collect();
        let maps = maps_of(placement);
        let detached = self.detached_sections(|tenant| tenant != name);
        // Where nothing is zeroed later, noise would reach the next disk.
        let wipe = wipe.or((!self.facts.can_zero).then_some(WipeMethod::Zeros));
        let is_image = matches!(self.config.device.backend, Backend::Directory { .. });
        let layout = self.layout_mut().ok_or_else(broken)?;
        match is_image {
            // Its file stays as it is: the range is that file, tables and all.
            true => layout.withdraw(name),
            false => layout.release(name, wipe),
        };
        for (of, section) in &detached {
            layout.set_settings(of, section);
        }
        let mut then = Vec::new();
        match self.disks.find(name) {
            Some(id) => {
                self.jobs.hold(id, offsets, maps);
                if self.disks.get(id).is_some_and(|disk| disk.phase != Phase::Leaving) {
                    then = self.remove(id)?;
                }
            }
            None => then.extend([Effect::Wipe, Effect::RemoveMaps(maps)]),
        }
        Ok(self.recorded(then))
    }

    fn replace_keys(&mut self, keys: Vec<(String, StoredKey)>) -> Result<Effects, DiskError> {
        let is_plain = |name: &String| self.placement(name).is_none_or(|placement| placement.key.is_none());
        if let Some((name, _)) = keys.iter().find(|(name, _)| is_plain(name)) {
            return Err(not_encrypted(name));
        }
        let layout = self.layout_mut().ok_or_else(broken)?;
        for (name, key) in keys {
            layout.replace_key(&name, key);
        }
        Ok(self.recorded(Vec::new()))
    }

    fn declare(&mut self, name: &str) -> Result<Effects, DiskError> {
        let is_declared = self.layout_mut().is_some_and(|layout| layout.declare(name));
        Ok(if is_declared { self.recorded(Vec::new()) } else { Effects::default() })
    }

    fn take(&mut self, config: Config) -> Vec<Effect> {
        let named: HashMap<&str, &Namespace> = config.namespaces.iter().map(|it| (it.name.as_str(), it)).collect();
        for disk in self.disks.values_mut() {
            let Some(now) = named.get(disk.name.as_str()) else { continue };
            if let Kind::Namespace(namespace) = &mut disk.kind {
                **namespace = (*now).clone();
            }
        }
        self.config = Arc::new(config);
        self.settle()
    }

    fn left(&mut self, id: TenantId) -> Vec<Effect> {
        if self.disks.remove(id).is_none() {
            return Vec::new();
        }
        let mut then = Vec::new();
        for at in self.attachments.on(id) {
            then.extend(self.detached(at));
        }
        let maps = self.jobs.let_go_maps(id);
        then.extend((!maps.is_empty()).then_some(Effect::RemoveMaps(maps)));
        then.extend(self.jobs.let_go(id).then_some(Effect::Wipe));
        then
    }

    fn detached(&mut self, at: At) -> Vec<Effect> {
        let Some(namespace) = self.attachments.remove(at) else { return Vec::new() };
        let mut then = Vec::new();
        self.forget_deleted(namespace, &mut then);
        then.extend(self.settle());
        then.push(Effect::TellDetached(at));
        then
    }

    /// A deleted namespace is gone once no controller has it.
    fn forget_deleted(&mut self, id: TenantId, then: &mut Vec<Effect>) {
        let is_leaving = self.disks.get(id).is_some_and(|disk| disk.phase == Phase::Leaving);
        if is_leaving && self.attachments.holders(id) == 0 {
            self.disks.remove(id);
            then.extend(self.jobs.let_go(id).then_some(Effect::Wipe));
        }
    }

    fn zeroed(&mut self, id: TenantId, result: Result<u64, String>, is_over: bool) -> Effects {
        if is_over {
            self.jobs.end_zeroing(id);
        }
        let disk = self.disks.get(id).filter(|disk| disk.phase != Phase::Leaving).cloned();
        let Some(Disk { name, phase, .. }) = disk else {
            let is_gone = self.disks.get(id).is_none();
            let may_wipe = is_gone && self.jobs.let_go(id);
            return Effects::only(may_wipe.then_some(Effect::Wipe).into_iter().collect());
        };
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(why) => {
                if phase == Phase::Zeroing {
                    self.set_phase(id, Phase::Failed);
                }
                return Effects::only(vec![Effect::TellNotZeroed(id, why)]);
            }
        };
        if let Some(layout) = self.layout_mut() {
            layout.set_zeroed(&name, bytes);
        }
        let mut then = Vec::new();
        if self.placement(&name).is_none_or(|it| it.zeroed_bytes.is_none()) {
            then.push(Effect::TellZeroed(id));
            if phase == Phase::Zeroing {
                self.set_phase(id, Phase::Served);
                match self.disks.get(id).and_then(Disk::namespace) {
                    Some(_) => then.extend(self.settle()),
                    None => then.push(Effect::Connect(id)),
                }
            } else {
                self.show_size(id, &mut then);
            }
        }
        self.recorded(then)
    }

    fn set_phase(&mut self, id: TenantId, phase: Phase) {
        if let Some(disk) = self.disks.get_mut(id) {
            disk.phase = phase;
        }
    }

    fn wiped(&mut self, offset_bytes: u64, result: Result<(u8, u64), String>) -> Effects {
        let then = vec![Effect::Wipe];
        match result {
            Ok((passes, bytes)) => {
                let is_known = self.layout_mut().is_some_and(|it| it.set_wiped(offset_bytes, passes, bytes));
                let is_over =
                    !self.layout().is_some_and(|it| it.wiping().iter().any(|it| it.offset_bytes == offset_bytes));
                let then = if is_over { then } else { Vec::new() };
                if is_known { self.recorded(then) } else { Effects::default() }
            }
            Err(why) => {
                self.jobs.fail(offset_bytes, why);
                Effects::only(then)
            }
        }
    }

    fn format(&mut self, id: TenantId, nsid: u32, lba_bytes: u32, has_ended: bool) -> Result<Effects, DiskError> {
        let refused = |why: &str| DiskError::new(Reason::Formatting, why, "format it again");
        let namespace = self.attachments.at(id, nsid);
        if namespace.is_none() && nsid != OWN_NSID {
            return Err(refused("it was detached meanwhile"));
        }
        // Another controller got it while the guest began.
        if !has_ended && namespace.is_some_and(|namespace| self.attachments.holders(namespace) > 1) {
            return Err(refused("another tenant has it too"));
        }
        let name = self.disks.get(namespace.unwrap_or(id)).map(|disk| disk.name.clone()).ok_or_else(|| nobody(id))?;
        if self.placement(&name).is_some_and(Placement::is_reencrypted) {
            return Err(being_reencrypted(&name));
        }
        if !self.layout_mut().is_some_and(|layout| layout.format(&name, lba_bytes, has_ended)) {
            return Err(refused("its blocks can have 512 or 4096 bytes"));
        }
        Ok(self.recorded(Vec::new()))
    }

    /// Namespaces that were detached meanwhile are not erased.
    fn sanitize(&mut self, id: TenantId, sanitize: Sanitize, nsids: u32) -> Result<Effects, DiskError> {
        let own = self.disks.get(id).map(|disk| disk.name.clone()).ok_or_else(|| nobody(id))?;
        let mut names = Vec::new();
        for nsid in (1..=u32::BITS).filter(|nsid| nsids >> (nsid - 1) & 1 != 0) {
            let namespace = self.attachments.at(id, nsid);
            if namespace.is_some_and(|namespace| self.attachments.holders(namespace) > 1) {
                let title = format!("another tenant has namespace {nsid} of {own:?} too");
                return Err(DiskError::new(Reason::Formatting, title, "sanitize again once it is detached there"));
            }
            let disk = if nsid == OWN_NSID { Some(id) } else { namespace };
            names.extend(disk.and_then(|disk| self.disks.get(disk)).map(|disk| disk.name.clone()));
        }
        let is_changing = |name: &&String| self.placement(name).is_some_and(Placement::is_reencrypted);
        if let Some(name) = names.iter().find(is_changing) {
            return Err(being_reencrypted(name));
        }
        let layout = self.layout_mut().ok_or_else(broken)?;
        for name in &names {
            let lba_bytes = layout.placements().iter().find(|it| it.name == *name).map_or(0, |it| it.lba_bytes);
            layout.format(name, lba_bytes, false);
        }
        layout.set_sanitize(&own, sanitize);
        Ok(self.recorded(Vec::new()))
    }

    fn settle(&mut self) -> Vec<Effect> {
        let orders = self.attachments.settle(&self.disks);
        orders.into_iter().map(|(controller, order)| Effect::Order(controller, order)).collect()
    }
}

/// The maps that a thin disk and its snapshots have.
fn maps_of(placement: &Placement) -> Vec<u32> {
    let thin = placement.thin.iter();
    thin.flat_map(|thin| thin.snapshots.iter().map(|snapshot| snapshot.map).chain([thin.map])).collect()
}

/// A tenant's own disk, on its controller.
const OWN_NSID: u32 = 1;
