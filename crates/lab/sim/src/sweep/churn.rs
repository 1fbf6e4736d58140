//! Thousands of tenants that come, get other terms and go, beside one that runs on.

use std::fmt;

use fastrand::Rng;
use io_model::Nanos;
use policy::{ArbitratedConfig, EvenkeelConfig, FairConfig, LpnsConfig, PolicyConfig, Terms};
use rivals::{D2fqConfig, K2Config, LabConfig, MqfqConfig};
use ssd_model::Profile;

use super::draw::terms;
use super::excuse::excuse;
use crate::workload::{Fio, Workload};
use crate::{BoundCounts, Change, ChangeKind, Fault, FaultKind, Latencies, Layout, Scenario, Tenant, run};

/// The policies that [`churn`] can play: the product's, then others.
pub const POLICIES: [&str; 10] =
    ["passthrough", "lpns", "fair", "wrr", "drr", "evenkeel", "k2", "mqfq", "d2fq", "caps"];

/// Tenants that come and go and are there at a time, at most.
const MOST: usize = 12;
const STEP_NS: u64 = 25_000;
const DISK_BYTES: u64 = 8 << 20;

/// What became of the tenant that ran on.
#[derive(Debug, Clone, PartialEq)]
pub struct Churn {
    /// The policy's name.
    pub policy: &'static str,
    /// How many came, got other terms, and left.
    pub changes: [usize; 3],
    /// I/Os of the tenant that ran on.
    pub latency: Latencies,
    /// Its I/Os per second.
    pub iops: f64,
    /// The throughput on this drive among as many neighbours that stay.
    pub steady_iops: f64,
    /// All I/Os that ended.
    pub simulated_ios: u64,
    /// How many commands were held against a bound.
    pub bounds: BoundCounts,
}

impl fmt::Display for Churn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, changes: [came, changed, left], latency, iops, steady_iops, simulated_ios, .. } = self;
        write!(
            f,
            "{policy:11} {came} came, {changed} changed, {left} left, {simulated_ios} I/Os; the one that ran on: {} \
             I/Os, {iops:.0}/s beside those that change and {steady_iops:.0}/s beside those that stay, mean {:.1} µs, \
             p99 {:.1}, max {:.1}",
            latency.count,
            latency.mean_ns / 1e3,
            latency.p99_ns as f64 / 1e3,
            latency.max_ns as f64 / 1e3
        )
    }
}

/// Plays this many changes, in an order that follows from the seed, under the named policy, with faults of the drive.
/// Checks every rule.
///
/// # Errors
/// What was broken: a rule, or the tenant that ran on stood still.
pub fn churn(policy: &'static str, seed: u64, changes: usize) -> Result<Churn, String> {
    let policy_config = config(policy).ok_or_else(|| format!("{policy}: no such policy"))?;
    let scenario = draw(policy_config, seed, changes);
    let report = run(&scenario).map_err(|error| error.to_string())?;
    let all = scenario.terms();
    if let Some(broken) = report.broken.iter().find(|broken| excuse(&scenario, &all, &report, broken).is_none()) {
        return Err(format!("at {} ns, {:?}: {}", broken.at_ns, broken.rule, broken.what));
    }
    let steady = run(&stay(&scenario)).map_err(|error| error.to_string())?;
    let count = |is: fn(&ChangeKind) -> bool| scenario.changes.iter().filter(|change| is(&change.kind)).count();
    let [came, left] = [ChangeKind::Joins, ChangeKind::Leaves]
        .map(|kind| scenario.changes.iter().filter(|change| change.kind == kind).count());
    let changed = count(|kind| matches!(kind, ChangeKind::NewTerms(_)));
    let [own, before] = [&report, &steady].map(|report| &report.tenants[0]);
    let churn = Churn {
        policy,
        changes: [came, changed, left],
        latency: own.latency.clone(),
        iops: own.iops,
        steady_iops: before.iops,
        simulated_ios: report.simulated_ios,
        bounds: report.bounds,
    };
    // Its neighbours' terms differ from moment to moment, but on average it must fare as beside those that stay.
    if churn.iops < churn.steady_iops / 4.0 || own.latency.p99_ns > 20 * before.latency.p99_ns.max(100_000) {
        return Err(format!("the tenant that ran on did not: {churn}"));
    }
    Ok(churn)
}

fn config(name: &str) -> Option<LabConfig> {
    let product = match name {
        "passthrough" => PolicyConfig::Passthrough,
        "lpns" => PolicyConfig::Lpns(LpnsConfig::p5800x()),
        "fair" => PolicyConfig::Fair(FairConfig::p5800x()),
        "evenkeel" => PolicyConfig::Evenkeel(EvenkeelConfig::p5800x()),
        "wrr" => PolicyConfig::Wrr(ArbitratedConfig::wrr()),
        "drr" => PolicyConfig::Drr(ArbitratedConfig::drr()),
        "k2" => return Some(LabConfig::K2(K2Config::default())),
        "mqfq" => return Some(LabConfig::Mqfq(MqfqConfig::default())),
        "d2fq" => return Some(LabConfig::D2fq(D2fqConfig::default())),
        "caps" => return Some(LabConfig::Caps),
        _ => return None,
    };
    Some(product.into())
}

fn reader(name: String, terms: Terms, iodepth: u32) -> Tenant {
    let workload = Workload::Fio(Fio::random_4k(1, iodepth, 70));
    Tenant {
        name,
        terms,
        vcpus: 1,
        vqs: 1,
        queue_priorities: Vec::new(),
        encrypted_sector_bytes: None,
        first_writes: None,
        size_bytes: DISK_BYTES,
        workload,
    }
}

fn draw(policy: LabConfig, seed: u64, changes: usize) -> Scenario {
    let mut rng = Rng::with_seed(seed);
    let mut scenario = Scenario {
        layout: Layout::Mdev,
        tenants: vec![reader("runs on".to_owned(), Terms::guaranteed(Some(Nanos::from_micros(200))), 4)],
        warmup: Nanos(0),
        duration: Nanos(STEP_NS * changes as u64 + 1_000_000),
        seed,
        // Everybody who ever comes counts as waiting, so this says little here: who runs on is looked at.
        starvation_limit: Nanos::from_millis(20),
        policy,
        ..Scenario::new(Profile::p5800x())
    };
    let mut here: Vec<usize> = Vec::new();
    for step in 0..changes {
        let at = Nanos(STEP_NS * step as u64 + rng.u64(..STEP_NS));
        let comes = here.is_empty() || (here.len() < MOST && rng.u8(..3) == 0);
        let (tenant, kind) = if comes {
            let tenant = scenario.tenants.len();
            let new = reader(format!("t{tenant}"), terms(&mut rng, &scenario.policy), rng.u32(1..=8));
            scenario.tenants.push(new);
            here.push(tenant);
            (tenant, ChangeKind::Joins)
        } else if rng.bool() {
            (here[rng.usize(..here.len())], ChangeKind::NewTerms(terms(&mut rng, &scenario.policy)))
        } else {
            (here.swap_remove(rng.usize(..here.len())), ChangeKind::Leaves)
        };
        scenario.changes.push(Change { at, tenant, kind });
    }
    let end_ns = scenario.duration.0;
    let kinds = [
        FaultKind::Errors { ppm: 100_000, lasts: Nanos::from_millis(5) },
        FaultKind::Stall { lasts: Nanos::from_micros(500) },
        FaultKind::Reset { tenant: 0 },
    ];
    scenario.faults = kinds.map(|kind| Fault { at: Nanos(rng.u64(..end_ns)), kind }).to_vec();
    scenario
}

/// The scenario with the most neighbours that there may be, all of the time, on the terms that they came with.
fn stay(scenario: &Scenario) -> Scenario {
    let mut steady = Scenario { changes: Vec::new(), ..scenario.clone() };
    steady.tenants.truncate(MOST + 1);
    steady
}
