//! Which of a client's messages a process has to hear that serves it next: of each part of the client's state the last
//! one that said something about it, and of memory those that make the table. However often a client repeats itself, no
//! more is kept than there are parts.
//!
//! Repeated in their order, these give the same state, since each part hears its last word last. What depends on other
//! parts (a ring that runs needs memory, which may have been told anew since) waits until all have been repeated.

use std::collections::{BTreeMap, BTreeSet};

use client_socket::Keeping;

use crate::wire::{MemoryRequest, RegionPayload, Request, RingSetting, VHOST_USER_F_PROTOCOL_FEATURES};

/// A part of a client's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Whether it has an owner.
    Owner,
    /// The device's features.
    Features,
    /// The protocol's.
    ProtocolFeatures,
    /// Where we may send requests.
    Channel,
    /// The log of requests in flight.
    Inflight,
    /// A ring's.
    Ring(u32, RingPart),
}

/// A part of a ring's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum RingPart {
    Num,
    Addr,
    Base,
    Kick,
    Call,
    Err,
    Enabled,
}

/// What a message did that lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lasting {
    /// It had the last word on these parts.
    Says(Vec<Part>),
    /// It stopped a ring that ran, whose base is where it came to.
    Stops(u32),
    /// It reset the device.
    Resets,
    /// It told all memory anew.
    Table(Vec<RegionPayload>),
    /// It added memory.
    Adds(RegionPayload),
    /// It took memory away.
    Removes(RegionPayload),
}

impl Lasting {
    /// The lasting effect of a request to a device with this many rings. `runs`: whether a ring runs.
    pub fn of(request: &Request, queues: u16, runs: impl FnOnce(u32) -> bool) -> Option<Self> {
        let says = |part| Some(Self::Says(vec![part]));
        let enabled = || (0..u32::from(queues)).map(|ring| Part::Ring(ring, RingPart::Enabled));
        match request {
            Request::SetOwner => says(Part::Owner),
            Request::ResetOwner => Some(Self::Says(enabled().chain([Part::Owner]).collect())),
            Request::SetFeatures(features) if features & VHOST_USER_F_PROTOCOL_FEATURES == 0 => {
                Some(Self::Says(enabled().chain([Part::Features]).collect()))
            }
            Request::SetFeatures(_) => says(Part::Features),
            Request::SetProtocolFeatures(_) => says(Part::ProtocolFeatures),
            Request::SetBackendReqFd(_) => says(Part::Channel),
            Request::SetInflightFd(..) => says(Part::Inflight),
            Request::ResetDevice => Some(Self::Resets),
            Request::Memory(MemoryRequest::SetMemTable(regions)) => {
                Some(Self::Table(regions.iter().map(|(region, _)| *region).collect()))
            }
            Request::Memory(MemoryRequest::AddMemReg(region, _)) => Some(Self::Adds(*region)),
            Request::Memory(MemoryRequest::RemMemReg(region)) => Some(Self::Removes(*region)),
            Request::GetVringBase { ring } => runs(*ring).then_some(Self::Stops(*ring)),
            Request::SetVringKick { ring, .. } => says(Part::Ring(*ring, RingPart::Kick)),
            Request::SetVring { ring, setting } => says(Part::Ring(*ring, part_of(setting))),
            // What the driver wrote there is the device's own to remember.
            Request::SetConfig(..) => None,
            Request::GetFeatures
            | Request::GetProtocolFeatures
            | Request::GetQueueNum
            | Request::GetConfig(_)
            | Request::GetInflightFd(_)
            | Request::GetMaxMemSlots => None,
        }
    }
}

fn part_of(setting: &RingSetting) -> RingPart {
    match setting {
        RingSetting::Num(_) => RingPart::Num,
        RingSetting::Addr(_) => RingPart::Addr,
        RingSetting::Base(_) => RingPart::Base,
        RingSetting::Call(_) => RingPart::Call,
        RingSetting::Err(_) => RingPart::Err,
        RingSetting::Enable(_) => RingPart::Enabled,
    }
}

/// The messages that are kept, by their numbers.
#[derive(Debug, Default)]
pub struct KeptMessages {
    /// The message that each part's current value comes from.
    parts: BTreeMap<Part, u64>,
    table: Option<Table>,
    /// Memory that was added since.
    added: Vec<(u64, RegionPayload)>,
}

/// A message that told all memory.
#[derive(Debug)]
struct Table {
    number: u64,
    /// Its regions that are still there.
    left: Vec<RegionPayload>,
    /// The messages that took others away.
    removals: Vec<u64>,
}

impl KeptMessages {
    /// The message of that number was done.
    pub fn done(&mut self, number: u64, what: Lasting) -> Keeping {
        match what {
            Lasting::Says(parts) => self.says(number, &parts),
            Lasting::Stops(ring) => {
                // The device has let go of these descriptors.
                let mut former: BTreeSet<u64> = [RingPart::Kick, RingPart::Call, RingPart::Err]
                    .iter()
                    .filter_map(|part| self.parts.remove(&Part::Ring(ring, *part)))
                    .collect();
                former.extend(self.parts.insert(Part::Ring(ring, RingPart::Base), number));
                Keeping { keep: true, forget: self.unneeded(former) }
            }
            Lasting::Resets => {
                let is_reset = |part: &Part| matches!(part, Part::Features | Part::Inflight | Part::Ring(..));
                let former = self.parts.extract_if(.., |part, _| is_reset(part)).map(|(_, number)| number).collect();
                Keeping { keep: false, forget: self.unneeded(former) }
            }
            Lasting::Table(left) => {
                let forget = self.table.take().into_iter().flat_map(Table::numbers);
                let forget = forget.chain(self.added.drain(..).map(|(number, _)| number)).collect();
                self.table = Some(Table { number, left, removals: Vec::new() });
                Keeping { keep: true, forget }
            }
            Lasting::Adds(region) => {
                self.added.push((number, region));
                Keeping { keep: true, forget: Vec::new() }
            }
            Lasting::Removes(region) => self.removes(number, &region),
        }
    }

    fn says(&mut self, number: u64, parts: &[Part]) -> Keeping {
        let former = parts.iter().filter_map(|part| self.parts.insert(*part, number)).collect();
        Keeping { keep: true, forget: self.unneeded(former) }
    }

    /// Those that have no part's last word any more.
    fn unneeded(&self, former: BTreeSet<u64>) -> Vec<u64> {
        former.into_iter().filter(|number| !self.parts.values().any(|other| other == number)).collect()
    }

    fn removes(&mut self, number: u64, region: &RegionPayload) -> Keeping {
        let same = |other: &RegionPayload| other.is_same_place(region);
        if let Some(at) = self.added.iter().position(|(_, added)| same(added)) {
            return Keeping { keep: false, forget: vec![self.added.remove(at).0] };
        }
        let Some(table) = &mut self.table else { return Keeping::default() };
        table.left.retain(|other| !same(other));
        if table.left.is_empty() {
            return Keeping { keep: false, forget: self.table.take().into_iter().flat_map(Table::numbers).collect() };
        }
        table.removals.push(number);
        Keeping { keep: true, forget: Vec::new() }
    }
}

impl Table {
    fn numbers(self) -> impl Iterator<Item = u64> {
        std::iter::once(self.number).chain(self.removals)
    }
}

#[cfg(test)]
mod tests;
