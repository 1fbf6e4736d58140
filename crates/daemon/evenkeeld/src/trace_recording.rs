//! Has every command of a tenant recorded at its pollers, for a while.

use io_model::TenantId;
use poller::recorder;

use state::errors::no_such_tenant;

use crate::owner::Owner;
use crate::served_drive::ServedDrive;
use api::{DiskError, Reason};
use runtime::command::Recorded;
use runtime::poller_thread::Message;

/// Commands that may wait at each poller to be taken: 20 ms of the fastest drive there is. 3 MiB.
const RING_COMMANDS: usize = 1 << 16;

impl Owner {
    /// # Errors
    /// There is no such tenant, or it is not served now.
    pub(crate) fn record(&mut self, name: &str) -> Result<Recorded, DiskError> {
        let drive = self.find_drive(name).ok_or_else(|| DiskError::no_such_disk(name))?;
        let tenant = drive.find_tenant(name).ok_or_else(|| match drive.find_disk(name) {
            Some(_) => no_such_tenant(name),
            None => DiskError::no_such_disk(name),
        })?;
        drive.record(tenant).ok_or_else(|| {
            let remedy = "wait until `evenkeel disk list` shows it as ready";
            DiskError::new(Reason::NotServed, format!("{name:?} is not served now"), remedy)
        })
    }

    /// Nobody wants them any more. A tenant that left is recorded no more anyway.
    pub(crate) fn stop_recording(&mut self, tenant: TenantId) {
        self.drives.values().for_each(|drive| drive.stop_recording(tenant));
    }
}

impl ServedDrive {
    /// `None`: it is leaving.
    fn record(&self, id: TenantId) -> Option<Recorded> {
        let live = self.tenants.get(&id).filter(|live| live.leaving.is_none())?;
        let start = self.now();
        let ring = |poller: &_| {
            let (recorder, recording) = recorder(RING_COMMANDS);
            self.pollers.send(*poller, Message::Record(id, Some(Box::new(recorder))));
            recording
        };
        let rings = live.pollers.iter().map(ring).collect();
        let drive = self.config().device.name.as_str().into();
        Some(Recorded { tenant: id, drive, policy: self.policy.name(), start, rings })
    }

    fn stop_recording(&self, id: TenantId) {
        for poller in self.tenants.get(&id).iter().flat_map(|live| &live.pollers) {
            self.pollers.send(*poller, Message::Record(id, None));
        }
    }
}
