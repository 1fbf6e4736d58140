//! Namespaces through the API: created, attached, detached, grown, deleted.
//!
//! The state says what each change comes to. It is made durable by one write of the layout before it is applied.

use std::collections::BTreeMap;
use std::iter;

use api::{Action, Attach, Attachment, Ceilings, Deletion, Disk, DiskPatch, DiskSpec, DiskState, EventKind};
use config::{Config, Namespace};
use io_model::TenantId;
use layout::Placement;
use state::errors::broken;
use state::{Command as StateCommand, NamespaceChange, Phase};

use crate::error_texts::disk_error;
use crate::served_drive::ServedDrive;
use api::{DiskError, Reason};
use runtime::command::Reply;

/// The front end of a disk without a socket.
pub(crate) const NAMESPACE: &str = "namespace";

impl ServedDrive {
    /// `true`: it is new.
    pub(crate) fn create_namespace(&mut self, disk: &DiskSpec, tenant: &str) -> Result<(Disk, bool), DiskError> {
        let NamespaceChange { config, namespace, section } = match self.state.propose_namespace(disk, tenant)? {
            Ok(change) => change,
            Err(there) => return Ok((self.describe_namespace(there).ok_or_else(broken)?, false)),
        };
        let id = self.place_namespace(&namespace, Some(&section))?;
        self.take(config);
        let what = format!("namespace {} of {tenant}", namespace.nsid);
        self.events.tell_naming(EventKind::Created, &namespace.name, what, iter::once(tenant));
        Ok((self.describe_namespace(id).ok_or_else(broken)?, true))
    }

    /// Gives a namespace its range of the drive, durably, and takes it on.
    fn place_namespace(&mut self, namespace: &Namespace, section: Option<&str>) -> Result<TenantId, DiskError> {
        let mut disk = state::NewDisk::from(namespace);
        // No disk's blocks can be smaller than the drive's.
        disk.lba_bytes = disk.lba_bytes.max(self.state.facts().block_bytes);
        self.give_key(&mut disk)?;
        let id = self.new_id();
        let created = self.apply(StateCommand::Create { id, disk, section: section.map(str::to_owned) });
        created.map(|()| id).map_err(|error| {
            // No guest has ever seen it. A range that can't be taken back stays reserved.
            if self.state.disks().get(id).is_some() {
                self.apply_or_warn(StateCommand::Withdraw(id));
            }
            disk_error(error)
        })
    }

    /// Attaches a namespace to one more tenant.
    pub(crate) fn attach_namespace(&mut self, name: &str, attach: &Attach) -> Result<Disk, DiskError> {
        let (id, change) = self.state.propose_attachment(name, attach)?;
        if let Some(change) = change {
            let nsid = change.namespace.nsid;
            self.change_namespace(change)?;
            let how = if attach.read_only { ", read-only" } else { "" };
            let what = format!("attached to {} as namespace {nsid}{how}", attach.tenant);
            self.events.tell_naming(EventKind::Changed, name, what, iter::once(attach.tenant.as_str()));
        }
        self.describe_namespace(id).ok_or_else(broken)
    }

    /// Detaches a namespace from a tenant, and answers once nothing of it is in flight there.
    pub(crate) fn detach_namespace(&mut self, name: String, tenant: &str, reply: Reply<Result<Disk, DiskError>>) {
        let at = match self.begin_to_detach(&name, tenant) {
            Ok(at) => at,
            Err(problem) => return reply(Err(problem)),
        };
        self.when_namespace_left(at, move |owner| {
            let found = owner.state.disks().find_namespace(&name);
            reply(found.and_then(|id| owner.describe_namespace(id)).ok_or_else(|| DiskError::no_such_disk(&name)));
        });
    }

    fn begin_to_detach(&mut self, name: &str, tenant: &str) -> Result<(TenantId, u32), DiskError> {
        let (at, change) = self.state.propose_detachment(name, tenant)?;
        // A repeated request succeeds, too.
        if let Some(change) = change {
            self.change_namespace(change)?;
            let what = format!("detached from {tenant}");
            self.events.tell_naming(EventKind::Changed, name, what, iter::once(tenant));
        }
        Ok(at)
    }

    /// A namespace that the API made grows.
    pub(crate) fn grow_namespace(&mut self, name: &str, change: &DiskPatch) -> Result<Disk, DiskError> {
        let (id, change) = self.state.propose_growth(name, change)?;
        change.map_or(Ok(()), |change| self.change_namespace(change))?;
        self.describe_namespace(id).ok_or_else(broken)
    }

    /// A namespace is as its section says from now on: durably first.
    fn change_namespace(&mut self, change: NamespaceChange) -> Result<(), DiskError> {
        let NamespaceChange { config, namespace, section } = change;
        self.resize_namespace(&namespace, Some(section))?;
        self.take(config);
        Ok(())
    }

    /// A namespace has its size from now on, and another section with it if the API made it.
    fn resize_namespace(&mut self, namespace: &Namespace, section: Option<String>) -> Result<(), DiskError> {
        let (name, size_bytes) = (namespace.name.clone(), namespace.size.0);
        self.apply(StateCommand::Change { name, section, size_bytes }).map_err(disk_error)
    }

    /// Another configuration holds from now on.
    pub(crate) fn take(&mut self, config: Config) {
        self.apply_or_warn(StateCommand::Take(Box::new(config)));
    }

    /// A step of a configuration file that is applied.
    pub(crate) fn take_namespace_step(&mut self, action: Action, name: &str, config: &Config) -> Result<(), DiskError> {
        let namespace = config.namespaces.iter().find(|namespace| namespace.name == name).ok_or_else(broken)?;
        match action {
            Action::Create => {
                self.place_namespace(namespace, None)?;
                self.events.tell(EventKind::Created, Some(name), Some(namespace.size.to_string()));
            }
            Action::Change => {
                // Attached as it says once the whole file is applied.
                self.resize_namespace(namespace, None)?;
                let tenants = namespace.attachments.iter().map(|it| it.tenant.as_str());
                self.events.tell_naming(EventKind::Changed, name, in_short(namespace), tenants);
            }
            Action::Declare | Action::Delete | Action::Later => {}
        }
        Ok(())
    }

    /// Why a namespace is not deleted without force.
    pub(crate) fn refuse_to_delete(&self, id: TenantId, Deletion { force, .. }: Deletion) -> Result<(), DiskError> {
        let Some(namespace) = self.state.disks().get(id).and_then(state::Disk::namespace) else { return Ok(()) };
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
        let disk = self.state.disks().get(id)?;
        let namespace = disk.namespace()?;
        let placement = self.state.placement(&namespace.name);
        let attachments = namespace.attachments.iter();
        let attached = namespace.attachments.iter().any(|it| self.has_client(&it.tenant));
        let tenants = namespace.attachments.iter().map(|it| it.tenant.as_str());
        let lost = self.namespace_lost_on_restart(&namespace.name, tenants);
        let is_served = disk.phase == Phase::Served;
        let locked_why = placement.filter(|_| is_served).and_then(|it| self.disk_keys.access(it).1);
        Some(Disk {
            name: namespace.name.clone(),
            labels: BTreeMap::new(),
            group: None,
            encryption: placement.and_then(|it| it.key.as_ref()).map(|key| key.owner().to_owned()),
            drive: self.config().device.name.clone(),
            serial: None,
            size_bytes: placement.map_or(namespace.size.0, Placement::served_bytes),
            grows_to_bytes: placement.filter(|it| it.grows_from_bytes.is_some()).map(Placement::size_bytes),
            pool_bytes: None,
            image: None,
            snapshots: Vec::new(),
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
            verdict: None,
            overcommit: false,
            limits: None,
            ceilings: Ceilings::default(),
            socket: None,
            state: match disk.phase {
                Phase::Coming | Phase::Zeroing => DiskState::Zeroing,
                Phase::Served if locked_why.is_some() => DiskState::Locked,
                Phase::Served => DiskState::Served,
                Phase::Failed => DiskState::Failed,
                Phase::Leaving => DiskState::Leaving,
            },
            locked_why,
            attached,
            survives_restart: lost.is_none(),
            lost_on_restart: lost.filter(|_| attached).map(str::to_owned),
            declared: self.state.section_of(&namespace.name).is_none() && disk.phase != Phase::Leaving,
            warnings: Vec::new(),
        })
    }
}

/// Its size and its tenants.
fn in_short(namespace: &Namespace) -> String {
    let words =
        |it: &config::Attachment| if it.read_only { format!("{} read-only", it.tenant) } else { it.tenant.clone() };
    let tenants: Vec<String> = namespace.attachments.iter().map(words).collect();
    let tenants = if tenants.is_empty() { "nobody".to_owned() } else { tenants.join(", ") };
    format!("{} for {tenants}", namespace.size)
}
