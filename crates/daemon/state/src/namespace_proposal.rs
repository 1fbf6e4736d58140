//! A proposed namespace, with the configuration that would have it.
//!
//! It does not affect promises: commands to a namespace are its tenant's, and the tenant's promise and limits stay.

use api::{Attach, DiskError, DiskPatch, DiskSpec, Namespace, Reason};
use config::{Config, LBA_BYTES, NSIDS};
use io_model::TenantId;
use io_model::units::Size;

use crate::disks::{Kind, Phase};
use crate::drive_state::DriveState;
use crate::errors::{broken, declared, name_reserved, name_taken, no_such_tenant, not_writable};

/// A namespace that is to come or to change.
#[derive(Debug, Clone)]
pub struct NamespaceChange {
    /// The drive's configuration with it.
    pub config: Config,
    /// It, with its tenants.
    pub namespace: config::Namespace,
    /// Its `[[namespace]]` section.
    pub section: String,
}

impl DriveState {
    /// A new namespace of a tenant. `Err` inside: it is there already, just so.
    ///
    /// # Errors
    /// What is wrong with it, by itself and beside other disks.
    pub fn propose_namespace(
        &self,
        disk: &DiskSpec,
        tenant: &str,
    ) -> Result<Result<NamespaceChange, TenantId>, DiskError> {
        let DiskSpec { name, size, nsid, lba_size, encryption, .. } = disk;
        let read_only = disk.read_only == Some(true);
        refuse_terms(disk)?;
        let on = &self.config().device.name;
        if let Some(other) = disk.drive.as_ref().filter(|drive| *drive != on) {
            let title = format!("tenant {tenant:?} is on drive {on:?}, not on {other:?}");
            let remedy = "a namespace is on its tenants' drive: leave the drive out";
            return Err(DiskError::new(Reason::OtherDrive, title, remedy));
        }
        if let Some(id) = self.disks().find_namespace(name) {
            let made = self.section_of(name).and_then(Namespace::from_section);
            let is_same = made.is_some_and(|made| is_same(&made, disk, tenant));
            return if is_same { Ok(Err(id)) } else { Err(name_taken(name)) };
        }
        if self.disks().find(name).is_some() {
            return Err(name_taken(name));
        }
        if self.has_disk(name) {
            return Err(name_reserved(name));
        }
        let controller = self.controller_of(tenant)?;
        self.refuse_too_large(name, size, false)?;
        let nsid = match nsid {
            Some(nsid) => *nsid,
            None => self.free_nsid(controller, tenant)?,
        };
        let mut namespace = Namespace {
            name: name.clone(),
            size: size.clone(),
            nsid,
            tenants: Vec::new(),
            read_only: Vec::new(),
            shared: false,
            lba_size: *lba_size,
            encryption: encryption.clone(),
        };
        namespace.attach(tenant, read_only);
        self.with_namespace(&namespace).map(Ok)
    }

    /// A namespace with one more tenant. `Err` inside: it has the tenant already, just so.
    ///
    /// # Errors
    /// Why it can't be attached.
    pub fn propose_attachment(
        &self,
        name: &str,
        attach: &Attach,
    ) -> Result<(TenantId, Option<NamespaceChange>), DiskError> {
        let Attach { tenant, read_only, shared } = attach;
        let (id, mut namespace) = self.namespace_to_change(name)?;
        self.controller_of(tenant)?;
        match namespace.is_read_only(tenant) {
            Some(has) if has == *read_only && (namespace.shared || !shared) => return Ok((id, None)),
            Some(has) if has != *read_only => return Err(attached_otherwise(name, tenant, has)),
            Some(_) => {}
            None => {
                self.refuse_to_attach(&namespace, attach)?;
                namespace.attach(tenant, *read_only);
            }
        }
        namespace.shared |= shared;
        Ok((id, Some(self.with_namespace(&namespace)?)))
    }

    /// A namespace without a tenant: where it was, and the change. `None`: it is not attached there.
    ///
    /// # Errors
    /// There is no such namespace or tenant, or the file has it.
    pub fn propose_detachment(
        &self,
        name: &str,
        tenant: &str,
    ) -> Result<((TenantId, u32), Option<NamespaceChange>), DiskError> {
        let (_, mut namespace) = self.namespace_to_change(name)?;
        let controller = self.find_tenant(tenant).ok_or_else(|| self.no_tenant(tenant))?;
        let at = (controller, namespace.nsid);
        if namespace.is_read_only(tenant).is_none() {
            return Ok((at, None));
        }
        namespace.detach(tenant);
        Ok((at, Some(self.with_namespace(&namespace)?)))
    }

    /// A namespace that grows. `None`: nothing changes.
    ///
    /// # Errors
    /// The change is about more than the size, or there is no room.
    pub fn propose_growth(
        &self,
        name: &str,
        change: &DiskPatch,
    ) -> Result<(TenantId, Option<NamespaceChange>), DiskError> {
        let (id, namespace) = self.namespace_to_change(name)?;
        if change.is_empty() {
            return Ok((id, None));
        }
        let size = change.only_size().ok_or_else(|| no_terms(name))?;
        self.refuse_too_large(name, size, false)?;
        Ok((id, Some(self.with_namespace(&Namespace { size: size.to_owned(), ..namespace })?)))
    }

    /// A tenant of that name.
    pub fn find_tenant(&self, name: &str) -> Option<TenantId> {
        let is_it = |kind: &Kind| matches!(kind, Kind::Tenant { .. });
        self.disks().iter().find(|(_, disk)| disk.name == name && is_it(&disk.kind)).map(|(id, _)| id)
    }

    fn with_namespace(&self, namespace: &Namespace) -> Result<NamespaceChange, DiskError> {
        let section = namespace.to_section().map_err(not_writable)?;
        let config = self.config_with(&section)?;
        let found = config.namespaces.iter().find(|it| it.name == namespace.name).cloned();
        Ok(NamespaceChange { namespace: found.ok_or_else(broken)?, config, section })
    }

    /// What would be refused of a configuration file too, in words for an operator who attaches; and a Format.
    fn refuse_to_attach(&self, namespace: &Namespace, attach: &Attach) -> Result<(), DiskError> {
        let Attach { tenant, read_only, shared } = attach;
        let Namespace { name, nsid, .. } = namespace;
        let mut others = self.config().namespaces.iter().filter(|other| other.name != *name && other.nsid == *nsid);
        if let Some(other) = others.find(|other| other.attachment(tenant).is_some()) {
            let title = format!("tenant {tenant:?} has {:?} as its nsid {nsid} already", other.name);
            let remedy = "detach that one first: a namespace has the same nsid on every controller";
            return Err(DiskError::new(Reason::NsidTaken, title, remedy));
        }
        if !read_only && !shared && !namespace.shared && !namespace.tenants.is_empty() {
            let title = format!(
                "{} may write to {name:?} already, and most file systems are not made for several writers",
                namespace.tenants.join(" and ")
            );
            let remedy = "attach it read-only, or shared if they coordinate their writes";
            return Err(DiskError::new(Reason::SecondWriter, title, remedy));
        }
        let is_formatting = self.placement(name).is_some_and(|it| it.formatting_to_lba_bytes.is_some());
        if is_formatting && !namespace.is_alone() {
            let title = format!("a guest formats {name:?}, or its Format was cut short");
            return Err(DiskError::new(Reason::Formatting, title, "attach it once that guest has formatted it"));
        }
        Ok(())
    }

    /// A namespace that the API created and that is not being deleted, with its section.
    fn namespace_to_change(&self, name: &str) -> Result<(TenantId, Namespace), DiskError> {
        let Some(id) = self.disks().find_namespace(name) else {
            self.find_tenant(name).ok_or_else(|| DiskError::no_such_disk(name))?;
            let title = format!("{name:?} is a tenant's own disk, and no other controller can have it");
            let remedy = "make a namespace with `evenkeel disk create --attach`";
            return Err(DiskError::new(Reason::NoNamespace, title, remedy));
        };
        if self.disks().get(id).is_some_and(|disk| disk.phase == Phase::Leaving) {
            return Err(DiskError::new(Reason::Leaving, format!("{name:?} is being deleted"), "make another disk"));
        }
        let section = self.section_of(name).ok_or_else(|| declared(name, self.config()))?;
        Ok((id, Namespace::from_section(section).ok_or_else(broken)?))
    }

    /// The tenant that is to have a namespace.
    fn controller_of(&self, tenant: &str) -> Result<TenantId, DiskError> {
        let id = self.find_tenant(tenant).ok_or_else(|| self.no_tenant(tenant))?;
        let disk = self.disks().get(id).filter(|disk| disk.phase != Phase::Leaving);
        let disk = disk.ok_or_else(|| self.no_tenant(tenant))?;
        if disk.kind != (Kind::Tenant { has_controller: true }) {
            let title = format!("tenant {tenant:?} has no NVMe controller, and only those have namespaces");
            return Err(DiskError::new(Reason::NoController, title, "attach it to a tenant with frontend vfio-user"));
        }
        Ok(id)
    }

    fn no_tenant(&self, tenant: &str) -> DiskError {
        let title = format!("there is no tenant {tenant:?} on drive {:?}", self.config().device.name);
        DiskError { title, ..no_such_tenant(tenant) }
    }

    fn free_nsid(&self, controller: TenantId, tenant: &str) -> Result<u32, DiskError> {
        let is_wanted = |nsid: u32| {
            self.config().namespaces.iter().any(|other| other.nsid == nsid && other.attachment(tenant).is_some())
        };
        let is_free = |nsid: &u32| !is_wanted(*nsid) && !self.attachments().is_taken((controller, *nsid));
        NSIDS.into_iter().find(is_free).ok_or_else(|| {
            let title = format!("tenant {tenant:?} has all the namespaces that a controller can have");
            DiskError::new(Reason::NsidTaken, title, "detach one of them first, or grow one")
        })
    }
}

/// Whether a namespace equals the one to create, however its size is written.
fn is_same(made: &Namespace, disk: &DiskSpec, tenant: &str) -> bool {
    let bytes = |size: &str| size.parse::<Size>().ok();
    made.is_read_only(tenant) == Some(disk.read_only == Some(true))
        && (made.size == disk.size || bytes(&made.size).is_some() && bytes(&made.size) == bytes(&disk.size))
        && made.lba_size.unwrap_or(LBA_BYTES) == disk.lba_size.unwrap_or(LBA_BYTES)
        && (disk.encryption.is_none() || made.encryption == disk.encryption)
        && disk.nsid.is_none_or(|nsid| nsid == made.nsid)
}

/// Settings that a namespace does not have are its tenants'.
fn refuse_terms(disk: &DiskSpec) -> Result<(), DiskError> {
    let DiskSpec { name, size, drive, attach, nsid, lba_size, encryption, read_only, .. } = disk.clone();
    let plain = DiskSpec { name, size, drive, attach, nsid, lba_size, encryption, read_only, ..DiskSpec::default() };
    if *disk == plain { Ok(()) } else { Err(no_terms(&disk.name)) }
}

fn no_terms(name: &str) -> DiskError {
    let title = format!("namespace {name:?} has no promise and no limits: those of its tenants apply");
    let remedy = "set them for its tenants; a namespace has only a size, a block size and an encryption";
    DiskError::new(Reason::Invalid, title, remedy)
}

fn attached_otherwise(name: &str, tenant: &str, read_only: bool) -> DiskError {
    let how = if read_only { "read-only" } else { "read-write" };
    let title = format!("{name:?} is attached to {tenant} {how}");
    DiskError::new(Reason::Attached, title, "detach it there first: its guest still has it")
}
