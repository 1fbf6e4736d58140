//! From a scenario file to the simulator's runs.

use std::collections::HashMap;

use ::sim::workload::{Replay, Webuser, Workload};
use ::sim::{self, Contestant, FaultKind, Layout, Report, ScenarioError};
use anyhow::Result;
use io_model::Nanos;
use planner::{Planner, Verdict, drive_figures, map_write};
use policy::{Limits, PolicyConfig, PolicyKind, Terms};
use promises::drive_profile;
use rivals::{LabConfig, LabSettings};
use scenario::{self as file, Scenario};
use ssd_model::Profile;

use super::question;

/// Everything that will be played.
pub struct Plan {
    /// One for each policy.
    pub runs: Vec<Run>,
    /// Each kind of tenant alone, without a policy.
    pub alone: Vec<Run>,
    /// Which of these is each tenant's.
    pub alone_of: Vec<usize>,
    /// What the figures take for granted.
    pub notes: Vec<String>,
}

/// One run.
pub struct Run {
    /// Its place among the others.
    pub number: usize,
    scenario: sim::Scenario,
}

impl Run {
    /// Plays it.
    pub fn play(&self) -> Result<Report, ScenarioError> {
        sim::run(&self.scenario)
    }
}

/// Reads what the scenario names (profile and traces) and checks what can be checked without playing it.
///
/// # Errors
/// A profile or trace that can't be used, a workload that does not fit its disk, a setting out of its range.
pub fn make(scenario: &Scenario, seed: u64) -> Result<Plan> {
    let profile = drive_profile::load(&scenario.drive.profile, |why| scenario.no_profile(why))?;
    let mut notes = Vec::new();
    let tenants = tenants(scenario, &profile, &mut notes)?;
    if scenario.drive.profile.figures().is_none() {
        impossible_targets(scenario, &profile, &mut notes);
    }
    let figures = drive_figures(&profile);
    let mut runs = Vec::new();
    // Where `caps` is compared with others, limits are what it has instead of their ways.
    let unlimited: Vec<sim::Tenant> = tenants.iter().cloned().map(without_limits).collect();
    let has_limits = |policy| policy == &LabSettings::Caps || !scenario.policies.contains(&LabSettings::Caps);
    for policy in &scenario.policies {
        let tenants = if has_limits(policy) { &tenants } else { &unlimited };
        let configured = policy.on(&figures);
        let layout = layout(scenario.host.layout, configured.gives_own_pollers());
        if let (LabConfig::Product(PolicyConfig::Lpns(lpns)), None) = (&configured, scenario.drive.profile.figures()) {
            notes.push(drive_profile::assumed(&profile.name, lpns));
        }
        let run = base(scenario, seed, &profile, layout, configured, tenants.clone());
        run.validate()?;
        fits(scenario, &run)?;
        runs.push(Run { number: runs.len(), scenario: run });
    }
    let plain = layout(scenario.host.layout, PolicyKind::Passthrough.gives_own_pollers());
    let together: Vec<&str> =
        runs.iter().filter(|run| run.scenario.layout != plain).map(|run| run.scenario.policy.name()).collect();
    if !together.is_empty() {
        let names = together.join(", ");
        notes.push(format!("one poller for all tenants (layout mdev), which the policy must see together: {names}"));
    }
    let apart: Vec<&str> = runs.iter().filter(|run| sees_one_only(run)).map(|run| run.scenario.policy.name()).collect();
    if !apart.is_empty() {
        let (layout, names) = (plain.name(), apart.join(", "));
        notes.push(format!(
            "layout {layout} serves each tenant by itself, so nothing is weighed against others by {names}"
        ));
    }
    notes.extend(costs_of_papers(&scenario.host, plain));
    // Without limits: a limited tenant would be slower, and that is not the neighbours' doing.
    let whole = base(scenario, seed, &profile, plain, PolicyConfig::Passthrough.into(), unlimited);
    let (alone, alone_of) = alone(scenario, &whole);
    Ok(Plan { runs, alone, alone_of, notes })
}

fn without_limits(tenant: sim::Tenant) -> sim::Tenant {
    sim::Tenant { terms: Terms { limits: Limits::default(), ..tenant.terms }, ..tenant }
}

/// Targets that the drive of a file can't keep even alone; those of built-in drives are told with the file's problems.
fn impossible_targets(scenario: &Scenario, profile: &Profile, notes: &mut Vec<String>) {
    let question = question::of_scenario(scenario, profile);
    let planner = Planner::new(&question.site);
    for tenant in question.tenants.iter().filter(|tenant| tenant.target().is_some()) {
        let alone = planner.outcome(&question.policy, std::slice::from_ref(tenant));
        let promises = alone.map(|outcome| outcome.promises).unwrap_or_default();
        let impossible = promises.iter().filter(|promise| matches!(promise.verdict, Verdict::Impossible { .. }));
        notes.extend(impossible.map(|promise| format!("{}: {}", tenant.name, promise.reason)));
    }
}

/// A policy that weighs tenants against each other has none to weigh.
fn sees_one_only(run: &Run) -> bool {
    let weighs = match &run.scenario.policy {
        LabConfig::Product(config) => !config.kind().gives_own_pollers(),
        policy => matches!(policy, LabConfig::K2(_) | LabConfig::Mqfq(_)),
    };
    weighs && run.scenario.pollers().len() > 1
}

/// What a policy and the faults need of the drive's queues.
fn fits(scenario: &Scenario, run: &sim::Scenario) -> Result<(), config::ConfigErrors> {
    let (hwqs, layout) = (run.poller_hwqs(), run.layout.name());
    let fewest = hwqs.iter().copied().min().unwrap_or(0);
    if matches!(run.policy, LabConfig::D2fq(_)) && fewest < 3 {
        let why = format!("d2fq needs 3 queues of the drive for a poller, under layout {layout} one has {fewest}");
        let remedy =
            "write layout = \"evenkeel\", \"mdev\", \"spdk\" or \"k2\", and at least 3 queues if you limit them";
        return Err(scenario.bad_policy(why, remedy));
    }
    let all: u32 = hwqs.into_iter().map(u32::from).sum();
    for (index, fault) in scenario.faults.iter().enumerate() {
        let FaultKind::LoseHwq { hwq, .. } = fault.kind else { continue };
        if u32::from(hwq) >= all {
            let name = run.policy.name();
            let why = format!("there is no hwq {hwq} under {name}, layout {layout}: its pollers have {all} in all");
            return Err(scenario.bad_fault(index, why, &format!("write hwq = 0 to {}", all.saturating_sub(1))));
        }
    }
    Ok(())
}

/// One run for each kind of tenant: copies are alike.
fn alone(scenario: &Scenario, whole: &sim::Scenario) -> (Vec<Run>, Vec<usize>) {
    let mut runs: Vec<(usize, Run)> = Vec::new();
    let mut alone_of = Vec::new();
    let alike = |one: &file::ScenarioTenant, other: &file::ScenarioTenant| {
        (one.terms.class, one.vcpus, one.vqs, one.size_bytes, one.encrypted_sector_bytes)
            == (other.terms.class, other.vcpus, other.vqs, other.size_bytes, other.encrypted_sector_bytes)
            && (&one.workload, &one.trace, &one.demand) == (&other.workload, &other.trace, &other.demand)
    };
    for (index, tenant) in scenario.tenants.iter().enumerate() {
        let known = runs.iter().position(|(first, _)| alike(&scenario.tenants[*first], tenant));
        alone_of.push(known.unwrap_or_else(|| {
            let number = runs.len();
            runs.push((index, Run { number, scenario: whole.alone(index) }));
            number
        }));
    }
    (runs.into_iter().map(|(_, run)| run).collect(), alone_of)
}

/// Policies that serve all tenants together have one poller, as in the daemon by default. `own_pollers`: the others,
/// which give guaranteed tenants some of their own.
pub fn layout(host: Layout, own_pollers: bool) -> Layout {
    match host {
        Layout::Evenkeel if !own_pollers => Layout::Mdev,
        other => other,
    }
}

fn base(
    scenario: &Scenario,
    seed: u64,
    profile: &Profile,
    layout: Layout,
    policy: LabConfig,
    tenants: Vec<sim::Tenant>,
) -> sim::Scenario {
    let defaults = sim::Scenario::new(profile.clone());
    let guaranteed: Vec<bool> = scenario.tenants.iter().map(|tenant| tenant.terms.class.is_guaranteed()).collect();
    let best_effort_pollers = if policy.needs_one_poller() { 1 } else { scenario.host.best_effort_pollers };
    let pollers = match layout {
        Layout::PerQueue => tenants.iter().map(|tenant| usize::from(tenant.vqs)).sum(),
        _ => layout.pollers(&guaranteed, best_effort_pollers).len(),
    };
    let pollers = pollers.max(1);
    let share = scenario.drive.queues.map(|all| (usize::from(all) / pollers).clamp(2, 1024) as u16);
    sim::Scenario {
        drive_bytes: scenario.drive.size.0,
        costs: scenario.host.costs,
        layout,
        best_effort_pollers,
        policy,
        hwqs_own: share.unwrap_or(defaults.hwqs_own),
        hwqs_shared: share.unwrap_or(defaults.hwqs_shared),
        hwq_depth: u32::from(scenario.drive.queue_depth),
        tenants,
        warmup: scenario.run.warmup,
        duration: scenario.run.duration,
        seed,
        faults: scenario.faults.clone(),
        starvation_limit: starvation_limit(scenario.run.warmup + scenario.run.duration),
        ..defaults
    }
}

/// A tenth of the run, so that a short one can tell starvation too; at least two intervals of the policies.
fn starvation_limit(span: Nanos) -> Nanos {
    Nanos(span.0 / 10).clamp(Nanos::from_millis(20), Nanos::from_millis(1_000))
}

/// Where nothing is said of pollers they are not this daemon's.
fn costs_of_papers(host: &file::Host, layout: Layout) -> Option<String> {
    if host.has_poller_costs || !matches!(layout, Layout::Evenkeel | Layout::Mdev | Layout::PerQueue) {
        return None;
    }
    let path = sim::HostCosts::default().mediated;
    let command_us = (path.fetch_ns + path.complete_ns + path.doorbell_ns + path.interrupt_ns) as f64 / 1e3;
    Some(format!(
        "pollers take {command_us:.1} µs for a command, as in the papers, since [host] sets no cost; \
         this daemon's take less: see examples/scenarios/six-noisy-neighbours.toml"
    ))
}

fn tenants(scenario: &Scenario, profile: &Profile, notes: &mut Vec<String>) -> Result<Vec<sim::Tenant>> {
    let mut traces = Traces::default();
    let mut tenants = Vec::with_capacity(scenario.tenants.len());
    for (index, of_file) in scenario.tenants.iter().enumerate() {
        let mut tenant = of_file.tenant.clone();
        if let Some(replay) = &of_file.trace {
            let once = traces.get(scenario, index, replay, notes)?;
            let spans = once.requests.last().is_some_and(|last| last.time_ns > 0);
            if !spans && replay.looping.is_none() {
                let path = replay.path.display();
                note(notes, format!("{path}: spans no time, so it is played once and not again from its start"));
            }
            let (speed, looping, jobs) = (replay.speed, replay.looping.unwrap_or(spans), u32::from(tenant.vcpus));
            tenant.workload = Workload::Replay(Replay { speed, looping, jobs, ..once });
        }
        if matches!(tenant.workload, Workload::Webuser(_)) {
            Webuser::ASSUMPTIONS[..1].iter().for_each(|assumption| note(notes, format!("webuser: {assumption}")));
        }
        let first = of_file.demand.as_ref().and_then(|demand| demand.first_writes);
        tenant.first_writes = first.map(|first| {
            let (share, map) = (f64::from(first.of_10_000) / 10_000.0, map_write(profile));
            sim::FirstWrites { share, map, copies: None }
        });
        tenant.workload.validate(tenant.size_bytes).map_err(|error| scenario.bad_tenant(index, error))?;
        tenants.push(tenant);
    }
    Ok(tenants)
}

/// Traces that were read, by what they were read and fitted for: copies of a tenant share one.
#[derive(Default)]
struct Traces(HashMap<(std::path::PathBuf, Option<trace::Format>, u64), Replay>);

impl Traces {
    fn get(
        &mut self,
        scenario: &Scenario,
        tenant: usize,
        replay: &file::TraceReplay,
        notes: &mut Vec<String>,
    ) -> Result<Replay> {
        let disk_bytes = scenario.tenants.get(tenant).map_or(0, |tenant| tenant.size_bytes);
        let format = replay.format;
        let key = (replay.path.clone(), format, disk_bytes);
        if let Some(once) = self.0.get(&key) {
            return Ok(once.clone());
        }
        let mut trace = match trace::read_file(&replay.path, format, trace::Limits::default()) {
            Err(trace::TraceError::Io { file, source, .. }) => {
                return Err(scenario.no_trace(tenant, format!("{file} can't be read: {source}")).into());
            }
            read => read?,
        };
        trace.fit(disk_bytes).map_err(|why| scenario.bad_tenant(tenant, why))?;
        notes.push(format!("{}: {}", replay.path.display(), trace.summary()));
        notes.push(format!("{}: {}", replay.path.display(), irregular(trace.counts())));
        let once = sim::replay(&trace);
        self.0.insert(key, once.clone());
        Ok(once)
    }
}

/// What was not as a trace should be, and was handled by a rule.
fn irregular(counts: trace::Counts) -> String {
    // Named one by one, so that no later count is left out. Blank lines and comments are as they should be.
    let trace::Counts {
        lines: _,
        blank: _,
        comments: _,
        skipped,
        malformed,
        lost,
        cut_off,
        out_of_order,
        jumps_back,
        zero_length,
        unaligned,
        split,
        other_devices,
        moved,
        shortened,
    } = counts;
    let kinds = [
        (skipped, "lines that move no data, skipped"),
        (malformed, "malformed lines, left out"),
        (lost, "requests that its recorder could not keep are missing"),
        (cut_off, "end is missing: it was cut off"),
        (out_of_order, "requests logged late, set to the latest time before"),
        (jumps_back, "requests where time jumped back"),
        (zero_length, "requests of no length"),
        (unaligned, "requests not of whole blocks"),
        (split, "requests split"),
        (other_devices, "requests to other devices"),
        (moved, "requests moved onto the disk"),
        (shortened, "requests shortened"),
    ];
    let found: Vec<String> =
        kinds.iter().filter(|(count, _)| *count > 0).map(|(count, kind)| format!("{count} {kind}")).collect();
    if found.is_empty() { "nothing irregular in it".into() } else { found.join("; ") }
}

fn note(notes: &mut Vec<String>, note: String) {
    if !notes.contains(&note) {
        notes.push(note);
    }
}
