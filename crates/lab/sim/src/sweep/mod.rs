//! Whole scenarios drawn from a seed, each held against every rule; and broken parts that the rules must catch.
//!
//! | module | what |
//! | --- | --- |
//! | here | [`check`]: one seed |
//! | `draw` | [`draw()`]: a seed's scenario: drive, host, policy, tenants, faults |
//! | `canary` | [`canaries`]: policies and parts broken on purpose |
//!
//! A few milliseconds of virtual time each, so that thousands run in minutes. A seed says everything: the same one
//! draws the same scenario and ends in the same report.

mod canary;
mod draw;

use std::fmt;

use io_model::QueuePriority;
use policy::{Class, FairVariant, PolicyConfig, TenantPriority, Variant};

pub use canary::{Canary, canaries};
pub use draw::draw;

use crate::workload::Workload;
use crate::{FaultKind, Report, Rule, Scenario, ScenarioError, Violation, run};

/// Each so many seeds one runs twice, to see that nothing but the scenario decides.
const TWICE: u64 = 16;

/// Commands of guaranteed tenants in flight that may saturate a drive.
const SATURATING: u32 = 128;
/// The speed of D2FQ's high class against its low one up to which the low one is not starved.
const PATIENT_RATIO: u32 = 32;

/// What a seed's run was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The policy's name.
    pub policy: String,
    /// The layout's name.
    pub layout: String,
    /// How many tenants.
    pub tenants: usize,
    /// How many faults.
    pub faults: usize,
    /// I/Os that ended.
    pub simulated_ios: u64,
    /// Broken rules that are known of this policy.
    pub forgiven: u64,
}

/// Why a seed failed.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// A scenario was drawn that can't be played.
    Invalid(ScenarioError),
    /// Rules were broken.
    Broken {
        /// What was played.
        summary: Summary,
        /// The first ones that nothing excuses.
        violations: Vec<Violation>,
    },
    /// Two runs of one scenario ended in different reports.
    Differs(Summary),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => write!(f, "drew an invalid scenario: {error}"),
            Self::Differs(summary) => write!(f, "{summary}: two runs of it differ"),
            Self::Broken { summary, violations } => {
                write!(f, "{summary}: {} rules broken", violations.len())?;
                for Violation { at_ns, rule, what } in violations.iter().take(4) {
                    write!(f, "\n  at {at_ns} ns, {rule:?}: {what}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, layout, tenants, faults, simulated_ios, .. } = self;
        write!(f, "{policy} on {layout}, {tenants} tenants, {faults} faults, {simulated_ios} I/Os")
    }
}

impl std::error::Error for Failure {}

/// Draws a seed's scenario, plays it and checks it.
///
/// # Errors
/// A rule was broken that nothing excuses, or two runs differ.
pub fn check(seed: u64) -> Result<Summary, Failure> {
    let scenario = draw(seed);
    let report = run(&scenario).map_err(Failure::Invalid)?;
    let (forgiven, violations): (Vec<_>, Vec<_>) =
        report.broken.iter().cloned().partition(|violation| excused(&scenario, violation.rule));
    let summary = summary(&scenario, &report, forgiven.len() as u64);
    if !violations.is_empty() {
        return Err(Failure::Broken { summary, violations });
    }
    if seed.is_multiple_of(TWICE) && run(&scenario).as_ref() != Ok(&report) {
        return Err(Failure::Differs(summary));
    }
    Ok(summary)
}

fn summary(scenario: &Scenario, report: &Report, forgiven: u64) -> Summary {
    Summary {
        policy: report.policy.clone(),
        layout: report.layout.clone(),
        tenants: scenario.tenants.len(),
        faults: scenario.faults.len(),
        simulated_ios: report.simulated_ios,
        forgiven,
    }
}

/// Whether a scenario may break a rule. Only starvation is ever excused: by policies that are known to starve, each for
/// the reason beside it, and by an HWQ that is lost, for then a policy that bound a VQ to it can't know.
fn excused(scenario: &Scenario, rule: Rule) -> bool {
    let guaranteed = || scenario.tenants.iter().any(|tenant| matches!(tenant.class, Class::Guaranteed { .. }));
    let starves = match &scenario.policy {
        // Guaranteed tenants first, without limit.
        PolicyConfig::K2(_) => guaranteed(),
        // As published it suspends every best-effort tenant beside an idle guaranteed one; corrected, guaranteed ones
        // with much in flight leave best effort only its floor, a command or two that wait for all of theirs.
        PolicyConfig::Lpns(config) => config.variant == Variant::Published || guaranteed_depth(scenario) >= SATURATING,
        // As published the first tenant goes first, and who asks most gets most.
        PolicyConfig::Fair(config) => config.variant == FairVariant::Published,
        // The drive fetches from its low class once for so many of its high one.
        PolicyConfig::D2fq(config) => config.adaptive || config.ratio > PATIENT_RATIO,
        // Urgent tenants first, without limit.
        PolicyConfig::Wrr(config) | PolicyConfig::Drr(config) => {
            config.priorities.contains(&TenantPriority::Fixed(QueuePriority::Urgent))
        }
        _ => false,
    };
    let lost = scenario.faults.iter().any(|fault| matches!(fault.kind, FaultKind::LoseHwq { .. }));
    rule == Rule::NoStarvation && (starves || lost)
}

/// Commands that all guaranteed tenants of a closed loop keep in flight together.
fn guaranteed_depth(scenario: &Scenario) -> u32 {
    let guaranteed = scenario.tenants.iter().filter(|tenant| matches!(tenant.class, Class::Guaranteed { .. }));
    let depths = guaranteed.map(|tenant| match &tenant.workload {
        Workload::Fio(fio) => fio.jobs.saturating_mul(fio.iodepth),
        _ => 0,
    });
    depths.fold(0, u32::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dozens_of_seeds_hold() {
        for seed in 0..48 {
            if let Err(failure) = check(seed) {
                panic!("seed {seed}: {failure}");
            }
        }
    }

    #[test]
    fn every_canary_is_caught() {
        for canary in canaries() {
            assert!(canary.caught(), "{}: {:?} was not seen, only {:?}", canary.name, canary.expected, canary.seen);
        }
    }

    #[test]
    fn draws_reach_every_policy_layout_and_fault() {
        let scenarios: Vec<Scenario> = (0..400).map(draw).collect();
        for name in PolicyConfig::NAMES {
            assert!(scenarios.iter().any(|scenario| scenario.policy.name() == name), "{name}");
        }
        for layout in crate::Layout::ALL {
            assert!(scenarios.iter().any(|scenario| scenario.layout == layout), "{layout:?}");
        }
        let faults: Vec<FaultKind> =
            scenarios.iter().flat_map(|scenario| &scenario.faults).map(|fault| fault.kind).collect();
        let has = |is: fn(&FaultKind) -> bool| faults.iter().any(is);
        assert!(
            has(|kind| matches!(kind, FaultKind::Errors { .. })) && has(|kind| matches!(kind, FaultKind::Stall { .. }))
        );
        assert!(
            has(|kind| matches!(kind, FaultKind::LoseHwq { .. }))
                && has(|kind| matches!(kind, FaultKind::Reset { .. }))
        );
        assert!(
            has(|kind| matches!(kind, FaultKind::Leave { .. })) && has(|kind| matches!(kind, FaultKind::Rogue { .. }))
        );
        assert!(scenarios.iter().all(|scenario| scenario.validate().is_ok()));
    }
}
