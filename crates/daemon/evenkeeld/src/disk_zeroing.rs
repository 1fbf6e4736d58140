//! Zeroes ranges before a guest sees them: those of new tenants, and the added ranges of growing disks.
//!
//! A new tenant is served after that. A growing disk keeps its old size until then.

use anyhow::{Context, Result};
use api::EventKind;
use client_socket::Level;
use io_model::TenantId;
use io_model::units::Size;
use state::{Command as StateCommand, Disk};

use crate::served_drive::ServedDrive;
use runtime::front_end::{self, Growth};
use runtime::happening::Zeroed;
use runtime::poller_thread::Message;
use runtime::zeroer::Zeroing;

impl ServedDrive {
    /// Has what is new of a disk zeroed; [`zeroed`](Self::zeroed) hears of it.
    pub(crate) fn zero(&mut self, id: TenantId) -> Result<()> {
        let begun = self.begin_to_zero(id);
        if let Err(error) = &begun {
            // There is no job. The caller tells why.
            let result = Err(format!("{error:#}"));
            let _ = self.state.apply(StateCommand::Zeroed { id, result, is_over: true });
        }
        begun
    }

    fn begin_to_zero(&mut self, id: TenantId) -> Result<()> {
        if self.zeroing.is_none() {
            let drive = self.pollers.zeroer().context("this drive can't zero a range")?;
            self.zeroing = Some(Zeroing::start(drive, self.teller.clone())?);
        }
        let placement = self.state.disks().get(id).and_then(|disk| self.state.placement(&disk.name));
        if let (Some(zeroing), Some(placement)) = (&mut self.zeroing, placement) {
            zeroing.zero(id, placement);
        }
        Ok(())
    }

    /// A tenant's guest sees the size that its disk has now.
    pub(crate) fn show_size(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get(&id).map(|live| live.tenant.clone()) else { return };
        let name = tenant.name.clone();
        if let Err(error) = self.open_map(&tenant) {
            let line = format!("{name}: its guest sees the new size at the next start: {error:#}");
            return (self.around.sink)(Level::Warn.of_tenant(&name), &line);
        }
        let (Some(live), name) = (self.tenants.get(&id), &name) else { return };
        let Some(placement) = self.state.placement(name) else { return };
        let (size_bytes, extents) = (placement.size_bytes(), self.extents(placement));
        (self.around.sink)(Level::Info.of_tenant(name), &format!("{name}: it has {} now", Size(size_bytes)));
        let orders = front_end::grown(&live.tenant.frontend, Growth { size_bytes, extents }, live.pollers.len());
        for (poller, order) in live.pollers.iter().zip(orders) {
            self.pollers.send(*poller, Message::Order(id, order));
        }
    }

    /// Records how far a disk's new range is; once all of it is zeroed its guest gets it.
    pub(crate) fn zeroed(&mut self, Zeroed { tenant: id, result, is_over }: Zeroed) {
        if let Some(zeroing) = self.zeroing.as_mut().filter(|_| is_over) {
            zeroing.ended(id);
        }
        let result = result.map_err(|error| format!("{error:#}"));
        if let Err(error) = self.apply(StateCommand::Zeroed { id, result, is_over }) {
            // It could not be recorded, or the tenant can't be put on its socket.
            let result = Err(format!("{error:#}"));
            self.apply_or_warn(StateCommand::Zeroed { id, result, is_over });
            return;
        }
        let disk = self.state.disks().get(id);
        let Some(placement) = disk.and_then(|disk| self.state.placement(&disk.name)) else { return };
        if let Some(zeroed_bytes) = placement.zeroed_bytes.filter(|_| !is_over) {
            let (name, zeroed, all) = (&placement.name, Size(zeroed_bytes), Size(placement.size_bytes()));
            let line = format!("{name}: {zeroed} of {all} zeroed; its guest sees them once all are");
            (self.around.sink)(Level::Info.of_tenant(name), &line);
        }
    }

    /// A namespace's new range is zeroed; a tenant's guest, or its socket, tells of itself.
    pub(crate) fn tell_zeroed(&self, id: TenantId) {
        let Some(disk) = self.state.disks().get(id).filter(|disk| disk.namespace().is_some()) else { return };
        let line = format!("{}: its range is zeroed", disk.name);
        (self.around.sink)(Level::Info.of_tenant(&disk.name), &line);
    }

    /// A new tenant is not served then and can only be deleted. A growing disk keeps its size.
    pub(crate) fn tell_not_zeroed(&mut self, id: TenantId, why: &str) {
        let Some(Disk { name, .. }) = self.state.disks().get(id) else { return };
        let is_new = self.waiting.remove(&id).is_some();
        let line = match is_new {
            true => format!("{name}: it is not served, its new range can't be zeroed: {why}"),
            false => format!("{name}: it grows only at the next start, its new range can't be zeroed: {why}"),
        };
        (self.around.sink)(Level::Warn.of_tenant(name), &line);
        if is_new {
            self.events.tell(EventKind::DriveFailing, Some(name), Some(format!("can't be zeroed: {why}")));
        }
    }
}
