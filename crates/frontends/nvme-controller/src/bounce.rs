//! Compare and Verify: commands whose data the device reads into memory of our own
//! (NVM Command Set 1.0, 3.2.1 and 3.2.7).
//!
//! That memory is bounded per tenant: past the bound, a queue's next such command waits.

use std::sync::Arc;

use guest_memory::{Access, IoBuf, Mapping};
use io_model::Op;
use nvme_spec::{Sqe, Status};

use crate::Controller;
use crate::data;
use crate::io::Admitted;
use crate::msix::Interrupts;
use crate::namespace::Blocks;
use crate::queue::Kind;

/// Bounce memory of one tenant at most, in transfers of the largest size.
const MAX_BOUNCES: u64 = 8;

/// What the device reads, and for Compare what the guest expects after it.
#[derive(Debug)]
pub(crate) struct Bounce {
    memory: Arc<Mapping>,
    len_bytes: u64,
}

impl Bounce {
    pub fn size_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    /// Whether the device's data is what the guest expects.
    pub fn is_equal(&self) -> bool {
        let (mut ours, mut theirs) = ([0; 4096], [0; 4096]);
        (0..self.len_bytes).step_by(4096).all(|at| {
            let n = (self.len_bytes - at).min(4096) as usize;
            let read = |from, out: &mut [u8]| self.memory.read_at(from, out).is_some();
            let both = read(at, &mut ours[..n]) && read(self.len_bytes + at, &mut theirs[..n]);
            both && ours[..n] == theirs[..n]
        })
    }
}

impl<I: Interrupts> Controller<I> {
    /// Whether a command that needs bounce memory has to wait for others to end. One alone never
    /// does: nothing is in use then.
    pub(crate) fn bounce_is_full(&self) -> bool {
        self.bounce_bytes >= MAX_BOUNCES * u64::from(self.config.max_transfer_bytes)
    }

    pub(crate) fn admit_bounced(&mut self, sqe: &Sqe, blocks: &Blocks, kind: Kind) -> Result<Admitted, Status> {
        let (offset_bytes, len_bytes) = blocks.range(sqe.slba(), u64::from(sqe.nlb()) + 1)?;
        // MDTS for Compare, VSL (which equals it) for Verify.
        if len_bytes > self.config.max_transfer_bytes.into() {
            return Err(Status::INVALID_FIELD);
        }
        let mut guest = IoBuf::default();
        let halves = match kind {
            Kind::Compare => {
                data::translate(&mut self.memory, sqe, len_bytes, Access::Read, &mut guest, &mut self.extra_work)?;
                2
            }
            _ => 1,
        };
        // Allocates: the commands are rare, and memory kept for them would be idle in every tenant.
        let memory = Mapping::anonymous((halves * len_bytes) as usize).map_err(|_| Status::INTERNAL_ERROR)?;
        data::whole(guest.copy_mapping(&memory, len_bytes, true))?;
        let mut buf = IoBuf::default();
        buf.push(&memory, 0, len_bytes);
        let bounce = Bounce { memory, len_bytes };
        self.bounce_bytes += bounce.size_bytes();
        self.stats.bounced_bytes += len_bytes;
        let command = blocks.place.command(Op::Read, offset_bytes, len_bytes);
        Ok(Admitted::Bounced { kind, command, slba: sqe.slba(), buf, bounce: Box::new(bounce) })
    }
}
