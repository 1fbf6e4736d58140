//! What a device is to the server: its description, and what it is told.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use client_socket::Session;
use guest_memory::{Budget, MappedRange};

use crate::memory::Memory;
use crate::wire::VHOST_USER_F_PROTOCOL_FEATURES;

/// The index of a ring is one byte of SET_VRING_KICK.
const MAX_QUEUES: u16 = 256;

/// A device.
#[derive(Debug, Clone)]
pub struct DeviceSpec {
    /// The tenant's name, for log lines and the thread.
    pub name: String,
    /// Virtio feature bits that the device offers, without those of vhost-user itself (26 and 30).
    pub features: u64,
    /// Virtqueues that a client may use; 1 to 256.
    pub queues: u16,
    /// Entries of the largest ring; a power of two.
    pub max_queue_size: u16,
    /// Bytes of one queue's part of the log of requests in flight, for a queue of this many entries. A multiple of 64,
    /// so that no two queues share a cache line.
    pub inflight_bytes: fn(queue_size: u16) -> u64,
    /// How much memory its client may have mapped, the log of requests in flight included.
    pub budget: Arc<Budget>,
}

impl DeviceSpec {
    /// Finds what would make the device useless; the text says what.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !(1..=MAX_QUEUES).contains(&self.queues) {
            return Err(format!("{} queues; 1 to {MAX_QUEUES} can be served", self.queues));
        }
        if !self.max_queue_size.is_power_of_two() {
            return Err(format!("rings of {} entries; it must be a power of two", self.max_queue_size));
        }
        if self.features & OWN_FEATURES != 0 {
            return Err(format!("its features {:#x} have a bit that is vhost-user's own", self.features));
        }
        let bytes = (self.inflight_bytes)(self.max_queue_size);
        if bytes == 0 || !bytes.is_multiple_of(64) {
            return Err(format!("{bytes} bytes to log a queue; it must be a multiple of 64"));
        }
        if self.name.contains('\0') {
            return Err("its name has a NUL".into());
        }
        Ok(())
    }
}

/// VHOST_F_LOG_ALL and VHOST_USER_F_PROTOCOL_FEATURES: bits that say nothing about the device.
pub(crate) const OWN_FEATURES: u64 = 1 << 26 | VHOST_USER_F_PROTOCOL_FEATURES;

/// A ring that is to be served from now on. What is said here was checked; what is *in* the ring was not.
#[derive(Debug)]
pub struct RingSetup {
    /// Entries; a power of two, at most [`DeviceSpec::max_queue_size`].
    pub size: u16,
    /// Guest physical address of the descriptor table: 16 × `size` bytes, aligned to 16, inside one region.
    pub desc_table: u64,
    /// Guest physical address of the available ring: 6 + 2 × `size` bytes, aligned to 2, inside one region.
    pub avail_ring: u64,
    /// Guest physical address of the used ring: 6 + 8 × `size` bytes, aligned to 4, inside one region.
    pub used_ring: u64,
    /// The index in the available ring to go on from. With a log of requests in flight the device finds
    /// the true one itself: a client whose back end was killed does not know it.
    pub next_avail: u16,
    /// Virtio feature bits that the driver acknowledged, a subset of [`DeviceSpec::features`].
    pub features: u64,
    /// Whether requests may be served already; see [`Device::enable`].
    pub enabled: bool,
    /// The driver's notifications, a non-blocking eventfd. `None`: the ring is to be polled.
    pub kick: Option<OwnedFd>,
    /// Where to notify the driver, a non-blocking eventfd. `None`: it does not want to be.
    pub call: Option<OwnedFd>,
    /// Where to tell the client that the ring is broken, a non-blocking eventfd.
    pub err: Option<OwnedFd>,
    /// This queue's part of the log of requests in flight, shared with the client:
    /// [`DeviceSpec::inflight_bytes`] for a queue of at least `size` entries. All zeros when new.
    pub inflight: Option<MappedRange>,
}

/// What the server calls, on the device's own thread; a call may block until the threads that serve the
/// rings have done what it asks for. Calls come in the order of the client's messages, between one
/// [`connected`](Self::connected) and one [`disconnected`](Self::disconnected).
///
/// An `Err` refuses the client's message and leaves everything as it was; the text goes to the log.
pub trait Device: Send {
    /// A client attached. One that [is held](Session::is_held) was served by an earlier process: nothing of its rings
    /// may be served before [`restored`](Self::restored).
    fn connected(&mut self, session: Session);

    /// The device's configuration space. Bytes behind its end read as zeros.
    fn config(&mut self) -> Vec<u8>;

    /// The driver (or the client for it) writes configuration space.
    ///
    /// # Errors
    /// Why these bytes can't be written, or not so.
    fn set_config(&mut self, offset_bytes: u32, data: &[u8]) -> Result<(), String>;

    /// The driver's choice of [`DeviceSpec::features`]. No ring runs.
    fn features_acked(&mut self, features: u64);

    /// The guest's memory from now on, all of it; rings may be running, and they stay where they are. Let go
    /// of the memory before: the client may reuse it once this returns.
    ///
    /// # Errors
    /// Why the device can't use it; it goes on with the memory it had.
    fn memory(&mut self, memory: &Memory) -> Result<(), String>;

    /// Serve a ring, which does not run. Memory and features were told before.
    ///
    /// # Errors
    /// Why not; the ring does not run, and its descriptors are forgotten.
    fn start(&mut self, ring: u16, setup: RingSetup) -> Result<(), String>;

    /// Notify the driver of a running ring here from now on, or not at all. Comes often: clients use it to
    /// mask interrupts.
    fn set_call(&mut self, ring: u16, call: Option<OwnedFd>);

    /// Tell of a running ring's failure here from now on, or not at all.
    fn set_err(&mut self, ring: u16, err: Option<OwnedFd>);

    /// A running ring's requests may be served, or may not: they stay in the ring.
    fn enable(&mut self, ring: u16, enabled: bool);

    /// Stop serving a running ring: returns when nothing of it is in flight, with the index in the available
    /// ring to go on from. Its descriptors are to be closed.
    ///
    /// # Errors
    /// Why that index can't be told; the connection ends.
    fn stop(&mut self, ring: u16) -> Result<u16, String>;

    /// The driver reset the device. Its rings were stopped before, and features are to be acknowledged anew;
    /// memory stays.
    fn reset(&mut self);

    /// Where an earlier process [stopped](Self::stop) a ring last for a client that [is held](Session::is_held).
    /// `None`: it never did.
    fn stopped_at(&mut self, _ring: u16) -> Option<u16> {
        None
    }

    /// A client that [is held](Session::is_held) has repeated its messages, and its rings were started again: from
    /// now on they are served. For `_alone` they were not served.
    fn restored(&mut self, _alone: Duration) {}

    /// This process ends, and the client goes on with the next one: what is in flight is to end and be noted, and
    /// nothing new to begin.
    fn left(&mut self) {}

    /// The client is gone. Rings that run are to be stopped, and memory and descriptors to be let go; the next
    /// client is accepted when this returns.
    fn disconnected(&mut self, reason: &str);
}
