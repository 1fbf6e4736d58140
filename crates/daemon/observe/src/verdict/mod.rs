//! The one judgement of a promise: kept or broken, by what, and what would help.
//!
//! `stats`, `top`, the page, metrics, events and `why` all ask here. It is a function of plain values: a [`Situation`]
//! comes from probes or from the history.
//!
//! Causes are checked in this order; the first that applies is the answer ([`cause`]):
//!
//! 1. The drive does not answer.
//! 2. The tenant itself: its limits hold it, or it exceeds its declared demand.
//! 3. The host: the daemon restarted, or pollers stalled so long that the promise would have been kept without.
//! 4. The tenant itself: the model says that its load misses the target even alone.
//! 5. The drive, or the host: commands take longer than any load explains.
//! 6. Load: the tenant whose load grew most, or the neighbour furthest above its share.

mod measured;
pub mod remedies;
mod situation;

use io_model::Nanos;
use planner::{Load, words};
use policy::Percentile;

pub use measured::{Lateness, Measured};
pub use situation::{Grown, Host, Model, Party, Situation};

/// The cause of a broken promise, or of a slow spell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Culprit {
    /// The tenant's own load.
    Own,
    /// The tenant's own limits, or its group's.
    Limits,
    /// The neighbour at this index.
    Neighbour(usize),
    /// The drive.
    Drive,
    /// The host: its CPUs, or a restart of the daemon.
    Host,
    /// The host: the daemon restarted.
    Restart,
}

/// A cause with its evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The cause: a tenant, or a part of the host.
    pub culprit: Culprit,
    /// Part of a sentence for an operator, without a full stop.
    pub why: String,
}

/// Fewer commands than this show no 99th percentile. A higher percentile needs as many more.
const COMMANDS_MIN: u64 = 100;

/// A drive is slow from this many times the expected or usual time on; less may be the model's error.
const SLOW: f64 = 1.5;

/// Pollers that wait for a CPU for longer than this fraction can make every hundredth command late.
const STARVED: f64 = 0.01;

/// Pollers that wait this long take as much from every tenant, whether its late commands are counted or not.
pub const VERY_STARVED: f64 = 0.1;

/// With more commands outstanding in the mean, a tenant has one in the drive most of the time.
const OFTEN_OUTSTANDING: f64 = 0.5;

/// A neighbour that moves this fraction of all bytes can keep others from a minimum.
pub const A_LOT: f64 = 0.3;

/// Whether a latency promise was kept: `late` of `commands` missed the target. `None`: too few commands to tell. A
/// broken promise shows earlier: two late commands of fewer than a hundred are too many for a 99th percentile.
pub fn is_kept(percentile: Percentile, commands: u64, late: u64) -> Option<bool> {
    let enough = enough_commands(percentile);
    if percentile.is_missed(late, commands.max(enough)) {
        return Some(false);
    }
    (commands >= enough).then_some(true)
}

/// A percentile from a histogram, in ns, narrowed by the exact count of late commands: near the target, a bucket does
/// not show which side of it the percentile is on.
pub fn narrowed(took_ns: u64, target: Nanos, is_missed: bool) -> u64 {
    // A bucket is 1.6 % wide.
    if took_ns.abs_diff(target.0) > target.0 / 50 {
        return took_ns;
    }
    if is_missed { took_ns.max(target.0 + 1) } else { took_ns.min(target.0) }
}

/// The commands that it takes to tell whether a promise was kept.
pub fn enough_commands(percentile: Percentile) -> u64 {
    COMMANDS_MIN.max(1_000_000 / u64::from(percentile.late_ppm()))
}

impl Culprit {
    /// As the API names it: `own`, `neighbour`, `drive` or `host`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own | Self::Limits => "own",
            Self::Neighbour(_) => "neighbour",
            Self::Drive => "drive",
            Self::Host | Self::Restart => "host",
        }
    }
}

impl Cause {
    fn new(culprit: Culprit, why: impl Into<String>) -> Self {
        Self { culprit, why: why.into() }
    }

    /// As the API tells it.
    pub fn row(self, situation: &Situation<'_>) -> api::BlameRow {
        let neighbour = match self.culprit {
            Culprit::Neighbour(at) => situation.neighbours.get(at).map(|it| it.asks.name.clone()),
            _ => None,
        };
        api::BlameRow { culprit: self.culprit.name().to_owned(), neighbour, why: self.why }
    }
}

/// Finds why a tenant missed its promise, or was slow without one. `None`: the evidence shows no cause.
pub fn cause(situation: &Situation<'_>) -> Option<Cause> {
    let found = unanswered(situation)
        .or_else(|| own_doing(situation))
        .or_else(|| hosts_doing(situation))
        .or_else(|| by_model(situation))
        .or_else(|| by_load(situation))?;
    // The evidence names the host's part of the late commands, whatever the cause is.
    let parts = situation.own.now.lateness.in_words().filter(|parts| !found.why.contains(parts.as_str()));
    Some(Cause { why: parts.into_iter().fold(found.why, |why, parts| format!("{why}; {parts}")), ..found })
}

fn unanswered(situation: &Situation<'_>) -> Option<Cause> {
    let span_s = situation.span.0 as f64 / 1e9;
    let why = format!("it has had {} commands for more than {span_s:.0} s", situation.overdue);
    (situation.overdue > 0).then(|| Cause::new(Culprit::Drive, why))
}

fn own_doing(Situation { own, .. }: &Situation<'_>) -> Option<Cause> {
    let (waited, served) = (own.now.waited(), own.now.served);
    if let Some(ceiling) = own.held_to.as_ref().filter(|_| waited > served) {
        let why = format!("its commands wait {} in its queue, because {}", words(waited), ceiling.in_words());
        return Some(Cause::new(Culprit::Limits, why));
    }
    Some(Cause::new(Culprit::Own, own.excess()?))
}

fn hosts_doing(situation: &Situation<'_>) -> Option<Cause> {
    let Situation { own, host, .. } = situation;
    if let Some(restart) = host.restart.as_ref().filter(|_| situation.grown().is_none()) {
        return Some(Cause::new(Culprit::Restart, format!("restart: {restart}")));
    }
    if own.asks.target().is_some() {
        let is_hosts = own.now.lateness.is_hosts(own.asks.percentile().late());
        return is_hosts.then(|| Cause::new(Culprit::Host, own.now.lateness.in_words().unwrap_or_default()));
    }
    // Of a tenant without a target, late commands are not counted.
    let is_starved = host.cpu_waited >= VERY_STARVED && host.is_unusual();
    (is_starved && !is_slower_than_starved(situation)).then(|| Cause::new(Culprit::Host, host.in_words()))
}

/// Whether some load grew, and the tenant became slower than pollers that wait for a CPU can make it.
fn is_slower_than_starved(situation: &Situation<'_>) -> bool {
    let Situation { own, host, .. } = situation;
    let Some(usual) = own.usual.filter(|usual| usual.mean.0 > 0 && situation.grown().is_some()) else {
        return false;
    };
    // A stall delays a rare command by any multiple. A tenant that always has commands outstanding loses throughput
    // in proportion to the stalls, and by Little's law its mean latency grows no further than that.
    let slower = own.now.mean.0 as f64 / usual.mean.0 as f64;
    own.now.outstanding() > OFTEN_OUTSTANDING && slower > SLOW * host.slowdown()
}

/// What the model says of a missed target. Nothing where load explains it, or where there is no model.
fn by_model(situation: &Situation<'_>) -> Option<Cause> {
    let Situation { own, neighbours, .. } = situation;
    let target = situation.missed_target()?;
    let asks = own.now.as_demand(&own.asks)?;
    if let Some(why) = too_much_alone(situation, &asks, target) {
        return Some(Cause::new(Culprit::Own, why));
    }
    if neighbours.iter().all(|it| it.now.is_idle()) {
        return Some(drive_or_host(situation, "no other tenant sends commands"));
    }
    let others = neighbours.iter().filter_map(|it| it.now.as_demand(&it.asks));
    let all: Vec<_> = std::iter::once(asks).chain(others).collect();
    let model = situation.model?;
    let forecast = model.of_first(model.policy, &all)?;
    if own.now.served.0 as f64 > SLOW * forecast.mean.0 as f64 {
        let load = format!("its profile says {} at this load", words(forecast.mean));
        return Some(drive_or_host(situation, &load));
    }
    if forecast.at_percentile <= target && situation.grown().is_none() {
        let (percentile, foreseen) = (own.asks.percentile(), words(forecast.at_percentile));
        let load = format!("the load that there is explains {foreseen} at the {percentile}th percentile");
        return Some(drive_or_host(situation, &load));
    }
    None
}

/// Why a tenant misses its target even if no other tenant disturbs it.
fn too_much_alone(situation: &Situation<'_>, asks: &planner::Tenant, target: Nanos) -> Option<String> {
    let model = situation.model?;
    let took = model.of_first(model.policy, std::slice::from_ref(asks))?.at_percentile;
    if took <= target {
        return None;
    }
    let (took, target, many) = (words(took), words(target), asks.percentile().in_words());
    let load = match asks.load {
        Load::Closed { depth } => format!("{depth} of its commands outstanding"),
        Load::Open { .. } => format!("{:.0} commands a second", situation.own.now.iops),
    };
    Some(format!("with {load}, {many} would take up to {took} even alone, and the target is {target}"))
}

/// No load explains the latency. `beside`: the evidence for that.
fn drive_or_host(Situation { own, host, .. }: &Situation<'_>, beside: &str) -> Cause {
    // No poller that waits for that part of a second keeps a command for longer.
    let explained_ns = host.cpu_waited * 1e9;
    let (served, waited) = (own.now.served, own.now.waited());
    if host.cpu_waited > STARVED && served.0 as f64 <= explained_ns {
        let why = format!("its pollers waited {:.0} % of the time for a CPU, and {beside}", host.cpu_waited * 100.0);
        return Cause::new(Culprit::Host, why);
    }
    if waited > served {
        let [waited, served] = [waited, served].map(words);
        let why = format!("its commands wait {waited} for a poller before the drive has them for {served}");
        return Cause::new(Culprit::Host, format!("{why}, and {beside}"));
    }
    Cause::new(Culprit::Drive, format!("it takes {} for a command, and {beside}", words(served)))
}

/// Load that grew, else the drive or the host against the usual, else the heaviest neighbour.
fn by_load(situation: &Situation<'_>) -> Option<Cause> {
    let Situation { own, neighbours, host, .. } = situation;
    let then_usually = |now: &Measured, usual: Option<&Measured>| {
        format!("{}, usually {}", load(now), usual.map(load).unwrap_or_default())
    };
    let starved_too = if host.is_unusual() { format!("; and {}", host.in_words()) } else { String::new() };
    match situation.grown() {
        Some(Grown::Neighbour(at)) => {
            let neighbour = neighbours.get(at)?;
            let why = format!("it did {}", then_usually(&neighbour.now, neighbour.usual.as_ref()));
            return Some(Cause::new(Culprit::Neighbour(at), why + &starved_too));
        }
        Some(Grown::Own) => {
            let why = format!("it did itself {}", then_usually(&own.now, own.usual.as_ref()));
            return Some(Cause::new(Culprit::Own, why + &starved_too));
        }
        None => {}
    }
    if let Some(usual) = own.usual.filter(|usual| !usual.is_idle()) {
        if host.is_unusual() {
            return Some(Cause::new(Culprit::Host, format!("{}, and no tenant did more than usual", host.in_words())));
        }
        if own.now.served.0 as f64 > SLOW * usual.served.0 as f64 {
            let [now, before] = [own.now.served, usual.served].map(words);
            let why = format!("it took {now} for a command, usually {before}, and no tenant did more than usual");
            return Some(Cause::new(Culprit::Drive, why));
        }
    }
    if situation.missed_target().is_some() {
        let (at, why) = situation.heaviest()?;
        return Some(Cause::new(Culprit::Neighbour(at), why));
    }
    short_of_floor(situation)
}

/// What keeps a tenant from its minimum: another promise, or the drive. Tenants without a promise are throttled as far
/// as needed, so they don't.
fn short_of_floor(situation: &Situation<'_>) -> Option<Cause> {
    let own = &situation.own;
    let floor = own.asks.floor.in_words().filter(|_| own.asks.target().is_none())?;
    let got =
        format!("it got {:.0} commands a second and {:.1} MB/s of {floor}", own.now.iops, own.now.bytes_s() / 1e6);
    Some(match situation.heaviest_promised() {
        Some(at) => {
            let beside = situation.neighbours[at].now.bytes_s() / 1e6;
            let why = format!("{got}, beside {beside:.0} MB/s of a tenant with a promise of its own");
            Cause::new(Culprit::Neighbour(at), why)
        }
        None => {
            let served = words(own.now.served);
            Cause::new(Culprit::Drive, format!("{got}, and the drive takes {served} for a command"))
        }
    })
}

impl Situation<'_> {
    /// The target, if it was missed.
    fn missed_target(&self) -> Option<Nanos> {
        let Party { asks, now, .. } = &self.own;
        asks.target().filter(|_| now.lateness.late > asks.percentile().late())
    }
}

impl Host {
    /// Whether pollers waited for CPUs clearly longer than usual.
    pub fn is_unusual(&self) -> bool {
        self.cpu_waited > STARVED && self.cpu_waited > 2.0 * self.cpu_waited_usually.unwrap_or(0.0)
    }

    /// How many times as long as usual the pollers take for the same work, because they wait for CPUs.
    fn slowdown(&self) -> f64 {
        let runs = |waited: f64| (1.0 - waited).max(f64::EPSILON);
        runs(self.cpu_waited_usually.unwrap_or(0.0)) / runs(self.cpu_waited)
    }

    fn in_words(&self) -> String {
        let now = self.cpu_waited * 100.0;
        let usually = self.cpu_waited_usually.map(|part| format!(", usually {:.1} %", part * 100.0));
        format!("pollers waited {now:.1} % of the time for a CPU{}", usually.unwrap_or_default())
    }
}

/// `410 commands a second of 128KiB (53.7 MB/s)`.
pub fn load(did: &Measured) -> String {
    if did.is_idle() {
        return "nothing".to_owned();
    }
    let len = io_model::units::Size(((did.mean_len_bytes / 512.0).round() * 512.0) as u64);
    format!("{:.0} commands a second of {len} ({:.1} MB/s)", did.iops, did.bytes_s() / 1e6)
}

#[cfg(test)]
mod tests;
