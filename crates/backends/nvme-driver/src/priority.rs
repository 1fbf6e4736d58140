//! Arbitration among our submission queues: what we ask the controller for, and which queue is worth what.

use io_model::{QueuePriority, WrrWeights};
use nvme_spec::feature::ArbitrationValue;
use nvme_spec::opcode::create;
use nvme_spec::regs::Cc;
use nvme_spec::vendor::Quanta;

use crate::error::Error;

/// How the controller is to pick among our I/O submission queues (CC.AMS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arbitration {
    /// Round robin; priorities have no meaning.
    RoundRobin,
    /// Weighted round robin with urgent priority class. With weights (1 to 256 commands), these are set, and the burst
    /// is left as it is; else all is as the controller has it.
    Weighted(Option<WrrWeights>),
    /// Deficit round robin, which shares bytes: Evenkeel's own. With quanta (1 to 1024 KiB), these are set.
    Deficit(Option<Quanta>),
}

impl Arbitration {
    pub(crate) fn ams(self) -> u8 {
        match self {
            Self::RoundRobin => Cc::AMS_ROUND_ROBIN,
            Self::Weighted(_) => Cc::AMS_WEIGHTED,
            Self::Deficit(_) => Cc::AMS_VENDOR,
        }
    }
}

/// The Arbitration feature with other weights.
pub(crate) fn with_weights(value: ArbitrationValue, weights: WrrWeights) -> Result<ArbitrationValue, Error> {
    let stored = |weight: u16| {
        let stored = weight.checked_sub(1).and_then(|stored| u8::try_from(stored).ok());
        stored.ok_or(Error::Invalid("weights of queue priorities are 1 to 256 commands"))
    };
    let WrrWeights { high, medium, low } = weights;
    Ok(ArbitrationValue { hpw: stored(high)?, mpw: stored(medium)?, lpw: stored(low)?, ..value })
}

/// QPRIO of a priority.
pub(crate) fn qprio(priority: QueuePriority) -> u8 {
    match priority {
        QueuePriority::Urgent => create::QPRIO_URGENT,
        QueuePriority::High => create::QPRIO_HIGH,
        QueuePriority::Medium => create::QPRIO_MEDIUM,
        QueuePriority::Low => create::QPRIO_LOW,
    }
}

/// What a queue of the calling thread is worth by the thread's I/O priority (`ionice`): realtime is high, idle is low,
/// best-effort and none are medium. Nothing makes a queue urgent by itself.
pub fn priority_of_this_thread() -> QueuePriority {
    priority_of(io_priority())
}

/// The classes of `ioprio_get(2)`, in the bits above the level.
const CLASS_SHIFT: u32 = 13;
const REALTIME: i64 = 1;
const IDLE: i64 = 3;

fn priority_of(ioprio: i64) -> QueuePriority {
    match ioprio >> CLASS_SHIFT {
        REALTIME => QueuePriority::High,
        IDLE => QueuePriority::Low,
        _ => QueuePriority::Medium,
    }
}

/// The calling thread's I/O priority; below 0 where the kernel does not tell.
#[allow(unsafe_code)]
fn io_priority() -> i64 {
    /// `IOPRIO_WHO_PROCESS` of linux/ioprio.h; with 0, the calling thread.
    const WHO_PROCESS: libc::c_int = 1;
    // SAFETY: the call takes two integers, touches no memory of ours and changes nothing.
    unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0 as libc::c_int) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_its_priority_and_none_is_urgent() {
        for (ioprio, expected) in [
            (0, QueuePriority::Medium),
            (1 << 13, QueuePriority::High),
            (1 << 13 | 7, QueuePriority::High),
            (2 << 13 | 4, QueuePriority::Medium),
            (3 << 13, QueuePriority::Low),
            (4 << 13, QueuePriority::Medium),
            (-1, QueuePriority::Medium),
        ] {
            assert_eq!(priority_of(ioprio), expected, "{ioprio:#x}");
        }
    }

    #[test]
    fn the_kernel_is_asked() {
        // Whatever this runs under, it is an answer, and the same one twice.
        assert!(io_priority() >= 0);
        assert_eq!(priority_of_this_thread(), priority_of(io_priority()));
    }

    #[test]
    fn weights_out_of_range_are_refused() {
        let old = ArbitrationValue { ab: 3, lpw: 9, mpw: 9, hpw: 9 };
        let set = |high, medium, low| with_weights(old, WrrWeights { high, medium, low });
        assert_eq!(set(256, 16, 1).expect("in range"), ArbitrationValue { ab: 3, lpw: 0, mpw: 15, hpw: 255 });
        for (high, medium, low) in [(0, 1, 1), (1, 0, 1), (1, 1, 0), (257, 1, 1), (1, 1, u16::MAX)] {
            assert!(matches!(set(high, medium, low), Err(Error::Invalid(_))), "{high}, {medium}, {low}");
        }
    }
}
