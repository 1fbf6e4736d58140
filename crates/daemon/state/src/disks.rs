//! The disks that are there, and how far each is.

use std::collections::BTreeMap;

use config::Namespace;
use io_model::TenantId;
use layout::Placement;

/// What a disk is for its guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A tenant's own disk, with a socket or a block device.
    Tenant {
        /// It is an NVMe controller, which may have namespaces.
        has_controller: bool,
    },
    /// A part of tenants' controllers.
    Namespace(Box<Namespace>),
}

/// How far a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Its queues are on their way to pollers.
    Coming,
    /// Its range is zeroed before any guest sees it.
    Zeroing,
    /// Guests can have it.
    Served,
    /// Its range can't be zeroed. It can only be deleted.
    Failed,
    /// Pollers or controllers have not released it yet.
    Leaving,
}

/// A disk that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// How far it is.
    pub phase: Phase,
}

impl Disk {
    /// Its namespace, if it is one.
    pub fn namespace(&self) -> Option<&Namespace> {
        match &self.kind {
            Kind::Namespace(namespace) => Some(namespace),
            Kind::Tenant { .. } => None,
        }
    }

    /// Whether its controller can have namespaces now.
    pub(crate) fn takes_namespaces(&self) -> bool {
        self.kind == Kind::Tenant { has_controller: true } && !matches!(self.phase, Phase::Coming | Phase::Leaving)
    }
}

/// All disks of a drive that are there.
#[derive(Debug, Clone, Default)]
pub struct Disks(BTreeMap<TenantId, Disk>);

impl Disks {
    /// One of them.
    pub fn get(&self, id: TenantId) -> Option<&Disk> {
        self.0.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: TenantId) -> Option<&mut Disk> {
        self.0.get_mut(&id)
    }

    /// All, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = (TenantId, &Disk)> {
        self.0.iter().map(|(id, disk)| (*id, disk))
    }

    /// All namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = (TenantId, &Disk, &Namespace)> {
        self.iter().filter_map(|(id, disk)| Some((id, disk, disk.namespace()?)))
    }

    /// The disk of that name.
    pub fn find(&self, name: &str) -> Option<TenantId> {
        self.iter().find(|(_, disk)| disk.name == name).map(|(id, _)| id)
    }

    /// The namespace of that name.
    pub fn find_namespace(&self, name: &str) -> Option<TenantId> {
        self.namespaces().find(|(_, disk, _)| disk.name == name).map(|(id, ..)| id)
    }

    pub(crate) fn insert(&mut self, id: TenantId, disk: Disk) {
        self.0.insert(id, disk);
    }

    pub(crate) fn remove(&mut self, id: TenantId) -> Option<Disk> {
        self.0.remove(&id)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Disk> {
        self.0.values_mut()
    }
}

/// Whether something of a disk has to be zeroed, and whether guests wait for that.
pub(crate) fn zeroing_of(placement: Option<&Placement>) -> (bool, Phase) {
    let needs_zeroing = placement.is_some_and(|it| it.zeroed_bytes.is_some());
    let grows = placement.is_some_and(|it| it.grows_from_bytes.is_some());
    (needs_zeroing, if needs_zeroing && !grows { Phase::Zeroing } else { Phase::Served })
}
