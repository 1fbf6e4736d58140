//! Cases: the promised tenants, their neighbours, and the drive.

use std::sync::Arc;

use io_model::Nanos;
use policy::Class;
use sim::workload::{Access, Arrivals, BlockSize, Fio, Open, Phase, Phases, Replay, Workload};
use sim::{Report, Scenario, Tenant};
use ssd_model::{Gc, Profile};
use trace::{Format, Limits, Trace};

use super::reads;
use crate::runner::Context;

/// A rare command's percentile takes longer to see.
const DURATION: Nanos = Nanos::from_millis(1_000);
const DURATION_RARE: Nanos = Nanos::from_millis(4_000);
/// Nothing has to be learned.
pub const WARMUP_FIXED: Nanos = Nanos::from_millis(200);
/// How long neighbours that change do one thing: all five of [`MIXES`] in a second.
const PHASE: Nanos = Nanos::from_millis(200);
/// Targets of several tenants, in what 99 of 100 commands take alone. The first one is every single tenant's.
const TARGETS: [f64; 5] = [4.0, 8.0, 3.0, 12.0, 6.0];
const RARE_IOPS: f64 = 400.0;
const DISK_BYTES: u64 = 4 << 30;
/// How fast the trace is replayed: 2,000 commands per second, or 400.
const TRACE_SPEEDS: [(f64, &str); 2] = [(1.0, "2,000/s"), (0.2, "400/s")];
const TRACE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/scenarios/trace-beside-noise.csv"));

/// What a busy neighbour does.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    pub name: &'static str,
    kib: u32,
    read_percent: u8,
    depth: u32,
}

/// Jobs of a busy neighbour, each on a CPU and with a queue of its own.
const JOBS: u16 = 4;

pub const MIXES: [Mix; 5] = [
    Mix { name: "4k writes", kib: 4, read_percent: 0, depth: 64 },
    Mix { name: "4k reads", kib: 4, read_percent: 100, depth: 64 },
    Mix { name: "16k both", kib: 16, read_percent: 50, depth: 64 },
    Mix { name: "64k writes", kib: 64, read_percent: 0, depth: 16 },
    Mix { name: "128k reads", kib: 128, read_percent: 100, depth: 16 },
];

impl Mix {
    pub fn access(&self) -> Access {
        let block_sizes = vec![BlockSize { bytes: self.kib << 10, weight: 1 }];
        Access { block_sizes, ..Access::random_4k(self.read_percent) }
    }

    /// All the time.
    pub fn busy(&self) -> Neighbour {
        let fio = Fio { jobs: JOBS.into(), iodepth: self.depth, access: self.access() };
        Neighbour { jobs: JOBS, workload: Workload::Fio(fio) }
    }

    /// For a while, then not, and so on; or the other way round.
    pub fn in_turn(&self, on: Nanos, off: Nanos, begins: bool) -> Neighbour {
        let mut phases = vec![Phase { lasts: on, access: Some(self.access()) }, Phase { lasts: off, access: None }];
        if !begins {
            phases.reverse();
        }
        let phases = Phases { jobs: JOBS.into(), iodepth: self.depth, phases };
        Neighbour { jobs: JOBS, workload: Workload::Phases(phases) }
    }
}

/// Does each of [`MIXES`] in turn.
fn changing() -> Neighbour {
    let phase = |mix: &Mix| Phase { lasts: PHASE, access: Some(mix.access()) };
    let phases = Phases { jobs: JOBS.into(), iodepth: 32, phases: MIXES.iter().map(phase).collect() };
    Neighbour { jobs: JOBS, workload: Workload::Phases(phases) }
}

/// A tenant without a promise.
#[derive(Debug, Clone)]
pub struct Neighbour {
    pub jobs: u16,
    pub workload: Workload,
}

/// A tenant with a latency promise.
#[derive(Debug, Clone)]
pub struct Promised {
    pub workload: Workload,
    /// What its target is reckoned from, as the only load there is.
    pub alone: Workload,
    /// Its target, in what 99 of 100 of those commands take.
    pub times: f64,
}

impl Promised {
    pub fn back_to_back(times: f64) -> Self {
        Self { workload: reads(), alone: reads(), times }
    }

    fn rare(times: f64) -> Self {
        let arrivals = Arrivals::Poisson { iops: RARE_IOPS };
        let rare = Open { jobs: 1, arrivals, access: Access::random_4k(100), max_outstanding: 64 };
        Self { workload: Workload::Open(rare), alone: reads(), times }
    }

    fn replayed(trace: &Replay) -> Self {
        Self { workload: Workload::Replay(trace.clone()), alone: Workload::Replay(trace.clone()), times: TARGETS[0] }
    }

    fn is_rare(&self) -> bool {
        match &self.workload {
            Workload::Open(_) => true,
            Workload::Replay(replay) => replay.speed < 1.0,
            _ => false,
        }
    }
}

/// What kind of case it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// One promise, neighbours that do not change.
    Steady,
    /// Neighbours change every 200 ms.
    Changing,
    /// The drive collects garbage.
    Garbage,
    /// Several promises, with different targets.
    Several,
    /// A trace was made the promise.
    Trace,
}

impl Group {
    pub const FURTHER: [Self; 4] = [Self::Changing, Self::Garbage, Self::Several, Self::Trace];

    pub fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Changing => "neighbours change every 200 ms",
            Self::Garbage => "garbage collection",
            Self::Several => "2 to 5 promises",
            Self::Trace => "a trace",
        }
    }
}

/// A drive and who shares it.
#[derive(Debug, Clone)]
pub struct Case {
    pub group: Group,
    /// The drive and the rest, unique.
    pub name: String,
    pub profile: Profile,
    pub promised: Vec<Promised>,
    pub neighbours: Vec<Neighbour>,
}

impl Case {
    pub fn new(
        group: Group,
        profile: &Profile,
        name: &str,
        promised: Vec<Promised>,
        neighbours: [Neighbour; 2],
    ) -> Self {
        let name = format!("{}, {name}", profile.name);
        Self { group, name, profile: profile.clone(), promised, neighbours: neighbours.to_vec() }
    }

    /// What 99 of 100 of each promised tenant's commands take with nobody else there, times what it was promised.
    pub fn targets(&self, context: &Context<'_>) -> Result<Vec<Nanos>, String> {
        let mut targets = Vec::new();
        for promised in &self.promised {
            let only = tenant("alone", Class::guaranteed(None), 1, &promised.alone);
            let scenario = Scenario {
                tenants: vec![only],
                warmup: context.span(WARMUP_FIXED),
                duration: context.span(DURATION),
                seed: context.seed(),
                ..Scenario::new(self.profile.clone())
            };
            let alone_ns = play(&scenario)?.tenants[0].latency.p99_ns;
            targets.push(Nanos((alone_ns as f64 * promised.times) as u64));
        }
        Ok(targets)
    }

    /// Whether a tenant's hundredth command takes long to come.
    pub fn is_rare(&self) -> bool {
        self.promised.iter().any(Promised::is_rare)
    }

    /// Under no policy.
    pub fn scenario(&self, context: &Context<'_>, targets: &[Nanos], warmup: Nanos) -> Scenario {
        let promised = self.promised.iter().zip(targets).enumerate().map(|(at, (promised, target))| {
            let class = Class::guaranteed(Some(*target));
            tenant(&format!("promised {at}"), class, 1, &promised.workload)
        });
        let others = self.neighbours.iter().enumerate().map(|(at, other)| {
            tenant(&format!("neighbour {at}"), Class::BestEffort { weight: 1 }, other.jobs, &other.workload)
        });
        let duration = match self.group {
            _ if self.is_rare() => DURATION_RARE,
            Group::Changing | Group::Trace => Nanos(DURATION.0 * 2),
            _ => DURATION,
        };
        Scenario {
            tenants: promised.chain(others).collect(),
            warmup: context.span(warmup),
            duration: context.span(duration),
            seed: context.seed(),
            ..Scenario::new(self.profile.clone())
        }
    }
}

/// Every case: the 70 steady ones first.
pub fn all() -> Vec<Case> {
    let drives = Profile::built_in();
    let mut cases = Vec::new();
    for profile in drives {
        for mix in &MIXES {
            cases.extend(loads(Group::Steady, profile, mix.name, &[mix.busy(), mix.busy()]));
        }
    }
    for profile in drives {
        cases.extend(loads(Group::Changing, profile, "changing", &[changing(), changing()]));
    }
    for profile in drives.iter().filter_map(collecting) {
        for mix in MIXES.iter().filter(|mix| mix.read_percent < 100) {
            let name = format!("{}, collecting", mix.name);
            cases.extend(loads(Group::Garbage, &profile, &name, &[mix.busy(), mix.busy()]));
        }
    }
    for (at, profile) in drives.iter().enumerate() {
        cases.push(several(profile, 2 + at % 4, &MIXES[at % MIXES.len()]));
        cases.push(several(profile, 5 - at % 2, &MIXES[(at + 2) % MIXES.len()]));
    }
    let trace = read_trace();
    for profile in drives {
        for ((speed, rate), mix) in TRACE_SPEEDS.iter().zip([&MIXES[0], &MIXES[2]]) {
            let replay = Replay { speed: *speed, looping: true, ..sim::replay(&trace) };
            let name = format!("{}, trace at {rate}", mix.name);
            let promised = vec![Promised::replayed(&replay)];
            cases.push(Case::new(Group::Trace, profile, &name, promised, [mix.busy(), mix.busy()]));
        }
    }
    cases
}

/// One at a time as fast as it goes, and now and then.
fn loads(group: Group, profile: &Profile, name: &str, neighbours: &[Neighbour; 2]) -> [Case; 2] {
    let case = |load: &str, promised: Promised| {
        Case::new(group, profile, &format!("{name}, {load}"), vec![promised], neighbours.clone())
    };
    [case("back to back", Promised::back_to_back(TARGETS[0])), case("400/s", Promised::rare(TARGETS[0]))]
}

/// This many promises, in turn to a tenant that reads back to back and to one with rare commands.
fn several(profile: &Profile, count: usize, mix: &Mix) -> Case {
    let promised = TARGETS.iter().take(count).enumerate().map(|(at, &times)| match at % 2 {
        0 => Promised::rare(times),
        _ => Promised::back_to_back(times),
    });
    let name = format!("{}, {count} promises", mix.name);
    Case::new(Group::Several, profile, &name, promised.collect(), [mix.busy(), mix.busy()])
}

/// The drive with its garbage collection on, if its profile says what that is.
fn collecting(profile: &Profile) -> Option<Profile> {
    let gc = profile.gc?;
    Some(Profile { gc: Some(Gc { enabled: true, ..gc }), ..profile.clone() })
}

fn read_trace() -> Arc<Trace> {
    let read = trace::read(TRACE.as_bytes(), "trace-beside-noise.csv", Some(Format::Evenkeel), Limits::default());
    let mut trace = read.expect("the example is well-formed");
    trace.fit(DISK_BYTES).expect("a disk has more than two pages");
    Arc::new(trace)
}

pub fn tenant(name: &str, class: Class, jobs: u16, workload: &Workload) -> Tenant {
    Tenant {
        name: name.to_owned(),
        terms: class.into(),
        vcpus: jobs,
        vqs: jobs,
        queue_priorities: Vec::new(),
        size_bytes: DISK_BYTES,
        workload: workload.clone(),
    }
}

pub fn play(scenario: &Scenario) -> Result<Report, String> {
    sim::run(scenario).map_err(|error| error.to_string())
}
