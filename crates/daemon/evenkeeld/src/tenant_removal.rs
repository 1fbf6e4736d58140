//! Tenants that leave their pollers: for good, or to be served another way from then on.
//!
//! The second is how a front end, its queues or its pollers change: the tenant is taken off and put on again over the
//! same range. No guest notices, since only one without a client is: options of one that has a client are refused, and
//! its pollers follow once the client has left.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use client_socket::Level;
use config::{Config, Tenant};
use confine::ThreadKind;
use io_model::TenantId;
use policy::PolicyConfig;
use rustix::fs::{AtFlags, CWD, unlinkat};

use state::Command as StateCommand;
use state::errors::nobody;

use crate::served_drive::{Live, ServedDrive};
use api::{DiskError, Reason};
use runtime::front_end::Reached;
use runtime::happening::Happening;
use runtime::poller_thread::Message;
use runtime::threads;

impl ServedDrive {
    /// Has a tenant's pollers let go of it, for good.
    pub(crate) fn leave(&mut self, id: TenantId) {
        let live = self.tenants.get_mut(&id);
        // A tenant that never came to its pollers has left them, too.
        if live.is_none_or(|live| std::mem::take(&mut live.comes_back) && live.leaving == Some(0)) {
            self.left(id);
        } else {
            self.begin_to_leave(id);
        }
    }

    /// Takes a tenant off its socket, and has its pollers let go of it; [`left`](Self::left) hears of each.
    fn begin_to_leave(&mut self, id: TenantId) {
        let Some(live) = self.tenants.get_mut(&id).filter(|live| live.leaving.is_none()) else { return };
        self.waiting.remove(&id);
        self.locked.remove(&id);
        if let Some(server) = live.server.take() {
            server.stop();
            // Its client can make its thread hang, and nobody else is to wait for it. Where there is no thread to be
            // had, that is what happens, for a second.
            let _ = threads::spawn("closing", ThreadKind::Closing, move || drop(server));
        }
        live.leaving = Some(live.pollers.len());
        for poller in &live.pollers {
            let teller = self.teller.clone();
            self.pollers.send(*poller, Message::Remove(id, Box::new(move || teller.tell(Happening::Left(id)))));
        }
    }

    /// A poller has let go of its part of a tenant.
    pub(crate) fn left(&mut self, id: TenantId) {
        if let Some(live) = self.tenants.get_mut(&id)
            && let Some(pollers) = &mut live.leaving
        {
            *pollers = pollers.saturating_sub(1);
            if *pollers > 0 || live.comes_back {
                return;
            }
        }
        if let Some(Live { tenant, .. }) = self.forget(id) {
            (self.around.sink)(Level::Info.of_tenant(&tenant.name), &format!("{}: is no longer served", tenant.name));
            self.remove_directory_of(&tenant);
        }
        self.apply_or_warn(StateCommand::Left(id));
    }

    /// The directory of a socket that is gone, unless something else is in it.
    fn remove_directory_of(&self, tenant: &Tenant) {
        if let Some(directory) = self.config().socket_path(tenant).as_deref().and_then(Path::parent) {
            // If it can't be removed, it is in nobody's way. Not by rmdir(2), which the thread may not call.
            let _ = unlinkat(CWD, directory, AtFlags::REMOVEDIR);
        }
    }

    fn forget(&mut self, id: TenantId) -> Option<Live> {
        let live = self.tenants.remove(&id)?;
        Arc::make_mut(&mut self.foresight).forget(id);
        self.events.set_labels(&live.tenant.name, &BTreeMap::new());
        self.pollers.forget(id);
        if self.pollers.keys().forget(id) {
            self.pollers.take_keys(|| ());
        }
        self.pollers.close_unused(self.state.config());
        Some(live)
    }

    /// Has the pollers of a tenant without a client let go of it. Unless a command goes on then, it is served again as
    /// it was, where it belongs by then.
    pub(crate) fn take_off(&mut self, id: TenantId) {
        if let Some(live) = self.tenants.get_mut(&id).filter(|live| live.leaving.is_none()) {
            live.comes_back = true;
            self.begin_to_leave(id);
        }
    }

    /// As [`take_off`](Self::take_off), for a command that has done nothing yet.
    ///
    /// # Errors
    /// Its pollers have not let go of it yet: the command is carried out anew once they have.
    pub(crate) fn take_off_first(&mut self, id: TenantId) -> Result<(), DiskError> {
        self.take_off(id);
        if self.tenants.get(&id).is_none_or(|live| live.leaving == Some(0)) {
            return Ok(());
        }
        self.awaited.push(id);
        Err(DiskError::new(Reason::StillLeaving, "its pollers have not released it yet", "ask again in a moment"))
    }

    /// Forgets a tenant that its pollers have let go of and that is to be served again.
    fn put_away(&mut self, id: TenantId) -> Option<Tenant> {
        let live = self.forget(id)?;
        self.apply_or_warn(StateCommand::Left(id));
        Some(live.tenant)
    }

    /// Serves tenants again that were taken off their pollers, unless a command waits for that.
    pub(crate) fn take_back(&mut self, is_awaited: impl Fn(TenantId) -> bool) {
        let is_off = |(id, live): &(&TenantId, &Live)| live.leaving == Some(0) && !is_awaited(**id);
        let off: Vec<TenantId> = self.tenants.iter().filter(is_off).map(|(id, _)| *id).collect();
        let config = self.state.shared_config();
        for tenant in off.into_iter().filter_map(|id| self.put_away(id)).collect::<Vec<_>>() {
            let name = tenant.name.clone();
            if let Err(error) = self.serve_placed(tenant, &config) {
                let line = format!("{name}: it is no longer served: {error:#}");
                (self.around.sink)(Level::Warn.of_tenant(&name), &line);
            }
        }
    }

    /// Whether pollers have yet to let go of what was told to leave.
    pub(crate) fn is_leaving(&self, id: TenantId) -> bool {
        let is_tenant = self.tenants.get(&id).is_some_and(|live| live.leaving.is_some_and(|pollers| pollers > 0));
        is_tenant || self.reencryptions.is_leaving(id)
    }

    /// Whether a client has a tenant's disk now.
    pub(crate) fn is_attached(&self, id: TenantId) -> bool {
        self.tenants.get(&id).and_then(|live| live.server.as_ref()).is_some_and(Reached::has_client)
    }

    /// Why a client that has a tenant's disk would lose it if the daemon were started again. `None`: it goes on.
    pub(crate) fn lost_on_restart(&self, id: TenantId) -> Option<&'static str> {
        let Some(live) = self.tenants.get(&id) else { return Some("it is not served") };
        // A VMM reconnects a virtio disk, and a block device waits. An NVMe client needs the keeper.
        let lacks_keeper = live.tenant.frontend.is_controller() && !live.server.as_ref().is_some_and(Reached::is_kept);
        if !self.config().device.backend.outlives_daemon() {
            return Some("the drive's data is in the daemon's memory alone");
        }
        let locked = self.locked_after_restart(&live.tenant.name);
        locked.or_else(|| lacks_keeper.then_some("no keeper has its client's connection"))
    }

    /// As [`lost_on_restart`](Self::lost_on_restart), of a namespace with these tenants: why one with a client would
    /// lose it.
    pub(crate) fn namespace_lost_on_restart<'a>(
        &self,
        name: &str,
        mut tenants: impl Iterator<Item = &'a str>,
    ) -> Option<&'static str> {
        let lost = |id: TenantId| self.lost_on_restart(id).filter(|_| self.is_attached(id));
        let of_tenants = tenants.find_map(|tenant| self.find_tenant(tenant).and_then(lost));
        of_tenants.or_else(|| self.locked_after_restart(name))
    }

    fn locked_after_restart(&self, name: &str) -> Option<&'static str> {
        let key = self.state.placement(name)?.key.as_ref()?;
        (!key.is_of_host()).then_some("its tenant's key is in the daemon's memory alone")
    }

    /// Whether a tenant can be taken off without anybody noticing.
    pub(crate) fn is_free(&self, id: TenantId) -> bool {
        !self.is_attached(id) && !self.waiting.contains_key(&id) && !self.state.jobs().is_zeroed(id)
    }

    /// Tenants that are with other pollers than `config` has them.
    pub(crate) fn misplaced(&self, config: &Config) -> impl Iterator<Item = TenantId> {
        let is_misplaced = |live: &Live| live.leaving.is_none() && live.home != config.home(&live.tenant);
        self.tenants.iter().filter(move |(_, live)| is_misplaced(live)).map(|(id, _)| *id)
    }

    /// Serves a tenant as `tenant` says from now on, where `config` has it; it has another identifier then. What can't
    /// be served so is served as it was.
    ///
    /// # Errors
    /// It is in use, or can't be served so; or see [`take_off_first`](Self::take_off_first).
    pub(crate) fn remake(&mut self, id: TenantId, tenant: Tenant, config: &Config) -> Result<TenantId, DiskError> {
        let name = tenant.name.clone();
        if self.is_attached(id) {
            let title = format!("{name:?} is attached to a client, and its front end can't change meanwhile");
            return Err(DiskError::new(
                Reason::Attached,
                title,
                "shut its guest down or unplug the disk, and ask again",
            ));
        }
        if !self.is_free(id) {
            let title = format!("{name:?} is being zeroed, and its front end can't change meanwhile");
            return Err(DiskError::new(
                Reason::Zeroing,
                title,
                "ask again once `evenkeel operations` lists it no more",
            ));
        }
        self.pollers.check_cpus(&tenant)?;
        self.take_off_first(id)?;
        let old = self.put_away(id).ok_or_else(|| nobody(id))?;
        let before = self.state.shared_config();
        self.serve_placed(tenant, config).map_err(|error| match self.serve_placed(old, &before) {
            Ok(_) => {
                let title = format!("{name:?} can't be served with these settings: {error:#}");
                DiskError::new(Reason::NotServable, title, "change that; it is served as before")
            }
            Err(again) => {
                let why = format!("{name:?} is no longer served: {error:#}; nor as before: {again:#}");
                (self.around.sink)(Level::Warn.of_tenant(&name), &why);
                DiskError::new(Reason::Failed, why, "start the daemon again to serve it")
            }
        })
    }

    /// A client has left: nothing keeps its tenant from the pollers that are its own by now. The tenant's own key is
    /// forgotten.
    pub(crate) fn client_left(&mut self, name: &str) {
        let Some(id) = self.find_tenant(name) else { return };
        let is_misplaced = self.misplaced(self.config()).any(|misplaced| misplaced == id) && self.is_free(id);
        let is_locked = self.disk_keys.forget(name);
        if is_locked {
            self.tell_key(id, 0, name);
            self.pollers.take_keys(|| ());
        }
        if is_misplaced || is_locked {
            self.take_off(id);
        }
    }

    /// Another policy decides from now on, and tenants that nobody uses go to the pollers that it wants for them.
    /// Others do once their client has left.
    pub(crate) fn take_policy(&mut self, policy: PolicyConfig, config: &Config) {
        self.change_policy(policy);
        let free: Vec<TenantId> = self.misplaced(config).filter(|id| self.is_free(*id)).collect();
        free.into_iter().for_each(|id| self.take_off(id));
    }
}
