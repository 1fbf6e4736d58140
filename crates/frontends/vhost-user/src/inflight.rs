//! The log of requests in flight: memory that the client keeps for us while we are away.

use std::os::fd::{AsFd, OwnedFd};

use guest_memory::{MappedRange, Mapping};

use crate::device::DeviceSpec;
use crate::wire::InflightPayload;

/// A log that the client handed over, one part for each queue.
#[derive(Debug)]
pub struct Inflight {
    queue_size: u16,
    parts: Vec<MappedRange>,
}

impl Inflight {
    /// Makes a new one, all zeros, for the client to keep. Nobody can change its size.
    pub fn create(spec: &DeviceSpec, asked: &InflightPayload) -> Result<(InflightPayload, OwnedFd), String> {
        let len_bytes = check(spec, asked)? * u64::from(asked.queues);
        let len = usize::try_from(len_bytes).map_err(|_| "the log would be too long")?;
        let (_, file) = Mapping::memfd("vhost-user-inflight", len).map_err(|error| error.to_string())?;
        Ok((InflightPayload { len_bytes, offset_bytes: 0, ..*asked }, file))
    }

    /// Maps one that the client kept. What is in it is for the device to judge.
    pub fn map(spec: &DeviceSpec, given: &InflightPayload, file: &OwnedFd) -> Result<Self, String> {
        let part_bytes = check(spec, given)?;
        let len_bytes = part_bytes * u64::from(given.queues);
        if given.len_bytes < len_bytes {
            return Err(format!(
                "a log of {} bytes; {} queues of {} entries need {len_bytes}",
                given.len_bytes, given.queues, given.queue_size
            ));
        }
        let mapping = Mapping::within(&spec.budget, file.as_fd(), given.offset_bytes, len_bytes, true);
        let mapping = mapping.map_err(|error| format!("the log can't be mapped: {error}"))?;
        let part = |queue| MappedRange::new(&mapping, part_bytes * queue, part_bytes);
        let parts = (0..u64::from(given.queues)).map_while(part).collect();
        Ok(Self { queue_size: given.queue_size, parts })
    }

    /// A queue's part, and the entries that it has room for. Queues that it was not made for have none.
    pub fn part(&self, queue: u16) -> Option<(u16, MappedRange)> {
        Some((self.queue_size, self.parts.get(usize::from(queue))?.clone()))
    }
}

/// Bytes of one queue's part.
fn check(spec: &DeviceSpec, payload: &InflightPayload) -> Result<u64, String> {
    let InflightPayload { queues, queue_size, .. } = *payload;
    if !(1..=spec.queues).contains(&queues) || !(1..=spec.max_queue_size).contains(&queue_size) {
        return Err(format!(
            "a log for {queues} queues of {queue_size} entries; there are {} of up to {}",
            spec.queues, spec.max_queue_size
        ));
    }
    Ok((spec.inflight_bytes)(queue_size))
}
