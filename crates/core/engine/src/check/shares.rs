//! Weights over the measured time.

use crate::contestant::FairQueueing;
use policy::{COST_UNIT, Class, FairConfig, PolicyConfig, Terms};

use super::Rule;
use super::classes::{unequal_in_bytes, unequal_in_commands};
use super::least::starving;
use super::ledger::Service;

/// `fair` moves weights between tenants by up to 4 either way as their latencies drift, and adds up to the configured
/// ones only over all: over a measured time two tenants that always have work get their shares within this factor.
const FAIR_FACTOR: f64 = 4.0;
/// Below this much measured time `fair`, which reckons in epochs, is not judged …
const FAIR_EPOCHS: u64 = 5;
/// … nor with several HWQs that hold less than so much or, together, less than the window: one of them may be full when
/// all together are not, and its room goes to VQs in the order of their arrival, whatever their weights.
const FAIR_HWQ_DEPTH: u32 = 64;
/// … nor on a drive so slow that fewer than this many HWQs' worth of commands were sent in this time: most of what is
/// measured then is the initial filling of the HWQs.
const FAIR_FILLS: u64 = 8;

/// One tenant over the measured time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contender {
    pub(crate) tenant: u16,
    pub(crate) terms: Terms,
    /// It had work waiting all the time, as far as its poller knew, and behaved.
    pub(crate) always_waiting: bool,
    /// Its terms changed meanwhile, so that nothing was promised for the whole time.
    pub(crate) changed: bool,
    /// It rang for what isn't there.
    pub(crate) rogue: bool,
    /// Tenants with the same number here have the same guests and workloads.
    pub(crate) kind: usize,
    /// Its service at the start of the time and at its end.
    pub(crate) from: Service,
    pub(crate) to: Service,
}

impl Contender {
    pub(super) fn weight(&self, guaranteed_weight: u32) -> f64 {
        match self.terms.class {
            Class::Guaranteed { .. } => guaranteed_weight.into(),
            Class::BestEffort { weight } => weight.into(),
        }
    }

    pub(super) fn cost(&self) -> f64 {
        (self.to.cost - self.from.cost) as f64
    }

    /// Cost per weight.
    fn share(&self, guaranteed_weight: u32) -> f64 {
        self.cost() / self.weight(guaranteed_weight)
    }

    /// Nothing but others' commands keeps it from more.
    pub(super) fn asks_all_along(&self) -> bool {
        self.always_waiting && !self.changed && self.terms.limits.is_empty()
    }
}

/// How long pollers take to correct their parts where equal work is not as easy for all.
const CORRECTED_NS: u64 = 200_000_000;

/// What a policy's settings promise.
#[derive(Debug)]
pub(crate) struct Shares<'a> {
    pub(crate) policy: Option<&'a PolicyConfig>,
    /// If it is not one of the product's.
    pub(crate) queueing: Option<FairQueueing>,
    /// The measured time.
    pub(crate) span_ns: u64,
    /// The cost of all that the drive was given, if the policy reckons that.
    pub(crate) work: u64,
    /// Of all that are there at some time, whichever poller serves them; a guaranteed tenant counts as 1.
    pub(crate) weights: u64,
    /// Tenants among whom the policy decides are on several pollers.
    pub(crate) is_parted: bool,
    /// What an HWQ holds.
    pub(crate) hwq_depth: u32,
    /// The poller's.
    pub(crate) hwqs: u16,
}

impl Shares<'_> {
    /// Checks the tenants of one poller.
    pub(crate) fn check(&self, contenders: &[Contender], violate: &mut dyn FnMut(Rule, Option<u16>, String)) {
        if let Some(PolicyConfig::Fair(_)) = self.policy
            && contenders.iter().map(|one| one.to.commands - one.from.commands).sum::<u64>()
                < FAIR_FILLS * u64::from(self.hwq_depth)
        {
            return;
        }
        let busy: Vec<_> = contenders.iter().filter(|one| one.asks_all_along()).collect();
        for (at, one) in busy.iter().enumerate() {
            for other in &busy[at + 1..] {
                if let Some(what) = self.unequal(one, other).or_else(|| self.unequal_classes(one, other, contenders)) {
                    violate(Rule::Shares, None, format!("tenants {} and {}: {what}", one.tenant, other.tenant));
                }
            }
        }
        if let Some(PolicyConfig::Evenkeel(_)) = self.policy
            && !(self.is_parted && self.span_ns < CORRECTED_NS)
            && let Some((tenant, what)) = starving(contenders, self.work, self.weights)
        {
            violate(Rule::NoStarvation, Some(tenant), format!("tenant {tenant}: {what}"));
        }
    }

    /// Under `fair`.
    fn room_decides(&self, config: &FairConfig) -> bool {
        let room = u64::from(self.hwqs) * u64::from(self.hwq_depth);
        let window = config.window.0.saturating_mul(config.parallel_units.into()) / config.reference_time.0.max(1);
        self.hwqs > 1 && (self.hwq_depth < FAIR_HWQ_DEPTH || room < window)
    }

    /// The check under `wrr` and `drr`.
    fn unequal_classes(&self, one: &Contender, other: &Contender, all: &[Contender]) -> Option<String> {
        match self.policy {
            Some(PolicyConfig::Wrr(config)) => unequal_in_commands(config, self.is_parted, one, other, all),
            Some(PolicyConfig::Drr(config)) => unequal_in_bytes(config, one, other),
            _ => None,
        }
    }

    /// What is wrong with the shares of two tenants that always had work.
    fn unequal(&self, one: &Contender, other: &Contender) -> Option<String> {
        let (shares, most_apart) = match (self.policy, self.queueing) {
            (_, Some(queueing)) => {
                let weight = queueing.guaranteed_weight;
                // Start tags are never further apart than the gap and one command: at the start and at the end.
                let command = |tenant: &Contender| tenant.to.most_cost as f64 / tenant.weight(weight);
                let gap = f64::from(queueing.gap_commands * COST_UNIT);
                ([one.share(weight), other.share(weight)], 2.0 * (gap + command(one) + command(other)))
            }
            (Some(PolicyConfig::Fair(config)), _)
                if config.variant == policy::Variant::Corrected
                    && one.kind == other.kind
                    && !self.room_decides(config)
                    && self.span_ns >= FAIR_EPOCHS * config.epoch.0 =>
            {
                let shares = [one.share(1), other.share(1)];
                let command = |tenant: &Contender| tenant.to.most_cost as f64 / tenant.weight(1);
                let least = shares[0].min(shares[1]);
                (shares, least * (FAIR_FACTOR - 1.0) + 8.0 * (command(one) + command(other)))
            }
            _ => return None,
        };
        let apart = (shares[0] - shares[1]).abs();
        (apart > most_apart)
            .then(|| format!("cost per weight {:.0} and {:.0}, at most {most_apart:.0} apart", shares[0], shares[1]))
    }
}
