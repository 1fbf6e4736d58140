//! Namespaces through the API: created, attached, detached, grown, deleted.
//!
//! Each change is checked as if it were in the configuration file, and made durable by one write of the layout before
//! it is applied. It does not affect promises: commands to a namespace are its tenant's, and the tenant's promise and
//! limits stay.

use std::collections::{BTreeMap, HashMap};
use std::iter;

use api::{Action, Attach, Attachment, Ceilings, Deletion, Disk, DiskPatch, DiskSpec, DiskState, EventKind};
use config::{Config, LBA_BYTES, NSIDS, Namespace};
use io_model::TenantId;
use io_model::units::Size;
use layout::Placement;

use crate::error_texts::{
    broken, declared, failed, invalid, name_reserved, name_taken, no_room, no_such_tenant, not_durable, not_writable,
};
use crate::namespaces::{LiveNamespace, State};
use crate::served_drive::ServedDrive;
use api::{DiskError, Reason};
use runtime::command::Reply;

/// What `frontend` is of a disk without a socket.
pub(crate) const NAMESPACE: &str = "namespace";

impl ServedDrive {
    /// `true`: it is new.
    pub(crate) fn create_namespace(&mut self, disk: &DiskSpec, tenant: &str) -> Result<(Disk, bool), DiskError> {
        let DiskSpec { name, size, nsid, lba_size, .. } = disk;
        let read_only = disk.read_only == Some(true);
        refuse_terms(disk)?;
        if let Some(other) = disk.drive.as_ref().filter(|drive| **drive != self.config.device.name) {
            let title = format!("tenant {tenant:?} is on drive {:?}, not on {other:?}", self.config.device.name);
            return Err(DiskError::new(
                Reason::OtherDrive,
                title,
                "a namespace is on its tenants' drive: leave the drive out",
            ));
        }
        if let Some(id) = self.namespaces.find(name) {
            let made = self.settings_of(name).and_then(api::Namespace::from_section);
            let is_same = made.is_some_and(|made| {
                let is_there = made.is_read_only(tenant) == Some(read_only);
                is_there
                    && (made.size == *size || bytes(&made.size).is_some() && bytes(&made.size) == bytes(size))
                    && made.lba_size.unwrap_or(LBA_BYTES) == lba_size.unwrap_or(LBA_BYTES)
                    && nsid.is_none_or(|nsid| nsid == made.nsid)
            });
            let described = self.describe_namespace(id).ok_or_else(broken)?;
            return if is_same { Ok((described, false)) } else { Err(name_taken(name)) };
        }
        if self.find_tenant(name).is_some() {
            return Err(name_taken(name));
        }
        if self.has_disk(name) {
            return Err(name_reserved(name));
        }
        let controller = self.controller_of(tenant)?;
        self.refuse_too_large(name, size)?;
        let nsid = match nsid {
            Some(nsid) => *nsid,
            None => self.free_nsid(controller, tenant)?,
        };
        let (name, size, lba_size) = (name.clone(), size.clone(), *lba_size);
        let (tenants, shared) = (Vec::new(), false);
        let mut section =
            api::Namespace { name: name.clone(), size, nsid, tenants, read_only: Vec::new(), shared, lba_size };
        section.attach(tenant, read_only);
        let config = self.config_with_namespace(&section)?;
        self.refuse_smaller_blocks(&config)?;
        let settings = section.to_section().map_err(|_| broken())?;
        let id = self.place_namespace(&config, &name, Some(&settings))?;
        self.config = config;
        let what = format!("namespace {nsid} of {tenant}");
        self.events.tell_naming(EventKind::Created, &name, what, iter::once(tenant));
        Ok((self.describe_namespace(id).ok_or_else(broken)?, true))
    }

    /// Refuses new disks that are to have smaller blocks than the drive.
    pub(crate) fn refuse_smaller_blocks(&self, config: &Config) -> Result<(), DiskError> {
        let placements = self.layout.layout().into_iter().flat_map(layout::Layout::placements);
        let placed: HashMap<&str, u32> = placements.map(|it| (it.name.as_str(), it.lba_bytes)).collect();
        let block_bytes = self.pollers.drive_facts().block_bytes;
        config.refuse_smaller_blocks(block_bytes, &|name| placed.get(name).copied()).map_err(|errors| invalid(&errors))
    }

    /// Gives a namespace its range of the drive, durably, and takes it on.
    fn place_namespace(&mut self, config: &Config, name: &str, settings: Option<&str>) -> Result<TenantId, DiskError> {
        let found = config.namespaces.iter().find(|namespace| namespace.name == name);
        let namespace = found.cloned().ok_or_else(broken)?;
        let mut config = config.clone();
        let block_bytes = self.pollers.drive_facts().block_bytes;
        // No disk's blocks can be smaller than the drive's.
        config.namespaces.iter_mut().for_each(|it| it.lba_bytes = it.lba_bytes.max(block_bytes));
        let recorded = self.layout.layout().ok_or_else(broken)?;
        // What else is to come gets its place when it comes, and what goes has none any more.
        let has_place = |its: &str| its == name || recorded.find(its).is_some();
        config.tenants.retain(|it| has_place(&it.name));
        config.namespaces.retain(|it| has_place(&it.name));
        let planned = config.plan_layout(recorded.device(), Some(recorded));
        let (mut layout, _) = planned.map_err(|errors| no_room(&errors))?;
        if self.pollers.zeroer().is_none() {
            layout.accept_content();
        }
        if let Some(settings) = settings {
            layout.set_settings(name, settings);
        }
        self.layout.save(layout).map_err(|error| not_durable(&error))?;
        self.add_namespace(namespace).map_err(|error| {
            // No guest has ever seen it. What can't be taken back stays reserved, and there at the next start.
            let _ = self.layout.withdraw(name);
            failed(&error, "see the daemon's log; nothing has changed")
        })
    }

    /// Attaches a namespace to one more tenant.
    pub(crate) fn attach_namespace(&mut self, name: &str, attach: &Attach) -> Result<Disk, DiskError> {
        let Attach { tenant, read_only, shared } = attach;
        let (id, mut section) = self.namespace_to_change(name)?;
        self.controller_of(tenant)?;
        match section.is_read_only(tenant) {
            Some(has) if has == *read_only && (section.shared || !shared) => {
                return self.describe_namespace(id).ok_or_else(broken);
            }
            Some(has) if has != *read_only => return Err(attached_otherwise(name, tenant, has)),
            Some(_) => {}
            None => {
                self.refuse_to_attach(&section, attach)?;
                section.attach(tenant, *read_only);
            }
        }
        section.shared |= shared;
        self.change_namespace(id, &section)?;
        let how = if *read_only { ", read-only" } else { "" };
        let what = format!("attached to {tenant} as namespace {}{how}", section.nsid);
        self.events.tell_naming(EventKind::Changed, name, what, iter::once(tenant.as_str()));
        self.describe_namespace(id).ok_or_else(broken)
    }

    /// What would be refused of a configuration file too, in words for who attaches one; and a Format.
    fn refuse_to_attach(
        &self,
        section: &api::Namespace,
        Attach { tenant, read_only, shared }: &Attach,
    ) -> Result<(), DiskError> {
        let api::Namespace { name, nsid, .. } = section;
        let mut others = self.config.namespaces.iter().filter(|other| other.name != *name && other.nsid == *nsid);
        if let Some(other) = others.find(|other| other.attachment(tenant).is_some()) {
            let title = format!("tenant {tenant:?} has {:?} as its nsid {nsid} already", other.name);
            let remedy = "detach that one first: a namespace has the same nsid on every controller";
            return Err(DiskError::new(Reason::NsidTaken, title, remedy));
        }
        if !read_only && !shared && !section.shared && !section.tenants.is_empty() {
            let title = format!(
                "{} may write to {name:?} already, and most file systems are not made for several writers",
                section.tenants.join(" and ")
            );
            let remedy = "attach it read-only, or shared if they agree on who writes where";
            return Err(DiskError::new(Reason::SecondWriter, title, remedy));
        }
        let placement = self.layout.layout().and_then(|layout| layout.find(name));
        if placement.is_some_and(|placement| placement.formatting_to_lba_bytes.is_some()) && !section.is_alone() {
            let title = format!("a guest formats {name:?}, or its Format was cut short");
            return Err(DiskError::new(Reason::Formatting, title, "attach it once that guest has formatted it"));
        }
        Ok(())
    }

    /// Detaches a namespace from a tenant, and answers once nothing of it is in flight there.
    pub(crate) fn detach_namespace(&mut self, name: String, tenant: &str, reply: Reply<Result<Disk, DiskError>>) {
        let at = match self.begin_to_detach(&name, tenant) {
            Ok(at) => at,
            Err(problem) => return reply(Err(problem)),
        };
        self.when_namespace_left(at, move |owner| {
            let found = owner.namespaces.find(&name);
            reply(found.and_then(|id| owner.describe_namespace(id)).ok_or_else(|| DiskError::no_such_disk(&name)));
        });
    }

    fn begin_to_detach(&mut self, name: &str, tenant: &str) -> Result<(TenantId, u32), DiskError> {
        let (id, mut section) = self.namespace_to_change(name)?;
        let controller = self.find_tenant(tenant).ok_or_else(|| self.no_tenant(tenant))?;
        let at = (controller, section.nsid);
        // As good as the first time.
        if section.is_read_only(tenant).is_some() {
            section.detach(tenant);
            self.change_namespace(id, &section)?;
            let what = format!("detached from {tenant}");
            self.events.tell_naming(EventKind::Changed, name, what, iter::once(tenant));
        }
        Ok(at)
    }

    /// A namespace that the API made grows.
    pub(crate) fn grow_namespace(&mut self, name: &str, change: &DiskPatch) -> Result<Disk, DiskError> {
        let (id, section) = self.namespace_to_change(name)?;
        if !change.is_empty() {
            let size = change.only_size().ok_or_else(|| no_terms(name))?;
            self.refuse_too_large(name, size)?;
            self.change_namespace(id, &api::Namespace { size: size.to_owned(), ..section })?;
        }
        self.describe_namespace(id).ok_or_else(broken)
    }

    /// A namespace is as its section says from now on: durably first.
    fn change_namespace(&mut self, id: TenantId, section: &api::Namespace) -> Result<(), DiskError> {
        let config = self.config_with_namespace(section)?;
        let found = config.namespaces.iter().find(|namespace| namespace.name == section.name);
        let size_bytes = found.map(|namespace| namespace.size.0).ok_or_else(broken)?;
        let settings = section.to_section().map_err(|_| broken())?;
        self.resize_namespace(id, &section.name, size_bytes, Some(&settings))?;
        self.take_namespaces(&config);
        self.config = config;
        Ok(())
    }

    /// A namespace has a size from now on, and other settings with it if it is one that the API made.
    pub(crate) fn resize_namespace(
        &mut self,
        id: TenantId,
        name: &str,
        size_bytes: u64,
        settings: Option<&str>,
    ) -> Result<(), DiskError> {
        if self.change_place(name, size_bytes, settings)? { self.has_grown(id, name) } else { Ok(()) }
    }

    /// A step of a configuration file that is applied.
    pub(crate) fn take_namespace_step(&mut self, action: Action, name: &str, config: &Config) -> Result<(), DiskError> {
        let namespace = config.namespaces.iter().find(|namespace| namespace.name == name).ok_or_else(broken)?;
        match action {
            Action::Create => {
                self.place_namespace(config, name, None)?;
                self.events.tell(EventKind::Created, Some(name), Some(namespace.size.to_string()));
            }
            Action::Change => {
                let id = self.namespaces.find(name).ok_or_else(broken)?;
                self.resize_namespace(id, name, namespace.size.0, None)?;
                self.take_namespaces(config);
                let tenants = namespace.attachments.iter().map(|it| it.tenant.as_str());
                self.events.tell_naming(EventKind::Changed, name, in_short(namespace), tenants);
            }
            Action::Declare | Action::Delete | Action::Later => {}
        }
        Ok(())
    }

    /// Why a namespace is not deleted without force.
    pub(crate) fn refuse_to_delete(&self, id: TenantId, Deletion { force, .. }: Deletion) -> Result<(), DiskError> {
        let Some(LiveNamespace { namespace, .. }) = self.namespaces.get(id) else { return Ok(()) };
        if force || namespace.attachments.is_empty() {
            return Ok(());
        }
        let tenants: Vec<&str> = namespace.attachments.iter().map(|it| it.tenant.as_str()).collect();
        let title = format!("{:?} is attached to {}", namespace.name, tenants.join(", "));
        let remedy = "unmount it in their guests, and detach it; or use force: they lose it";
        Err(DiskError::new(Reason::Attached, title, remedy))
    }

    /// Whether a client is attached to a tenant.
    pub(crate) fn has_client(&self, tenant: &str) -> bool {
        self.find_tenant(tenant).is_some_and(|id| self.is_attached(id))
    }

    pub(crate) fn describe_namespace(&self, id: TenantId) -> Option<Disk> {
        let LiveNamespace { namespace, state } = self.namespaces.get(id)?;
        let placement = self.layout.layout().and_then(|layout| layout.find(&namespace.name));
        let attachments = namespace.attachments.iter();
        Some(Disk {
            name: namespace.name.clone(),
            labels: BTreeMap::new(),
            drive: self.config.device.name.clone(),
            serial: None,
            size_bytes: placement.map_or(namespace.size.0, Placement::served_bytes),
            grows_to_bytes: placement.filter(|it| it.grows_from_bytes.is_some()).map(Placement::size_bytes),
            lba_bytes: placement.map_or(namespace.lba_bytes, |it| it.lba_bytes),
            frontend: NAMESPACE.to_owned(),
            queues: None,
            threads: None,
            mode: None,
            cpus: Vec::new(),
            nsid: Some(namespace.nsid),
            attachments: attachments
                .map(|it| Attachment { tenant: it.tenant.clone(), read_only: it.read_only })
                .collect(),
            class: None,
            weight: None,
            latency_target_us: None,
            latency_percentile: None,
            floor: None,
            overcommit: false,
            limits: None,
            ceilings: Ceilings::default(),
            socket: None,
            state: match state {
                State::Zeroing => DiskState::Zeroing,
                State::Served => DiskState::Served,
                State::Leaving => DiskState::Leaving,
            },
            attached: namespace.attachments.iter().any(|it| self.has_client(&it.tenant)),
            survives_restart: self.all_survive_restart(namespace.attachments.iter().map(|it| it.tenant.as_str())),
            declared: self.settings_of(&namespace.name).is_none() && *state != State::Leaving,
            warnings: Vec::new(),
        })
    }

    /// A namespace that the API created and that is not being deleted, with its section.
    fn namespace_to_change(&self, name: &str) -> Result<(TenantId, api::Namespace), DiskError> {
        let Some(id) = self.namespaces.find(name) else {
            self.find_tenant(name).ok_or_else(|| DiskError::no_such_disk(name))?;
            let title = format!("{name:?} is a tenant's own disk, and no other controller can have it");
            let remedy = "make a namespace with `evenkeel disk create --attach`";
            return Err(DiskError::new(Reason::NoNamespace, title, remedy));
        };
        if self.namespaces.get(id).is_some_and(|live| live.state == State::Leaving) {
            let title = format!("{name:?} is being deleted");
            return Err(DiskError::new(Reason::Leaving, title, "make another disk"));
        }
        let Some(settings) = self.settings_of(name) else { return Err(declared(name, &self.config)) };
        Ok((id, api::Namespace::from_section(settings).ok_or_else(broken)?))
    }

    /// The configuration with a namespace as its section says, if it holds together.
    fn config_with_namespace(&self, section: &api::Namespace) -> Result<Config, DiskError> {
        let settings = section.to_section().map_err(not_writable)?;
        self.config.changed_by(&[&settings], None).map_err(|errors| invalid(&errors))
    }

    /// The tenant that is to have a namespace.
    fn controller_of(&self, tenant: &str) -> Result<TenantId, DiskError> {
        let id = self.find_tenant(tenant).ok_or_else(|| self.no_tenant(tenant))?;
        let live = self.tenants.get(&id).filter(|live| live.leaving.is_none()).ok_or_else(|| self.no_tenant(tenant))?;
        if !live.tenant.frontend.is_controller() {
            let title = format!("tenant {tenant:?} has no NVMe controller, and only those have namespaces");
            return Err(DiskError::new(Reason::NoController, title, "attach it to a tenant with frontend vfio-user"));
        }
        Ok(id)
    }

    fn no_tenant(&self, tenant: &str) -> DiskError {
        let title = format!("there is no tenant {tenant:?} on drive {:?}", self.config.device.name);
        DiskError { title, ..no_such_tenant(tenant) }
    }

    fn free_nsid(&self, controller: TenantId, tenant: &str) -> Result<u32, DiskError> {
        let is_wanted = |nsid: u32| {
            self.config.namespaces.iter().any(|other| other.nsid == nsid && other.attachment(tenant).is_some())
        };
        let is_free = |nsid: &u32| !is_wanted(*nsid) && !self.namespaces.is_taken(controller, *nsid);
        NSIDS.into_iter().find(is_free).ok_or_else(|| {
            let title = format!("tenant {tenant:?} has all the namespaces that a controller can have");
            DiskError::new(Reason::NsidTaken, title, "detach one of them first, or grow one")
        })
    }
}

fn bytes(size: &str) -> Option<Size> {
    size.parse().ok()
}

/// Its size and its tenants.
fn in_short(namespace: &Namespace) -> String {
    let words =
        |it: &config::Attachment| if it.read_only { format!("{} read-only", it.tenant) } else { it.tenant.clone() };
    let tenants: Vec<String> = namespace.attachments.iter().map(words).collect();
    let tenants = if tenants.is_empty() { "nobody".to_owned() } else { tenants.join(", ") };
    format!("{} for {tenants}", namespace.size)
}

/// What a namespace has not is its tenants'.
fn refuse_terms(disk: &DiskSpec) -> Result<(), DiskError> {
    let DiskSpec { name, size, drive, attach, nsid, lba_size, read_only, .. } = disk.clone();
    let plain = DiskSpec { name, size, drive, attach, nsid, lba_size, read_only, ..DiskSpec::default() };
    if *disk == plain { Ok(()) } else { Err(no_terms(&disk.name)) }
}

fn no_terms(name: &str) -> DiskError {
    let title =
        format!("namespace {name:?} is promised nothing and held to nothing: what is sent to it is its tenant's");
    DiskError::new(
        Reason::Invalid,
        title,
        "say that of its tenants; a namespace has a size, and a block size from its start",
    )
}

fn attached_otherwise(name: &str, tenant: &str, read_only: bool) -> DiskError {
    let how = if read_only { "read-only" } else { "read-write" };
    let title = format!("{name:?} is attached to {tenant} {how}");
    DiskError::new(Reason::Attached, title, "detach it there first: its guest has to let go of it")
}
