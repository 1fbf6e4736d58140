//! A controller's life: reset, enable, queues, shutdown.

use std::thread;
use std::time::{Duration, Instant};

use io_model::{QueuePriority, WrrWeights};
use nvme_spec::PAGE_BYTES;
use nvme_spec::feature::{ArbitrationValue, fid};
use nvme_spec::identify::{IdentifyController, oacs};
use nvme_spec::namespace::IdentifyNamespace;
use nvme_spec::regs::{Aqa, Cap, Cc, Csts, Reg, cq_head_doorbell, sq_tail_doorbell};
use nvme_spec::vendor::{FID_QUANTA, Quanta, SIGNATURE};

use crate::admin::{Admin, AdminQueue, COMMAND_LIMIT};
use crate::device::{DmaMemory, PciDevice};
use crate::doorbell::{QueueDoorbell, Shadow};
use crate::error::Error;
use crate::priority::{Arbitration, priority_of_this_thread, qprio, with_weights};
use crate::queue::{Layout, MAX_TRANSFER_BYTES, QueuePair};

/// Entries of the admin queues: one command at a time, and room to wrap seldom.
const ADMIN_ENTRIES: u16 = 32;
/// CAP.TO counts in this unit (Base 3.1.3.1).
const TIMEOUT_UNIT: Duration = Duration::from_millis(500);
/// A controller that does not say how long a shutdown takes gets this long.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);
/// The longest wait for a controller's shutdown. RTD3E may ask for 71 minutes, during which the daemon can't end.
const LONGEST_SHUTDOWN: Duration = Duration::from_mins(1);
/// I/O queues that are asked for.
const WANTED_QUEUES: u16 = 64;

/// A namespace, as far as moving data needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace {
    /// Namespace identifier.
    pub nsid: u32,
    /// Bytes of a logical block, a power of two.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u64,
}

impl Namespace {
    /// Of what a controller says of it.
    ///
    /// # Errors
    /// Its format is one that only others can use.
    pub fn of(nsid: u32, identity: &IdentifyNamespace) -> Result<Self, Error> {
        let index = usize::from((identity.flbas & 0xf) | (identity.flbas >> 1 & 0x30));
        let format = identity.lbaf.get(index).ok_or(Error::Protocol("the LBA format in use does not exist"))?;
        if format.ms != 0 {
            return Err(Error::Unsuitable("its blocks carry metadata: format it without"));
        }
        if !(9..=16).contains(&format.lbads) {
            return Err(Error::Unsuitable("its block size is not between 512 bytes and 64 KiB"));
        }
        Ok(Self { nsid, block_bytes: 1 << format.lbads, blocks: identity.nsze })
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_bytes.into())
    }
}

/// Pages of shadow doorbells and event indexes that the controller was told of.
struct ShadowPages {
    /// Both of them.
    whole: DmaMemory,
    values: DmaMemory,
    event_indexes: DmaMemory,
}

/// An enabled controller. Dropping it shuts the controller down normally.
pub struct Controller<D: PciDevice> {
    device: D,
    cap: Cap,
    cc: Cc,
    admin: AdminQueue,
    identity: IdentifyController,
    shadow: Option<ShadowPages>,
    /// I/O queue identifiers that are not in use, lowest last.
    free_qids: Vec<u16>,
    /// I/O queue pairs in all.
    queues: u16,
    arbitration: Option<Arbitration>,
    is_lost: bool,
}

impl<D: PciDevice> Controller<D> {
    /// Resets and enables the controller behind `device` and asks it who it is and for 64 I/O queues.
    /// With doorbells that are not mapped it also sets up shadow doorbells, if the controller has them.
    /// Its I/O queues are arbitrated by weighted round robin if the controller can, else by round robin.
    pub fn start(device: D) -> Result<Self, Error> {
        Self::start_with(device, None)
    }

    /// As [`Controller::start`], with a certain arbitration; the controller must have it.
    pub fn start_with(mut device: D, arbitration: Option<Arbitration>) -> Result<Self, Error> {
        let cap = Cap(device.read_u64(Reg::Cap.offset())?);
        if cap.0 == u64::MAX {
            return Err(Error::Removed);
        }
        let ams = match arbitration {
            None if cap.offers_ams(Cc::AMS_WEIGHTED) => Cc::AMS_WEIGHTED,
            None => Cc::AMS_ROUND_ROBIN,
            Some(chosen) if cap.offers_ams(chosen.ams()) => chosen.ams(),
            Some(_) => return Err(Error::Unsuitable("it does not offer this arbitration among queues")),
        };
        if u64::from(cap.css()) & (Cap::CSS_NVM >> 37) == 0 {
            return Err(Error::Unsuitable("it lacks the NVM command set"));
        }
        if cap.mpsmin() != 0 {
            return Err(Error::Unsuitable("its smallest memory page is above 4 KiB"));
        }
        disable(&mut device, cap)?;
        let cc = Cc::enable_nvm().with_ams(ams);
        let (admin, identity, queues) = enable(&mut device, cap, cc)?;
        let free_qids = (1..=queues).rev().collect();
        let mut this =
            Self { device, cap, cc, admin, identity, shadow: None, free_qids, queues, arbitration, is_lost: false };
        this.settle_in()?;
        Ok(this)
    }

    /// What every enabled controller is told.
    fn settle_in(&mut self) -> Result<(), Error> {
        self.set_up_shadow_doorbells()?;
        match self.arbitration {
            Some(Arbitration::Weighted(Some(weights))) => self.set_weights(weights),
            Some(Arbitration::Deficit(quanta)) => self.start_deficit(quanta),
            _ => Ok(()),
        }
    }

    /// Stops the controller, and with `function` the PCI function too: once this returns, it reaches no memory any
    /// more, and has forgotten all its queues.
    ///
    /// # Errors
    /// That is not certain.
    pub fn halt(&mut self, function: bool) -> Result<(), Error> {
        if function {
            self.device.reset()?;
        }
        disable(&mut self.device, self.cap)
    }

    /// Enables the controller again after [`Controller::halt`], without I/O queues.
    ///
    /// # Errors
    /// It does not come up, or is another one.
    pub fn restart(&mut self) -> Result<(), Error> {
        let (admin, identity, queues) = enable(&mut self.device, self.cap, self.cc)?;
        let former = std::mem::replace(&mut self.admin, admin);
        let shadow = self.shadow.take();
        for memory in former.into_memory() {
            self.device.release_dma(memory)?;
        }
        if let Some(ShadowPages { whole, .. }) = shadow {
            self.device.release_dma(whole)?;
        }
        if identity.sn != self.identity.sn {
            return Err(Error::Unsuitable("after a reset it has another serial number"));
        }
        self.identity = identity;
        self.queues = queues;
        self.free_qids = (1..=queues).rev().collect();
        self.settle_in()
    }

    /// I/O queue pairs that the controller granted.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Elsewhere CC.AMS = 111b means something else.
    fn start_deficit(&mut self, quanta: Option<Quanta>) -> Result<(), Error> {
        if !self.identity.vendor.starts_with(SIGNATURE) {
            return Err(Error::Unsuitable("its vendor's own arbitration is not deficit round robin"));
        }
        quanta.map_or(Ok(()), |quanta| self.set_quanta(quanta))
    }

    /// Sets what a round of weighted round robin gives each class, 1 to 256 commands, from the next command on.
    pub fn set_weights(&mut self, weights: WrrWeights) -> Result<(), Error> {
        let value = with_weights(self.arbitration_feature()?, weights)?;
        self.admin().set_feature(fid::ARBITRATION, value.to_dword())
    }

    /// The Arbitration feature.
    pub fn arbitration_feature(&mut self) -> Result<ArbitrationValue, Error> {
        Ok(ArbitrationValue::from_dword(self.admin().feature(fid::ARBITRATION)?))
    }

    /// Sets what a round of deficit round robin gives each class, 1 to 1024 KiB, from the next command on. For
    /// controllers started with [`Arbitration::Deficit`].
    pub fn set_quanta(&mut self, quanta: Quanta) -> Result<(), Error> {
        let value = quanta.to_dword().ok_or(Error::Invalid("quanta of queue priorities are 1 to 1024 KiB"))?;
        self.admin().set_feature(FID_QUANTA, value)
    }

    /// Whether queues have priorities: not under round robin.
    pub fn has_priorities(&self) -> bool {
        self.cc.ams() != Cc::AMS_ROUND_ROBIN
    }

    fn set_up_shadow_doorbells(&mut self) -> Result<(), Error> {
        let mapped = matches!(self.device.doorbell(sq_tail_doorbell(1, self.cap.dstrd()))?, crate::Doorbell::Mapped(_));
        if mapped || self.identity.oacs & oacs::DOORBELL_BUFFER == 0 {
            return Ok(());
        }
        let pages = self.device.allocate_dma(2 * PAGE_BYTES as usize)?;
        let page = |n| pages.slice(n * PAGE_BYTES, PAGE_BYTES).ok_or(Error::Invalid("too little DMA memory"));
        let shadow = ShadowPages { values: page(0)?, event_indexes: page(1)?, whole: pages.clone() };
        self.admin().doorbell_buffer_config(shadow.values.iova(), shadow.event_indexes.iova())?;
        self.shadow = Some(shadow);
        Ok(())
    }

    /// The Identify Controller data.
    pub fn identity(&self) -> &IdentifyController {
        &self.identity
    }

    /// Controller Capabilities.
    pub fn capabilities(&self) -> Cap {
        self.cap
    }

    /// I/O queue pairs that can still be created.
    pub fn queues_left(&self) -> usize {
        self.free_qids.len()
    }

    /// Whether doorbells go through shadow doorbells in memory.
    pub fn has_shadow_doorbells(&self) -> bool {
        self.shadow.is_some()
    }

    /// The most bytes that one command may move.
    pub fn max_transfer_bytes(&self) -> u64 {
        match self.identity.mdts {
            0 => MAX_TRANSFER_BYTES,
            mdts => {
                let pages = 1_u64.checked_shl(mdts.into()).unwrap_or(u64::MAX);
                pages.saturating_mul(PAGE_BYTES).min(MAX_TRANSFER_BYTES)
            }
        }
    }

    /// Admin commands of the controller.
    pub fn admin(&mut self) -> Admin<'_> {
        self.admin.on(&mut self.device)
    }

    /// The lowest active namespace.
    pub fn first_namespace(&mut self) -> Result<Namespace, Error> {
        let nsids = self.admin().active_namespaces()?;
        let nsid = *nsids.first().ok_or(Error::Unsuitable("it has no active namespace"))?;
        self.admin().identify_namespace(nsid)
    }

    /// Zeroed memory for data, shared with the device.
    pub fn allocate_dma(&mut self, len_bytes: usize) -> Result<DmaMemory, Error> {
        self.device.allocate_dma(len_bytes)
    }

    /// Gives memory of [`Controller::allocate_dma`] back. No command may use it any more.
    pub fn release_dma(&mut self, memory: DmaMemory) -> Result<(), Error> {
        self.device.release_dma(memory)
    }

    /// The device below, for interrupts.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// The largest number of entries that an I/O queue may have: 2 to 65535.
    pub fn max_entries(&self) -> u16 {
        self.cap.mqes().saturating_add(1).max(2)
    }

    /// Creates an I/O queue pair of `entries` entries each (2 to [`Controller::max_entries`]; one less
    /// can be in flight), which signals MSI-X `vector` at completions, or none. Its priority follows from
    /// [the calling thread's](priority_of_this_thread).
    pub fn create_queue_pair(&mut self, entries: u16, vector: Option<u16>) -> Result<QueuePair, Error> {
        self.create_queue_pair_with(entries, vector, priority_of_this_thread())
    }

    /// As [`Controller::create_queue_pair`], with a certain priority, which counts unless arbitration is round robin.
    pub fn create_queue_pair_with(
        &mut self,
        entries: u16,
        vector: Option<u16>,
        priority: QueuePriority,
    ) -> Result<QueuePair, Error> {
        if entries < 2 || entries > self.max_entries() {
            return Err(Error::Invalid("the queue depth is beyond what the controller offers (CAP.MQES)"));
        }
        let qid = *self.free_qids.last().ok_or(Error::Invalid("the controller has no I/O queue left"))?;
        let memory = self.device.allocate_dma(Layout::new(entries).len_bytes as usize)?;
        let sq_doorbell = self.queue_doorbell(sq_tail_doorbell(qid, self.cap.dstrd()))?;
        let cq_doorbell = self.queue_doorbell(cq_head_doorbell(qid, self.cap.dstrd()))?;
        let queue = QueuePair::new(qid, entries, memory, sq_doorbell, cq_doorbell)?;
        self.admin().create_cq(qid, entries, queue.cq_iova(), vector)?;
        if let Err(error) = self.admin().create_sq(qid, entries, queue.sq_iova(), qprio(priority)) {
            self.admin().delete_cq(qid)?;
            return Err(error);
        }
        self.free_qids.pop();
        Ok(queue)
    }

    fn queue_doorbell(&mut self, offset: u64) -> Result<QueueDoorbell, Error> {
        let register = self.device.doorbell(offset)?;
        let at = offset - nvme_spec::regs::DOORBELL_BASE;
        let shadow = self.shadow.as_ref().and_then(|pages| {
            Some(Shadow { value: pages.values.cell(at)?, event_index: pages.event_indexes.cell(at)? })
        });
        if let Some(Shadow { value, event_index }) = &shadow {
            // What a former queue of that identifier left would keep the first commands from being heard of.
            value.store(0);
            event_index.store(0);
        }
        Ok(QueueDoorbell::new(register, shadow))
    }

    /// Deletes a queue pair and gives its memory back. Commands in flight are aborted by the device.
    /// (Dropping a queue pair instead keeps its memory mapped until the controller goes.)
    pub fn delete_queue_pair(&mut self, queue: QueuePair) -> Result<(), Error> {
        self.delete_queues(queue.id(), COMMAND_LIMIT)?;
        self.release_queue_pair(queue)
    }

    /// Has the device delete a queue pair and forget its commands. Once this returns it reaches none of their memory.
    /// The pair itself may be anywhere: its memory is given back by [`Controller::release_queue_pair`].
    ///
    /// # Errors
    /// That is not certain.
    pub fn delete_queues(&mut self, qid: u16, limit: Duration) -> Result<(), Error> {
        self.admin().within(limit).delete_sq(qid)?;
        self.admin().within(limit).delete_cq(qid)?;
        self.free_qids.push(qid);
        Ok(())
    }

    /// Gives the memory of a queue pair back that the device knows no more.
    pub fn release_queue_pair(&mut self, queue: QueuePair) -> Result<(), Error> {
        self.device.release_dma(queue.into_memory())
    }

    /// Asks whether the controller is still there and ready. For when completions stay away.
    pub fn check(&mut self) -> Result<(), Error> {
        check(&mut self.device)
    }

    /// Drops it without a shutdown, which a controller that answers nothing would never end.
    pub fn abandon(mut self) {
        self.is_lost = true;
    }

    /// Tells the controller that we go (Base 3.6.1), and waits until it is done.
    fn shut_down(&mut self) -> Result<(), Error> {
        let limit = shutdown_limit(self.identity.rtd3e);
        self.device.write_u32(Reg::Cc.offset(), self.cc.with_shn(Cc::SHN_NORMAL).0)?;
        wait_for(&mut self.device, limit, "a shutdown", |csts| csts.shst() == Csts::SHST_DONE)
    }
}

impl<D: PciDevice> Drop for Controller<D> {
    fn drop(&mut self) {
        if self.is_lost {
            return;
        }
        // Nobody is left who could act on a failure; a controller that is gone needs no shutdown.
        let _ = self.shut_down();
    }
}

/// What a controller gets that says how many microseconds it takes; 0: it does not say (RTD3E).
fn shutdown_limit(rtd3e_us: u32) -> Duration {
    Duration::from_micros(rtd3e_us.into()).clamp(SHUTDOWN_LIMIT, LONGEST_SHUTDOWN)
}

/// See [`Controller::check`].
pub(crate) fn check(device: &mut dyn PciDevice) -> Result<(), Error> {
    match status(device)? {
        csts if csts.cfs() => Err(Error::Fatal),
        csts if !csts.rdy() => Err(Error::NotReady),
        _ => Ok(()),
    }
}

/// CSTS. What was pulled out of its slot reads as ones.
fn status(device: &mut dyn PciDevice) -> Result<Csts, Error> {
    match device.read_u32(Reg::Csts.offset())? {
        u32::MAX => Err(Error::Removed),
        csts => Ok(Csts(csts)),
    }
}

/// Brings a controller up that is disabled: its admin queues, who it is, and how many pairs of I/O queues it grants.
fn enable(device: &mut impl PciDevice, cap: Cap, cc: Cc) -> Result<(AdminQueue, IdentifyController, u16), Error> {
    let queue = admin_queue(device, cap)?;
    device.write_u32(Reg::Aqa.offset(), Aqa::new(ADMIN_ENTRIES - 1, ADMIN_ENTRIES - 1).0)?;
    device.write_u64(Reg::Asq.offset(), queue.sq_iova())?;
    device.write_u64(Reg::Acq.offset(), queue.cq_iova())?;
    device.write_u32(Reg::Cc.offset(), cc.0)?;
    wait_for(device, ready_limit(cap), "CSTS.RDY = 1", |csts| csts.rdy())?;
    let page = device.allocate_dma(PAGE_BYTES as usize)?;
    let mut admin = AdminQueue::new(queue, page);
    let identity = admin.on(device).identify_controller()?;
    let queues = admin.on(device).set_number_of_queues(WANTED_QUEUES)?;
    Ok((admin, identity, queues))
}

fn admin_queue(device: &mut impl PciDevice, cap: Cap) -> Result<QueuePair, Error> {
    let memory = device.allocate_dma(Layout::new(ADMIN_ENTRIES).len_bytes as usize)?;
    let sq_doorbell = QueueDoorbell::new(device.doorbell(sq_tail_doorbell(0, cap.dstrd()))?, None);
    let cq_doorbell = QueueDoorbell::new(device.doorbell(cq_head_doorbell(0, cap.dstrd()))?, None);
    QueuePair::new(0, ADMIN_ENTRIES, memory, sq_doorbell, cq_doorbell)
}

/// The longest that CSTS.RDY may take to follow CC.EN.
fn ready_limit(cap: Cap) -> Duration {
    TIMEOUT_UNIT * u32::from(cap.to().max(1))
}

/// Brings the controller to the state after a reset, whatever a former user left.
fn disable(device: &mut impl PciDevice, cap: Cap) -> Result<(), Error> {
    let cc = Cc(device.read_u32(Reg::Cc.offset())?);
    if cc.en() {
        device.write_u32(Reg::Cc.offset(), 0)?;
    }
    wait_while(device, ready_limit(cap), "CSTS.RDY = 0", |csts| csts.rdy())
}

/// Waits for `reached`; a fatal status ends the wait.
fn wait_for(
    device: &mut impl PciDevice,
    limit: Duration,
    what: &'static str,
    reached: impl Fn(Csts) -> bool,
) -> Result<(), Error> {
    let mut fatal = false;
    wait_while(device, limit, what, |csts| {
        fatal = csts.cfs();
        !fatal && !reached(csts)
    })?;
    if fatal { Err(Error::Fatal) } else { Ok(()) }
}

fn wait_while(
    device: &mut impl PciDevice,
    limit: Duration,
    what: &'static str,
    mut unfinished: impl FnMut(Csts) -> bool,
) -> Result<(), Error> {
    let deadline = Instant::now() + limit;
    while unfinished(status(device)?) {
        if Instant::now() > deadline {
            return Err(Error::NoAnswer { peer: "the controller".into(), what, limit });
        }
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shutdown_is_waited_for_as_long_as_the_drive_says_within_reason() {
        assert_eq!(shutdown_limit(0), SHUTDOWN_LIMIT);
        assert_eq!(shutdown_limit(8_000_000), Duration::from_secs(8));
        assert_eq!(shutdown_limit(u32::MAX), LONGEST_SHUTDOWN);
    }
}
