//! A tenant's virtio-blk disk as its client's thread sees it: what the client asks for goes to the pollers that serve
//! the virtqueues, as [`Order`]s, and the thread waits until it is done.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::Result;
use client_socket::Log;
use config::{Placement, Tenant};
use poller::TenantSlot;
use vhost_blk::{Disk, DiskConfig, MAX_RING_SIZE, inflight_bytes};
use vhost_user::{Device, DeviceSpec, Memory, RingSetup, Session};

use crate::disk::{Order, Stopped, stopped_line};
use crate::doorman::Watch;
use crate::drive::Facts;
use crate::poller_thread::{Mail, Mailbox};

/// Some of the disk's virtqueues, and where to send orders for them.
pub struct Part {
    /// Which.
    pub queues: Range<u16>,
    /// The poller that serves them.
    pub mailbox: Mailbox,
    /// Their place there.
    pub slot: TenantSlot,
}

impl Part {
    fn order(&self, order: Order) {
        self.mailbox.send(Mail::Disk(self.slot, order));
    }
}

/// A tenant's disk, for the thread of its socket.
pub struct DiskClient {
    name: Arc<str>,
    disk: Arc<Disk>,
    parts: Vec<Part>,
    features: u64,
    /// The kicks of running rings.
    watches: HashMap<u16, Watch>,
    log: Log,
}

/// The disk that a tenant's guest sees.
pub fn disk(tenant: &Tenant, placement: &Placement, drive: &Facts) -> Result<Disk> {
    Ok(Disk::new(DiskConfig {
        base_bytes: placement.offset_bytes,
        size_bytes: placement.size_bytes,
        block_bytes: placement.lba_bytes,
        serial: tenant.name.chars().take(vhost_blk::SERIAL_BYTES).collect(),
        queues: tenant.queues,
        read_only: tenant.frontend.vhost().is_some_and(|vhost| vhost.read_only),
        discard: drive.discard,
        write_cache: drive.write_cache,
    })?)
}

impl DiskClient {
    /// A disk whose virtqueues are served by `parts`.
    pub fn new(name: Arc<str>, disk: Arc<Disk>, parts: Vec<Part>, log: Log) -> Self {
        Self { name, disk, parts, features: 0, watches: HashMap::new(), log }
    }

    /// How the disk is presented on its socket.
    pub fn spec(&self, socket: PathBuf) -> DeviceSpec {
        DeviceSpec {
            name: self.name.to_string(),
            socket,
            features: self.disk.features(),
            queues: self.disk.config().queues,
            max_queue_size: MAX_RING_SIZE,
            inflight_bytes: |size| inflight_bytes(1, size),
        }
    }

    fn part(&self, ring: u16) -> Option<&Part> {
        self.parts.iter().find(|part| part.queues.contains(&ring))
    }

    /// Orders something about one ring.
    fn order(&self, ring: u16, order: Order) {
        if let Some(part) = self.part(ring) {
            part.order(order);
        }
    }

    /// Orders the same of every part, and waits for all of them.
    fn order_all(&self, order: impl Fn(Sender<()>) -> Order) {
        let (done, answers) = channel();
        self.parts.iter().for_each(|part| part.order(order(done.clone())));
        drop(done);
        // Ends when every part has answered or dropped its sender.
        answers.iter().for_each(drop);
    }
}

/// The answer to an order.
fn wait<T>(answer: &Receiver<T>) -> Result<T, String> {
    answer.recv().map_err(|_| "the daemon is ending".into())
}

impl Device for DiskClient {
    fn connected(&mut self, session: Session) {
        self.disk.reset();
        self.parts.iter().for_each(|part| part.order(Order::Connected(session.clone())));
    }

    fn config(&mut self) -> Vec<u8> {
        self.disk.config_space().to_vec()
    }

    fn set_config(&mut self, offset_bytes: u32, data: &[u8]) -> Result<(), String> {
        let changed = self.disk.write_config(offset_bytes as usize, data, self.features).map_err(|e| e.to_string())?;
        if changed {
            self.parts.iter().for_each(|part| part.order(Order::WriteCache));
            let cache = if self.disk.writeback() { "on" } else { "off" };
            self.log.info(&format!("{}: the guest turned the write cache {cache}", self.name));
        }
        Ok(())
    }

    fn features_acked(&mut self, features: u64) {
        self.features = features;
    }

    fn memory(&mut self, memory: &Memory) -> Result<(), String> {
        self.order_all(|done| Order::Memory(memory.guest_memory(), done));
        Ok(())
    }

    fn start(&mut self, ring: u16, setup: RingSetup) -> Result<(), String> {
        let RingSetup { size, desc_table, avail_ring, used_ring, next_avail, features, .. } = setup;
        let RingSetup { enabled, kick, call, err, inflight, .. } = setup;
        let Some(part) = self.part(ring) else { return Err(format!("there is no queue {ring}")) };
        let polled = kick.is_none();
        let watch = kick.map(|kick| part.mailbox.watch(kick)).transpose();
        let watch = watch.map_err(|error| format!("its kick can't be watched: {error}"))?;
        let setup = vhost_blk::RingSetup {
            size,
            desc: desc_table,
            avail: avail_ring,
            used: used_ring,
            next_avail,
            features,
            call,
            err,
            inflight,
        };
        let (done, answer) = channel();
        part.order(Order::Start(ring, Box::new(setup), polled, done));
        let started = wait(&answer)?.map_err(|error| error.to_string())?;
        let vhost_blk::Started { used_idx, resubmitted, .. } = started;
        part.order(Order::Enable(ring, enabled));
        self.watches.extend(watch.map(|watch| (ring, watch)));
        let line = format!("queue {ring} resumes at used index {used_idx}, {resubmitted} requests taken over");
        self.log.info(&format!("{}: {line}", self.name));
        Ok(())
    }

    fn set_call(&mut self, ring: u16, call: Option<OwnedFd>) {
        self.order(ring, Order::Call(ring, call));
    }

    fn set_err(&mut self, ring: u16, err: Option<OwnedFd>) {
        self.order(ring, Order::Err(ring, err));
    }

    fn enable(&mut self, ring: u16, enabled: bool) {
        self.order(ring, Order::Enable(ring, enabled));
    }

    fn stop(&mut self, ring: u16) -> Result<u16, String> {
        let (done, answer) = channel();
        self.order(ring, Order::Stop(ring, done));
        self.watches.remove(&ring);
        let Stopped { next_avail, used_idx } = wait(&answer)?;
        self.log.info(&stopped_line(&self.name, ring, used_idx));
        Ok(next_avail)
    }

    /// The write cache stays as it is: the client shows its guest what it was last told of it.
    fn reset(&mut self) {}

    fn disconnected(&mut self, _reason: &str) {
        self.watches.clear();
        self.order_all(Order::Gone);
    }
}
