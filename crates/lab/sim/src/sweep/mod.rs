//! Whole scenarios drawn from a seed, each held against every rule; and broken parts that the rules must catch.
//!
//! | module | what |
//! | --- | --- |
//! | here | [`check`]: one seed |
//! | `draw` | [`draw()`]: a seed's scenario: drive, host, policy, tenants, faults |
//! | `churn` | [`churn()`]: thousands of changes of membership beside a tenant that runs on |
//! | `excuse` | who may starve, and why |
//! | `ours` | scenarios under `evenkeel` that are played several times, with other targets |
//! | `canary` | [`canaries`]: policies and parts broken on purpose |
//!
//! A few milliseconds of virtual time each, but for `ours`, so that thousands run in minutes. A seed says everything:
//! the same one draws the same scenario and ends in the same report.

mod canary;
mod churn;
mod draw;
mod excuse;
mod ours;

use std::fmt;

pub use canary::{Canary, canaries};
pub use churn::{Churn, POLICIES, churn};
pub use draw::draw;

use excuse::excuse;

use crate::{BoundCounts, DiskCounts, Report, Scenario, ScenarioError, Violation, run};

/// One in this many seeds runs twice, to check that only the scenario decides.
const TWICE: u64 = 16;

/// One in this many seeds is also held to what takes `evenkeel` longer: seeds that leave this remainder.
const OURS: u64 = 50;
const OURS_REST: u64 = 49;

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
    /// The number of changes of tenants and terms.
    pub changes: usize,
    /// I/Os that ended.
    pub simulated_ios: u64,
    /// How many commands were held against a bound.
    pub bounds: BoundCounts,
    /// What happened to disks.
    pub disks: DiskCounts,
    /// Why a tenant was allowed to starve, or a floor was not kept; each reason once.
    pub excuses: Vec<&'static str>,
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
                for Violation { at_ns, rule, what, .. } in violations.iter().take(4) {
                    write!(f, "\n  at {at_ns} ns, {rule:?}: {what}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, layout, tenants, faults, changes, simulated_ios, .. } = self;
        write!(f, "{policy} on {layout}, {tenants} tenants, {faults} faults, {changes} changes, {simulated_ios} I/Os")
    }
}

impl std::error::Error for Failure {}

/// Draws a seed's scenario, plays it and checks it; of some seeds another one too, which is longer.
///
/// # Errors
/// A rule was broken that nothing excuses, or two runs differ.
pub fn check(seed: u64) -> Result<Summary, Box<Failure>> {
    let mut summary = check_drawn(seed)?;
    if seed % OURS == OURS_REST {
        let Summary { simulated_ios, excuses, .. } = check_ours(seed)?;
        summary.simulated_ios += simulated_ios;
        summary.excuses.extend(excuses);
    }
    Ok(summary)
}

fn check_ours(seed: u64) -> Result<Summary, Box<Failure>> {
    let scenario = ours::draw(seed);
    let judged = ours::judge(&scenario, &mut run).map_err(|error| Box::new(Failure::Invalid(error)))?;
    let ours::Judged { report, violations, mut excuses, simulated_ios } = judged;
    excuses.sort_unstable();
    excuses.dedup();
    let summary = Summary { simulated_ios, ..summary(&scenario, &report, excuses) };
    match violations.is_empty() {
        true => Ok(summary),
        false => Err(Box::new(Failure::Broken { summary, violations })),
    }
}

fn check_drawn(seed: u64) -> Result<Summary, Box<Failure>> {
    let scenario = draw(seed);
    let report = run(&scenario).map_err(|error| Box::new(Failure::Invalid(error)))?;
    let terms = scenario.terms();
    let (mut excuses, mut violations) = (Vec::new(), Vec::new());
    for violation in &report.broken {
        match excuse(&scenario, &terms, &report, violation) {
            Some(why) => excuses.push(why),
            None => violations.push(violation.clone()),
        }
    }
    excuses.sort_unstable();
    excuses.dedup();
    let summary = summary(&scenario, &report, excuses);
    if !violations.is_empty() {
        return Err(Box::new(Failure::Broken { summary, violations }));
    }
    if seed.is_multiple_of(TWICE) && run(&scenario).as_ref() != Ok(&report) {
        return Err(Box::new(Failure::Differs(summary)));
    }
    Ok(summary)
}

fn summary(scenario: &Scenario, report: &Report, excuses: Vec<&'static str>) -> Summary {
    Summary {
        policy: report.policy.clone(),
        layout: report.layout.clone(),
        tenants: scenario.tenants.len(),
        faults: scenario.faults.len(),
        changes: scenario.changes.len(),
        simulated_ios: report.simulated_ios,
        bounds: report.bounds,
        disks: report.disks,
        excuses,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChangeKind, Contestant, FaultKind};

    #[test]
    fn dozens_of_seeds_hold() {
        let mut disks = DiskCounts::default();
        for seed in 0..48 {
            match check(seed) {
                Ok(summary) => disks += summary.disks,
                Err(failure) => panic!("seed {seed}: {failure}"),
            }
        }
        let DiskCounts { created, grown, refused, deleted, wiped_bytes, reused_bytes, further_parts } = disks;
        let each = [created, grown, refused, deleted, wiped_bytes, reused_bytes, further_parts];
        assert!(each.iter().all(|count| *count > 0), "{disks:?}");
    }

    #[test]
    fn nobody_starves_beside_a_floor_that_cannot_be_had() {
        // A tenant had more than twice its floor until others were held back for another one's.
        let held = check_ours(7_649);
        assert!(held.is_ok(), "{}", held.err().map(|failure| failure.to_string()).unwrap_or_default());
    }

    #[test]
    fn what_is_drawn_for_our_own_policy_can_be_played() {
        for seed in 0..400 {
            let scenario = ours::draw(seed);
            assert!(scenario.validate().is_ok() && scenario.policy.name() == "evenkeel", "seed {seed}");
        }
    }

    #[test]
    fn every_canary_is_caught() {
        for canary in canaries() {
            assert!(canary.caught(), "{}: {:?} was not seen, only {:?}", canary.name, canary.expected, canary.seen);
        }
    }

    fn play_churn(policies: &[&'static str]) {
        for policy in policies {
            let churn = churn(policy, 7, 4_000).unwrap_or_else(|what| panic!("seed 7: {policy}: {what}"));
            println!("{churn}");
        }
    }

    #[test]
    fn thousands_come_and_go_beside_one_that_runs_on() {
        play_churn(&POLICIES[..6]);
    }

    mod rivals {
        use super::{POLICIES, play_churn};

        #[test]
        fn thousands_come_and_go_beside_one_that_runs_on() {
            play_churn(&POLICIES[6..]);
        }
    }

    #[test]
    fn draws_reach_every_policy_layout_and_fault() {
        let scenarios: Vec<Scenario> = (0..400).map(draw).collect();
        for name in POLICIES {
            let mut of_policy = scenarios.iter().filter(|scenario| scenario.policy.name() == name);
            let limited = |scenario: &Scenario| scenario.terms().iter().flatten().any(|terms| !terms.limits.is_empty());
            assert!(of_policy.any(limited), "{name}");
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
        let changes: Vec<ChangeKind> =
            scenarios.iter().flat_map(|scenario| &scenario.changes).map(|change| change.kind).collect();
        assert!(changes.contains(&ChangeKind::Joins) && changes.contains(&ChangeKind::Leaves));
        assert!(changes.iter().any(|kind| matches!(kind, ChangeKind::NewTerms(_))));
        assert!(changes.iter().any(|kind| matches!(kind, ChangeKind::Grows(_))));
        assert!(changes.contains(&ChangeKind::Deleted));
        assert!(scenarios.iter().all(|scenario| scenario.validate().is_ok()));
    }
}
