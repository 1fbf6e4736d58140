//! Which promises hold, and if not, whose load is in the way.
//!
//! A promise is a guaranteed tenant's latency target for 99 of 100 commands, or another part of them.

use io_model::Nanos;
use policy::Percentile;
use ssd_model::Profile;

use crate::figures::busy_ns;
use crate::{Forecast, LimitedBy, Load, Site, Tenant, TenantForecast};

/// A drive or a poller busier than this is what commands wait for.
const BUSY: f64 = 0.9;

/// What becomes of a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No command will miss the target: the bound is within it.
    Certain,
    /// As many commands as were promised are expected to meet the target; a bound that says more can't be given, or is
    /// above it.
    Expected,
    /// More are expected to miss the target than may.
    NotKept,
    /// The drive takes longer even for a lone command of this tenant.
    Impossible {
        /// The lowest target that can be promised to a tenant that has the drive alone.
        lowest: Nanos,
    },
}

impl Verdict {
    /// What a forecast means for a target.
    pub fn of(target: Nanos, forecast: &TenantForecast) -> Self {
        if target < forecast.alone {
            Self::Impossible { lowest: forecast.lowest }
        } else if forecast.bound.is_some_and(|bound| bound <= target) {
            Self::Certain
        } else if forecast.at_percentile <= target {
            Self::Expected
        } else {
            Self::NotKept
        }
    }

    /// Whether the promise may be made.
    pub fn is_kept(self) -> bool {
        matches!(self, Self::Certain | Self::Expected)
    }

    /// For tables and programs: `certain`, `expected`, `not kept` or `impossible`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Certain => "certain",
            Self::Expected => "expected",
            Self::NotKept => "not kept",
            Self::Impossible { .. } => "impossible",
        }
    }
}

/// What stands between a tenant and its target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Obstacle {
    /// Nothing.
    None,
    /// The drive itself, even with nobody else on it.
    DriveAlone,
    /// The tenant's own load: it takes most of what keeps the drive busy, or is at a limit of its own.
    Own,
    /// A neighbour's load.
    Neighbour {
        /// Index of the neighbour that takes most of the drive's time.
        tenant: usize,
        /// Its part of the work that the drive does, 0 to 1.
        part: f64,
        /// Neighbours with the very same demand, itself among them: their parts are alike.
        alike: usize,
    },
    /// The host's CPU: the poller is busy.
    Poller,
}

/// A promise, judged.
#[derive(Debug, Clone, PartialEq)]
pub struct Promise {
    /// Index of the tenant.
    pub tenant: usize,
    /// The latency target.
    pub target: Nanos,
    /// What becomes of it.
    pub verdict: Verdict,
    /// What stands between the tenant and its target.
    pub obstacle: Obstacle,
    /// A sentence for an operator: the figures, which resource, whose load. No full stop.
    pub reason: String,
}

/// Judges every promise: each guaranteed tenant's that has a target, in the order of the tenants. `forecast` is that of
/// `tenants` on `site`.
pub fn judge(site: &Site, tenants: &[Tenant], forecast: &Forecast) -> Vec<Promise> {
    let findings = Findings::new(&site.profile, tenants, forecast);
    let promise = |(index, (tenant, own)): (usize, (&Tenant, &TenantForecast))| {
        let target = tenant.target()?;
        let verdict = Verdict::of(target, own);
        let obstacle = match verdict {
            Verdict::Certain | Verdict::Expected => Obstacle::None,
            Verdict::Impossible { .. } => Obstacle::DriveAlone,
            Verdict::NotKept => findings.obstacle(index, own),
        };
        let reason = findings.reason(tenant, own, target, verdict, obstacle);
        Some(Promise { tenant: index, target, verdict, obstacle, reason })
    };
    tenants.iter().zip(&forecast.tenants).enumerate().filter_map(promise).collect()
}

impl Tenant {
    /// The latency that it was promised, if any.
    pub fn target(&self) -> Option<Nanos> {
        self.class.latency_target()
    }

    /// The part of its commands that this is for; the 99th percentile without one.
    pub fn percentile(&self) -> Percentile {
        self.class.promise().map(|(_, percentile)| percentile).unwrap_or_default()
    }
}

/// What all promises are judged by.
struct Findings<'a> {
    tenants: &'a [Tenant],
    forecast: &'a Forecast,
    /// How much each tenant keeps the drive busy, in ns per second.
    work: Vec<f64>,
    total_work: f64,
    /// The heaviest tenant and the second heaviest: the tenant that asks may be the heaviest.
    heaviest: [Option<usize>; 2],
}

impl<'a> Findings<'a> {
    fn new(profile: &Profile, tenants: &'a [Tenant], forecast: &'a Forecast) -> Self {
        let each = tenants.iter().zip(&forecast.tenants);
        let work: Vec<f64> = each.map(|(tenant, own)| own.iops * busy_ns(profile, tenant)).collect();
        let most = |except: Option<usize>| {
            let others = work.iter().enumerate().filter(|(index, work)| Some(*index) != except && **work > 0.0);
            // The first of several that are alike.
            others.rev().max_by(|a, b| a.1.total_cmp(b.1)).map(|(index, _)| index)
        };
        let first = most(None);
        Self { tenants, forecast, total_work: work.iter().sum(), heaviest: [first, most(first)], work }
    }

    fn obstacle(&self, index: usize, own: &TenantForecast) -> Obstacle {
        let Forecast { drive_utilization: drive, poller_utilization: poller, .. } = *self.forecast;
        if matches!(own.limited_by, LimitedBy::Limits | LimitedBy::Guest) {
            return Obstacle::Own;
        }
        if own.limited_by == LimitedBy::Poller || poller >= BUSY && poller > drive {
            return Obstacle::Poller;
        }
        let [first, second] = self.heaviest;
        let neighbour = if first == Some(index) { second } else { first };
        let mine = self.work.get(index).copied().unwrap_or(0.0);
        match neighbour {
            // Several small neighbours may be in the way where each of them does less than the tenant itself.
            Some(neighbour) if mine <= self.total_work - mine => Obstacle::Neighbour {
                tenant: neighbour,
                part: self.work.get(neighbour).map_or(0.0, |work| work / self.total_work),
                alike: self.alike(index, neighbour),
            },
            _ => Obstacle::Own,
        }
    }

    /// Tenants with the demand of `neighbour`, itself among them, beside the tenant at `index`.
    fn alike(&self, index: usize, neighbour: usize) -> usize {
        let Some(one) = self.tenants.get(neighbour) else { return 0 };
        let same = |other: &Tenant| {
            (other.class, other.floor, other.limits, other.load) == (one.class, one.floor, one.limits, one.load)
                && (other.priority, other.read_share, &other.sizes) == (one.priority, one.read_share, &one.sizes)
        };
        self.tenants.iter().enumerate().filter(|(at, other)| *at != index && same(other)).count()
    }

    fn reason(
        &self,
        tenant: &Tenant,
        own: &TenantForecast,
        target: Nanos,
        verdict: Verdict,
        obstacle: Obstacle,
    ) -> String {
        let percentile = tenant.percentile();
        let (took, within, many) = (words(own.at_percentile), words(target), percentile.in_words());
        match (verdict, own.bound) {
            (Verdict::Impossible { lowest }, _) => {
                let lowest = words(lowest);
                format!("{many} of its commands take up to {lowest} even alone on the drive")
            }
            (Verdict::NotKept, _) => {
                let obstacle = self.in_the_way(tenant, own, obstacle);
                format!("{many} commands take up to {took}, the target is {within}: {obstacle}")
            }
            (Verdict::Certain, Some(bound)) => {
                format!("no command takes longer than {}, within {within}", words(bound))
            }
            (_, Some(bound)) => {
                format!("{many} commands take up to {took}, within {within}; at worst one may take {}", words(bound))
            }
            (_, None) => match tenant.most_iops() {
                Some(most) if own.iops >= most => format!(
                    "{many} commands take up to {took}, within {within}, from when its own limits of {most:.0} per \
                     second let them through: it asks for more, and those that wait for them are late"
                ),
                _ => {
                    format!("{many} commands take up to {took}, within {within}; no limit can be given for the slowest")
                }
            },
        }
    }

    /// The resource and whose load it is, in words.
    fn in_the_way(&self, tenant: &Tenant, own: &TenantForecast, obstacle: Obstacle) -> String {
        let percent = |part: f64| (part * 100.0).clamp(0.0, 100.0).round();
        let drive = match self.forecast.drive_utilization {
            busy if busy >= BUSY => format!("the drive is {} % busy", percent(busy)),
            _ => "its commands wait in the drive".to_owned(),
        };
        match obstacle {
            Obstacle::None | Obstacle::DriveAlone => drive,
            Obstacle::Poller => {
                let busy = percent(self.forecast.poller_utilization);
                format!("the host's thread that moves commands is {busy} % busy")
            }
            Obstacle::Own if own.limited_by == LimitedBy::Limits => "its own limits hold it back".to_owned(),
            Obstacle::Own if own.limited_by == LimitedBy::Guest => "its own CPUs are busy".to_owned(),
            Obstacle::Own => match tenant.load {
                Load::Closed { depth } => format!("{drive}, mostly with its own load of {depth} commands at a time"),
                Load::Open { rate_iops } => format!("{drive}, mostly with its own {rate_iops:.0} commands per second"),
            },
            Obstacle::Neighbour { tenant, part, alike } => {
                let name = self.tenants.get(tenant).map_or("", |neighbour| neighbour.name.as_str());
                let others = match alike {
                    0 | 1 => String::new(),
                    _ => format!(", as much for each of {} more like it", alike - 1),
                };
                format!("{drive}, {} % of its work is for {name:?}{others}", percent(part))
            }
        }
    }
}

/// A time for people: three digits.
pub fn words(time: Nanos) -> String {
    let us = time.as_micros_f64();
    match us {
        _ if us < 100.0 => format!("{us:.1} µs"),
        _ if us < 1_000.0 => format!("{us:.0} µs"),
        _ if us < 100_000.0 => format!("{:.1} ms", us / 1e3),
        _ if us < 1e6 => format!("{:.0} ms", us / 1e3),
        _ => format!("{:.1} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    fn forecast(p99_us: u64, bound_us: Option<u64>) -> TenantForecast {
        let base = fake::forecast(1_000.0, p99_us);
        TenantForecast {
            bound: bound_us.map(Nanos::from_micros),
            alone: Nanos::from_micros(20),
            alone_p99: Nanos::from_micros(20),
            lowest: Nanos::from_micros(20),
            ..base
        }
    }

    #[test]
    fn a_verdict_follows_from_bound_percentile_and_alone_latency() {
        let verdict =
            |target_us, p99_us, bound_us| Verdict::of(Nanos::from_micros(target_us), &forecast(p99_us, bound_us));
        assert_eq!(verdict(100, 50, Some(100)), Verdict::Certain);
        assert_eq!(verdict(100, 100, Some(101)), Verdict::Expected);
        assert_eq!(verdict(100, 100, None), Verdict::Expected);
        assert_eq!(verdict(100, 101, None), Verdict::NotKept);
        assert_eq!(verdict(19, 5, Some(6)), Verdict::Impossible { lowest: Nanos::from_micros(20) });
        assert_eq!(verdict(20, 21, None), Verdict::NotKept);
    }

    #[test]
    fn a_broken_promise_names_the_heaviest_neighbour() {
        let tenants = [fake::guaranteed("db", 100), fake::best_effort("a", 4), fake::best_effort("big", 64)];
        let each = [(1_000.0, 500), (10_000.0, 900), (200_000.0, 900)].map(|(iops, p99)| fake::forecast(iops, p99));
        let forecast =
            Forecast { tenants: each.to_vec(), drive_utilization: 0.97, poller_utilization: 0.2, played_ios: 0 };
        let promises = judge(&fake::site(), &tenants, &forecast);
        let [promise] = &promises[..] else { panic!("{promises:?}") };
        assert_eq!((promise.tenant, promise.verdict), (0, Verdict::NotKept));
        let Obstacle::Neighbour { tenant: 2, part, alike: 1 } = promise.obstacle else { panic!("{promise:?}") };
        assert!(part > 0.9 && part < 1.0, "{part}");
        let reason = "99 of 100 commands take up to 500 µs, the target is 100 µs: the drive is 97 % busy, 95 % of its \
                      work is for \"big\"";
        assert_eq!(promise.reason, reason);
    }

    #[test]
    fn neighbours_that_are_alike_are_counted() {
        let tenants = [fake::guaranteed("db", 100), fake::best_effort("n1", 32), fake::best_effort("n2", 32)];
        let each = [(1_000.0, 500), (80_000.0, 900), (80_000.0, 900)].map(|(iops, p99)| fake::forecast(iops, p99));
        let forecast =
            Forecast { tenants: each.to_vec(), drive_utilization: 0.5, poller_utilization: 0.2, played_ios: 0 };
        let reason = &judge(&fake::site(), &tenants, &forecast)[0].reason;
        assert!(reason.ends_with("is for \"n1\", as much for each of 1 more like it"), "{reason}");
    }

    #[test]
    fn who_asks_for_more_than_its_own_limits_is_told_what_is_not_counted() {
        let limits = policy::Limits { rw_ios_per_sec: 1_000, ..policy::Limits::default() };
        let reason = |iops: f64| {
            let forecast = Forecast {
                tenants: vec![fake::forecast(iops, 50)],
                drive_utilization: 0.5,
                poller_utilization: 0.2,
                played_ios: 0,
            };
            judge(&fake::site(), &[Tenant { limits, ..fake::guaranteed("db", 100) }], &forecast).remove(0).reason
        };
        assert!(reason(999.0).ends_with("no limit can be given for the slowest"), "{}", reason(999.0));
        let held = reason(1_000.0);
        assert!(held.contains("limits of 1000 per second let them through") && held.ends_with("are late"), "{held}");
    }

    #[test]
    fn a_tenant_in_its_own_way_is_told_so() {
        let own = |limited_by, load, poller_utilization| {
            let tenants = [Tenant { load, ..fake::guaranteed("db", 100) }, fake::best_effort("a", 1)];
            let mine = TenantForecast { limited_by, ..fake::forecast(500_000.0, 800) };
            let each = vec![mine, fake::forecast(1_000.0, 10)];
            let forecast = Forecast { tenants: each, drive_utilization: 0.99, poller_utilization, played_ios: 0 };
            let promise = judge(&fake::site(), &tenants, &forecast).remove(0);
            (promise.obstacle, promise.reason)
        };
        let closed = Load::Closed { depth: 256 };
        let (obstacle, reason) = own(LimitedBy::Drive, closed, 0.1);
        assert!(obstacle == Obstacle::Own && reason.contains("its own load of 256 commands at a time"), "{reason}");
        let (_, reason) = own(LimitedBy::Drive, Load::Open { rate_iops: 5e5 }, 0.1);
        assert!(reason.contains("its own 500000 commands per second"), "{reason}");
        let (_, reason) = own(LimitedBy::Guest, closed, 0.1);
        assert!(reason.ends_with("its own CPUs are busy"), "{reason}");
        let (obstacle, reason) = own(LimitedBy::Poller, closed, 1.0);
        assert!(obstacle == Obstacle::Poller && reason.contains("100 % busy"), "{reason}");
    }

    #[test]
    fn a_target_below_the_alone_latency_names_the_lowest() {
        let tenants = [fake::guaranteed("db", 5), fake::best_effort("a", 4)];
        let each = vec![forecast(30, None), fake::forecast(10_000.0, 900)];
        let forecast = Forecast { tenants: each, drive_utilization: 0.1, poller_utilization: 0.1, played_ios: 0 };
        let promise = judge(&fake::site(), &tenants, &forecast).remove(0);
        assert_eq!(promise.verdict, Verdict::Impossible { lowest: Nanos::from_micros(20) });
        assert_eq!(promise.reason, "99 of 100 of its commands take up to 20.0 µs even alone on the drive");
    }
}
