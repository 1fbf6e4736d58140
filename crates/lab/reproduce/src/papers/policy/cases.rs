//! Cases: the promised tenants, their neighbours, and the drive.

use std::sync::Arc;

use io_model::Nanos;
use policy::Class;
use sim::Scenario;
use sim::workload::{Access, Arrivals, Fio, Open, Phase, Phases, Replay, Workload};
use ssd_model::{Gc, Profile};
use trace::{Format, Limits, Trace};

use crate::papers::bench::{access, fio, play, tenant};
use crate::runner::Context;

const DURATION_MS: u64 = 1_000;
/// Nothing has to be learned.
pub const WARMUP_FIXED_MS: u64 = 200;
/// How long neighbours that change do one thing: all five of [`MIXES`] in a second.
const PHASE: Nanos = Nanos::from_millis(200);
/// Targets of several tenants, in what 99 of 100 commands take alone. The first one is every single tenant's.
const TARGETS: [f64; 5] = [4.0, 8.0, 3.0, 12.0, 6.0];
const RARE_IOPS: f64 = 400.0;
pub const BEST_EFFORT: Class = Class::BestEffort { weight: 1 };
pub const DISK_BYTES: u64 = 4 << 30;
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
    fn access(&self) -> Access {
        access(self.kib << 10, self.read_percent)
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
    /// One 4 KiB read after the other.
    pub fn back_to_back(times: f64) -> Self {
        Self { workload: fio(1, 1, 100), alone: fio(1, 1, 100), times }
    }

    fn rare(times: f64) -> Self {
        let arrivals = Arrivals::Poisson { iops: RARE_IOPS };
        let rare = Open { jobs: 1, arrivals, access: Access::random_4k(100), max_outstanding: 64 };
        Self { workload: Workload::Open(rare), alone: fio(1, 1, 100), times }
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

/// Kinds of cases: one promise and neighbours that do not change, and what else may go on.
pub const STEADY: &str = "steady";
pub const FURTHER: [&str; 4] = [CHANGING, GARBAGE, SEVERAL, TRACED];
const CHANGING: &str = "neighbours change every 200 ms";
const GARBAGE: &str = "garbage collection";
const SEVERAL: &str = "2 to 5 promises";
const TRACED: &str = "a trace";

/// A drive and who shares it.
#[derive(Debug, Clone)]
pub struct Case {
    pub group: &'static str,
    /// The drive and the rest, unique.
    pub name: String,
    pub profile: Profile,
    pub promised: Vec<Promised>,
    pub neighbours: Vec<Neighbour>,
}

impl Case {
    pub fn new(
        group: &'static str,
        profile: &Profile,
        name: &str,
        promised: Vec<Promised>,
        neighbours: [Neighbour; 2],
    ) -> Self {
        let name = format!("{}, {name}", profile.name);
        Self { group, name, profile: profile.clone(), promised, neighbours: neighbours.to_vec() }
    }

    /// The targets of the promised tenants.
    pub fn targets(&self, context: &Context<'_>) -> Result<Vec<Nanos>, String> {
        targets(context, &self.profile, &self.promised)
    }

    /// Whether a tenant's hundredth command takes long to come.
    pub fn is_rare(&self) -> bool {
        self.promised.iter().any(Promised::is_rare)
    }

    /// Under no policy.
    pub fn scenario(&self, context: &Context<'_>, targets: &[Nanos], warmup_ms: u64) -> Scenario {
        let promised = self.promised.iter().zip(targets).enumerate().map(|(at, (promised, target))| {
            let class = Class::guaranteed(Some(*target));
            tenant(format!("promised {at}"), class, 1, DISK_BYTES, promised.workload.clone())
        });
        let others = self.neighbours.iter().enumerate().map(|(at, Neighbour { jobs, workload })| {
            tenant(format!("neighbour {at}"), BEST_EFFORT, *jobs, DISK_BYTES, workload.clone())
        });
        let duration_ms = match self.group {
            // A rare command's percentile takes longer to see.
            _ if self.is_rare() => DURATION_MS * 4,
            CHANGING | TRACED => DURATION_MS * 2,
            _ => DURATION_MS,
        };
        context.scenario(self.profile.clone(), promised.chain(others).collect(), (warmup_ms, duration_ms))
    }
}

/// What 99 of 100 of each promised tenant's commands take with nobody else there, times what it was promised.
pub fn targets(context: &Context<'_>, profile: &Profile, promised: &[Promised]) -> Result<Vec<Nanos>, String> {
    let target = |promised: &Promised| {
        let only = tenant("alone", Class::guaranteed(None), 1, DISK_BYTES, promised.alone.clone());
        let scenario = context.scenario(profile.clone(), vec![only], (WARMUP_FIXED_MS, DURATION_MS));
        let alone_ns = play(&scenario)?.tenants[0].latency.p99_ns;
        Ok(Nanos((alone_ns as f64 * promised.times) as u64))
    };
    promised.iter().map(target).collect()
}

/// Every case: the 70 steady ones first.
pub fn all() -> Vec<Case> {
    let drives = Profile::built_in();
    let mut cases = Vec::new();
    for profile in drives {
        for mix in &MIXES {
            cases.extend(loads(STEADY, profile, mix.name, &[mix.busy(), mix.busy()]));
        }
    }
    for profile in drives {
        cases.extend(loads(CHANGING, profile, "changing", &[changing(), changing()]));
    }
    for profile in drives.iter().filter_map(collecting) {
        for mix in MIXES.iter().filter(|mix| mix.read_percent < 100) {
            let name = format!("{}, collecting", mix.name);
            cases.extend(loads(GARBAGE, &profile, &name, &[mix.busy(), mix.busy()]));
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
            cases.push(Case::new(TRACED, profile, &name, promised, [mix.busy(), mix.busy()]));
        }
    }
    cases
}

/// One at a time as fast as it goes, and now and then.
fn loads(group: &'static str, profile: &Profile, name: &str, neighbours: &[Neighbour; 2]) -> [Case; 2] {
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
    Case::new(SEVERAL, profile, &name, promised.collect(), [mix.busy(), mix.busy()])
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
