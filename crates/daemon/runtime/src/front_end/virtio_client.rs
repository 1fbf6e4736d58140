//! A tenant's virtio-blk disk as its client's thread sees it: what the client asks for goes to the pollers that serve
//! the virtqueues, as [`Order`]s, and the thread waits until it is done.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::Result;
use backend_nvme::{Pin, Pins};
use client_socket::Log;
use config::Tenant;
use guest_memory::Budget;
use io_model::{Place, TenantId};
use layout::Placement;
use policy::TenantPriority;
use vhost_blk::{Disk, DiskConfig, MAX_RING_SIZE, inflight_bytes};
use vhost_user::{Device, DeviceSpec, Memory, RingSetup, Session};

use super::Port;
use super::virtio::{Order, Stopped, stopped_line};
use super::virtio_lasting::Lasting;
use crate::drive_trait::Facts;
use crate::panics;
use crate::poller_waker::Watch;

/// A tenant's disk, for the thread of its socket.
pub struct VirtioClient {
    name: Arc<str>,
    disk: Arc<Disk>,
    ports: Vec<Port<Order>>,
    features: u64,
    budget: Arc<Budget>,
    /// What pins memory for the drive, and what it has pinned.
    pins: Option<Pins>,
    pinned: Vec<Pin>,
    /// The kicks of running rings.
    watches: HashMap<u16, Watch>,
    /// Where clients are kept.
    lasting: Option<Lasting>,
    /// The client repeats its messages to an earlier process.
    is_restoring: bool,
    log: Log,
}

const _: () = assert!(config::MAX_VIRTQUEUES_BY_PRIORITY == vhost_blk::MAX_QUEUES_BY_PRIORITY);

/// The disk that a tenant's guest sees.
pub fn disk(id: TenantId, tenant: &Tenant, placement: &Placement, drive: &Facts) -> Result<Disk> {
    Ok(Disk::new(DiskConfig {
        place: Place::whole_drive(id),
        size_bytes: placement.served_bytes(),
        block_bytes: placement.lba_bytes,
        serial: placement.serial.clone(),
        queues: tenant.queues,
        read_only: tenant.frontend.is_read_only(),
        discard: drive.discard,
        write_cache: drive.write_cache,
        by_priority: tenant.terms.priority == TenantPriority::OfQueue,
    })?)
}

impl VirtioClient {
    /// A disk whose virtqueues are served by `ports`, for a client that may have so much memory mapped, which is pinned
    /// for the drive where it needs that. With `lasting`, clients go on with the next process.
    pub fn new(
        name: Arc<str>,
        disk: Arc<Disk>,
        ports: Vec<Port<Order>>,
        (budget, pins): (Arc<Budget>, Option<Pins>),
        lasting: Option<Lasting>,
        log: Log,
    ) -> Self {
        let (pinned, watches) = (Vec::new(), HashMap::new());
        Self { name, disk, ports, features: 0, budget, pins, pinned, watches, lasting, is_restoring: false, log }
    }

    /// How the disk is presented on its socket.
    pub fn spec(&self) -> DeviceSpec {
        DeviceSpec {
            name: self.name.to_string(),
            features: self.disk.features(),
            queues: self.disk.config().queues,
            max_queue_size: MAX_RING_SIZE,
            inflight_bytes: |size| inflight_bytes(1, size),
            budget: Arc::clone(&self.budget),
        }
    }

    fn port(&self, ring: u16) -> Option<&Port<Order>> {
        self.ports.iter().find(|port| port.queues.contains(&ring))
    }

    /// Orders something about one ring, and waits for it. Nothing comes from a poller that has ended.
    fn order<T>(&self, ring: u16, order: impl FnOnce(Sender<T>) -> Order) -> Result<T, String> {
        let (done, answer) = channel();
        if let Some(port) = self.port(ring) {
            port.order(order(done));
        }
        wait(&answer)
    }

    /// Orders the same of every part, and waits for all of them. A part whose poller has ended gives no answer.
    fn order_all<T>(&self, order: impl Fn(Sender<T>) -> Order) -> Vec<T> {
        let (done, answers) = channel();
        self.ports.iter().for_each(|port| port.order(order(done.clone())));
        drop(done);
        answers.iter().collect()
    }
}

/// The answer to an order.
fn wait<T>(answer: &Receiver<T>) -> Result<T, String> {
    answer.recv().map_err(|_| "the daemon is ending".into())
}

impl Device for VirtioClient {
    fn connected(&mut self, session: Session) {
        panics::drill();
        self.disk.reset();
        self.is_restoring = session.is_held();
        if let Some(lasting) = &self.lasting {
            match (session.is_held(), lasting.is_lost()) {
                (false, _) => lasting.reset(),
                (true, false) => lasting.write_cache().into_iter().for_each(|on| self.disk.set_writeback(on)),
                (true, true) => session.disconnect("an earlier process's state of its rings can't be taken over"),
            }
        }
        self.ports.iter().for_each(|port| port.order(Order::Connected(session.clone())));
    }

    fn config(&mut self) -> Vec<u8> {
        self.disk.config_space().to_vec()
    }

    fn set_config(&mut self, offset_bytes: u32, data: &[u8]) -> Result<(), String> {
        let changed = self.disk.write_config(offset_bytes as usize, data, self.features).map_err(|e| e.to_string())?;
        if changed {
            self.lasting.iter().for_each(|lasting| lasting.note_write_cache(self.disk.writeback()));
            self.order_all(Order::WriteCache);
            let cache = if self.disk.writeback() { "on" } else { "off" };
            self.log.info(&format!("{}: the guest turned the write cache {cache}", self.name));
        }
        Ok(())
    }

    fn features_acked(&mut self, features: u64) {
        self.features = features;
    }

    fn memory(&mut self, memory: &Memory) -> Result<(), String> {
        let pin = |pins: &Pins| {
            memory.regions().iter().filter_map(|region| region.mapping.as_ref()).map(|it| pins.pin(it)).collect()
        };
        let pinned: Result<Vec<Pin>, _> = self.pins.as_ref().map_or_else(|| Ok(Vec::new()), pin);
        let pinned = pinned.map_err(|error| format!("the guest's memory can't be pinned for the drive: {error}"))?;
        let answers = self.order_all(|done| Order::Memory(memory.guest_memory(), done));
        // The pollers have let go of the former memory by now, or keep it pinned for themselves.
        self.pinned = pinned;
        answers.into_iter().collect::<Result<(), _>>().map_err(|refused| refused.to_string())
    }

    fn start(&mut self, ring: u16, setup: RingSetup) -> Result<(), String> {
        let RingSetup { size, desc_table, avail_ring, used_ring, next_avail, features, .. } = setup;
        let RingSetup { enabled, kick, call, err, inflight, .. } = setup;
        let Some(port) = self.port(ring) else { return Err(format!("there is no queue {ring}")) };
        let polled = kick.is_none();
        let watch = kick.map(|kick| port.watch(kick)).transpose();
        let watch = watch.map_err(|error| format!("its kick can't be watched: {error}"))?;
        // A client without a log of requests in flight has none that outlives this process, unless the daemon keeps
        // one.
        let own_log = self.lasting.as_ref().filter(|_| inflight.is_none()).and_then(|lasting| lasting.log(ring));
        // What ran before must be in it: nothing may be done twice.
        let log_is_own = own_log.is_some() && !self.is_restoring;
        let setup = vhost_blk::RingSetup {
            size,
            desc: desc_table,
            avail: avail_ring,
            used: used_ring,
            next_avail,
            features,
            call,
            err,
            inflight: inflight.or(own_log),
            log_is_own,
        };
        let (done, answer) = channel();
        port.order(Order::Start(ring, Box::new(setup), polled, done));
        let started = wait(&answer)?.map_err(|error| {
            if log_is_own {
                // It may have been begun.
                self.lasting.iter().for_each(|lasting| lasting.clear_log(ring));
            }
            error.to_string()
        })?;
        let vhost_blk::Started { used_idx, resubmitted, .. } = started;
        self.order(ring, |done| Order::Enable(ring, enabled, done))?;
        self.watches.extend(watch.map(|watch| (ring, watch)));
        let line = format!("queue {ring} resumes at used index {used_idx}, {resubmitted} requests taken over");
        self.log.info(&format!("{}: {line}", self.name));
        Ok(())
    }

    fn set_call(&mut self, ring: u16, call: Option<OwnedFd>) {
        // Fails only if the daemon is ending.
        let _ = self.order(ring, |done| Order::Call(ring, call, done));
    }

    fn set_err(&mut self, ring: u16, err: Option<OwnedFd>) {
        let _ = self.order(ring, |done| Order::Err(ring, err, done));
    }

    fn enable(&mut self, ring: u16, enabled: bool) {
        let _ = self.order(ring, |done| Order::Enable(ring, enabled, done));
    }

    fn stop(&mut self, ring: u16) -> Result<u16, String> {
        let stopped = self.order(ring, |done| Order::Stop(ring, done));
        self.watches.remove(&ring);
        let Stopped { next_avail, used_idx } = stopped?;
        self.lasting.iter().for_each(|lasting| lasting.note_stopped(ring, next_avail));
        self.log.info(&stopped_line(&self.name, ring, used_idx));
        Ok(next_avail)
    }

    /// The write cache stays as it is: the client shows its guest what it was last told of it.
    fn reset(&mut self) {}

    fn stopped_at(&mut self, ring: u16) -> Option<u16> {
        self.lasting.as_ref()?.stopped_at(ring)
    }

    fn restored(&mut self, alone: Duration) {
        self.is_restoring = false;
        self.order_all(|done| Order::Restored(alone.into(), done));
    }

    fn left(&mut self) {
        self.order_all(Order::Left);
    }

    fn disconnected(&mut self, _reason: &str) {
        self.watches.clear();
        self.order_all(Order::Gone);
        self.pinned.clear();
        // Before the next one is known: if this process dies then, that one must not find what this one left.
        self.lasting.iter().for_each(Lasting::reset);
    }
}
