//! Which of a tenant's submission queues is served next (NVMe Base 2.0, 3.4.4).
//!
//! Under round robin each submission queue is a VQ of its own, and the policy takes turns among them, one command at
//! a time: that keeps any Arbitration Burst, which is a maximum. Under weighted or deficit round robin the tenant's
//! I/O queues are *one* VQ, so that the policy decides when the tenant may send and the guest's choice decides what. A
//! poller takes a VQ for a line: how long the commands of one class waited, it does not see; what all of them waited,
//! it does. With [`ControllerConfig::queues_singly`] they stay VQs of their own, and the policy is told each one's
//! class.

use arbitration::{Arbitration, QuantaKib};
use io_model::{Command, Fetch, Op, QueuePriority, WrrWeights};
use nvme_spec::feature::ArbitrationValue;
use nvme_spec::opcode::create;
use nvme_spec::regs::Cc;
use nvme_spec::vendor::Quanta;

use crate::Controller;
use crate::admin::Features;
#[cfg(doc)]
use crate::config::ControllerConfig;
use crate::msix::Interrupts;

/// The VQ that all I/O queues are under weighted and deficit round robin.
pub(crate) const TOGETHER: u16 = 1;

/// RAB: one command of a queue in a turn. Longer turns gain nothing here: commands leave one by one.
pub(crate) const RECOMMENDED_BURST: u8 = 0;

/// The Arbitration feature from reset on: 32, 16 and 8 commands.
pub(crate) const DEFAULT_WEIGHTS: ArbitrationValue =
    ArbitrationValue { ab: RECOMMENDED_BURST, hpw: 31, mpw: 15, lpw: 7 };

/// The quanta of deficit round robin from reset on.
pub(crate) const DEFAULT_QUANTA: Quanta = Quanta { high_kib: 128, medium_kib: 64, low_kib: 32 };

/// The class that QPRIO names.
pub(crate) fn class(qprio: u8) -> QueuePriority {
    match qprio {
        create::QPRIO_URGENT => QueuePriority::Urgent,
        create::QPRIO_HIGH => QueuePriority::High,
        create::QPRIO_MEDIUM => QueuePriority::Medium,
        _ => QueuePriority::Low,
    }
}

/// What the guest chose, by CC.AMS and features. `None`: round robin.
fn rule(ams: u8, features: &Features) -> Option<Arbitration> {
    match ams {
        Cc::AMS_WEIGHTED => {
            let ArbitrationValue { ab, lpw, mpw, hpw } = features.weights();
            let burst = if ab == ArbitrationValue::NO_LIMIT { u32::MAX } else { 1 << ab };
            let weight = |stored: u8| u16::from(stored) + 1;
            let weights = WrrWeights { high: weight(hpw), medium: weight(mpw), low: weight(lpw) };
            Some(Arbitration::WeightedRoundRobin { burst, weights })
        }
        Cc::AMS_VENDOR => {
            let Quanta { low_kib, medium_kib, high_kib } = features.quanta();
            let quanta = QuantaKib { high: high_kib.into(), medium: medium_kib.into(), low: low_kib.into() };
            Some(Arbitration::DeficitRoundRobin { quanta })
        }
        _ => None,
    }
}

/// What deficit round robin charges: data that moves. The length of what is discarded or zeroed costs nothing by
/// itself.
fn data_bytes(command: &Command) -> u64 {
    match command.op {
        Op::Read | Op::Write => command.len_bytes,
        Op::Flush | Op::WriteZeroes | Op::Discard => 0,
    }
}

impl<I: Interrupts> Controller<I> {
    /// The controller starts, by whatever CC.AMS says.
    pub(crate) fn start_arbitration(&mut self) {
        let rule = rule(self.regs.cc.ams(), &self.features).filter(|_| !self.config.queues_singly);
        self.queues.arbitrate(rule);
    }

    /// Weights were set: they count from the next command on.
    pub(crate) fn weights_changed(&mut self) {
        if let (Some(arbiter), Some(rule)) = (&mut self.queues.arbiter, rule(self.regs.cc.ams(), &self.features)) {
            arbiter.set_arbitration(rule);
        }
    }

    /// What a VQ counts for among other tenants'.
    pub(crate) fn asked_priority(&self, vq: u16) -> QueuePriority {
        // Under round robin QPRIO has no meaning.
        let weighted = vq > 0 && self.config.queues_singly && self.regs.cc.ams() != Cc::AMS_ROUND_ROBIN;
        self.queues.qprio(vq).filter(|_| weighted).map_or(QueuePriority::Medium, class)
    }

    /// All that waits in I/O queues. Asks each of them, as the poller does under round robin.
    pub(crate) fn backlog_together(&mut self) -> u32 {
        let mut waiting = 0;
        let mut rest = self.queues.live & !1;
        while rest != 0 {
            let qid = rest.trailing_zeros() as u16;
            rest &= rest - 1;
            let backlog = self.io_backlog(qid);
            if let Some(arbiter) = &mut self.queues.arbiter {
                arbiter.set_backlogged(qid, backlog > 0);
            }
            waiting += backlog;
        }
        waiting
    }

    /// The next command of the queue whose turn it is. A command that is handed out in several device commands takes as
    /// many turns.
    pub(crate) fn fetch_together(&mut self) -> Fetch {
        while let Some(qid) = self.queues.arbiter.as_mut().and_then(|arbiter| arbiter.pick()) {
            let fetch = self.fetch_io(qid);
            let goes_on = self.queues.has_next(qid);
            let Some(arbiter) = &mut self.queues.arbiter else { return fetch };
            match &fetch {
                Fetch::Command(command, ..) => arbiter.charge(qid, data_bytes(command)),
                Fetch::Handled => arbiter.charge(qid, 0),
                Fetch::Empty => {}
            }
            // Halted, or waiting for the host or for memory: the next look at the backlog brings it back.
            let empty = matches!(fetch, Fetch::Empty);
            if empty || !goes_on {
                arbiter.set_backlogged(qid, false);
            }
            if !empty {
                return fetch;
            }
        }
        Fetch::Empty
    }
}
