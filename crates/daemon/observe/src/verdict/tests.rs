//! Staged situations with the one right answer each, told by every face: by the function itself, and through the
//! evidence of `why` and that of the probes.

mod situations;

use std::collections::BTreeSet;

use history::{Comparison, Interval, Promise, Summary};
use io_model::{Nanos, TenantId};
use planner::{Forecast, LimitedBy, Planner, Site, Size, Tenant, TenantForecast, Unmodelled};
use policy::{Class, Floor, PolicyConfig};
use promises::planning;
use ssd_model::Profile;

use self::situations::SITUATIONS;
use super::*;
use crate::blame::blame;
use crate::ceilings::Ceiling;
use crate::cpu_waits::{CpuUse, Spent};
use crate::foresight::{Foresight, Observed};
use crate::usual::Usuals;

/// A tenant that misses its target beside one neighbour, with nothing else to see. What each situation changes.
struct Staged {
    own: Party,
    neighbours: Vec<Party>,
    host: Host,
    overdue: u64,
    /// The model's 99th percentile for the tenant alone and beside others, in µs; means are half of it.
    model: Option<(u64, u64)>,
}

/// Reads: `iops` of `kib` that take `mean_us` each, of which `served_us` in the drive.
fn did(iops: f64, kib: f64, mean_us: u64, served_us: u64) -> Measured {
    Measured {
        iops,
        read_share: 1.0,
        mean_len_bytes: kib * 1024.0,
        mean: Nanos::from_micros(mean_us),
        at_percentile: Nanos::from_micros(3 * mean_us),
        served: Nanos::from_micros(served_us),
        lateness: Lateness::default(),
    }
}

fn party(name: &str, class: Class, now: Measured, usual: Measured) -> Party {
    let sizes = vec![Size { len_bytes: 4096, part: 1.0 }];
    let asks =
        Tenant { name: name.to_owned(), class, load: Load::Closed { depth: 1 }, sizes, ..planning::undeclared(true) };
    Party { asks, is_assumed: true, held_to: None, now, usual: Some(usual) }
}

fn neighbour(name: &str, now: Measured, usual: Measured) -> Party {
    party(name, Class::BestEffort { weight: 1 }, now, usual)
}

/// 100 µs for 99 of 100 commands.
fn promised() -> Class {
    Class::guaranteed(Some(Nanos::from_micros(100)))
}

impl Staged {
    fn new() -> Self {
        let mut now = did(1_000.0, 4.0, 200, 180);
        now.lateness.late = 0.05;
        let batch = did(1_000.0, 64.0, 300, 250);
        Self {
            own: party("db", promised(), now, did(1_000.0, 4.0, 60, 50)),
            neighbours: vec![neighbour("batch", batch, batch)],
            host: Host { cpu_waited_usually: Some(0.0), ..Host::default() },
            overdue: 0,
            model: None,
        }
    }

    fn batch_grows(&mut self) {
        self.neighbours[0].now = did(10_000.0, 64.0, 800, 700);
    }

    fn no_history(&mut self) {
        self.own.usual = None;
        self.neighbours.iter_mut().for_each(|it| it.usual = None);
        self.host.cpu_waited_usually = None;
    }

    fn without_target(&mut self) {
        self.own.asks.class = Class::BestEffort { weight: 1 };
        self.own.now.lateness = Lateness::default();
    }

    fn declares(&mut self, load: Load) {
        (self.own.asks.load, self.own.is_assumed) = (load, false);
    }

    /// The function's own answer.
    fn answer(&self) -> (String, String) {
        self.with(|situation| cause(situation).map(|cause| in_row(&cause.row(situation)))).unwrap_or_default()
    }

    fn with<T>(&self, ask: impl FnOnce(&Situation<'_>) -> T) -> T {
        let site = Site { profile: Profile::p5800x(), costs: Default::default() };
        let policy = PolicyConfig::Passthrough;
        let (alone_us, beside_us) = self.model.unwrap_or_default();
        let planner = Planner::with_model(&site, |_, tenants| {
            let limits = 1_100.0..=2_000.0;
            let is_held = |load| matches!(load, Load::Open { rate_iops } if limits.contains(&rate_iops));
            let held = |it: &Tenant| it.name == "batch" && is_held(it.load);
            let is_calm = tenants.len() == 1 || tenants.iter().any(held);
            let forecast = |_: &Tenant| told(if is_calm { alone_us } else { beside_us });
            let tenants: Vec<_> = tenants.iter().map(forecast).collect();
            let (drive_utilization, poller_utilization) = (0.5, 0.1);
            Ok::<_, Unmodelled>(Forecast { tenants, drive_utilization, poller_utilization, played_ios: 0 })
        });
        let Self { own, neighbours, host, overdue, .. } = self;
        ask(&Situation {
            model: self.model.map(|_| Model { planner: &planner, policy: &policy }),
            own: own.clone(),
            neighbours: neighbours.clone(),
            host: host.clone(),
            span: Nanos::from_millis(10_000),
            overdue: *overdue,
            usual_time: Nanos::from_millis(60_000),
        })
    }
}

fn told(p99_us: u64) -> TenantForecast {
    let (p99, mean) = (Nanos::from_micros(p99_us), Nanos::from_micros(p99_us / 2));
    TenantForecast {
        iops: 1_000.0,
        bandwidth_bytes_s: 4_096_000.0,
        mean,
        p99,
        at_percentile: p99,
        bound: None,
        alone: mean,
        alone_p99: p99,
        lowest: mean,
        limited_by: LimitedBy::Drive,
    }
}

fn in_row(row: &api::BlameRow) -> (String, String) {
    let culprit = row.neighbour.as_ref().map_or_else(|| row.culprit.clone(), |name| format!("neighbour {name}"));
    (culprit, row.why.clone())
}

#[test]
fn each_situation_has_its_one_right_answer_through_every_face() {
    let mut wrong = Vec::new();
    let (mut by_why, mut by_probes) = (0, 0);
    for (what, stage, culprit, evidence) in SITUATIONS {
        let mut staged = Staged::new();
        stage(&mut staged);
        if what.starts_with("more than the target") {
            staged.own.now.iops = 1_000_000.0;
        }
        let mut check = |face: &str, (told, why): (String, String)| {
            if told != *culprit || !why.contains(evidence) {
                wrong.push(format!("{what}, told by {face}: {told:?}, {why:?}; right is {culprit:?}, {evidence:?}"));
            }
        };
        check("the verdict", staged.answer());
        if let Some(answer) = told_by_why(&staged) {
            by_why += 1;
            check("why", answer);
        }
        if let Some(answer) = told_by_probes(&staged) {
            by_probes += 1;
            check("the probes", answer);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(SITUATIONS.len() >= 40 && by_why >= 20 && by_probes >= 20, "{by_why}, {by_probes}");
}

/// The staged tenants, on a drive without a profile. The configuration declares no demand.
fn foresight(staged: &Staged) -> Foresight {
    let tenant = |party: &Party| {
        let class = match party.asks.class {
            Class::Guaranteed { latency_target: Some(target), percentile } => {
                format!("class = \"guaranteed\"\nlatency_target = \"{target}\"\nlatency_percentile = {percentile}\n")
            }
            _ => String::new(),
        };
        let floor = party.asks.floor.ios_per_sec;
        let floor = if floor > 0 { format!("min_iops = {floor}\n") } else { String::new() };
        let limits = match &party.held_to {
            Some(Ceiling { group: Some(group), .. }) => format!("group = {group:?}\n"),
            Some(_) => "rw_iops = \"1k\"\n".to_owned(),
            None => String::new(),
        };
        format!("[[tenant]]\nname = \"{}\"\nsize = \"8MiB\"\n{class}{floor}{limits}", party.asks.name)
    };
    let tenants: String = std::iter::once(&staged.own).chain(&staged.neighbours).map(tenant).collect();
    let text = format!(
        "[device]\nbackend = \"memory\"\nsize = \"1GiB\"\n[policy]\nname = \"evenkeel\"\n\
        [[group]]\nname = \"vm7\"\nrw_iops = \"1k\"\n{tenants}"
    );
    Foresight::of_file(&text)
}

fn is_declared(staged: &Staged) -> bool {
    std::iter::once(&staged.own).chain(&staged.neighbours).any(|it| !it.is_assumed)
}

/// As `why` tells it from the history. `None`: summaries can't show it.
fn told_by_why(staged: &Staged) -> Option<(String, String)> {
    if staged.model.is_some() || staged.overdue > 0 || is_declared(staged) || staged.own.now.iops < 1.0 {
        return None;
    }
    let summary = |party: &Party, did: &Measured| {
        let reads = (did.iops * 10.0).round();
        let part = |part: f64| (part * reads).round() as u32;
        Summary {
            name: party.asks.name.clone(),
            promise: party.asks.target().map_or(Promise::None, |target| Promise::Target {
                ns: target.0,
                late_ppm: party.asks.percentile().late_ppm(),
            }),
            weight: if party.asks.target().is_some() { 0 } else { 1 },
            reads: reads as u32,
            read_bytes: (reads * did.mean_len_bytes) as u64,
            latency_sum_ns: reads as u64 * did.mean.0,
            served_sum_ns: reads as u64 * did.served.0,
            late: part(did.lateness.late),
            stalled: part(did.lateness.stalled),
            p99_ns: did.at_percentile.0,
            at_percentile_ns: did.at_percentile.0,
            ..Summary::default()
        }
    };
    let all = || std::iter::once(&staged.own).chain(&staged.neighbours);
    let interval = |at: u64, cpu_waited: f64, tenants: Vec<Summary>| Interval {
        at_unix_ms: at * 10_000,
        span_ms: 10_000,
        drive: "fast".into(),
        policy: "evenkeel".into(),
        starved_ppm: (cpu_waited * 1e6) as u32,
        tenants,
    };
    let usual: Vec<Summary> = all().filter_map(|it| Some(summary(it, it.usual.as_ref()?))).collect();
    let waited_usually = staged.host.cpu_waited_usually.unwrap_or_default();
    let before = (0..6).filter(|_| staged.own.usual.is_some()).map(|at| interval(at, waited_usually, usual.clone()));
    let then = interval(6, staged.host.cpu_waited, all().map(|it| summary(it, &it.now)).collect());
    let past: Vec<Interval> = before.chain([then]).collect();
    let comparison = Comparison::of(&past, "db", 60_000..70_000).expect("it did something");
    if comparison.spell.is_slow != Some(true) {
        return None;
    }
    let foresight = foresight(staged);
    let is_restarted = staged.host.restart.is_some();
    let (declared, mut notes) = (BTreeSet::new(), Vec::new());
    let why = crate::why::tell("db", &comparison, is_restarted, Some(&foresight), &declared, &mut notes);
    Some(why.blame.as_ref().map(in_row).unwrap_or_default())
}

/// As metrics, the page, events and `stats` tell it from the probes. `None`: the configuration would declare a demand.
fn told_by_probes(staged: &Staged) -> Option<(String, String)> {
    if staged.model.is_some()
        || is_declared(staged)
        || (staged.own.asks.target().is_none() && staged.own.asks.floor.is_empty())
    {
        return None;
    }
    let foresight = foresight(staged);
    let seen = |id: u32, party: &Party, did: &Measured, overdue: u64, outage: Nanos, span: Nanos| {
        let row = serde_json::json!({
            "name": party.asks.name, "drive": "fast", "class": "", "weight": null,
            "latency_target_us": null, "limits": null, "priority": null, "overcommit": false, "demand": "",
            "assumed": true, "iops": did.iops, "bw_bytes": did.bytes_s(), "mean_us": 0.0, "waited_us": 0.0,
            "served_us": 0.0, "p50_us": 0.0, "p99_us": 0.0, "p999_us": 0.0, "p9999_us": 0.0, "bound_us": null,
            "bound": null, "violations": 0, "overdue": overdue, "errors": 0, "hwqs": [], "predicted": null,
            "kept": false, "blame": null, "pollers": [0]
        });
        let row = serde_json::from_value(row).expect("a row");
        Observed { id: TenantId(id), span, commands: 1_000, outage, row, measured: *did }
    };
    let all = || (1..).zip(std::iter::once(&staged.own).chain(&staged.neighbours));
    let mut usuals = Usuals::default();
    for (id, party) in all() {
        if let Some(usual) = party.usual {
            let waited = staged.host.cpu_waited_usually.unwrap_or_default();
            usuals.add(&seen(id, party, &usual, 0, Nanos(0), Nanos::from_millis(60_000)), waited);
        }
    }
    let outage = staged.host.restart.as_ref().map_or(Nanos(0), |_| Nanos::from_millis(15));
    let now = |(id, party): (u32, &Party)| {
        let (overdue, outage) = if id == 1 { (staged.overdue, outage) } else { (0, Nanos(0)) };
        seen(id, party, &party.now, overdue, outage, Nanos::from_millis(10_000))
    };
    let observed: Vec<Observed> = all().map(now).collect();
    let cpu = CpuUse([(0, Spent { waited: staged.host.cpu_waited, busy: 0.1 })].into());
    let (row, is_missing) = blame(&foresight, &observed, &cpu, &usuals, TenantId(1));
    assert!(!is_missing, "it needs no forecast");
    Some(row.as_ref().map(in_row).unwrap_or_default())
}

#[test]
fn few_commands_show_that_a_promise_is_broken_and_not_that_it_is_kept() {
    let of = |percent: f64, commands, late| is_kept(Percentile::new(percent).expect("in range"), commands, late);
    assert_eq!((of(99.0, 1_000, 3), of(99.0, 1_000, 10), of(99.0, 1_000, 11)), (Some(true), Some(true), Some(false)));
    assert_eq!((of(99.0, 30, 0), of(99.0, 30, 1), of(99.0, 30, 2), of(99.0, 0, 0)), (None, None, Some(false), None));
    assert_eq!((of(99.9, 900, 1), of(99.9, 900, 2), of(99.9, 1_000, 1)), (None, Some(false), Some(true)));
    assert_eq!((of(50.0, 80, 40), of(50.0, 80, 51)), (None, Some(false)));
}

/// The remedies in a staged situation, and the time that is usual.
fn remedies_of(staged: &Staged, usual_ms: u64, declared: &[&str]) -> Vec<api::Remedy> {
    let declared = declared.iter().map(|name| (*name).to_owned()).collect();
    staged.with(|situation| {
        let cause = cause(situation).expect("a cause");
        let (model, own, host) = (situation.model, situation.own.clone(), situation.host.clone());
        let (neighbours, usual_time) = (situation.neighbours.clone(), Nanos::from_millis(usual_ms));
        let situation = Situation { model, own, neighbours, host, span: situation.span, overdue: 0, usual_time };
        remedies::remedies(&situation, &cause, "fast", &declared)
    })
}

#[test]
fn a_neighbour_is_limited_to_what_it_is_known_to_do_without_harm() {
    let mut staged = Staged::new();
    staged.batch_grows();
    let command = |staged: &Staged, usual_ms| remedies_of(staged, usual_ms, &[]).first()?.command.clone();
    let limit = Some("evenkeel disk set batch --rw-bandwidth 75MiB/s".to_owned());
    assert_eq!(command(&staged, 60_000), limit);
    assert_eq!(command(&staged, 59_999), None, "less than a minute is known");
    let told = remedies_of(&staged, 60_000, &["batch"]);
    assert!(told[0].command.is_none() && told[0].what.contains("declares \"batch\": write it there"), "{told:?}");
    staged.neighbours[0].asks.floor = Floor { ios_per_sec: 5_000, mbytes_per_sec: 0 };
    assert_eq!(command(&staged, 60_000), None, "less than its minimum");
    staged.neighbours[0].asks.floor = Floor::default();
    staged.neighbours[0].asks.class = promised();
    assert_eq!(command(&staged, 60_000), None, "its latency is promised");
    let mut wiped = Staged::new();
    wiped.neighbours.push(neighbour("(wiper)", did(10_000.0, 64.0, 800, 700), Measured::default()));
    assert_eq!((wiped.answer().0.as_str(), command(&wiped, 60_000)), ("neighbour (wiper)", None));
}

#[test]
fn no_limit_is_told_that_would_not_have_helped() {
    // In this model nothing but a limit of 2,000 commands a second helps.
    let mut staged = Staged::new();
    staged.batch_grows();
    staged.model = Some((60, 300));
    let told = remedies_of(&staged, 60_000, &[]);
    assert_eq!(told[0].predicted_us, Some(60.0), "{told:?}");
    assert_eq!(told[0].command.as_deref(), Some("evenkeel disk set batch --rw-bandwidth 75MiB/s"));
    staged.neighbours[0].usual = Some(did(3_000.0, 64.0, 300, 250));
    let told = remedies_of(&staged, 60_000, &[]);
    assert!(told.iter().all(|it| !it.what.contains("hold \"batch\"")), "{told:?}");
}
