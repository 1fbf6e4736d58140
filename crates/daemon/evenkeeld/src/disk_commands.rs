//! Disks that come and change while others run, as the API asks for them.
//!
//! Each change is checked as if it stood in the configuration file, judged beside everybody's promises, made durable in
//! the layout, and then applied. A kill before it is durable leaves what was; a kill after it, what is to be.

use std::sync::Arc;

use api::{
    Ceilings, Deletion, Disk, DiskPatch, DiskSpec, DiskState, DiskVerdict, Drive, DriveRemoval, Dropped, EventKind,
    Exported, Key, Rewrapped, Wipe,
};
use config::{Config, Encryption, Missing, Sections, TENANTS_MAX, Tenant};
use io_model::TenantId;
use keys::{HostKeys, StoredKey};
use layout::{Placement, WipeMethod};
use policy::Limits;
use promises::admission::Admission;
use promises::placing::{Preference, refuse_unjudged};

use state::errors::{being_deleted, broken, invalid, name_taken, no_such_tenant, not_writable};
use state::{Command as StateCommand, Proposal};

use crate::error_texts::{
    disk_error, disk_missing, drive_missing, grows_later, no_such_drive, promise_not_kept, unjudged,
};
use crate::file_apply::{keys, of_front_end};
use crate::owner::Owner;
use crate::served_drive::{Live, ServedDrive, terms_in_words};
use api::{DiskError, Reason};
use observe::snapshot::health_of;
use observe::verdict_record::OwnVerdict;
use runtime::command::{Command, DiskCommand};
use runtime::front_end::Reached;
use runtime::happening::DriveId;

impl Owner {
    /// Does what the API asks for.
    pub fn apply_to_disks(&mut self, command: DiskCommand) {
        match command {
            DiskCommand::List(of_user, reply) => {
                reply(self.drives.values().flat_map(|drive| drive.describe_disks(of_user)).collect());
            }
            DiskCommand::Create(disk, reply) => {
                let created = self.create_disk(&disk);
                match self.missing_for(&created) {
                    None => reply(created),
                    Some(missing) => {
                        self.carry_out_after(missing, Command::Disk(DiskCommand::Create(disk, reply)));
                    }
                }
            }
            DiskCommand::Change(name, change, reply) => {
                let changed = match self.find_drive(&name) {
                    Some(drive) => drive.change_disk(&name, &change),
                    None => Err(self.no_such_disk(&name)),
                };
                match self.missing_for(&changed) {
                    None => reply(changed),
                    Some(missing) => {
                        self.carry_out_after(missing, Command::Disk(DiskCommand::Change(name, change, reply)));
                    }
                }
            }
            DiskCommand::Attach(name, attach, reply) => {
                let attached = match (self.refuse_elsewhere(&name, &attach.tenant), self.find_drive(&name)) {
                    (Err(problem), _) => Err(problem),
                    (Ok(()), Some(drive)) => drive.attach_namespace(&name, &attach),
                    (Ok(()), None) => Err(self.no_such_disk(&name)),
                };
                reply(attached);
            }
            DiskCommand::Detach(name, tenant, reply) => match self.find_drive(&name) {
                Some(drive) => drive.detach_namespace(name, &tenant, reply),
                None => reply(Err(self.no_such_disk(&name))),
            },
            DiskCommand::Delete(name, deletion, reply) => {
                // As good as the first time.
                let left = |drive: &ServedDrive| drive.operations().filter(|it| it.disk == name).collect::<Vec<_>>();
                let is_gone = self.drives.values().any(|drive| !left(drive).is_empty());
                let deleted = match self.find_drive(&name) {
                    Some(drive) => drive.delete_disk(&name, deletion),
                    None => is_gone.then_some(()).ok_or_else(|| self.no_such_disk(&name)),
                };
                match self.missing_for(&deleted) {
                    None => reply(deleted.map(|()| self.drives.values().flat_map(left).collect())),
                    Some(missing) => {
                        self.carry_out_after(missing, Command::Disk(DiskCommand::Delete(name, deletion, reply)));
                    }
                }
            }
            DiskCommand::Erase(name, erasure, reply) => {
                let stopped = self.find_drive(&name).map_or(Ok(()), |drive| drive.stop_reencryption_first(&name));
                match (self.missing_for(&stopped), self.find_drive(&name)) {
                    (Some(missing), _) => {
                        self.carry_out_after(missing, Command::Disk(DiskCommand::Erase(name, erasure, reply)));
                    }
                    (None, Some(drive)) => drive.erase_disk(&name, erasure, reply),
                    (None, None) => reply(Err(self.no_such_disk(&name))),
                }
            }
            DiskCommand::Reencrypt(name, reply) => reply(match self.find_drive(&name) {
                Some(drive) => drive.reencrypt_disk(&name),
                None => Err(self.no_such_disk(&name)),
            }),
            DiskCommand::Snapshot(wanted, reply) => match self.drive_of_all(&wanted) {
                Ok(drive) => drive.make_snapshots(wanted, reply),
                Err(error) => reply(Err(error)),
            },
            DiskCommand::RollBack(name, snapshot, reply) => match self.find_drive(&name) {
                Some(drive) => drive.roll_back(&name, &snapshot, reply),
                None => reply(Err(self.no_such_disk(&name))),
            },
            DiskCommand::DeleteSnapshot(name, snapshot, reply) => reply(match self.find_drive(&name) {
                Some(drive) => drive.delete_snapshot(&name, &snapshot),
                None => Err(self.no_such_disk(&name)),
            }),
            DiskCommand::Unlock(name, handed, reply) => match self.find_drive(&name) {
                Some(drive) => drive.unlock_disk(&name, handed, reply),
                None => reply(Err(self.no_such_disk(&name))),
            },
            DiskCommand::HostKeys(text, reply) => reply(self.take_host_keys(&text)),
            DiskCommand::Operations(reply) => reply(self.drives.values().flat_map(ServedDrive::operations).collect()),
            DiskCommand::Drives(reply) => reply(self.describe_drives()),
            DiskCommand::AddDrive(drive, handed_over, reply) => self.begin_to_add_drive(drive, handed_over, reply),
            DiskCommand::DriveOpened(drive, opened, reply) => {
                reply(opened.and_then(|opened| self.add_drive(&drive, opened)));
            }
            DiskCommand::RemoveDrive(name, DriveRemoval { force }, reply) => {
                let removed = self.remove_drive(&name, force);
                reply(removed.map(|()| self.describe_drives()));
            }
            DiskCommand::Apply(file, reply) => {
                let applied = self.apply_file(&file);
                match self.missing_for(&applied) {
                    None => reply(applied),
                    Some(missing) => {
                        self.carry_out_after(missing, Command::Disk(DiskCommand::Apply(file, reply)));
                    }
                }
            }
            DiskCommand::Export(reply) => reply(self.export()),
        }
    }

    fn take_host_keys(&mut self, text: &str) -> Result<Rewrapped, DiskError> {
        let host = HostKeys::parse(text.as_bytes()).map(Arc::new).ok_or_else(|| {
            let title = "no host key: a file has lines of 64 hexadecimal digits, the present key first";
            DiskError::new(Reason::Invalid, title, "`openssl rand -hex 32` makes a key")
        })?;
        // Of all drives before any changes.
        self.drives.values().try_for_each(|drive| drive.refuse_host_keys(&host))?;
        let mut disks = 0;
        for drive in self.drives.values_mut() {
            disks += drive.take_host_keys(&host)?;
        }
        let host_key = host.present().id().to_string();
        self.common.disk_keys = self.common.disk_keys.with_host_keys(host);
        Ok(Rewrapped { disks, host_key })
    }

    /// The drive that has a disk of that name, served or not.
    pub(crate) fn find_drive(&mut self, name: &str) -> Option<&mut ServedDrive> {
        self.drives.values_mut().find(|drive| drive.has_disk(name))
    }

    /// A namespace and its tenants are on one drive.
    fn refuse_elsewhere(&self, namespace: &str, tenant: &str) -> Result<(), DiskError> {
        let drive_of = |name: &str| {
            let found = self.drives.values().find(|drive| drive.find_disk(name).is_some());
            found.map(|drive| drive.config().device.name.as_str())
        };
        match (drive_of(namespace), drive_of(tenant)) {
            (Some(here), Some(there)) if here != there => {
                let title = format!("{namespace:?} is on drive {here:?}, and tenant {tenant:?} on {there:?}");
                let remedy = format!("make it a namespace there: `evenkeel disk create NAME --attach {tenant}`");
                Err(DiskError::new(Reason::OtherDrive, title, remedy))
            }
            _ => Ok(()),
        }
    }

    fn describe_drives(&self) -> Vec<Drive> {
        let absent = |it: &Missing| Drive {
            failed: Some(it.why()),
            disks_not_served: it.disks().into_iter().map(str::to_owned).collect(),
            ..without_room(&it.config)
        };
        let missing = self.absent.drives.iter().map(absent);
        self.drives.values().map(ServedDrive::describe).chain(missing).collect()
    }

    /// What is served, as a configuration file. Every tenant names its drive, where there are several. Disks say how
    /// they are encrypted, where the file says something else.
    fn export(&self) -> Result<Exported, DiskError> {
        let Some(first) = self.drives.values().next() else { return Err(broken()) };
        let mut sections = Sections::of(first.config()).map_err(|errors| invalid(&errors))?;
        sections.extend_drives(self.added.sections());
        for drive in self.drives.values() {
            drive.state.made_disks().for_each(|(_, settings)| sections.extend(settings));
            drive.other_encryptions().for_each(|(name, encryption)| sections.set_encryption(name, encryption));
        }
        for missing in &self.absent.drives {
            missing.made().for_each(|(_, settings)| sections.extend(settings));
        }
        if self.drives.len() + self.absent.drives.len() > 1 {
            for drive in self.drives.values() {
                drive.config().disks().for_each(|(name, ..)| sections.set_drive(name, &drive.config().device.name));
            }
            for missing in &self.absent.drives {
                missing.disks().into_iter().for_each(|name| sections.set_drive(name, missing.name()));
            }
        }
        Ok(Exported { text: sections.to_text() })
    }

    /// `true`: it is new.
    fn create_disk(&mut self, disk: &DiskSpec) -> Result<(Disk, bool), DiskError> {
        if let Some(tenant) = &disk.attach {
            return self.create_namespace(disk, tenant);
        }
        if disk.nsid.is_some() {
            let title = "nsid is only for a namespace, and no tenant to attach it to is given";
            return Err(DiskError::new(Reason::Invalid, title, "name the tenant to attach it to, or leave nsid out"));
        }
        if let Some(of) = &disk.clone_of {
            return self.clone_disk(disk, of);
        }
        let section = disk.to_section().map_err(not_writable)?;
        if let Some(drive) = self.find_drive(&disk.name) {
            let id = drive.state.same_disk(&disk.name, &section)?;
            return Ok((drive.describe_disk(id).ok_or_else(broken)?, false));
        }
        self.refuse_absent_name(&disk.name)?;
        if let Some(missing) = disk.drive.as_deref().and_then(|name| self.absent.drive(name)) {
            return Err(drive_missing(missing));
        }
        if self.drives.values().map(|drive| drive.tenants.len()).sum::<usize>() >= TENANTS_MAX {
            let title = format!("there are {TENANTS_MAX} disks already, the most that one daemon serves");
            return Err(DiskError::new(Reason::TooMany, title, "delete one, or start another daemon"));
        }
        let (id, proposal) = self.choose_drive(disk, &section)?;
        let drive = self.drives.get_mut(&id).ok_or_else(broken)?;
        Ok((drive.create_disk(proposal, None)?, true))
    }

    /// A namespace goes to the drive of the tenant that is to have it. `true`: it is new.
    fn create_namespace(&mut self, disk: &DiskSpec, tenant: &str) -> Result<(Disk, bool), DiskError> {
        self.refuse_absent_name(&disk.name)?;
        let is_elsewhere = |drive: &ServedDrive| drive.find_tenant(tenant).is_none() && drive.has_disk(&disk.name);
        if self.drives.values().any(is_elsewhere) {
            return Err(name_taken(&disk.name));
        }
        let drive = self.drives.values_mut().find(|drive| drive.find_tenant(tenant).is_some());
        if let (None, Some(why)) = (&drive, self.absent.why(tenant)) {
            return Err(disk_missing(tenant, &why));
        }
        drive.ok_or_else(|| no_such_tenant(tenant))?.create_namespace(disk, tenant)
    }

    /// Once its drive is back, there would be two disks of that name.
    pub(crate) fn refuse_absent_name(&self, name: &str) -> Result<(), DiskError> {
        let is_there = self.drives.values().any(|drive| drive.has_disk(name));
        let Some(why) = self.absent.why(name).filter(|_| !is_there) else { return Ok(()) };
        let title = format!("there is another disk {name:?} already, which is not served: {why}");
        Err(DiskError::new(Reason::NameTaken, title, "choose another name, or restore that drive"))
    }

    pub(crate) fn no_such_disk(&self, name: &str) -> DiskError {
        self.absent.why(name).map_or_else(|| DiskError::no_such_disk(name), |why| disk_missing(name, &why))
    }

    /// The drive that a new disk goes to, and what comes of the disk there.
    pub(crate) fn choose_drive(&self, disk: &DiskSpec, section: &str) -> Result<(DriveId, Proposal), DiskError> {
        let is_wanted =
            |drive: &ServedDrive| disk.drive.as_ref().is_none_or(|name| *name == drive.config().device.name);
        let wanted: Vec<_> = self.drives.iter().filter(|(_, drive)| is_wanted(drive)).collect();
        let mut best: Option<(Preference, DriveId, Proposal)> = None;
        let mut refused = Vec::new();
        for (id, drive) in &wanted {
            let fits = drive.state.refuse_too_large(&disk.name, &disk.size, disk.thin == Some(true));
            let with_it = fits.and_then(|()| drive.judge(drive.state.propose(&disk.name, section.to_owned())?));
            let judged = with_it.and_then(|proposal| {
                let others = wanted.iter().map(|(_, drive)| drive.config());
                refuse_unjudged(&proposal.tenant, &proposal.config, others).map_err(unjudged)?;
                let placed = drive.state.placed(&(&proposal.tenant).into())?;
                let free_bytes = placed.map_or(0, |layout| layout.free_bytes());
                Ok((Preference::of(&proposal.config, free_bytes), proposal))
            });
            match judged {
                Ok((found, proposal)) if best.as_ref().is_none_or(|best| found < best.0) => {
                    best = Some((found, **id, proposal));
                }
                Ok(_) => {}
                Err(problem) => refused.push((drive.config().device.name.clone(), problem)),
            }
        }
        if self.common.forecasts.is_missing() {
            return Err(unjudged("there is no forecast of its promises yet"));
        }
        // What is wrong with the disk itself is wrong everywhere, also where there is no room.
        let is_malformed =
            refused.iter().all(|(_, problem)| matches!(problem.reason, Reason::Invalid | Reason::NoRoom));
        if best.is_none()
            && is_malformed
            && let Some(at) = refused.iter().position(|(_, problem)| problem.reason == Reason::Invalid)
        {
            return Err(refused.swap_remove(at).1);
        }
        match (best, refused.pop(), wanted.len()) {
            (Some((_, id, proposal)), ..) => Ok((id, proposal)),
            (None, Some((_, problem)), 1) => Err(problem),
            (None, Some((name, problem)), _) => {
                let others = refused.iter().map(|(name, problem)| format!("{name}: {}", problem.title));
                let each = others.chain([format!("{name}: {}", problem.title)]).collect::<Vec<_>>().join("; ");
                let title = format!("no drive can have {:?}: {each}", disk.name);
                Err(DiskError::new(Reason::NoDrive, title, problem.remedy))
            }
            (None, None, _) => Err(no_such_drive(disk.drive.as_deref().unwrap_or_default())),
        }
    }
}

impl ServedDrive {
    /// Whether there is a disk of that name, served or not.
    pub(crate) fn has_disk(&self, name: &str) -> bool {
        self.state.has_disk(name)
    }

    /// Refuses a tenant whose promise can't be kept, and one that breaks another's.
    fn judge(&self, proposal: Proposal) -> Result<Proposal, DiskError> {
        let admission = Admission::of_change(&proposal.config, &self.profile, self.config(), &self.forecasts);
        admission.refuse(&proposal.config).map_err(|errors| promise_not_kept(&errors))?;
        self.pollers.check_cpus(&proposal.tenant)?;
        Ok(proposal)
    }

    pub(crate) fn create_disk(&mut self, proposal: Proposal, key: Option<StoredKey>) -> Result<Disk, DiskError> {
        let Proposal { config, tenant, section } = proposal;
        let name = tenant.name.clone();
        let here = self.state.shared_config();
        self.add_with(tenant, &here, Some(&section), key).map_err(disk_error)?;
        self.take(config);
        self.find_disk(&name).and_then(|id| self.describe_disk(id)).ok_or_else(broken)
    }

    fn change_disk(&mut self, name: &str, change: &DiskPatch) -> Result<Disk, DiskError> {
        if self.state.disks().find_namespace(name).is_some() {
            return self.grow_namespace(name, change);
        }
        let id = self.find_tenant(name).ok_or_else(|| DiskError::no_such_disk(name))?;
        if self.tenants.get(&id).is_some_and(|live| live.leaving.is_some() && !live.comes_back) {
            return Err(being_deleted(name));
        }
        let (proposal, before) = self.state.propose_change(name, change)?;
        let dropped = change.drops(&DiskSpec::from_section(before).map_err(|_| broken())?);
        let reached = of_front_end(keys(config::made_changes(before, &proposal.section)));
        let Proposal { config, tenant, section } = self.judge(proposal)?;
        self.change_to(id, &tenant, &config, &reached, Some(section))?;
        self.take(config);
        let mut disk = self.find_tenant(name).and_then(|id| self.describe_disk(id)).ok_or_else(broken)?;
        let Dropped { with_class, with_front_end } = dropped;
        let class = format!("its class: a {} tenant has no such setting", tenant.terms.class.name());
        let front_end = format!("its front end: {} has no such setting", tenant.frontend.name());
        for (dropped, why) in [(with_class, class), (with_front_end, front_end)] {
            if !dropped.is_empty() {
                disk.warnings.push(format!("{} went with {why}", dropped.join(" and ")));
            }
        }
        Ok(disk)
    }

    /// A tenant is promised and held to what its section says from now on, and has a disk as large as that: durably
    /// first. One that is to be reached another way, or has no client and belongs to other pollers, is served that way
    /// first, which nobody has seen if it is lost. `reached`: what is new in that; `section`: of a disk that the API
    /// made.
    pub(crate) fn change_to(
        &mut self,
        id: TenantId,
        tenant: &Tenant,
        config: &Config,
        reached: &[Key],
        section: Option<String>,
    ) -> Result<(), DiskError> {
        let name = &tenant.name;
        let live = self.tenants.get(&id).ok_or_else(|| DiskError::no_such_disk(name))?;
        let before = live.tenant.clone();
        if tenant.size != before.size {
            self.images.refuse_to_grow(name)?;
        }
        let before_terms = before.terms;
        let is_remade = self.is_remade(id, tenant, config, reached);
        let id = if is_remade { self.remake(id, tenant.clone(), config)? } else { id };
        let had_bytes = self.state.placement(name).map_or(tenant.size.0, Placement::size_bytes);
        let change = StateCommand::Change { name: name.clone(), section, size_bytes: tenant.size.0 };
        let placed = self.apply(change).map_err(grows_later(name));
        let has_grown = self.state.placement(name).is_some_and(|it| it.size_bytes() > had_bytes);
        if placed.is_err() && !has_grown {
            if let Some(live) = self.tenants.get_mut(&id).filter(|_| is_remade) {
                live.tenant = before;
                self.take_off(id);
            }
            return placed;
        }
        if let Some(live) = self.tenants.get_mut(&id) {
            (live.tenant.overcommit, live.tenant.size) = (tenant.overcommit, tenant.size);
            live.tenant.reserve = tenant.reserve;
            (live.tenant.demand, live.tenant.labels) = (tenant.demand.clone(), tenant.labels.clone());
            live.tenant.group = tenant.group.clone();
        }
        self.keep_for(tenant).map_err(disk_error)?;
        self.change(id, tenant.terms).map_err(|_| DiskError::no_such_disk(name))?;
        let size = has_grown.then(|| format!("size {}", tenant.size));
        let terms = reached.is_empty() || before_terms != tenant.terms;
        let terms = terms.then(|| terms_in_words(&tenant.terms));
        let what: Vec<String> = size.into_iter().chain(reached.iter().map(Key::to_string)).chain(terms).collect();
        self.events.tell(EventKind::Changed, Some(name), Some(what.join(", ")));
        placed
    }

    /// Whether a change takes a tenant off its pollers, or it is off them.
    pub(crate) fn is_remade(&self, id: TenantId, tenant: &Tenant, config: &Config, reached: &[Key]) -> bool {
        let moves = |live: &Live| live.home != config.home(tenant) && self.is_free(id);
        self.tenants.get(&id).is_some_and(|live| !reached.is_empty() || live.comes_back || moves(live))
    }

    fn delete_disk(&mut self, name: &str, deletion: Deletion) -> Result<(), DiskError> {
        let Deletion { force, wipe } = deletion;
        if let Some(id) = self.find_disk(name) {
            if self.is_being_deleted(id) {
                return Ok(());
            }
            if self.state.section_of(name).is_none() {
                let title = format!("{name:?} is declared in {}", self.config().file().display());
                let file = self.config().file().display();
                let remedy = format!("remove it there, and run `evenkeel apply {file}`, which deletes it");
                return Err(DiskError::new(Reason::Declared, title, remedy));
            }
            self.refuse_to_delete(id, deletion)?;
            let server = self.tenants.get(&id).and_then(|live| live.server.as_ref());
            if !force && server.is_some_and(Reached::has_client) {
                let title = format!("{name:?} is attached to a client");
                let remedy = "detach it there (unmount a block device), or use force: its users get errors";
                return Err(DiskError::new(Reason::Attached, title, remedy));
            }
        }
        let config = self.state.config_without(name)?;
        let wipe = wipe.map(|wipe| match wipe {
            Wipe::Zeros => WipeMethod::Zeros,
            Wipe::ThreePasses => WipeMethod::ThreePasses,
        });
        // When it has left nobody waits for it.
        self.delete(name, wipe)?;
        self.take(config);
        Ok(())
    }

    /// All disks, or those whose sockets are a user's.
    fn describe_disks(&self, of_user: Option<u32>) -> impl Iterator<Item = Disk> {
        let user = |live: &Live| live.tenant.socket.user.as_ref().and_then(|user| user.id);
        let is_seen = move |live: &Live| of_user.is_none() || user(live) == of_user;
        let tenants = self.tenants.iter().filter(move |(_, live)| is_seen(live)).map(|(id, _)| *id);
        let its = move |name: &str| self.find_tenant(name).and_then(|id| self.tenants.get(&id)).is_some_and(is_seen);
        let is_its = move |namespace: &config::Namespace| namespace.attachments.iter().any(|it| its(&it.tenant));
        let namespaces = self.state.disks().namespaces();
        let namespaces = namespaces.filter(move |(.., namespace)| of_user.is_none() || is_its(namespace));
        let described = namespaces.filter_map(move |(id, ..)| {
            let mut disk = self.describe_disk(id)?;
            if of_user.is_some() {
                // Which other tenants have it is not this tenant's business.
                disk.attachments.retain(|it| its(&it.tenant));
                disk.attached = disk.attachments.iter().any(|it| self.has_client(&it.tenant));
                let tenants = disk.attachments.iter().map(|it| it.tenant.as_str());
                let lost = self.namespace_lost_on_restart(&disk.name, tenants);
                disk.survives_restart = lost.is_none();
                disk.lost_on_restart = lost.filter(|_| disk.attached).map(str::to_owned);
            }
            Some(disk)
        });
        tenants.filter_map(|id| self.describe_disk(id)).chain(described)
    }

    pub(crate) fn describe_disk(&self, id: TenantId) -> Option<Disk> {
        let Some(live) = self.tenants.get(&id) else { return self.describe_namespace(id) };
        let tenant = &live.tenant;
        let placement = self.state.placement(&tenant.name);
        let state = match () {
            () if live.leaving.is_some() => DiskState::Leaving,
            () if self.locked.contains_key(&id) => DiskState::Locked,
            () if self.waiting.contains_key(&id) => DiskState::Zeroing,
            () if live.server.is_none() => DiskState::Failed,
            () => DiskState::Served,
        };
        let (attached, lost) = (self.is_attached(id), self.lost_on_restart(id));
        let class = tenant.terms.class;
        Some(Disk {
            name: tenant.name.clone(),
            labels: tenant.labels.clone(),
            drive: self.config().device.name.clone(),
            serial: placement.filter(|_| tenant.frontend.socket_name().is_some()).map(|it| it.serial.clone()),
            size_bytes: placement.map_or(tenant.size.0, Placement::served_bytes),
            grows_to_bytes: placement.filter(|it| it.grows_from_bytes.is_some()).map(Placement::size_bytes),
            pool_bytes: placement.and_then(|it| self.pool.as_ref()?.bytes_of(it.thin.as_ref()?.map)),
            image: tenant.image.as_ref().map(|image| image.path.display().to_string()),
            snapshots: self.describe_snapshots(placement.and_then(|it| it.thin.as_ref())),
            lba_bytes: placement.map_or(tenant.lba_bytes, |it| it.lba_bytes),
            frontend: tenant.frontend.name().to_owned(),
            queues: Some(tenant.queues),
            threads: Some(self.config().threads(tenant).name().to_owned()),
            mode: (!tenant.frontend.is_controller()).then(|| tenant.frontend.mode().name().to_owned()),
            cpus: tenant.frontend.cpus().to_vec(),
            nsid: None,
            attachments: Vec::new(),
            class: Some(class.name().to_owned()),
            weight: class.weight(),
            latency_target_us: class.latency_target().map(io_model::Nanos::as_micros_f64),
            latency_percentile: class.promise().map(|(_, percentile)| percentile.percent()),
            floor: tenant.terms.floor.in_words(),
            verdict: self.verdict_on(id),
            overcommit: tenant.is_promised() && tenant.overcommit,
            group: tenant.group.clone(),
            encryption: placement.and_then(|it| it.key.as_ref()).map(|key| key.owner().to_owned()),
            limits: tenant.terms.limits.in_words(),
            ceilings: ceilings(&tenant.terms.limits),
            socket: Some(self.config().reached_at(tenant).display().to_string()),
            state,
            locked_why: placement.filter(|_| state == DiskState::Locked).and_then(|it| self.disk_keys.access(it).1),
            attached,
            survives_restart: lost.is_none(),
            lost_on_restart: lost.filter(|_| attached).map(str::to_owned),
            declared: self.state.section_of(&tenant.name).is_none() && !self.is_being_deleted(id),
            warnings: self.warnings_of(tenant),
        })
    }

    /// The disks that are encrypted otherwise than the file says, and how.
    fn other_encryptions(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.config().encryptions().filter_map(|(name, written)| {
            let key = self.state.placement(name)?.key.as_ref();
            let encryption = key.map_or(Encryption::None.name(), StoredKey::owner);
            (encryption != written.name()).then_some((name, encryption))
        })
    }

    /// `None`: it was promised nothing, or its promise was not judged yet.
    fn verdict_on(&self, id: TenantId) -> Option<DiskVerdict> {
        let (OwnVerdict { kept, span, at_percentile }, day) = self.foresight.record(id)?.read();
        (day.kept + day.broken > 0).then_some(DiskVerdict {
            kept,
            span_ms: span.0 / 1_000_000,
            at_percentile_us: at_percentile.map(io_model::Nanos::as_micros_f64),
            day_kept: day.kept,
            day_broken: day.broken,
        })
    }

    /// What is to be known of a promise that was made; not what of those to the others.
    fn warnings_of(&self, tenant: &Tenant) -> Vec<String> {
        let unchecked = tenant.is_promised().then(|| Admission::unchecked(self.config())).flatten();
        unchecked.map(|why| format!("{}; {}", why.what, why.remedy)).into_iter().collect()
    }

    pub(crate) fn describe(&self) -> Drive {
        let layout = self.state.layout();
        let (size_bytes, free_bytes) = layout.map_or((0, 0), |layout| self.config().room(layout));
        Drive {
            size_bytes,
            free_bytes,
            wiping_bytes: layout.map_or(0, |layout| layout.wiping().iter().map(|range| range.size_bytes).sum()),
            pool: self.pool_room(),
            policy: self.policy.name().to_owned(),
            id: layout.and_then(|layout| layout.device().id.clone()),
            failed: self.pollers.is_drive_gone().then(|| GIVEN_UP.to_owned()),
            health: health_of(self.pollers.drive_health().as_ref()),
            ..without_room(self.config())
        }
    }
}

const GIVEN_UP: &str = "it was unplugged or did not answer, and was given up; see the log";

fn ceilings(limits: &Limits) -> Ceilings {
    let some = |limit: u64| (limit > 0).then_some(limit);
    let bytes = |mbytes: u64| some(mbytes << 20);
    Ceilings {
        rw_iops: some(limits.rw_ios_per_sec),
        r_iops: some(limits.r_ios_per_sec),
        w_iops: some(limits.w_ios_per_sec),
        rw_bytes_per_second: bytes(limits.rw_mbytes_per_sec),
        r_bytes_per_second: bytes(limits.r_mbytes_per_sec),
        w_bytes_per_second: bytes(limits.w_mbytes_per_sec),
        burst_ms: some(limits.burst.0).map(|ns| ns as f64 / 1e6),
    }
}

/// What a configuration says of its drive, of which nobody has anything.
fn without_room(config: &Config) -> Drive {
    Drive {
        name: config.device.name.clone(),
        backend: config.device.backend.name().to_owned(),
        path: config.device.backend.place().map(|place| place.display().to_string()),
        size_bytes: 0,
        free_bytes: 0,
        pool: None,
        wiping_bytes: 0,
        policy: config.policy.name().to_owned(),
        declared: !config.is_added(),
        id: None,
        failed: None,
        disks_not_served: Vec::new(),
        health: None,
    }
}
