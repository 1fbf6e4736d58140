//! Tenants that leave their pollers: for good, or to be served another way from then on.
//!
//! The second is how a front end, its queues or its pollers change: the tenant is taken off and put on again over the
//! same range. No guest notices, since only one without a client is: options of one that has a client are refused, and
//! its pollers follow once the client has left.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;

use anyhow::{Result, anyhow};
use client_socket::Level;
use config::{Config, Tenant};
use confine::ThreadKind;
use io_model::TenantId;
use policy::PolicyConfig;
use rustix::fs::{AtFlags, CWD, unlinkat};

use state::Command as StateCommand;
use state::errors::nobody;

use crate::served_drive::{ADD_LIMIT, Live, ServedDrive};
use api::{DiskError, Reason};
use runtime::front_end::Reached;
use runtime::happening::Happening;
use runtime::poller_thread::{Message, TenantAt};
use runtime::threads;

impl ServedDrive {
    /// Has a tenant's pollers let go of it.
    pub(crate) fn leave(&mut self, id: TenantId) {
        let teller = self.teller.clone();
        let left = move || {
            let teller = teller.clone();
            Box::new(move || teller.tell(Happening::Left(id))) as Box<dyn FnOnce() + Send>
        };
        if self.begin_to_leave(id, left).is_ok_and(|parts| parts > 0) {
            return;
        }
        self.left(id);
    }

    /// Takes a tenant off its socket, and has its pollers let go of it; each calls `left` then. Returns how many they
    /// are.
    fn begin_to_leave(&mut self, id: TenantId, left: impl Fn() -> Box<dyn FnOnce() + Send>) -> Result<usize> {
        let live = self.tenants.get_mut(&id).filter(|live| live.leaving.is_none());
        let live = live.ok_or_else(|| nobody(id))?;
        self.waiting.remove(&id);
        if let Some(server) = live.server.take() {
            server.stop();
            // Its client can make its thread hang, and nobody else is to wait for it. Where there is no thread to be
            // had, that is what happens, for a second.
            let close = move || {
                threads::enter(ThreadKind::Closing);
                drop(server);
            };
            let _ = std::thread::Builder::new().name("closing".into()).spawn(close);
        }
        let parts = live.places.len();
        live.leaving = Some(parts);
        for (poller, slot) in &live.places {
            self.pollers.send(*poller, Message::Remove(TenantAt { id, slot: *slot }, left()));
        }
        Ok(parts)
    }

    /// A poller has let go of its part of a tenant.
    pub(crate) fn left(&mut self, id: TenantId) {
        if let Some(parts) = self.tenants.get_mut(&id).and_then(|live| live.leaving.as_mut()) {
            *parts = parts.saturating_sub(1);
            if *parts > 0 {
                return;
            }
        }
        if let Some(Live { tenant, .. }) = self.forget(id) {
            (self.around.sink)(Level::Info.of_tenant(&tenant.name), &format!("{}: is served no more", tenant.name));
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
        self.pollers.close_unused(self.state.config());
        Some(live)
    }

    /// Takes off a tenant that has no client, and so nothing in flight. Waits for its pollers, as for those of one that
    /// comes.
    fn take_off(&mut self, id: TenantId) -> Result<Option<Live>> {
        let (gone, left) = channel();
        let teller = self.teller.clone();
        let tell = move || {
            let (gone, teller) = (gone.clone(), teller.clone());
            let tell = move || {
                if gone.send(()).is_err() {
                    teller.tell(Happening::Left(id));
                }
            };
            Box::new(tell) as Box<dyn FnOnce() + Send>
        };
        for _ in 0..self.begin_to_leave(id, tell)? {
            left.recv_timeout(ADD_LIMIT).map_err(|_| anyhow!("a poller does not let go of it"))?;
            self.tenants.get_mut(&id).and_then(|live| live.leaving.as_mut()).into_iter().for_each(|parts| *parts -= 1);
        }
        let live = self.forget(id);
        self.apply(StateCommand::Left(id))?;
        Ok(live)
    }

    /// Whether a client has a tenant's disk now.
    pub(crate) fn is_attached(&self, id: TenantId) -> bool {
        self.tenants.get(&id).and_then(|live| live.server.as_ref()).is_some_and(Reached::has_client)
    }

    /// Whether a client that has a tenant's disk goes on when the daemon ends and another one comes.
    pub(crate) fn survives_restart(&self, id: TenantId) -> bool {
        let Some(live) = self.tenants.get(&id) else { return false };
        // A VMM reconnects a virtio disk, and a block device waits. An NVMe client needs the keeper.
        let needs_keeper = live.tenant.frontend.is_controller();
        self.config().device.backend.outlives_daemon()
            && (!needs_keeper || live.server.as_ref().is_some_and(Reached::is_kept))
    }

    /// Whether all those do that have a client.
    pub(crate) fn all_survive_restart<'a>(&self, mut tenants: impl Iterator<Item = &'a str>) -> bool {
        let lost = |id: &TenantId| self.is_attached(*id) && !self.survives_restart(*id);
        !tenants.any(|name| self.find_tenant(name).as_ref().is_some_and(lost))
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
    /// It is in use, or can't be served so.
    pub(crate) fn remake(&mut self, id: TenantId, tenant: Tenant, config: &Config) -> Result<TenantId, DiskError> {
        let name = tenant.name.clone();
        if self.is_attached(id) {
            let title = format!("{name:?} is attached to a client, and how it is reached can't change meanwhile");
            return Err(DiskError::new(
                Reason::Attached,
                title,
                "shut its guest down or unplug the disk, and ask again",
            ));
        }
        if !self.is_free(id) {
            let title = format!("{name:?} is being zeroed, and how it is reached can't change meanwhile");
            return Err(DiskError::new(Reason::Zeroing, title, "ask again once `evenkeel operations` has it no more"));
        }
        self.pollers.check_cpus(&tenant)?;
        let failed = |why| DiskError::new(Reason::Failed, why, "start the daemon again to have it served");
        let old = match self.take_off(id) {
            Ok(Some(live)) => live.tenant,
            Ok(None) => return Err(nobody(id)),
            Err(error) => return Err(failed(format!("{name:?} is served no more: {error:#}"))),
        };
        let before = self.state.shared_config();
        self.serve_placed(tenant, config).map_err(|error| match self.serve_placed(old, &before) {
            Ok(_) => {
                let title = format!("{name:?} can't be served so: {error:#}");
                DiskError::new(Reason::NotServable, title, "change that; it is served as before")
            }
            Err(again) => {
                let why = format!("{name:?} is served no more: {error:#}; nor as before: {again:#}");
                (self.around.sink)(Level::Warn.of_tenant(&name), &why);
                failed(why)
            }
        })
    }

    /// A client has left: nothing keeps its tenant from the pollers that are its own by now.
    pub(crate) fn client_left(&mut self, name: &str) {
        let Some(id) = self.find_tenant(name) else { return };
        if self.misplaced(self.config()).any(|misplaced| misplaced == id) && self.is_free(id) {
            self.follow(id, &self.state.shared_config());
        }
    }

    /// Another policy decides from now on, and tenants that nobody uses go to the pollers that it wants for them.
    /// Others do once their client has left.
    pub(crate) fn take_policy(&mut self, policy: PolicyConfig, config: &Config) {
        self.change_policy(policy);
        let free: Vec<TenantId> = self.misplaced(config).filter(|id| self.is_free(*id)).collect();
        free.into_iter().for_each(|id| self.follow(id, config));
    }

    fn follow(&mut self, id: TenantId, config: &Config) {
        let Some(tenant) = self.tenants.get(&id).map(|live| live.tenant.clone()) else { return };
        let name = tenant.name.clone();
        let line = match self.remake(id, tenant, config) {
            Ok(_) => return,
            Err(problem) => format!("its pollers stay as they are: {problem}"),
        };
        (self.around.sink)(Level::Warn.of_tenant(&name), &line);
    }
}
