//! Which controllers have which namespaces.
//!
//! What is wanted follows from the disks; what is there, from the orders that were given. After each change the
//! difference is [settled](Attachments::settle): what is not wanted any more is detached, and what is wanted is
//! attached as soon as its identifier is free on that controller.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use io_model::TenantId;

use crate::disks::{Disks, Phase};

/// A controller, and an identifier of its namespaces.
pub type At = (TenantId, u32);

/// An order to a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceOrder {
    /// Attach a namespace.
    Attach {
        /// Its identifier there.
        nsid: u32,
        /// The namespace.
        namespace: TenantId,
        /// The guest can't write.
        read_only: bool,
        /// Another controller has it too.
        elsewhere: bool,
    },
    /// Let go of a namespace.
    Detach(u32),
    /// Whether another controller has a namespace too.
    Elsewhere(u32, bool),
    /// A namespace is larger now.
    Grow(u32, TenantId),
}

/// What a controller has under an identifier.
#[derive(Debug, Clone)]
struct Attached {
    namespace: TenantId,
    read_only: bool,
    /// The controller knows that another one has it too.
    elsewhere: bool,
    is_leaving: bool,
}

/// All of a drive.
#[derive(Debug, Clone, Default)]
pub struct Attachments(BTreeMap<At, Attached>);

impl Attachments {
    /// The namespace that a controller has and keeps.
    pub fn at(&self, controller: TenantId, nsid: u32) -> Option<TenantId> {
        self.0.get(&(controller, nsid)).filter(|it| !it.is_leaving).map(|it| it.namespace)
    }

    /// Whether a controller has a namespace with that identifier, or has not released it yet.
    pub fn is_taken(&self, at: At) -> bool {
        self.0.contains_key(&at)
    }

    /// Whether a controller was told to release a namespace, and has not done so yet.
    pub fn is_leaving(&self, at: At) -> bool {
        self.0.get(&at).is_some_and(|it| it.is_leaving)
    }

    /// How many controllers have a namespace, or have not released it yet.
    pub fn holders(&self, namespace: TenantId) -> usize {
        self.0.values().filter(|it| it.namespace == namespace).count()
    }

    /// The controllers that have a namespace and keep it, each with the identifier there.
    pub fn of(&self, namespace: TenantId) -> impl Iterator<Item = At> {
        self.0.iter().filter(move |(_, it)| it.namespace == namespace && !it.is_leaving).map(|(at, _)| *at)
    }

    /// All that a controller has.
    pub(crate) fn on(&self, controller: TenantId) -> Vec<At> {
        self.0.keys().filter(|(of, _)| *of == controller).copied().collect()
    }

    /// A controller has released a namespace. Returns it.
    pub(crate) fn remove(&mut self, at: At) -> Option<TenantId> {
        self.0.remove(&at).map(|it| it.namespace)
    }

    /// Orders that give controllers the namespaces that they are to have, and take the others away.
    pub(crate) fn settle(&mut self, disks: &Disks) -> Vec<(TenantId, NamespaceOrder)> {
        let wanted = wanted(disks);
        let mut orders = Vec::new();
        for ((controller, nsid), it) in &mut self.0 {
            let is_wanted = wanted.get(&(*controller, *nsid)) == Some(&(it.namespace, it.read_only));
            if !it.is_leaving && !is_wanted {
                it.is_leaving = true;
                orders.push((*controller, NamespaceOrder::Detach(*nsid)));
            }
        }
        let mut new = Vec::new();
        for (at, (namespace, read_only)) in wanted {
            if let Entry::Vacant(entry) = self.0.entry(at) {
                entry.insert(Attached { namespace, read_only, elsewhere: false, is_leaving: false });
                new.push(at);
            }
        }
        self.tell_elsewhere(&new, &mut orders);
        for (controller, nsid) in new {
            if let Some(Attached { namespace, read_only, elsewhere, .. }) = self.0.get(&(controller, nsid)).cloned() {
                orders.push((controller, NamespaceOrder::Attach { nsid, namespace, read_only, elsewhere }));
            }
        }
        orders
    }

    /// Controllers know whether another one has a namespace too. The `new` ones learn it when they attach.
    fn tell_elsewhere(&mut self, new: &[At], orders: &mut Vec<(TenantId, NamespaceOrder)>) {
        let mut holders: BTreeMap<TenantId, usize> = BTreeMap::new();
        self.0.values().for_each(|it| *holders.entry(it.namespace).or_default() += 1);
        for (at, it) in self.0.iter_mut().filter(|(_, it)| !it.is_leaving) {
            let elsewhere = holders.get(&it.namespace).is_some_and(|holders| *holders > 1);
            if it.elsewhere != elsewhere {
                it.elsewhere = elsewhere;
                if !new.contains(at) {
                    orders.push((at.0, NamespaceOrder::Elsewhere(at.1, elsewhere)));
                }
            }
        }
    }
}

/// The namespaces that controllers should have: controllers of tenants that pollers serve and that stay.
fn wanted(disks: &Disks) -> BTreeMap<At, (TenantId, bool)> {
    let mut wanted = BTreeMap::new();
    let served: Vec<_> = disks.namespaces().filter(|(_, disk, _)| disk.phase == Phase::Served).collect();
    if served.is_empty() {
        return wanted;
    }
    let tenants = disks.iter().filter(|(_, disk)| disk.takes_namespaces());
    let ids: BTreeMap<&str, TenantId> = tenants.map(|(id, disk)| (disk.name.as_str(), id)).collect();
    for (id, _, namespace) in served {
        for attachment in &namespace.attachments {
            if let Some(controller) = ids.get(attachment.tenant.as_str()) {
                wanted.insert((*controller, namespace.nsid), (id, attachment.read_only));
            }
        }
    }
    wanted
}
