//! Zeroes ranges before a guest sees them: those of new tenants, and the added ranges of growing disks.
//!
//! A new tenant is served after that. A growing disk keeps its old size until then.

use anyhow::{Context, Result};
use api::EventKind;
use client_socket::Level;
use io_model::TenantId;
use io_model::units::Size;

use crate::namespaces::State;
use crate::served_drive::{Ready, ServedDrive};
use api::{DiskError, Reason};
use runtime::front_end::{self, Growth};
use runtime::happening::Zeroed;
use runtime::poller_thread::{Message, TenantAt};
use runtime::zeroer::Zeroing;

impl ServedDrive {
    /// Lets a tenant's clients connect, or has its range zeroed before.
    pub(crate) fn zero_or_serve(&mut self, id: TenantId, name: &str, ready: Ready) -> Result<()> {
        let placement = self.layout.layout().and_then(|layout| layout.find(name));
        let (needs_zeroing, grows) =
            placement.map_or((false, false), |it| (it.zeroed_bytes.is_some(), it.grows_from_bytes.is_some()));
        if needs_zeroing {
            self.zero(id, name)?;
        }
        if needs_zeroing && !grows {
            self.waiting.insert(id, ready);
            return Ok(());
        }
        self.put_on_socket(id, ready)
    }

    /// Has what is new of a tenant's disk zeroed; [`zeroed`](Self::zeroed) hears of it.
    pub(crate) fn zero(&mut self, id: TenantId, name: &str) -> Result<()> {
        if self.zeroing.is_none() {
            let drive = self.pollers.zeroer().context("this drive can't zero a range")?;
            self.zeroing = Some(Zeroing::start(drive, self.teller.clone())?);
        }
        let placement = self.layout.layout().and_then(|layout| layout.find(name));
        if let (Some(zeroing), Some(placement)) = (&mut self.zeroing, placement) {
            zeroing.zero(id, placement);
        }
        Ok(())
    }

    /// A tenant's disk is longer in the layout: once that is zeroed, its guest sees it.
    pub(crate) fn has_grown(&mut self, id: TenantId, name: &str) -> Result<(), DiskError> {
        let placement = self.layout.layout().and_then(|layout| layout.find(name));
        if placement.is_some_and(|placement| placement.zeroed_bytes.is_some()) {
            return self.zero(id, name).map_err(|error| {
                let title = format!("{name:?} grows at the next start only: {error:#}");
                DiskError::new(Reason::Failed, title, "see the daemon's log")
            });
        }
        self.is_zeroed_whole(id);
        Ok(())
    }

    /// Nothing of a disk has to be zeroed any more.
    fn is_zeroed_whole(&mut self, id: TenantId) {
        if self.namespaces.get(id).is_some() { self.namespace_zeroed(id) } else { self.show_growth(id) }
    }

    /// The name of a tenant or namespace that stays.
    fn name_of(&self, id: TenantId) -> Option<String> {
        let tenant = self.tenants.get(&id).filter(|live| live.leaving.is_none()).map(|live| &live.tenant.name);
        let namespace = || self.namespaces.get(id).filter(|live| live.state != State::Leaving);
        tenant.or_else(|| namespace().map(|live| &live.namespace.name)).cloned()
    }

    fn show_growth(&mut self, id: TenantId) {
        let Some(live) = self.tenants.get(&id) else { return };
        let name = &live.tenant.name;
        let Some(placement) = self.layout.layout().and_then(|layout| layout.find(name)) else { return };
        let (size_bytes, extents) = (placement.size_bytes(), placement.to_look_up());
        (self.around.sink)(Level::Info.of_tenant(name), &format!("{name}: it has {} now", Size(size_bytes)));
        let orders = front_end::grown(&live.tenant.frontend, Growth { size_bytes, extents }, live.places.len());
        for ((poller, slot), order) in live.places.iter().zip(orders) {
            self.pollers.send(*poller, Message::Order(TenantAt { id, slot: *slot }, order));
        }
    }

    /// Records how far a tenant's new range is; once all of it is zeroed its guest gets it.
    pub(crate) fn zeroed(&mut self, Zeroed { tenant: id, result, is_over }: Zeroed) {
        if let Some(zeroing) = self.zeroing.as_mut().filter(|_| is_over) {
            zeroing.ended(id);
        }
        let Some(name) = self.name_of(id) else { return self.wipe_if_let_go_of(id) };
        let recorded = result.and_then(|bytes| Ok(self.layout.set_zeroed(&name, bytes)?));
        let placement = self.layout.layout().and_then(|layout| layout.find(&name));
        let part = placement.and_then(|placement| Some((placement.zeroed_bytes?, placement.size_bytes())));
        match (recorded, part) {
            (Ok(()), Some((zeroed, all))) => {
                let line =
                    format!("{name}: {} of {} zeroed; its guest sees them once all are", Size(zeroed), Size(all));
                (self.around.sink)(Level::Info.of_tenant(&name), &line);
            }
            (recorded, _) if self.waiting.contains_key(&id) => self.serve_zeroed(id, &name, recorded),
            (Ok(()), None) => self.is_zeroed_whole(id),
            (Err(error), _) => {
                let line =
                    format!("{name}: it does not grow before the next start, what is new can't be zeroed: {error:#}");
                (self.around.sink)(Level::Warn.of_tenant(&name), &line);
            }
        }
    }

    /// The range of a new tenant is zeroed, or can't be. In the second case the tenant is not served and can only be
    /// deleted.
    fn serve_zeroed(&mut self, id: TenantId, name: &str, zeroed: Result<()>) {
        let Some(ready) = self.waiting.remove(&id) else { return };
        let served = zeroed.and_then(|()| self.put_on_socket(id, ready));
        if let Err(error) = &served {
            let line = format!("{name}: it is not served, its new range can't be zeroed: {error:#}");
            (self.around.sink)(Level::Warn.of_tenant(name), &line);
            self.events.tell(EventKind::DriveFailing, Some(name), Some(format!("can't be zeroed: {error:#}")));
        }
    }

    /// What a disk left is wiped when neither a poller nor the zeroing writes there any more.
    pub(crate) fn wipe_if_let_go_of(&mut self, id: TenantId) {
        let is_there = self.tenants.contains_key(&id) || self.namespaces.get(id).is_some();
        if !is_there && !self.is_zeroed(id) {
            self.wipe_after(id);
        }
    }

    /// Whether something of a tenant's range is being zeroed, or will be.
    pub(crate) fn is_zeroed(&self, id: TenantId) -> bool {
        self.zeroing.as_ref().is_some_and(|zeroing| zeroing.has_job(id))
    }
}
