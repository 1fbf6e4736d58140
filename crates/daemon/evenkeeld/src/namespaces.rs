//! Namespaces, and which controllers have them.
//!
//! What is wanted follows from the configuration; what is there, from the orders that pollers were given. After each
//! change the difference is [settled](ServedDrive::settle_namespaces): what is not wanted any more is detached, and
//! what is wanted is attached as soon as its identifier is free on that controller.

use std::collections::BTreeMap;

use anyhow::Result;
use client_socket::Level;
use config::{Config, Namespace};
use io_model::TenantId;
use io_model::units::Size;

use crate::served_drive::ServedDrive;
use runtime::front_end::{self, NvmeOrder};
use runtime::happening::Happening;
use runtime::poller_thread::{Message, TenantAt};

/// How far a namespace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Its range is zeroed before any guest sees it.
    Zeroing,
    /// It is attached where it is wanted.
    Served,
    /// It was deleted, and controllers may still have it.
    Leaving,
}

/// A namespace that is there.
pub(crate) struct LiveNamespace {
    pub(crate) namespace: Namespace,
    pub(crate) state: State,
}

/// What is done later, with the drive.
type Then = Box<dyn FnOnce(&mut ServedDrive) + Send>;

/// What a controller has under an identifier.
struct There {
    /// Which namespace.
    id: TenantId,
    read_only: bool,
    /// The controller knows that another one has it too.
    elsewhere: bool,
    is_leaving: bool,
    /// Called when it has left.
    waiting: Vec<Then>,
}

/// A controller, and an identifier of its namespaces.
type At = (TenantId, u32);

/// All of them. A namespace has an identifier like a tenant, to be zeroed and wiped by.
#[derive(Default)]
pub(crate) struct Namespaces {
    live: BTreeMap<TenantId, LiveNamespace>,
    there: BTreeMap<At, There>,
}

impl Namespaces {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn get(&self, id: TenantId) -> Option<&LiveNamespace> {
        self.live.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TenantId, &LiveNamespace)> {
        self.live.iter().map(|(id, live)| (*id, live))
    }

    pub(crate) fn find(&self, name: &str) -> Option<TenantId> {
        self.iter().find(|(_, live)| live.namespace.name == name).map(|(id, _)| id)
    }

    /// The namespace that a controller has, if it is not leaving.
    pub(crate) fn at(&self, controller: TenantId, nsid: u32) -> Option<(TenantId, &LiveNamespace)> {
        let there = self.there.get(&(controller, nsid)).filter(|there| !there.is_leaving)?;
        Some((there.id, self.live.get(&there.id)?))
    }

    /// Whether a controller has something under that identifier, or has not let go of it yet.
    pub(crate) fn is_taken(&self, controller: TenantId, nsid: u32) -> bool {
        self.there.contains_key(&(controller, nsid))
    }

    /// How many controllers have a namespace.
    pub(crate) fn holders(&self, id: TenantId) -> usize {
        self.there.values().filter(|there| there.id == id).count()
    }
}

impl ServedDrive {
    /// All namespaces of the configuration; none of their tenants has a client yet.
    pub(crate) fn start_namespaces(&mut self) -> Result<()> {
        for namespace in self.config.namespaces.clone() {
            self.add_namespace(namespace)?;
        }
        Ok(())
    }

    /// Takes on a namespace that has its place on the drive: attaches it where it is wanted, or has it zeroed before.
    pub(crate) fn add_namespace(&mut self, namespace: Namespace) -> Result<TenantId> {
        let id = self.new_id();
        let name = namespace.name.clone();
        let placement = self.layout.layout().and_then(|layout| layout.find(&name));
        let (needs_zeroing, grows) =
            placement.map_or((false, false), |it| (it.zeroed_bytes.is_some(), it.grows_from_bytes.is_some()));
        let state = if needs_zeroing && !grows { State::Zeroing } else { State::Served };
        self.namespaces.live.insert(id, LiveNamespace { namespace, state });
        if needs_zeroing && let Err(error) = self.zero(id, &name) {
            self.namespaces.live.remove(&id);
            return Err(error);
        }
        self.settle_namespaces();
        Ok(id)
    }

    /// Namespaces are what a configuration says of them from now on.
    pub(crate) fn take_namespaces(&mut self, config: &Config) {
        let named: BTreeMap<&str, &Namespace> = config.namespaces.iter().map(|it| (it.name.as_str(), it)).collect();
        for live in self.namespaces.live.values_mut() {
            if let Some(now) = named.get(live.namespace.name.as_str()) {
                live.namespace = (*now).clone();
            }
        }
        self.settle_namespaces();
    }

    /// Gives controllers the namespaces that they are to have, and takes the others away.
    pub(crate) fn settle_namespaces(&mut self) {
        let wanted = self.wanted_namespaces();
        let is_wanted = |at: &At, there: &There| wanted.get(at) == Some(&(there.id, there.read_only));
        let there = &mut self.namespaces.there;
        let going = there.iter_mut().filter(|(at, there)| !there.is_leaving && !is_wanted(at, there));
        let gone: Vec<At> = going
            .map(|(at, there)| {
                there.is_leaving = true;
                *at
            })
            .collect();
        let mut new = Vec::new();
        for (at, (id, read_only)) in wanted.into_iter().filter(|(at, _)| !there.contains_key(at)).collect::<Vec<_>>() {
            there.insert(at, There { id, read_only, elsewhere: false, is_leaving: false, waiting: Vec::new() });
            new.push(at);
        }
        for at in gone {
            let teller = self.teller.clone();
            let left = Box::new(move || teller.tell(Happening::NamespaceLeft(at.0, at.1)));
            self.order(at.0, NvmeOrder::Detach(at.1, left));
        }
        self.tell_elsewhere(&new);
        for at in new {
            self.attach_there(at);
        }
    }

    /// By controllers that can have them now: those of tenants that are served and stay.
    fn wanted_namespaces(&self) -> BTreeMap<At, (TenantId, bool)> {
        let served = self.namespaces.live.iter().filter(|(_, live)| live.state == State::Served);
        let mut wanted = BTreeMap::new();
        if self.namespaces.live.is_empty() {
            return wanted;
        }
        let tenants = self.tenants.iter().filter(|(_, live)| live.leaving.is_none() && !live.places.is_empty());
        let tenants = tenants.filter(|(_, live)| live.tenant.frontend.is_controller());
        let ids: BTreeMap<&str, TenantId> = tenants.map(|(id, live)| (live.tenant.name.as_str(), *id)).collect();
        for (id, LiveNamespace { namespace, .. }) in served {
            for attachment in &namespace.attachments {
                if let Some(controller) = ids.get(attachment.tenant.as_str()) {
                    wanted.insert((*controller, namespace.nsid), (*id, attachment.read_only));
                }
            }
        }
        wanted
    }

    /// Controllers know whether another one has a namespace too: those that `new` are will be told so.
    fn tell_elsewhere(&mut self, new: &[At]) {
        let mut holders: BTreeMap<TenantId, usize> = BTreeMap::new();
        self.namespaces.there.values().for_each(|there| *holders.entry(there.id).or_default() += 1);
        let mut told = Vec::new();
        for (at, there) in self.namespaces.there.iter_mut().filter(|(_, there)| !there.is_leaving) {
            let elsewhere = holders.get(&there.id).is_some_and(|holders| *holders > 1);
            if there.elsewhere != elsewhere {
                there.elsewhere = elsewhere;
                told.push((*at, elsewhere));
            }
        }
        for ((controller, nsid), elsewhere) in told.into_iter().filter(|(at, _)| !new.contains(at)) {
            self.order(controller, NvmeOrder::Elsewhere(nsid, elsewhere));
        }
    }

    fn attach_there(&mut self, (controller, nsid): At) {
        let Some(There { id, read_only, elsewhere, .. }) = self.namespaces.there.get(&(controller, nsid)) else {
            return;
        };
        let Some(live) = self.namespaces.live.get(id) else { return };
        let placement = self.layout.layout().and_then(|layout| layout.find(&live.namespace.name));
        let Some(placement) = placement else { return };
        let facts = self.pollers.drive_facts();
        self.order(controller, front_end::attach_namespace(nsid, placement, &facts, *read_only, *elsewhere));
    }

    /// Orders go to a controller in the sequence in which they are given.
    fn order(&self, controller: TenantId, order: NvmeOrder) {
        let Some(live) = self.tenants.get(&controller) else { return };
        let orders = front_end::for_controller_parts(order, live.places.len());
        for ((poller, slot), order) in live.places.iter().zip(orders) {
            self.pollers.send(*poller, Message::Order(TenantAt { id: controller, slot: *slot }, order.into()));
        }
    }

    /// A controller has let go of a namespace: nothing of it is in flight there.
    pub(crate) fn namespace_left(&mut self, controller: TenantId, nsid: u32) {
        let Some(There { id, waiting, .. }) = self.namespaces.there.remove(&(controller, nsid)) else { return };
        self.forget_deleted(id);
        self.settle_namespaces();
        waiting.into_iter().for_each(|waiting| waiting(self));
    }

    /// A controller is gone, with all that it had.
    pub(crate) fn controller_left(&mut self, controller: TenantId) {
        let its = self.namespaces.there.keys().filter(|(of, _)| *of == controller).copied();
        for (_, nsid) in its.collect::<Vec<_>>() {
            self.namespace_left(controller, nsid);
        }
    }

    /// Calls `then` once a controller that was to let go of a namespace has done so, or at once.
    pub(crate) fn when_namespace_left(&mut self, at: (TenantId, u32), then: impl FnOnce(&mut Self) + Send + 'static) {
        match self.namespaces.there.get_mut(&at).filter(|there| there.is_leaving) {
            Some(there) => there.waiting.push(Box::new(then)),
            None => then(self),
        }
    }

    /// A namespace is deleted in the layout: it leaves every controller, and is forgotten then.
    pub(crate) fn remove_namespace(&mut self, id: TenantId) {
        self.zeroing.iter().for_each(|zeroing| zeroing.cancel(id));
        if let Some(live) = self.namespaces.live.get_mut(&id) {
            live.state = State::Leaving;
        }
        self.settle_namespaces();
        self.forget_deleted(id);
    }

    fn forget_deleted(&mut self, id: TenantId) {
        let is_over = self.namespaces.get(id).is_some_and(|live| live.state == State::Leaving);
        if is_over && self.namespaces.holders(id) == 0 {
            self.namespaces.live.remove(&id);
            self.wipe_if_let_go_of(id);
        }
    }

    /// All of a new namespace is zeroed.
    pub(crate) fn namespace_zeroed(&mut self, id: TenantId) {
        let Some(live) = self.namespaces.live.get_mut(&id) else { return };
        if live.state == State::Zeroing {
            live.state = State::Served;
            let line = format!("{}: its range is zeroed", live.namespace.name);
            (self.around.sink)(Level::Info.of_tenant(&live.namespace.name), &line);
            return self.settle_namespaces();
        }
        self.show_namespace_growth(id);
    }

    /// A namespace is longer: its guests see it.
    pub(crate) fn show_namespace_growth(&mut self, id: TenantId) {
        let Some(live) = self.namespaces.get(id) else { return };
        let name = &live.namespace.name;
        let Some(placement) = self.layout.layout().and_then(|layout| layout.find(name)) else { return };
        (self.around.sink)(
            Level::Info.of_tenant(name),
            &format!("{name}: it has {} now", Size(placement.size_bytes())),
        );
        let its = self.namespaces.there.iter().filter(|(_, there)| there.id == id && !there.is_leaving);
        for ((controller, nsid), _) in its {
            self.order(*controller, NvmeOrder::Grow(*nsid, placement.size_bytes(), placement.to_look_up()));
        }
    }
}
