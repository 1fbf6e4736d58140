//! What a client did so far, and what it may do next.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::device::{Device, DeviceSpec};
use crate::inflight::Inflight;
use crate::kept::{KeptMessages, Lasting};
use crate::memory::{MAX_REGIONS, Memory, Region};
use crate::ring::Ring;
use crate::wire::{
    ConfigRange, MemoryRequest, RegionPayload, Request, RingSetting, VHOST_USER_F_PROTOCOL_FEATURES, protocol_feature,
};

/// What the server has of the protocol.
const PROTOCOL_FEATURES: u64 = protocol_feature::MQ
    | protocol_feature::REPLY_ACK
    | protocol_feature::BACKEND_REQ
    | protocol_feature::CONFIG
    | protocol_feature::INFLIGHT_SHMFD
    | protocol_feature::RESET_DEVICE
    | protocol_feature::CONFIGURE_MEM_SLOTS;

/// How a request went.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It was done; only a client that asks for an acknowledgement gets one.
    Done,
    /// It was done; this is the payload of its reply.
    Reply(Vec<u8>),
    /// As before, with a descriptor.
    ReplyWithFd(Vec<u8>, OwnedFd),
}

fn number(value: u64) -> Answer {
    Answer::Reply(value.to_ne_bytes().to_vec())
}

/// What one client said so far: the vhost-user protocol, for its [`Connection`](crate::Connection).
#[derive(Debug)]
pub struct FrontEnd {
    spec: Arc<DeviceSpec>,
    owned: bool,
    /// As SET_FEATURES said, with vhost-user's own bit.
    features: Option<u64>,
    protocol_features: u64,
    memory: Memory,
    rings: Vec<Ring>,
    inflight: Option<Inflight>,
    /// Where we may send requests of our own.
    pub(crate) backend_channel: Option<OwnedFd>,
    /// The log of requests in flight was made in this session, not kept from an earlier one.
    has_new_log: bool,
    /// A ring of an earlier session was taken up again: the device may not be what it was then.
    pub(crate) config_change_due: bool,
    /// What comes is what was said to an earlier process. The order among parts of the state need not be what it was,
    /// so that nothing runs until all is there.
    is_restoring: bool,
    /// What the last message did that lasts.
    pub(crate) lasting: Option<Lasting>,
    /// What was done of it is worth a line of the log.
    pub(crate) warning: Option<String>,
    pub(crate) kept: KeptMessages,
}

impl FrontEnd {
    /// A client that said nothing yet.
    pub fn new(spec: Arc<DeviceSpec>) -> Self {
        let rings = (0..spec.queues).map(|_| Ring::default()).collect();
        Self {
            spec,
            owned: false,
            features: None,
            protocol_features: 0,
            memory: Memory::default(),
            rings,
            inflight: None,
            backend_channel: None,
            has_new_log: false,
            config_change_due: false,
            is_restoring: false,
            lasting: None,
            warning: None,
            kept: KeptMessages::default(),
        }
    }

    /// What comes from now on is what the client said to an earlier process, until [`restored`](Self::restored).
    pub(crate) fn begin_to_restore(&mut self) {
        self.is_restoring = true;
    }

    /// Whether that is so.
    pub(crate) fn is_restoring(&self) -> bool {
        self.is_restoring
    }

    /// All is there again, after so long without a process: rings run that ran.
    ///
    /// # Errors
    /// What it said does not fit together, or not to this device.
    pub(crate) fn restored(&mut self, device: &mut dyn Device, alone: Duration) -> Result<(), String> {
        self.is_restoring = false;
        if !self.memory.regions().is_empty() {
            device.memory(&self.memory)?;
        }
        for index in 0..self.spec.queues {
            let (_, ring) = find(&mut self.rings, index.into())?;
            let Some(kick) = ring.to_start.take() else { continue };
            // It may have died after it had stopped the ring, and before the client heard of it.
            ring.set_next_avail(device.stopped_at(index).unwrap_or(ring.next_avail()).into())?;
            self.start(index.into(), kick, device).map_err(|why| format!("ring {index}: {why}"))?;
        }
        // The device may not be what it was then.
        self.config_change_due = true;
        device.restored(alone);
        Ok(())
    }

    /// What a request does that lasts, if it is done.
    pub(crate) fn lasting_of(&self, request: &Request) -> Option<Lasting> {
        let runs = |ring: u32| self.rings.get(ring as usize).is_some_and(Ring::is_running);
        Lasting::of(request, self.spec.queues, |ring| self.is_restoring || runs(ring))
    }

    /// Whether the client is told how its requests went if it asks.
    pub(crate) fn acknowledges(&self) -> bool {
        self.protocol_features & protocol_feature::REPLY_ACK != 0
    }

    /// Does what the client asks.
    ///
    /// # Errors
    /// Why not, for the log; nothing changed.
    pub(crate) fn handle(&mut self, request: Request, device: &mut dyn Device) -> Result<Answer, String> {
        match request {
            Request::GetFeatures => return Ok(number(self.spec.features | VHOST_USER_F_PROTOCOL_FEATURES)),
            Request::SetFeatures(features) => self.set_features(features, device)?,
            Request::GetProtocolFeatures => return Ok(number(PROTOCOL_FEATURES)),
            Request::SetProtocolFeatures(features) => self.set_protocol_features(features)?,
            Request::SetOwner if self.owned => return Err("it has an owner".into()),
            Request::SetOwner => self.owned = true,
            Request::ResetOwner => self.reset_owner(device),
            Request::ResetDevice => self.reset_device(device)?,
            Request::GetQueueNum => {
                self.negotiated(protocol_feature::MQ)?;
                return Ok(number(self.spec.queues.into()));
            }
            Request::SetBackendReqFd(fd) => self.set_backend_channel(fd)?,
            Request::GetConfig(range) => return self.get_config(range, device),
            Request::SetConfig(range, data) => {
                self.negotiated(protocol_feature::CONFIG)?;
                device.set_config(range.offset_bytes, &data)?;
            }
            Request::GetMaxMemSlots => {
                self.negotiated(protocol_feature::CONFIGURE_MEM_SLOTS)?;
                return Ok(number((MAX_REGIONS as u64).min(self.spec.budget.max_maps().into())));
            }
            Request::Memory(request) => self.change_memory(request, device)?,
            Request::GetInflightFd(asked) => {
                self.negotiated(protocol_feature::INFLIGHT_SHMFD)?;
                let (made, file) = Inflight::create(&self.spec, &asked)?;
                self.has_new_log = true;
                return Ok(Answer::ReplyWithFd(made.encode(), file));
            }
            Request::SetInflightFd(given, file) => {
                self.negotiated(protocol_feature::INFLIGHT_SHMFD)?;
                self.no_ring_runs()?;
                self.inflight = Some(Inflight::map(&self.spec, &given, &file)?);
            }
            Request::SetVring { ring, setting } => self.set_ring(ring, setting, device)?,
            Request::SetVringKick { ring, fd } => self.start(ring, fd, device)?,
            Request::GetVringBase { ring } => return self.stop(ring, device),
        }
        Ok(Answer::Done)
    }

    fn set_ring(&mut self, index: u32, setting: RingSetting, device: &mut dyn Device) -> Result<(), String> {
        let (index, ring) = find(&mut self.rings, index)?;
        match setting {
            RingSetting::Num(size) => ring.set_size(size, self.spec.max_queue_size),
            RingSetting::Addr(addresses) => ring.set_addresses(addresses),
            RingSetting::Base(next_avail) => ring.set_next_avail(next_avail),
            RingSetting::Call(fd) => {
                check_eventfd(fd.as_ref())?;
                if ring.is_running() {
                    device.set_call(index, fd)
                } else {
                    ring.call = fd
                }
                Ok(())
            }
            RingSetting::Err(fd) => {
                check_eventfd(fd.as_ref())?;
                if ring.is_running() {
                    device.set_err(index, fd)
                } else {
                    ring.err = fd
                }
                Ok(())
            }
            RingSetting::Enable(value) => {
                let is_unknown = |features: u64| features & VHOST_USER_F_PROTOCOL_FEATURES == 0;
                if self.features.is_none_or(is_unknown) && !self.is_restoring {
                    return Err("the feature bit of protocol features was not acknowledged".into());
                }
                match value {
                    0 | 1 => enable(index, ring, value == 1, device),
                    other => return Err(format!("{other} is neither 0 nor 1")),
                }
                Ok(())
            }
        }
    }

    fn negotiated(&self, feature: u64) -> Result<(), String> {
        if self.protocol_features & feature != 0 || self.is_restoring {
            return Ok(());
        }
        Err(format!("its protocol feature (bit {}) was not acknowledged", feature.trailing_zeros()))
    }

    fn no_ring_runs(&self) -> Result<(), String> {
        match self.rings.iter().position(Ring::is_running) {
            Some(ring) => Err(format!("ring {ring} is running")),
            None => Ok(()),
        }
    }

    fn set_features(&mut self, features: u64, device: &mut dyn Device) -> Result<(), String> {
        let unknown = features & !(self.spec.features | VHOST_USER_F_PROTOCOL_FEATURES);
        if unknown != 0 {
            return Err(format!(
                "features {unknown:#x} are not offered; if the configuration \
                 changed while this guest ran, restart the guest or undo the change"
            ));
        }
        if self.features != Some(features) {
            self.no_ring_runs()?;
            self.features = Some(features);
            device.features_acked(features & !VHOST_USER_F_PROTOCOL_FEATURES);
        }
        if features & VHOST_USER_F_PROTOCOL_FEATURES == 0 {
            // Such a client has no message to enable a ring with.
            self.enable_all(true, device);
        }
        Ok(())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<(), String> {
        let unknown = features & !PROTOCOL_FEATURES;
        if unknown != 0 {
            return Err(format!("protocol features {unknown:#x} were not offered"));
        }
        self.protocol_features = features;
        Ok(())
    }

    fn enable_all(&mut self, enabled: bool, device: &mut dyn Device) {
        for (index, ring) in (0..).zip(&mut self.rings) {
            enable(index, ring, enabled, device);
        }
    }

    /// Not used any more; the specification wants rings disabled and nothing else forgotten.
    fn reset_owner(&mut self, device: &mut dyn Device) {
        self.owned = false;
        self.enable_all(false, device);
    }

    /// Back to where a new client starts, but for the owner, memory and protocol features: QEMU tells memory
    /// only when it changes.
    fn reset_device(&mut self, device: &mut dyn Device) -> Result<(), String> {
        self.negotiated(protocol_feature::RESET_DEVICE)?;
        for (index, ring) in (0..).zip(&mut self.rings) {
            if ring.is_running() {
                device.stop(index)?;
            }
            *ring = Ring::default();
        }
        self.features = None;
        self.inflight = None;
        device.reset();
        Ok(())
    }

    fn set_backend_channel(&mut self, fd: OwnedFd) -> Result<(), String> {
        use rustix::net::sockopt::{socket_domain, socket_type};
        use rustix::net::{AddressFamily, SocketType};

        self.negotiated(protocol_feature::BACKEND_REQ)?;
        if socket_domain(&fd) != Ok(AddressFamily::UNIX) || socket_type(&fd) != Ok(SocketType::STREAM) {
            return Err("the descriptor is not a Unix stream socket".into());
        }
        self.backend_channel = Some(fd);
        Ok(())
    }

    fn get_config(&self, range: ConfigRange, device: &mut dyn Device) -> Result<Answer, String> {
        self.negotiated(protocol_feature::CONFIG)?;
        let config = device.config();
        // Newer clients know more fields than the device has: those read as zeros.
        let bytes = config.into_iter().chain(std::iter::repeat(0));
        let data: Vec<u8> = bytes.skip(range.offset_bytes as usize).take(range.len_bytes as usize).collect();
        Ok(Answer::Reply(range.encode(&data)))
    }

    fn map(&mut self, payload: &RegionPayload, file: &OwnedFd, memory: &mut Memory) -> Result<(), String> {
        let mut region = Region::map(payload, file, &self.memory, &self.spec.budget)?;
        self.warning = region.warning.take().or(self.warning.take());
        memory.add(region)
    }

    fn change_memory(&mut self, request: MemoryRequest, device: &mut dyn Device) -> Result<(), String> {
        let mut memory = self.memory.clone();
        match request {
            MemoryRequest::SetMemTable(regions) => {
                memory = Memory::default();
                for (payload, file) in regions {
                    self.map(&payload, &file, &mut memory)?;
                }
            }
            MemoryRequest::AddMemReg(payload, file) => {
                self.negotiated(protocol_feature::CONFIGURE_MEM_SLOTS)?;
                self.map(&payload, &file, &mut memory)?;
            }
            MemoryRequest::RemMemReg(payload) => {
                self.negotiated(protocol_feature::CONFIGURE_MEM_SLOTS)?;
                memory.remove(&payload)?;
            }
        }
        if let Some(ring) = self.rings.iter().position(|ring| !ring.stays_in(&memory)) {
            return Err(format!("it would take the memory of ring {ring} away, which is running"));
        }
        if !self.is_restoring {
            device.memory(&memory)?;
        }
        self.memory = memory;
        Ok(())
    }

    /// A ring runs from its kick descriptor on; the specification wants no kick to be waited for.
    fn start(&mut self, index: u32, kick: Option<OwnedFd>, device: &mut dyn Device) -> Result<(), String> {
        check_eventfd(kick.as_ref())?;
        if self.is_restoring {
            find(&mut self.rings, index)?.1.to_start = Some(kick);
            return Ok(());
        }
        let features = self.features.ok_or("features were not acknowledged")? & !VHOST_USER_F_PROTOCOL_FEATURES;
        let (index, ring) = find(&mut self.rings, index)?;
        let log = self.inflight.as_ref().and_then(|inflight| inflight.part(index));
        let resumes = log.is_some() && !self.has_new_log;
        let setup = ring.start(&self.memory, features, log, kick)?;
        let next_avail = setup.next_avail;
        if let Err(why) = device.start(index, setup) {
            ring.stopped(next_avail);
            return Err(why);
        }
        self.config_change_due |= resumes;
        Ok(())
    }

    fn stop(&mut self, index: u32, device: &mut dyn Device) -> Result<Answer, String> {
        let (at, ring) = find(&mut self.rings, index)?;
        if ring.is_running() {
            let next_avail = device.stop(at)?;
            ring.stopped(next_avail);
        } else if self.is_restoring {
            ring.stopped(device.stopped_at(at).unwrap_or(ring.next_avail()));
        }
        let words = [index, u32::from(ring.next_avail())];
        Ok(Answer::Reply(words.iter().flat_map(|word| word.to_ne_bytes()).collect()))
    }
}

fn find(rings: &mut [Ring], index: u32) -> Result<(u16, &mut Ring), String> {
    let queues = rings.len();
    let found = u16::try_from(index).ok().and_then(|at| Some((at, rings.get_mut(usize::from(at))?)));
    found.ok_or_else(|| format!("there is no ring {index}; {queues} were offered"))
}

fn enable(index: u16, ring: &mut Ring, enabled: bool, device: &mut dyn Device) {
    if std::mem::replace(&mut ring.enabled, enabled) != enabled && ring.is_running() {
        device.enable(index, enabled);
    }
}

fn check_eventfd(fd: Option<&OwnedFd>) -> Result<(), String> {
    match fd.map(eventfd::admit) {
        None | Some(Ok(())) => Ok(()),
        Some(Err(_)) => Err("the descriptor is not an eventfd".into()),
    }
}

#[cfg(test)]
mod tests;
