//! Finds what broke a promise, from measurements and from what was declared.

use io_model::Nanos;
use policy::{Class, PolicyConfig};

use crate::verdict::words;
use crate::{Load, Planner, Size, Tenant};

/// What was measured of one tenant over a span.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Commands completed per second.
    pub iops: f64,
    /// Reads of those that read or write, 0 to 1.
    pub read_share: f64,
    /// Bytes that they moved each, in the mean.
    pub mean_len_bytes: f64,
    /// Mean latency, waiting included.
    pub mean: Nanos,
    /// The percentile of the same that its promise is for; the 99th without one.
    pub at_percentile: Nanos,
    /// The part of the mean that was spent with the drive.
    pub served: Nanos,
    /// How many of its commands were late, and for what.
    pub lateness: Lateness,
}

/// Commands later than their target, by their cause: each has one. Parts of all commands, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lateness {
    /// All late ones.
    pub late: f64,
    /// Those of them that would have been in time had their poller not stood still: the host's.
    pub stalled: f64,
}

impl Lateness {
    /// Whether the host is the cause, where `may_be` of all commands may be late: without its part no more than these
    /// would be, or its part is the larger one.
    pub fn is_hosts(&self, may_be: f64) -> bool {
        let others = self.late - self.stalled;
        self.stalled > others || self.late > may_be && others <= may_be
    }

    /// Both parts, for an operator. Nothing where no command was late because its poller stood still.
    pub fn in_words(&self) -> Option<String> {
        // More than all of them can't be.
        let part = (100.0 * self.stalled / self.late).min(100.0);
        let all = 100.0 * self.late;
        (self.stalled > 0.0 && self.late > 0.0).then(|| {
            let other = 100.0 - part;
            format!(
                "of its late commands, {all:.1} % of all, {part:.0} % were late only because its poller stood still, \
                 {other:.0} % for another reason"
            )
        })
    }
}

/// The cause of a broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Culprit {
    /// The tenant itself: it asks more than was declared for it, or more than its target can bear.
    Own,
    /// A neighbour, by its index: of all, the one furthest above what it declared or above its share.
    Neighbour(usize),
    /// The drive: it takes longer than its profile says, at the load that there is.
    Drive,
    /// The host: commands wait for a poller although neither load nor drive gives them reason to.
    Host,
}

/// The cause of a broken promise, and the evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blame {
    /// The cause.
    pub culprit: Culprit,
    /// A part of a sentence for an operator, without a full stop.
    pub why: String,
}

/// What was said and what was measured. The slices are parallel.
#[derive(Clone, Copy)]
pub struct Evidence<'a> {
    /// The policy in force.
    pub policy: &'a PolicyConfig,
    /// As declared or assumed.
    pub tenants: &'a [Tenant],
    /// The demand is an assumption: nobody declared it.
    pub assumed: &'a [bool],
    /// Over the same span.
    pub measured: &'a [Measured],
    /// Part of that span in which pollers had to wait for a CPU, 0 to 1.
    pub starved: f64,
}

/// A tenth more than declared is no excess yet: clients are not metronomes, and a span cuts bursts.
const TOLERANCE: f64 = 1.1;

/// A drive that takes half as long again as its profile says is not what was calibrated; less may be the model's error.
const SLOW: f64 = 1.5;

/// Pollers that wait longer than this for their CPUs can make every hundredth command late.
const STARVED: f64 = 0.01;

/// Of a second with the drive, a command may have waited for its poller as long as that waited for a CPU.
const A_SECOND_NS: f64 = 1e9;

/// Below this a tenant does not wait for its own commands: what it asks is a rate, not a depth.
const DEPTH_MIN: f64 = 0.9;

impl Measured {
    /// Commands outstanding in the mean, waiting ones included (Little's law).
    pub fn outstanding(&self) -> f64 {
        self.iops * self.mean.0 as f64 / 1e9
    }

    /// Whether anything completed.
    pub fn is_idle(&self) -> bool {
        self.iops <= 0.0
    }

    /// The tenant as if it had declared what it did; `None` where it did nothing. Who declared a rate is taken at its
    /// rate; of others the commands outstanding count as the depth, and the rate where these are less than one.
    pub fn as_demand(&self, tenant: &Tenant) -> Option<Tenant> {
        if self.is_idle() {
            return None;
        }
        let outstanding = self.outstanding();
        let is_rate = matches!(tenant.load, Load::Open { .. });
        let load = if is_rate || outstanding < DEPTH_MIN {
            Load::Open { rate_iops: self.iops }
        } else {
            Load::Closed { depth: outstanding.round().clamp(1.0, 1e6) as u32 }
        };
        // Commands that move nothing (flush, discard) count as the smallest.
        let len_bytes = ((self.mean_len_bytes / 512.0).round().max(1.0) as u64) * 512;
        let sizes = vec![Size { len_bytes, part: 1.0 }];
        Some(Tenant { load, read_share: self.read_share.clamp(0.0, 1.0), sizes, ..tenant.clone() })
    }
}

/// Finds why the tenant at index `broken` misses its target. `None` if it does not, or has no target.
///
/// Checked in this order:
///
/// * The tenant itself: it exceeds its declared load, for which it has the promise.
/// * The host: its pollers stood still, and most late commands, or all beyond those that may be late, were late for
///   nothing else ([`Lateness::is_hosts`]).
/// * The tenant itself: it would miss its target with its load even alone.
/// * Load that does not explain the latency: the drive, or the host if the time was spent waiting. A drive that is much
///   slower than forecast under that load is also the cause.
/// * Otherwise a neighbour.
///
/// Where some of the late commands are the host's, the evidence names both parts.
pub fn blame(planner: &Planner<'_>, evidence: Evidence<'_>, broken: usize) -> Option<Blame> {
    let (tenant, own) = (evidence.tenants.get(broken)?, evidence.measured.get(broken)?);
    let target = tenant.target().filter(|target| own.at_percentile > *target)?;
    let parts = own.lateness.in_words();
    let assumed = evidence.assumed.get(broken).copied().unwrap_or(true);
    let Blame { culprit, why } = match excess(tenant, own).filter(|_| !assumed) {
        Some(why) => Blame { culprit: Culprit::Own, why },
        None if own.lateness.is_hosts(tenant.percentile().late()) => {
            return Some(Blame { culprit: Culprit::Host, why: parts.unwrap_or_default() });
        }
        None => for_another_reason(planner, evidence, broken, target)?,
    };
    Some(Blame { culprit, why: parts.into_iter().fold(why, |why, parts| format!("{why}; {parts}")) })
}

/// The cause, if it is neither more load than declared nor that pollers stood still.
fn for_another_reason(planner: &Planner<'_>, evidence: Evidence<'_>, broken: usize, target: Nanos) -> Option<Blame> {
    let (tenant, own) = (evidence.tenants.get(broken)?, evidence.measured.get(broken)?);
    let asks = own.as_demand(tenant)?;
    if let Some(why) = too_much_alone(planner, evidence.policy, &asks, own, target) {
        return Some(Blame { culprit: Culprit::Own, why });
    }
    let Some(heaviest) = worst_neighbour(&evidence, broken) else {
        return Some(drive_or_host(own, evidence.starved, "nobody else asks for anything"));
    };
    let now: Vec<Tenant> = evidence.measured.iter().zip(evidence.tenants).filter_map(|(m, t)| m.as_demand(t)).collect();
    let at = evidence.measured.iter().take(broken).filter(|other| !other.is_idle()).count();
    if let Ok(outcome) = planner.outcome(evidence.policy, &now)
        && let Some(forecast) = outcome.forecast.tenants.get(at)
    {
        let foreseen = forecast.at_percentile;
        if foreseen <= target {
            let percentile = tenant.percentile();
            let load = format!("the load that there is explains {} at the {percentile}th percentile", words(foreseen));
            return Some(drive_or_host(own, evidence.starved, &load));
        }
        if own.served.0 as f64 > SLOW * forecast.mean.0 as f64 {
            let load = format!("its profile says {} at this load", words(forecast.mean));
            return Some(drive_or_host(own, evidence.starved, &load));
        }
    }
    Some(heaviest)
}

/// What a tenant does beyond its declared demand, in words.
fn excess(tenant: &Tenant, measured: &Measured) -> Option<String> {
    let declared_bytes = tenant.mean_len_bytes();
    if measured.mean_len_bytes > TOLERANCE * declared_bytes {
        let [kib, declared] = [measured.mean_len_bytes, declared_bytes].map(|bytes| bytes / 1024.0);
        return Some(format!("its commands have {kib:.1} KiB in the mean, declared are {declared:.1}"));
    }
    match tenant.load {
        Load::Open { rate_iops } if measured.iops > TOLERANCE * rate_iops => {
            Some(format!("it asks {:.0} times a second, declared are {rate_iops:.0}", measured.iops))
        }
        // Half a command more than declared is rounding where there is one.
        Load::Closed { depth } if measured.outstanding() > TOLERANCE * f64::from(depth) + 0.5 => {
            Some(format!("it keeps {:.0} commands outstanding, declared are {depth}", measured.outstanding()))
        }
        _ => None,
    }
}

/// Why a tenant that nobody disturbs misses its target all the same, if it does.
fn too_much_alone(
    planner: &Planner<'_>,
    policy: &PolicyConfig,
    asks: &Tenant,
    own: &Measured,
    target: Nanos,
) -> Option<String> {
    let alone = planner.outcome(policy, std::slice::from_ref(asks)).ok()?;
    let percentile = asks.percentile();
    let took = alone.forecast.tenants.first().map(|forecast| forecast.at_percentile).filter(|took| *took > target)?;
    let (took, target, many) = (words(took), words(target), percentile.in_words());
    let load = match asks.load {
        Load::Closed { depth } => format!("{depth} of its commands outstanding"),
        Load::Open { .. } => format!("{:.0} commands a second", own.iops),
    };
    Some(format!("with {load}, {many} would take up to {took} even alone, and the target is {target}"))
}

fn drive_or_host(own: &Measured, starved: f64, beside: &str) -> Blame {
    // What a command is with the drive beyond that, no poller kept from coming back.
    let explained_ns = starved * A_SECOND_NS;
    if starved > STARVED && own.served.0 as f64 <= explained_ns {
        let why = format!("its pollers waited {:.0} % of the time for a CPU, and {beside}", starved * 100.0);
        return Blame { culprit: Culprit::Host, why };
    }
    let (served, waited) = (own.served, own.mean.0.saturating_sub(own.served.0));
    if waited > served.0 {
        let [waited, served] = [Nanos(waited), served].map(words);
        let why =
            format!("its commands wait {waited} for a poller before the drive has them for {served}, and {beside}");
        return Blame { culprit: Culprit::Host, why };
    }
    Blame { culprit: Culprit::Drive, why: format!("it takes {} for a command, and {beside}", words(served)) }
}

/// The neighbour that is furthest above what it may do; of those that are not, the one that moves most bytes.
fn worst_neighbour(evidence: &Evidence<'_>, broken: usize) -> Option<Blame> {
    let shares = Shares::of(evidence);
    let busy = evidence.measured.iter().enumerate().filter(|(index, m)| *index != broken && !m.is_idle());
    let ranked = busy.map(|(index, measured)| (index, measured, shares.times_over(evidence, index)));
    let (index, measured, times) = ranked.max_by(|(_, one, times), (_, other, others)| {
        let over = |times: f64| if times > TOLERANCE { times } else { 0.0 };
        over(*times).total_cmp(&over(*others)).then(bytes_s(one).total_cmp(&bytes_s(other)))
    })?;
    let tenant = evidence.tenants.get(index)?;
    let assumed = evidence.assumed.get(index).copied().unwrap_or(true);
    let load = format!("{:.0} MB/s with {:.0} commands outstanding", bytes_s(measured) / 1e6, measured.outstanding());
    let why = match excess(tenant, measured).filter(|_| !assumed) {
        Some(excess) => excess,
        None if times > TOLERANCE => format!("it has {load}, {times:.1} times its share"),
        None => format!("it has {load}, no more than it may; the promise does not hold beside it"),
    };
    Some(Blame { culprit: Culprit::Neighbour(index), why })
}

/// What best-effort tenants of which nobody declared anything may take of all bytes: as their weights say.
struct Shares {
    bytes_s: f64,
    weights: f64,
}

impl Shares {
    fn of(evidence: &Evidence<'_>) -> Self {
        let busy = || evidence.tenants.iter().zip(evidence.measured).filter(|(_, measured)| !measured.is_idle());
        Self { bytes_s: busy().map(|(_, m)| bytes_s(m)).sum(), weights: busy().map(|(t, _)| weight(t)).sum() }
    }

    /// How many times what it may do a tenant does.
    fn times_over(&self, evidence: &Evidence<'_>, index: usize) -> f64 {
        let (Some(tenant), Some(measured)) = (evidence.tenants.get(index), evidence.measured.get(index)) else {
            return 0.0;
        };
        if evidence.assumed.get(index).copied().unwrap_or(true) {
            let share = self.bytes_s * weight(tenant) / self.weights.max(1.0);
            return bytes_s(measured) / share.max(1.0);
        }
        let sizes = measured.mean_len_bytes / tenant.mean_len_bytes().max(1.0);
        let asked = match tenant.load {
            Load::Open { rate_iops } => measured.iops / rate_iops.max(1.0),
            Load::Closed { depth } => measured.outstanding() / f64::from(depth.max(1)),
        };
        sizes.max(1.0) * asked.max(1.0)
    }
}

fn bytes_s(measured: &Measured) -> f64 {
    measured.iops * measured.mean_len_bytes
}

fn weight(tenant: &Tenant) -> f64 {
    match tenant.class {
        Class::Guaranteed { .. } => 1.0,
        Class::BestEffort { weight } => weight.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Forecast, TenantForecast, fake};

    const POLICY: PolicyConfig = PolicyConfig::Passthrough;

    /// 4 KiB reads: `iops` of `mean_us` each, of which `served_us` with the drive.
    fn measured(iops: f64, mean_us: u64, served_us: u64) -> Measured {
        Measured {
            iops,
            read_share: 1.0,
            mean_len_bytes: 4096.0,
            mean: Nanos::from_micros(mean_us),
            at_percentile: Nanos::from_micros(3 * mean_us),
            served: Nanos::from_micros(served_us),
            lateness: Lateness { late: 0.5, stalled: 0.0 },
        }
    }

    /// A drive on which commands take 10 µs at the 99th percentile alone, and `together_us` beside others: half of it
    /// in the mean.
    fn judge(tenants: &[Tenant], assumed: &[bool], measured: &[Measured], together_us: u64) -> Option<Blame> {
        judge_on(0.0, tenants, assumed, measured, together_us)
    }

    fn judge_on(
        starved: f64,
        tenants: &[Tenant],
        assumed: &[bool],
        measured: &[Measured],
        together_us: u64,
    ) -> Option<Blame> {
        let site = fake::site();
        let planner = Planner::with_model(&site, |_, tenants| {
            let depth = |tenant: &Tenant| match tenant.load {
                Load::Closed { depth } => u64::from(depth),
                Load::Open { .. } => 1,
            };
            let own = |tenant: &Tenant| fake::forecast(1_000.0, depth(tenant) * 10);
            let forecast = |tenant: &Tenant| match tenants.len() {
                1 => own(tenant),
                _ => TenantForecast { ..fake::forecast(1_000.0, together_us) },
            };
            let each = tenants.iter().map(forecast).collect();
            Ok(Forecast { tenants: each, drive_utilization: 0.5, poller_utilization: 0.1, played_ios: 0 })
        });
        blame(&planner, Evidence { policy: &POLICY, tenants, assumed, measured, starved }, 0)
    }

    fn tenants() -> [Tenant; 3] {
        [fake::guaranteed("db", 100), fake::best_effort("a", 8), fake::best_effort("b", 8)]
    }

    #[test]
    fn a_promise_that_is_kept_has_no_culprit() {
        let all = [measured(1_000.0, 20, 10), measured(9_000.0, 20, 10), measured(9_000.0, 20, 10)];
        assert_eq!(judge(&tenants(), &[false; 3], &all, 50), None);
    }

    #[test]
    fn a_tenant_beyond_its_demand_has_itself_to_blame() {
        let all = [measured(100_000.0, 200, 50), measured(400_000.0, 200, 50), measured(1.0, 20, 10)];
        let found = judge(&tenants(), &[false; 3], &all, 500).expect("broken");
        assert_eq!(found.culprit, Culprit::Own);
        assert_eq!(found.why, "it keeps 20 commands outstanding, declared are 1");
        let open = Tenant { load: Load::Open { rate_iops: 1_000.0 }, ..tenants()[0].clone() };
        let found = judge(&[open], &[false], &all[..1], 500).expect("broken");
        assert_eq!(found.why, "it asks 100000 times a second, declared are 1000");
        let large = Measured { mean_len_bytes: 65_536.0, ..measured(1_000.0, 200, 50) };
        let found = judge(&tenants()[..1], &[false], &[large], 500).expect("broken");
        assert_eq!(found.why, "its commands have 64.0 KiB in the mean, declared are 4.0");
    }

    #[test]
    fn more_than_the_target_can_bear_is_own_excess_too() {
        let all = [measured(100_000.0, 200, 50), measured(1.0, 20, 10), measured(1.0, 20, 10)];
        let found = judge(&tenants(), &[true; 3], &all, 500).expect("broken");
        assert_eq!(found.culprit, Culprit::Own);
        assert!(
            found.why.starts_with("with 20 of its commands outstanding, 99 of 100 would take up to 200 µs"),
            "{found:?}"
        );
    }

    #[test]
    fn the_neighbour_furthest_above_its_demand_is_named() {
        let all = [measured(5_000.0, 100, 50), measured(100_000.0, 85, 50), measured(80_000.0, 300, 50)];
        let found = judge(&tenants(), &[false; 3], &all, 500).expect("broken");
        assert_eq!(found.culprit, Culprit::Neighbour(2));
        assert_eq!(found.why, "it keeps 24 commands outstanding, declared are 8");
        // Nobody declared anything: by what moves, and weights.
        let found = judge(&tenants(), &[true; 3], &all, 500).expect("broken");
        assert_eq!(found.culprit, Culprit::Neighbour(1));
        assert!(found.why.ends_with("1.6 times its share"), "{found:?}");
    }

    #[test]
    fn the_verdict_follows_the_larger_part_of_the_late_commands_and_names_both() {
        let all = [measured(5_000.0, 100, 50), measured(100_000.0, 85, 50), measured(80_000.0, 300, 50)];
        let with = |late, stalled| {
            let all = all.map(|it| Measured { lateness: Lateness { late, stalled }, ..it });
            judge(&tenants(), &[false; 3], &all, 500).expect("broken")
        };
        // A neighbour does more than it declared, and had no part in nearly all that was late.
        let found = with(0.5, 0.47);
        assert_eq!(found.culprit, Culprit::Host);
        assert_eq!(
            found.why,
            "of its late commands, 50.0 % of all, 94 % were late only because its poller stood still, 6 % for another \
             reason"
        );
        // More than may be late is the host's, and it is little of what was late.
        let found = with(0.3, 0.015);
        assert_eq!(found.culprit, Culprit::Neighbour(2));
        assert!(found.why.starts_with("it keeps 24 commands outstanding, declared are 8; of its late"), "{found:?}");
        assert!(found.why.contains("5 % were late only because its poller stood still, 95 % for"), "{found:?}");
        // Without the host's part the promise would hold.
        assert_eq!(with(0.012, 0.003).culprit, Culprit::Host);
        assert_eq!(with(0.012, 0.001).culprit, Culprit::Neighbour(2));
        assert!(!with(0.3, 0.0).why.contains("stood still"));
        // The promise is for what it declared.
        let mine = Measured { mean_len_bytes: 65_536.0, lateness: Lateness { late: 0.5, stalled: 0.47 }, ..all[0] };
        let found = judge(&tenants()[..1], &[false], &[mine], 500).expect("broken");
        assert_eq!(found.culprit, Culprit::Own);
        assert!(found.why.starts_with("its commands have 64.0 KiB") && found.why.contains("94 %"), "{found:?}");
    }

    #[test]
    fn load_that_explains_nothing_leaves_the_drive_or_the_host() {
        let with = |served_us| [measured(5_000.0, 180, served_us), measured(9_000.0, 85, 50), measured(0.0, 0, 0)];
        let found = judge(&tenants(), &[false; 3], &with(170), 50).expect("broken");
        assert_eq!(found.culprit, Culprit::Drive, "{found:?}");
        let found = judge(&tenants(), &[false; 3], &with(10), 50).expect("broken");
        assert_eq!(found.culprit, Culprit::Host, "{found:?}");
        let found = judge_on(0.2, &tenants(), &[false; 3], &with(170), 50).expect("broken");
        assert_eq!(found.culprit, Culprit::Host);
        assert!(found.why.starts_with("its pollers waited 20 % of the time for a CPU"), "{found:?}");
        let lateness = Lateness { late: 0.5, stalled: 0.009 };
        let stalled = with(170).map(|it| Measured { lateness, ..it });
        let found = judge(&tenants(), &[false; 3], &stalled, 50).expect("broken");
        assert_eq!(found.culprit, Culprit::Drive, "the host's part is small");
        // Pollers that waited for a fifth of the time kept nothing from coming back for seconds.
        let hung = [measured(0.5, 2_000_000, 2_000_000), measured(9.0, 85, 50), measured(0.0, 0, 0)];
        let found = judge_on(0.2, &tenants(), &[false; 3], &hung, 50).expect("broken");
        assert_eq!(found.culprit, Culprit::Drive, "{found:?}");
        // Load explains much, and the drive is slower still.
        let found = judge(&tenants(), &[false; 3], &with(170), 200).expect("broken");
        assert_eq!(found.culprit, Culprit::Drive, "{found:?}");
        let alone = [measured(5_000.0, 180, 170), measured(0.0, 0, 0), measured(0.0, 0, 0)];
        let found = judge(&tenants(), &[false; 3], &alone, 50).expect("broken");
        assert_eq!(
            (found.culprit, found.why.as_str()),
            (Culprit::Drive, "it takes 170 µs for a command, and nobody else asks for anything")
        );
    }
}
