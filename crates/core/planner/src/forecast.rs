//! What tenants will get: the engine plays the real policy, and this is what is read off.

use engine::{Effort, Report, TenantReport};
use io_model::Nanos;
use policy::{Class, Floor, Limits, PolicyConfig};

use crate::bound::bounds_ns;
use crate::figures::busy_ns;
use crate::play::{self, ALONE, FULL};
use crate::{Load, Site, Tenant};

/// What keeps a tenant from getting more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitedBy {
    /// It asks for no more.
    Demand,
    /// Its share under the policy.
    Share,
    /// The policy's throttle, for a neighbour's promise.
    Throttle,
    /// Its own limits.
    Limits,
    /// The poller's CPU.
    Poller,
    /// The guest's own CPUs.
    Guest,
    /// The drive.
    Drive,
}

/// What one tenant will get.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantForecast {
    /// Commands per second.
    pub iops: f64,
    /// Bytes per second.
    pub bandwidth_bytes_s: f64,
    /// Mean latency, as the guest sees it. An open load that asks for more than it gets waits ever longer.
    pub mean: Nanos,
    /// 99th percentile of the same.
    pub p99: Nanos,
    /// What as many commands as were promised, 99 of 100 without a promise, do not exceed; the standard error of
    /// the play is added, so that a promise does not rest on luck.
    pub at_percentile: Nanos,
    /// An upper bound of the latency, if addresses and sizes are random, the drive behaves as its profile and guests'
    /// times vary as [`GuestCosts::varies_permille`](engine::GuestCosts::varies_permille) says.
    ///
    /// `None` if there is no bound: for open loads and tenants with limits; beside open loads, or closed ones that
    /// nothing limits (`passthrough`, best effort under `lpns`); beside urgent tenants; with garbage collection; for
    /// tenants with first writes, and beside copies.
    pub bound: Option<Nanos>,
    /// What as many of its commands as it was promised, 99 of 100 without a promise, take one at a time with nobody
    /// else on the drive, rounded up to what people read: no target below it can be kept.
    pub alone: Nanos,
    /// The 99th percentile alone on the drive, whatever percentile was promised.
    pub alone_p99: Nanos,
    /// Of a tenant with a target below that: what its own load takes with nobody else on the drive, so the lowest
    /// target that it can have. Otherwise as `alone`.
    pub lowest: Nanos,
    /// What keeps it from getting more.
    pub limited_by: LimitedBy,
}

/// What all tenants will get under one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// In the order of the tenants.
    pub tenants: Vec<TenantForecast>,
    /// How busy the drive's busiest part is, 0 to 1.
    pub drive_utilization: f64,
    /// How busy the busiest poller is, 0 to 1.
    pub poller_utilization: f64,
    /// Commands that were played for it.
    pub played_ios: u64,
}

/// Nothing can be said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unmodelled {
    /// Nobody said what the drive is.
    #[error("there is no model of a drive that has no profile")]
    Drive,
    /// A tenant's demand makes no sense.
    #[error("tenant {tenant:?}: {field} {remedy}")]
    Demand {
        /// The tenant.
        tenant: String,
        /// Which field.
        field: &'static str,
        /// What it must be.
        remedy: &'static str,
    },
    /// The engine can't play it.
    #[error("it can't be played: {0}")]
    Unplayable(String),
    /// It would take longer than its limit.
    #[error("playing it takes too long")]
    TooLong,
}

/// How a question is answered.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    /// How much is played.
    pub(crate) effort: Effort,
    /// The emergency brake.
    pub(crate) is_over: &'a dyn Fn() -> bool,
}

impl Means<'_> {
    /// A whole play, as long as it takes.
    pub(crate) const FULL: Means<'static> = Means { effort: FULL, is_over: &|| false };

    pub(crate) fn play(self, site: &Site, policy: &PolicyConfig, tenants: &[Tenant]) -> Result<Report, Unmodelled> {
        let scenario = play::scenario(site, policy, tenants);
        let report = engine::play_within(&scenario, self.effort, self.is_over);
        report.map_err(|error| Unmodelled::Unplayable(error.to_string()))?.ok_or(Unmodelled::TooLong)
    }
}

/// What each tenant will get from the drive under a policy: a whole play. The same question has the same answer.
///
/// # Errors
/// A demand that makes no sense, or that the engine can't play.
pub fn predict(site: &Site, policy: &PolicyConfig, tenants: &[Tenant]) -> Result<Forecast, Unmodelled> {
    forecast(site, policy, tenants, Means::FULL, &mut Vec::new())
}

/// `known`: what tenants take alone, as far as it was played.
pub(crate) fn forecast(
    site: &Site,
    policy: &PolicyConfig,
    tenants: &[Tenant],
    means: Means<'_>,
    known: &mut Vec<(Tenant, Lone)>,
) -> Result<Forecast, Unmodelled> {
    tenants.iter().try_for_each(check)?;
    let report = if tenants.is_empty() { None } else { Some(means.play(site, policy, tenants)?) };
    let seen = report.as_ref().map_or(&[][..], |report| &report.tenants);
    let work_ns = |(tenant, seen): (&Tenant, &TenantReport)| seen.iops * busy_ns(&site.profile, tenant);
    let copiers = play::copiers(tenants);
    let all = tenants.iter().chain(&copiers).zip(seen);
    let drive_utilization = (all.map(work_ns).sum::<f64>() / 1e9).min(1.0);
    let pollers = report.as_ref().map_or(&[][..], |report| &report.poller_utilization);
    let poller_utilization = pollers.iter().copied().fold(0.0, f64::max).min(1.0);
    let (bounds, mut alone) = (bounds_ns(site, policy, tenants), Alone { site, means, known });
    let forecast = |((at, tenant), seen): ((usize, &Tenant), &TenantReport)| {
        let (lone, lowest) = (alone.of(tenant)?, alone.lowest(tenant)?);
        let busy = Busy { drive: drive_utilization, poller: poller_utilization };
        Ok(TenantForecast {
            iops: seen.iops,
            bandwidth_bytes_s: seen.bandwidth_bytes_s,
            mean: Nanos(seen.latency.mean_ns as u64),
            p99: Nanos(seen.latency.p99_ns),
            at_percentile: play::at_percentile(seen, tenant),
            bound: bounds[at].map(|ns| Nanos(ns.ceil() as u64)),
            alone: lone.at_percentile,
            alone_p99: lone.p99,
            lowest,
            limited_by: limited_by(site, policy, tenants, (tenant, seen), (busy, lone.mean_ns)),
        })
    };
    let forecasts = tenants.iter().enumerate().zip(seen).map(forecast).collect::<Result<_, Unmodelled>>()?;
    let played_ios = report.as_ref().map_or(0, |report| report.simulated_ios);
    Ok(Forecast { tenants: forecasts, drive_utilization, poller_utilization, played_ios })
}

/// Utilizations, 0 to 1.
#[derive(Clone, Copy)]
struct Busy {
    drive: f64,
    poller: f64,
}

/// A part that is busier than this is what commands wait for.
const BUSY: f64 = 0.9;
/// A tenant that gets this part of what it asks for, or may have, gets all of it: arrivals are random.
const ALL: f64 = 0.97;
/// A wait of that part of a command's time is what holds its tenant back.
const WAITS: f64 = 0.5;

fn limited_by(
    site: &Site,
    policy: &PolicyConfig,
    tenants: &[Tenant],
    (tenant, seen): (&Tenant, &TenantReport),
    (busy, lone_ns): (Busy, f64),
) -> LimitedBy {
    if matches!(tenant.load, Load::Open { rate_iops } if seen.iops >= ALL * rate_iops) {
        return LimitedBy::Demand;
    }
    if tenant.most_iops().is_some_and(|most| seen.iops >= ALL * most) {
        return LimitedBy::Limits;
    }
    if seen.waited > WAITS {
        let holds = policy.kind().throttles_best_effort() && tenants.iter().any(|it| it.class.is_guaranteed());
        return match () {
            () if holds && !tenant.class.is_guaranteed() && busy.drive < BUSY => LimitedBy::Throttle,
            () if busy.poller > BUSY => LimitedBy::Poller,
            () => LimitedBy::Share,
        };
    }
    let guest = &site.costs.guest;
    let guest_ns = (guest.app_ns + guest.submit_ns + guest.complete_ns) as f64;
    if seen.iops * guest_ns / 1e9 > BUSY * f64::from(tenant.vcpus) {
        return LimitedBy::Guest;
    }
    let waits = seen.latency.mean_ns - lone_ns;
    if busy.drive > BUSY || waits > WAITS * seen.latency.mean_ns { LimitedBy::Drive } else { LimitedBy::Demand }
}

/// What a tenant's commands take one at a time with nobody else on the drive.
#[derive(Clone, Copy)]
pub(crate) struct Lone {
    at_percentile: Nanos,
    p99: Nanos,
    mean_ns: f64,
}

/// What tenants take alone: once for each kind of command.
struct Alone<'a> {
    site: &'a Site,
    means: Means<'a>,
    known: &'a mut Vec<(Tenant, Lone)>,
}

impl Alone<'_> {
    fn of(&mut self, tenant: &Tenant) -> Result<Lone, Unmodelled> {
        let own = Tenant { name: String::new(), load: Load::Closed { depth: 1 }, vcpus: 1, ..unlimited(tenant) };
        let is_like = |known: &Tenant| {
            (&known.sizes, known.read_share, known.percentile(), known.first_writes)
                == (&own.sizes, own.read_share, own.percentile(), own.first_writes)
        };
        if let Some((_, lone)) = self.known.iter().find(|(known, _)| is_like(known)) {
            return Ok(*lone);
        }
        let seen = self.play(&own)?;
        let lone = Lone {
            at_percentile: rounded_up(seen.at_percentile_ns.unwrap_or(seen.latency.p99_ns)),
            p99: rounded_up(seen.latency.p99_ns),
            mean_ns: seen.latency.mean_ns,
        };
        self.known.push((own, lone));
        Ok(lone)
    }

    /// See [`TenantForecast::lowest`].
    fn lowest(&mut self, tenant: &Tenant) -> Result<Nanos, Unmodelled> {
        let alone = self.of(tenant)?.at_percentile;
        if tenant.target().is_none_or(|target| target >= alone) {
            return Ok(alone);
        }
        let seen = self.play(&unlimited(tenant))?;
        // More than the drive can do: what waits would say nothing of the drive.
        let is_served = !matches!(tenant.load, Load::Open { rate_iops } if seen.iops < ALL * rate_iops);
        let own_ns = seen.at_percentile_ns.filter(|_| is_served);
        Ok(own_ns.map_or(alone, |own_ns| rounded_up(own_ns).max(alone)))
    }

    fn play(&self, tenant: &Tenant) -> Result<TenantReport, Unmodelled> {
        let means = Means { effort: ALONE, ..self.means };
        let mut report = means.play(self.site, &PolicyConfig::Passthrough, std::slice::from_ref(tenant))?;
        Ok(report.tenants.remove(0))
    }
}

/// The drive's part: without waits for a tenant's own limits.
fn unlimited(tenant: &Tenant) -> Tenant {
    Tenant { limits: Limits::default(), floor: Floor::default(), ..tenant.clone() }
}

/// To as many digits as people read, so that a target that was read off is not refused for the digits that were not
/// shown.
fn rounded_up(ns: u64) -> Nanos {
    let step_ns = match ns {
        0..100_000 => 100,
        100_000..1_000_000 => 1_000,
        1_000_000..100_000_000 => 100_000,
        _ => 1_000_000,
    };
    Nanos(ns.div_ceil(step_ns).saturating_mul(step_ns))
}

pub(crate) fn check(tenant: &Tenant) -> Result<(), Unmodelled> {
    let sizes = !tenant.sizes.is_empty()
        && tenant.sizes.iter().all(|size| size.len_bytes > 0 && size.part >= 0.0)
        && (tenant.sizes.iter().map(|size| size.part).sum::<f64>() - 1.0).abs() < 1e-6;
    let load = match tenant.load {
        Load::Closed { depth } => depth > 0,
        Load::Open { rate_iops } => rate_iops > 0.0 && rate_iops.is_finite(),
    };
    let first = tenant.first_writes.is_none_or(|it| (0.0..=1.0).contains(&it.share) && it.piece_bytes >= 4096);
    let rules = [
        (first, "first_writes", "must be a share from 0 to 1, of pieces of at least 4096 bytes"),
        (load, "load", "must be a depth of 1 or more, or a rate above 0"),
        ((0.0..=1.0).contains(&tenant.read_share), "read_share", "must be from 0 to 1"),
        (sizes, "sizes", "must be lengths above 0 whose parts sum to 1"),
        (tenant.vcpus > 0, "vcpus", "must be at least 1"),
        (tenant.class != Class::BestEffort { weight: 0 }, "class", "must have a weight of at least 1"),
    ];
    match rules.iter().find(|rule| !rule.0) {
        Some(&(_, field, remedy)) => Err(Unmodelled::Demand { tenant: tenant.name.clone(), field, remedy }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use io_model::QueuePriority;
    use policy::{ArbitratedConfig, EvenkeelConfig, FairConfig, LpnsConfig};
    use ssd_model::Profile;

    use super::*;
    use crate::fake::{best_effort, guaranteed, site};
    use crate::figures::map_write;
    use crate::{FirstWrites, Planner, Size};

    fn close(value: f64, expected: f64, part: f64) -> bool {
        (value / expected - 1.0).abs() < part
    }

    #[test]
    fn a_lone_read_takes_what_the_profile_says() {
        let forecast = predict(&site(), &PolicyConfig::Passthrough, &[best_effort("a", 1)]).unwrap();
        let [only] = &forecast.tenants[..] else { panic!("one tenant") };
        // 7.4 µs in a unit and 40 ns on the way.
        assert_eq!((only.mean, only.alone), (Nanos(7_440), Nanos(7_500)));
        assert!(close(only.iops, 1e9 / 7_440.0, 1e-2));
        assert!(only.bound.is_some_and(|bound| bound >= Nanos(7_440) && bound < Nanos(20_000)), "{:?}", only.bound);
    }

    #[test]
    fn a_question_has_one_answer_and_a_play_that_is_cut_off_none() {
        let (site, tenants) = (site(), [guaranteed("db", 60), best_effort("a", 32)]);
        let policy = PolicyConfig::Evenkeel(EvenkeelConfig::p5800x());
        let [one, other] = [(); 2].map(|()| predict(&site, &policy, &tenants).unwrap());
        assert_eq!(one, other);
        let cut = Planner::within(&site, &|| true).outcome(&policy, &tenants);
        assert_eq!(cut, Err(Unmodelled::TooLong));
    }

    #[test]
    fn units_that_are_hit_at_random_do_less_than_all_of_them_could() {
        let rate =
            |depth| predict(&site(), &PolicyConfig::Passthrough, &[best_effort("a", depth)]).unwrap().tenants[0].iops;
        let most = 6e9 / 7_400.0;
        // As many commands as units: 2 − √2 of it, a little more for so few of them.
        assert!(close(rate(6), 0.62 * most, 0.05), "{}", rate(6) / most);
        assert!(rate(128) > 0.95 * most && rate(128) <= most * 1.01, "{}", rate(128) / most);
    }

    /// A promise to an encrypted disk that is judged by the latencies of a plain one.
    #[test]
    fn an_encrypted_disks_latencies_and_bounds_have_the_ciphers_time() {
        let of = |encrypted_sector_bytes| {
            let tenant = Tenant { encrypted_sector_bytes, ..best_effort("db", 1) };
            predict(&site(), &PolicyConfig::Passthrough, &[tenant]).unwrap().tenants[0].clone()
        };
        let plain = of(None);
        for sector_bytes in [512, 4096] {
            let (found, cipher_ns) = (of(Some(sector_bytes)), site().profile.cipher_ns(sector_bytes));
            assert!(close((found.mean - plain.mean).0 as f64, cipher_ns as f64, 0.1), "{found:?}");
            assert!(found.bound.unwrap() - plain.bound.unwrap() > Nanos(cipher_ns), "{found:?} {plain:?}");
        }
    }

    /// A promise to a thin disk that is judged as if it had all of its pieces.
    #[test]
    fn first_writes_above_one_in_a_hundred_are_seen_at_the_p99() {
        let writer = |first_writes: Option<(f64, bool)>| {
            let first_writes =
                first_writes.map(|(share, are_shared)| FirstWrites { share, piece_bytes: 1 << 20, are_shared });
            Tenant { read_share: 0.0, first_writes, ..guaranteed("db", 500) }
        };
        let lone = |first| predict(&site(), &PolicyConfig::Passthrough, &[writer(first)]).unwrap().tenants[0].clone();
        let [none, few, many] = [None, Some((0.005, false)), Some((0.02, false))].map(lone);
        let map = map_write(&site().profile);
        assert!(few.p99.0 < none.p99.0 + map.0 / 4 && few.mean > none.mean, "{few:?} {none:?}");
        assert!(many.p99 >= map && many.alone_p99 >= map && many.p99.0 < map.0 * 2, "{many:?}");
        assert!(none.bound.is_some() && many.bound.is_none());
        // A copy moves 2 MiB beside others, and comes before them.
        let beside = |first| {
            let noisy = Tenant { sizes: vec![Size { len_bytes: 65_536, part: 1.0 }], ..best_effort("noisy", 256) };
            let policy = PolicyConfig::Evenkeel(EvenkeelConfig::p5800x());
            let forecast = predict(&site(), &policy, &[writer(first), Tenant { vcpus: 4, ..noisy }]).unwrap();
            [forecast.tenants[0].p99.0 as f64, forecast.tenants[1].iops]
        };
        let ([new, _], [copied, left]) = (beside(Some((0.02, false))), beside(Some((0.02, true))));
        assert!(copied > new * 3.0 && copied < 20e6, "{copied} {new}");
        let all = beside(None)[1];
        assert!(left < all * 0.95, "{left} {all}");
    }

    #[test]
    fn classes_share_by_their_quanta() {
        let priorities = [QueuePriority::High, QueuePriority::Medium, QueuePriority::Low];
        let tenants = priorities.map(|priority| Tenant { priority, ..best_effort("t", 128) });
        let forecast = predict(&site(), &PolicyConfig::Drr(ArbitratedConfig::drr()), &tenants).unwrap();
        let iops: Vec<f64> = forecast.tenants.iter().map(|tenant| tenant.iops).collect();
        assert!(close(iops[0] / iops[2], 4.0, 0.05) && close(iops[1] / iops[2], 2.0, 0.05), "{iops:?}");
        assert!(forecast.tenants.iter().all(|tenant| tenant.limited_by == LimitedBy::Share), "{forecast:?}");
    }

    #[test]
    fn an_open_load_gets_what_it_asks_for_until_there_is_no_more() {
        let open = |rate_iops| Tenant { load: Load::Open { rate_iops }, ..best_effort("open", 1) };
        let of = |rate| predict(&site(), &PolicyConfig::Passthrough, &[open(rate)]).unwrap().tenants[0].clone();
        let (light, heavy) = (of(400_000.0), of(2e6));
        assert!(close(light.iops, 400_000.0, 0.03) && light.limited_by == LimitedBy::Demand, "{light:?}");
        // M/D/1 at each unit, 49 % busy.
        let busy = 400_000.0 * 7.4e-6 / 6.0;
        let mean_ns = 7_440.0 + 7_400.0 * busy / (2.0 * (1.0 - busy));
        assert!(close(light.mean.0 as f64, mean_ns, 0.05), "{} and {mean_ns}", light.mean.0);
        assert!(heavy.iops < 830_000.0 && heavy.bound.is_none() && heavy.limited_by != LimitedBy::Demand, "{heavy:?}");
    }

    #[test]
    fn evenkeel_holds_others_back_for_a_target_and_less_for_a_looser_one() {
        let policy = PolicyConfig::Evenkeel(EvenkeelConfig::p5800x());
        let noisy = Tenant { vcpus: 4, ..best_effort("noisy", 128) };
        let beside = |target_us| {
            let tenants = [guaranteed("quiet", target_us), noisy.clone()];
            let [quiet, noisy] = &predict(&site(), &policy, &tenants).unwrap().tenants[..] else { panic!("two") };
            assert!(quiet.at_percentile <= Nanos::from_micros(target_us), "{quiet:?}");
            (noisy.iops, noisy.limited_by)
        };
        let (tight, loose) = (beside(30), beside(100));
        assert!(tight.0 < loose.0 && tight.1 == LimitedBy::Throttle, "{tight:?} {loose:?}");
    }

    #[test]
    fn without_a_promise_evenkeel_shares_by_weight() {
        let policy = PolicyConfig::Evenkeel(EvenkeelConfig::p5800x());
        let heavy = Tenant { class: Class::BestEffort { weight: 3 }, ..best_effort("heavy", 512) };
        let forecast = predict(&site(), &policy, &[heavy, best_effort("light", 512)]).unwrap();
        let [heavy, light] = &forecast.tenants[..] else { panic!("two tenants") };
        assert!(close(heavy.iops / light.iops, 3.0, 0.05) && light.limited_by == LimitedBy::Share, "{forecast:?}");
        assert!(forecast.drive_utilization > 0.9, "{forecast:?}");
    }

    #[test]
    fn bounds_are_above_percentiles_and_percentiles_above_means() {
        let tenants: Vec<Tenant> = (1..=6).map(|at| best_effort("t", at * 7)).collect();
        let site = Site { costs: engine::HostCosts::default(), profile: Profile::p3520() };
        for policy in [
            PolicyConfig::Passthrough,
            PolicyConfig::Wrr(ArbitratedConfig::wrr()),
            PolicyConfig::Fair(FairConfig::p5800x()),
        ] {
            for tenant in predict(&site, &policy, &tenants).unwrap().tenants {
                assert!(tenant.mean <= tenant.p99, "{tenant:?} under {}", policy.name());
                assert!(tenant.bound.is_some_and(|bound| bound >= tenant.p99), "{tenant:?} under {}", policy.name());
            }
        }
    }

    #[test]
    fn a_tenant_with_a_limit_gets_no_more_and_leaves_the_rest_to_others() {
        let limits = Limits { rw_ios_per_sec: 20_000, ..Limits::default() };
        let limited = |limits| Tenant { limits, vcpus: 4, ..best_effort("limited", 64) };
        let other = Tenant { vcpus: 4, ..best_effort("other", 64) };
        for policy in [PolicyConfig::Passthrough, PolicyConfig::Lpns(LpnsConfig::p5800x())] {
            let forecast = |limits| predict(&site(), &policy, &[limited(limits), other.clone()]).unwrap().tenants;
            let [free, held] = [Limits::default(), limits].map(forecast);
            let name = policy.name();
            assert!(close(held[0].iops, 20_000.0, 0.05) && held[0].limited_by == LimitedBy::Limits, "{name}: {held:?}");
            assert!(held[1].iops > free[1].iops * 1.2 && held[0].alone == free[0].alone, "{name}: {free:?} {held:?}");
        }
    }

    #[test]
    fn nonsense_is_named() {
        let refused = |tenant: Tenant| predict(&site(), &PolicyConfig::Passthrough, &[tenant]).unwrap_err();
        let field = |tenant| match refused(tenant) {
            Unmodelled::Demand { field, .. } => field,
            other => panic!("{other:?}"),
        };
        let fine = || best_effort("a", 1);
        assert_eq!(field(Tenant { load: Load::Closed { depth: 0 }, ..fine() }), "load");
        assert_eq!(field(Tenant { load: Load::Open { rate_iops: f64::NAN }, ..fine() }), "load");
        assert_eq!(field(Tenant { read_share: 1.1, ..fine() }), "read_share");
        assert_eq!(field(Tenant { sizes: vec![Size { len_bytes: 4096, part: 0.5 }], ..fine() }), "sizes");
        assert_eq!(field(Tenant { vcpus: 0, ..fine() }), "vcpus");
        assert_eq!(field(Tenant { class: Class::BestEffort { weight: 0 }, ..fine() }), "class");
    }

    #[test]
    fn more_pollers_than_the_drive_has_queues_for_can_t_be_played() {
        let tenants = vec![guaranteed("db", 100); 200];
        let refused = predict(&site(), &PolicyConfig::Passthrough, &tenants).unwrap_err();
        assert!(matches!(refused, Unmodelled::Unplayable(_)), "{refused:?}");
    }
}
