//! What the vfio-user server's thread does with requests: stores doorbells, mails everything else to the
//! tenant's poller.

use std::collections::HashMap;
use std::sync::Arc;

use guest_memory::{MappedU32, Mapping};
use poller::TenantSlot;
use vfio_user::{DeviceId, Handler, Reply, ReplyTo, Request, Session};

use crate::device::{BAR0, DOORBELLS_END, DOORBELLS_START};
use crate::poller_thread::{Mail, Mailbox};

/// A device and where its requests go.
pub struct Route {
    /// The poller that owns the device.
    pub mailbox: Mailbox,
    /// Its place there.
    pub slot: TenantSlot,
    /// Its doorbells.
    pub doorbells: Arc<Mapping>,
}

/// Routes every device's requests.
pub struct Router {
    routes: HashMap<DeviceId, Route>,
}

impl Router {
    /// All devices are known from the start.
    pub fn new(routes: HashMap<DeviceId, Route>) -> Self {
        Self { routes }
    }

    fn send(&self, session: Session, mail: impl FnOnce(TenantSlot) -> Mail) {
        if let Some(route) = self.routes.get(&session.device) {
            route.mailbox.send(mail(route.slot));
        }
    }
}

/// Stores a trapped doorbell where the poller looks for mapped ones. `None`: not a doorbell.
fn ring(route: &Route, request: &Request) -> Option<()> {
    let Request::RegionWrite { region: BAR0, offset_bytes, data } = request else { return None };
    if !(DOORBELLS_START..DOORBELLS_END).contains(offset_bytes) {
        return None;
    }
    let value = u32::from_le_bytes(data.as_slice().try_into().ok()?);
    MappedU32::new(&route.doorbells, offset_bytes - DOORBELLS_START)?.store(value);
    route.mailbox.wake();
    Some(())
}

impl Handler for Router {
    fn connected(&mut self, session: Session) {
        self.send(session, |slot| Mail::Connected(slot, session));
    }

    fn request(&mut self, session: Session, request: Request, reply_to: ReplyTo) -> Option<Reply> {
        let Some(route) = self.routes.get(&session.device) else {
            return Some(Reply::Failed(rustix::io::Errno::NODEV));
        };
        if ring(route, &request).is_some() {
            return Some(Reply::Done);
        }
        route.mailbox.send(Mail::Request(route.slot, request, reply_to));
        None
    }

    fn disconnected(&mut self, session: Session, _reason: &str) {
        self.send(session, Mail::Disconnected);
    }
}
