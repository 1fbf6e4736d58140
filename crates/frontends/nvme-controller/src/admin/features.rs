//! Get and Set Features (NVMe Base 2.0, 5.15 and 5.27; NVM Command Set 1.0, 4.1.3). None is saveable.

use bytemuck::{Pod, Zeroable};
use nvme_spec::feature::{
    ArbitrationValue, COALESCING_DISABLED, HostBehavior, INTERRUPT_VECTOR, SAVE, async_event, capability, fid, sel,
};
use nvme_spec::vendor::{FID_QUANTA, Quanta};
use nvme_spec::{NSID_ALL, Sqe, Status};

use super::Reply;
use crate::msix::{Interrupts, VECTORS};
use crate::parts::Ask;
use crate::queues::QIDS;
use crate::turns::{DEFAULT_QUANTA, DEFAULT_WEIGHTS};
use crate::{Controller, data};

/// Over temperature threshold from reset on, in kelvin (70 °C).
pub(super) const WARNING_TEMPERATURE_K: u16 = 343;

/// Temperature Threshold's dword 11: sensor (0: composite) and threshold type.
const TMPSEL: u32 = 0xf << 16;
const TMPSEL_ALL: u32 = 0xf << 16;
const THSEL: u32 = 3 << 20;
const THSEL_OVER: u32 = 0;
const THSEL_UNDER: u32 = 1 << 20;

/// Error Recovery: the time limit, which is kept and reported.
pub(crate) const ERROR_RECOVERY: u32 = 0xffff;

/// Error Recovery: deallocated block error enable.
const DULBE: u32 = 1 << 16;

/// The current value of every feature; a controller reset restores the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Features {
    /// [`ArbitrationValue`].
    arbitration: u32,
    over_temperature_k: u32,
    under_temperature_k: u32,
    /// Kept and reported; interrupts are already one per queue and poll iteration.
    coalescing: u32,
    write_atomicity: u32,
    pub async_events: u32,
    host_acre: u8,
    host_etdas: u8,
    host_lbafee: u8,
    /// 1 while the volatile write cache is enabled.
    pub write_cache: u8,
    /// [`Quanta`].
    quanta: u32,
    /// Vectors with coalescing disabled, a bit each.
    uncoalesced: [u64; 2],
}

impl Features {
    pub fn new(volatile_write_cache: bool) -> Self {
        Self {
            over_temperature_k: WARNING_TEMPERATURE_K.into(),
            write_cache: volatile_write_cache.into(),
            arbitration: DEFAULT_WEIGHTS.to_dword(),
            quanta: DEFAULT_QUANTA.to_dword().unwrap_or(0),
            ..Self::zeroed()
        }
    }

    /// Weights and burst of weighted round robin.
    pub fn weights(&self) -> ArbitrationValue {
        ArbitrationValue::from_dword(self.arbitration)
    }

    /// Quanta of deficit round robin.
    pub fn quanta(&self) -> Quanta {
        Quanta::from_dword(self.quanta).unwrap_or(DEFAULT_QUANTA)
    }

    /// Whether saved values are some that a guest could have set.
    pub fn is_sane(&self) -> bool {
        self.weights().to_dword() == self.arbitration && Quanta::from_dword(self.quanta).is_some()
    }

    fn is_uncoalesced(&self, vector: u32) -> bool {
        self.uncoalesced[vector as usize / 64 % 2] >> (vector % 64) & 1 != 0
    }

    fn set_uncoalesced(&mut self, vector: u32, disabled: bool) {
        let (word, bit) = (&mut self.uncoalesced[vector as usize / 64 % 2], 1 << (vector % 64));
        *word = if disabled { *word | bit } else { *word & !bit };
    }

    fn host_behavior(&self) -> HostBehavior {
        let [acre, etdas, lbafee] = [self.host_acre, self.host_etdas, self.host_lbafee];
        HostBehavior { acre, etdas, lbafee, ..HostBehavior::zeroed() }
    }
}

/// What a feature can do; `None` for one that is not supported.
fn capabilities(id: u8) -> Option<u32> {
    match id {
        fid::ERROR_RECOVERY => Some(capability::CHANGEABLE | capability::NAMESPACE),
        fid::ARBITRATION
        | fid::POWER_MANAGEMENT
        | fid::TEMPERATURE_THRESHOLD
        | fid::VOLATILE_WRITE_CACHE
        | fid::NUMBER_OF_QUEUES
        | fid::INTERRUPT_COALESCING
        | fid::INTERRUPT_VECTOR_CONFIG
        | fid::WRITE_ATOMICITY
        | fid::ASYNC_EVENT_CONFIG
        | fid::HOST_BEHAVIOR
        | fid::IOCS_PROFILE
        | FID_QUANTA => Some(capability::CHANGEABLE),
        _ => None,
    }
}

fn check_vector(cdw11: u32) -> Result<u32, Status> {
    let vector = cdw11 & INTERRUPT_VECTOR;
    if vector < VECTORS.into() { Ok(vector) } else { Err(Status::INVALID_FIELD) }
}

impl<I: Interrupts> Controller<I> {
    /// The feature's identifier and capabilities, if this controller has it.
    fn feature(&self, sqe: &Sqe) -> Result<(u8, u32), Status> {
        let id = sqe.cdw10 as u8;
        let without_cache = id == fid::VOLATILE_WRITE_CACHE && !self.config.volatile_write_cache;
        let known = capabilities(id).filter(|_| !without_cache);
        Ok((id, known.ok_or(Status::INVALID_FIELD)?))
    }

    pub(super) fn get_features(&mut self, sqe: &Sqe) -> Result<Reply, Status> {
        let (id, capabilities) = self.feature(sqe)?;
        let selected = (sqe.cdw10 >> 8 & 7) as u8;
        // Every namespace at once can be set, but has no one value to get.
        let of_namespace = capabilities & capability::NAMESPACE != 0;
        let namespace = if of_namespace { Some(self.namespaces.named(sqe.nsid)?) } else { None };
        let error_recovery = namespace.map_or(0, |namespace| namespace.error_recovery);
        let features = match selected {
            sel::CURRENT => self.features,
            // Nothing is ever saved, and then the saved value is the default.
            sel::DEFAULT | sel::SAVED => Features::new(self.config.volatile_write_cache),
            sel::SUPPORTED => return Ok(Reply::Now(capabilities)),
            _ => return Err(Status::INVALID_FIELD),
        };
        let value = match id {
            fid::ARBITRATION => features.arbitration,
            FID_QUANTA => features.quanta,
            fid::POWER_MANAGEMENT | fid::IOCS_PROFILE => 0,
            fid::TEMPERATURE_THRESHOLD => match (sqe.cdw11 & TMPSEL, sqe.cdw11 & THSEL) {
                (0, THSEL_OVER) => features.over_temperature_k,
                (0, THSEL_UNDER) => features.under_temperature_k,
                _ => return Err(Status::INVALID_FIELD),
            },
            fid::ERROR_RECOVERY if selected == sel::CURRENT => error_recovery,
            fid::ERROR_RECOVERY => 0,
            fid::VOLATILE_WRITE_CACHE => features.write_cache.into(),
            fid::NUMBER_OF_QUEUES => self.queues_granted(),
            fid::INTERRUPT_COALESCING => features.coalescing,
            fid::INTERRUPT_VECTOR_CONFIG => {
                let vector = check_vector(sqe.cdw11)?;
                let disabled = if features.is_uncoalesced(vector) { COALESCING_DISABLED } else { 0 };
                vector | disabled
            }
            fid::WRITE_ATOMICITY => features.write_atomicity,
            fid::ASYNC_EVENT_CONFIG => features.async_events,
            _ => {
                data::give(&mut self.memory, sqe, bytemuck::bytes_of(&features.host_behavior()))?;
                0
            }
        };
        Ok(Reply::Now(value))
    }

    pub(super) fn set_features(&mut self, sqe: &Sqe) -> Result<Reply, Status> {
        let (id, capabilities) = self.feature(sqe)?;
        if sqe.cdw10 & SAVE != 0 {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        let of_namespace = capabilities & capability::NAMESPACE != 0;
        if sqe.nsid != NSID_ALL && (sqe.nsid != 0 || of_namespace) {
            self.namespaces.named(sqe.nsid)?;
            if !of_namespace {
                return Err(Status::FEATURE_NOT_NAMESPACE);
            }
        }
        let value = sqe.cdw11;
        match id {
            fid::ARBITRATION => {
                self.features.arbitration = ArbitrationValue::from_dword(value).to_dword();
                self.weights_changed();
            }
            FID_QUANTA => {
                Quanta::from_dword(value).ok_or(Status::INVALID_FIELD)?;
                self.features.quanta = value;
                self.weights_changed();
            }
            // One power state, one combination of command sets.
            fid::POWER_MANAGEMENT if value & 0x1f == 0 => {}
            fid::POWER_MANAGEMENT => return Err(Status::INVALID_FIELD),
            fid::IOCS_PROFILE if value & 0x1ff == 0 => {}
            fid::IOCS_PROFILE => return Err(Status::IOCS_COMBINATION_REJECTED),
            fid::TEMPERATURE_THRESHOLD => self.set_temperature(value)?,
            fid::ERROR_RECOVERY if value & DULBE != 0 => return Err(Status::INVALID_FIELD),
            fid::ERROR_RECOVERY => self.set_error_recovery(sqe.nsid, value),
            fid::VOLATILE_WRITE_CACHE => {
                self.features.write_cache = (value & 1) as u8;
                return self.ask_others(sqe, Ask::SetWriteCache((value & 1) as u8));
            }
            fid::NUMBER_OF_QUEUES => return self.set_number_of_queues(value),
            fid::INTERRUPT_COALESCING => self.features.coalescing = value & 0xffff,
            fid::INTERRUPT_VECTOR_CONFIG => {
                let vector = check_vector(value)?;
                self.features.set_uncoalesced(vector, value & COALESCING_DISABLED != 0);
            }
            fid::WRITE_ATOMICITY => self.features.write_atomicity = value & 1,
            fid::ASYNC_EVENT_CONFIG => {
                self.features.async_events = value & (async_event::SMART | async_event::NAMESPACE_ATTRIBUTE);
            }
            _ => self.set_host_behavior(sqe)?,
        }
        Ok(Reply::Now(0))
    }

    fn set_error_recovery(&mut self, nsid: u32, value: u32) {
        for (its, namespace) in self.namespaces.iter_mut() {
            if nsid == NSID_ALL || nsid == its {
                namespace.error_recovery = value & ERROR_RECOVERY;
            }
        }
    }

    fn set_temperature(&mut self, value: u32) -> Result<(), Status> {
        let threshold = match (value & TMPSEL, value & THSEL) {
            (0 | TMPSEL_ALL, THSEL_OVER) => &mut self.features.over_temperature_k,
            (0 | TMPSEL_ALL, THSEL_UNDER) => &mut self.features.under_temperature_k,
            _ => return Err(Status::INVALID_FIELD),
        };
        *threshold = value & 0xffff;
        Ok(())
    }

    fn set_host_behavior(&mut self, sqe: &Sqe) -> Result<(), Status> {
        let mut behavior = HostBehavior::zeroed();
        data::take(&mut self.memory, sqe, bytemuck::bytes_of_mut(&mut behavior))?;
        if behavior.acre > 1 || behavior.etdas > 1 || behavior.lbafee > 1 {
            return Err(Status::INVALID_FIELD);
        }
        self.features.host_acre = behavior.acre;
        self.features.host_etdas = behavior.etdas;
        self.features.host_lbafee = behavior.lbafee;
        Ok(())
    }

    /// Number of Queues (5.27.1.5): whatever is asked for, all that there are.
    fn set_number_of_queues(&mut self, value: u32) -> Result<Reply, Status> {
        if value & 0xffff == 0xffff || value >> 16 == 0xffff {
            return Err(Status::INVALID_FIELD);
        }
        let created = (1..QIDS as u16).any(|qid| self.has_sq(qid) || self.has_cq(qid));
        if created {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        Ok(Reply::Now(self.queues_granted()))
    }

    /// Submission queues in the low half, completion queues in the high half, both 0's based.
    fn queues_granted(&self) -> u32 {
        let most = u32::from(self.config.max_io_queues - 1);
        most | most << 16
    }
}
