//! Turns the counters of all pollers into what the throttle needs to know about the last interval.

use io_model::{Nanos, TenantId};

use super::config::LpnsConfig;
use super::rule::SPENT_OF_BUDGET;
use crate::{Class, TenantReport};

/// Commands needed to judge a promise before the period ends: a 99th percentile shows in 100.
const JUDGED_SAMPLES: u64 = 100;

/// Misses can be saved up for this long, seconds: what one may spend at once stays far below a percentile that
/// anybody would measure.
const SAVED_SECONDS: f64 = 1.0;

/// What this poller knows about one of its own tenants beyond the report.
#[derive(Debug, Clone, Copy)]
pub(super) struct Own {
    /// Commands wait in its VQs.
    pub backlogged: bool,
}

/// How the guaranteed tenants fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// Nobody could be judged yet.
    Open,
    /// Every judged promise had room to spare.
    Comfortable,
    /// Kept, narrowly.
    Kept,
    /// One was missed, or would be soon.
    Missed,
}

/// The drive's last interval. Rates in commands per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Observed {
    /// i: guaranteed tenants that did something in this interval.
    pub guaranteed: u32,
    /// Those that were active within the last period; these are protected.
    pub protected: u32,
    /// j: best-effort tenants that did something or want to.
    pub best_effort: u32,
    /// Commands that the slowest guaranteed tenant, idle ones included, submitted in the interval. `None`: there
    /// is no guaranteed tenant.
    pub slowest: Option<u64>,
    /// p: its rate; 0 without one.
    pub slowest_iops: f64,
    /// The tightest promise among the protected.
    pub target: Option<Nanos>,
    /// Rate of all guaranteed tenants.
    pub guaranteed_iops: f64,
    /// Commands that the protected tenants keep in flight together.
    pub guaranteed_depth: u64,
    pub verdict: Verdict,
}

impl Observed {
    /// Takes in a guaranteed tenant that is active, or was within the last period.
    fn protect(&mut self, depth: u64, target: Option<Nanos>, judge: impl FnOnce(Nanos) -> Verdict) {
        self.protected += 1;
        self.guaranteed_depth += depth.max(1);
        if let Some(target) = target {
            self.target = Some(self.target.map_or(target, |tightest| tightest.min(target)));
            self.verdict = self.verdict.max(judge(target));
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// The promise that it is judged by.
    target: Option<Nanos>,
    submitted: u64,
    completed: u64,
    violations: u64,
    /// Whole intervals without a command.
    idle: u32,
    /// Commands and misses since the last judgement.
    samples: u64,
    missed: u64,
    /// Misses that the promise still allows, in thousandths of one; never negative after a judgement.
    bank: i64,
    /// Commands in flight, as last estimated.
    depth: u64,
    /// Its rate when last seen.
    iops: f64,
}

#[derive(Debug, Default)]
pub(super) struct Detector {
    /// In the order of identifiers: who the last reports told of, and nobody else.
    seen: Vec<(TenantId, Seen)>,
    /// Scratch: the same of the reports before.
    before: Vec<(TenantId, Seen)>,
    last: Option<Nanos>,
}

impl Detector {
    /// When the current interval ends.
    pub(super) fn interval_end(&self, config: &LpnsConfig, now: Nanos) -> Nanos {
        let end = self.last.map_or(Nanos(0), |last| last + config.interval);
        if end > now { end } else { now + config.interval }
    }

    /// Commands that a tenant keeps in flight, and its rate in commands per second, as of the last interval.
    pub(super) fn load_of(&self, tenant: TenantId) -> (u64, f64) {
        find(&self.seen, tenant).map_or((0, 0.0), |seen| (seen.depth, seen.iops))
    }

    /// Takes in the reports of an interval. `limit`: commands in flight from which a guaranteed tenant's misses are its
    /// own doing.
    pub(super) fn observe(
        &mut self,
        reports: &[TenantReport],
        mut own: impl FnMut(&TenantReport) -> Option<Own>,
        config: &LpnsConfig,
        limit: u64,
        period_ends: bool,
        now: Nanos,
    ) -> Observed {
        let elapsed = self.last.map_or(config.interval, |last| now - last).max(Nanos(1));
        self.last = Some(now);
        let idle_after = config.period.0.div_ceil(config.interval.0);
        let mut seen_all = Observed {
            guaranteed: 0,
            protected: 0,
            best_effort: 0,
            slowest: None,
            slowest_iops: 0.0,
            target: None,
            guaranteed_iops: 0.0,
            guaranteed_depth: 0,
            verdict: Verdict::Open,
        };
        debug_assert!(reports.is_sorted_by_key(|report| report.tenant));
        std::mem::swap(&mut self.seen, &mut self.before);
        self.seen.clear();
        for report in reports {
            let own = own(report);
            let (mut seen, submitted) = self.advance(report, elapsed);
            let active = submitted.is_some_and(|submitted| submitted > 0)
                || seen.depth > 0
                || own.is_some_and(|own| own.backlogged);
            seen.idle = if active { 0 } else { seen.idle.saturating_add(1) };
            match report.class {
                Class::BestEffort { .. } => seen_all.best_effort += u32::from(active),
                Class::Guaranteed { latency_target, .. } => {
                    if let Some(submitted) = submitted {
                        seen_all.slowest = Some(seen_all.slowest.map_or(submitted, |slowest| slowest.min(submitted)));
                    }
                    seen_all.guaranteed += u32::from(active);
                    seen_all.guaranteed_iops += seen.iops;
                    if u64::from(seen.idle) < idle_after {
                        let depth = seen.depth;
                        let judge =
                            |target| seen.judge(report, target, config.miss_budget_permille, limit, period_ends);
                        seen_all.protect(depth, latency_target, judge);
                    }
                }
            }
            self.seen.push((report.tenant, seen));
        }
        seen_all.slowest_iops = seen_all.slowest.unwrap_or(0) as f64 * 1e9 / elapsed.0 as f64;
        seen_all
    }

    /// What is known of a tenant with this report, and the commands submitted since the last one, if there was one.
    fn advance(&self, report: &TenantReport, elapsed: Nanos) -> (Seen, Option<u64>) {
        let TenantReport { submitted, completed, .. } = *report;
        // A host that stood still is none of the drive's doing, and others made to wait would not mend it.
        let violations = report.violations.saturating_sub(report.stalled);
        // Mostly the same tenants as before, in the same order.
        let same = self.before.get(self.seen.len()).filter(|entry| entry.0 == report.tenant);
        let known = same.map(|entry| entry.1).or_else(|| find(&self.before, report.tenant));
        // When a tenant seen for the first time did what it did before is not known.
        let mut seen = known.unwrap_or(Seen { submitted, completed, violations, ..Seen::default() });
        // A total fell because one of the tenant's pollers let it go, together with its counts.
        let newly_submitted = submitted.saturating_sub(seen.submitted);
        let newly_completed = completed.saturating_sub(seen.completed);
        if seen.target != report.class.latency_target() {
            // Nobody is judged by what happened under another promise.
            seen = Seen { target: report.class.latency_target(), samples: 0, missed: 0, bank: 0, ..seen };
        } else {
            seen.samples += newly_completed;
            seen.missed += violations.saturating_sub(seen.violations);
        }
        (seen.submitted, seen.completed, seen.violations) = (submitted, completed, violations);
        // Little's law, or what is in flight at this moment if that is more.
        let mean = match newly_completed {
            // Most tenants mostly: no division.
            0 => 0,
            completed => u128::from(completed) * u128::from(report.mean_latency.0) / u128::from(elapsed.0),
        };
        seen.depth = submitted.saturating_sub(completed).max(mean as u64);
        seen.iops = if newly_submitted == 0 { 0.0 } else { newly_submitted as f64 * 1e9 / elapsed.0 as f64 };
        (seen, known.map(|_| newly_submitted))
    }
}

fn find(seen: &[(TenantId, Seen)], tenant: TenantId) -> Option<Seen> {
    let at = seen.binary_search_by_key(&tenant, |entry| entry.0).ok()?;
    Some(seen[at].1)
}

impl Seen {
    /// Each command earns half of what the promise allows it to miss; each miss spends one. A promise is missed when
    /// nothing is left: a hiccup of the host is paid from savings, a drive that is too full is not.
    fn judge(
        &mut self,
        report: &TenantReport,
        target: Nanos,
        budget_permille: u32,
        limit: u64,
        period_ends: bool,
    ) -> Verdict {
        let own_doing = self.depth >= limit;
        let mean_missed = report.mean_latency > target;
        if !mean_missed && self.samples < JUDGED_SAMPLES && !(period_ends && self.samples > 0) {
            return Verdict::Open;
        }
        let (samples, missed) = (std::mem::take(&mut self.samples), std::mem::take(&mut self.missed));
        let earned = (samples * u64::from(budget_permille) / SPENT_OF_BUDGET) as i64;
        let spent = (missed * 1000) as i64;
        let most = (self.iops * f64::from(budget_permille) / SPENT_OF_BUDGET as f64 * SAVED_SECONDS) as i64;
        let left = (self.bank + earned - spent).min(most);
        self.bank = left.max(0);
        match () {
            () if mean_missed => Verdict::Missed,
            // Its misses then include the time in its own queue, which nobody else can shorten.
            () if own_doing && report.mean_latency.0 > target.0 / 10 * 9 => Verdict::Kept,
            () if own_doing => Verdict::Comfortable,
            () if left < 0 => Verdict::Missed,
            () if spent * 4 > earned => Verdict::Kept,
            () => Verdict::Comfortable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS10: u64 = 10_000_000;

    fn guaranteed(tenant: u32, submitted: u64, violations: u64) -> TenantReport {
        TenantReport {
            submitted,
            completed: submitted,
            violations,
            mean_latency: Nanos::from_micros(20),
            ..TenantReport::new(TenantId(tenant), Class::guaranteed(Some(Nanos::from_micros(50))))
        }
    }

    fn best_effort(tenant: u32, submitted: u64, weight: u32) -> TenantReport {
        TenantReport { class: Class::BestEffort { weight }, ..guaranteed(tenant, submitted, 0) }
    }

    fn observe(detector: &mut Detector, interval: u64, reports: &[TenantReport]) -> Observed {
        let own =
            |TenantReport { tenant, .. }: &TenantReport| (tenant.0 >= 10).then_some(Own { backlogged: tenant.0 == 12 });
        let config = LpnsConfig::p5800x();
        detector.observe(reports, own, &config, 30, interval.is_multiple_of(20), Nanos(interval * MS10))
    }

    #[test]
    fn counts_rates_and_activity() {
        let mut detector = Detector::default();
        observe(&mut detector, 1, &[guaranteed(0, 500, 0), guaranteed(1, 7, 0), best_effort(12, 9, 3)]);
        let seen = observe(&mut detector, 2, &[guaranteed(0, 900, 0), guaranteed(1, 7, 0), best_effort(12, 9, 3)]);
        assert_eq!((seen.guaranteed, seen.protected, seen.best_effort), (1, 2, 1));
        assert_eq!((seen.slowest, seen.slowest_iops), (Some(0), 0.0));
        assert!((seen.guaranteed_iops - 40_000.0).abs() < 1e-6);
        assert_eq!(seen.guaranteed_depth, 2);
        assert_eq!(seen.target, Some(Nanos::from_micros(50)));
    }

    #[test]
    fn a_tenant_is_protected_for_a_period_after_its_last_command() {
        let mut detector = Detector::default();
        observe(&mut detector, 1, &[guaranteed(0, 0, 0)]);
        observe(&mut detector, 2, &[guaranteed(0, 1, 0)]);
        let protected = |detector: &mut Detector, at| observe(detector, at, &[guaranteed(0, 1, 0)]).protected;
        assert!((3..22).all(|at| protected(&mut detector, at) == 1));
        assert_eq!(protected(&mut detector, 22), 0);
    }

    #[test]
    fn promises_are_judged_by_misses_among_enough_commands() {
        let mut detector = Detector::default();
        let mut verdict =
            |at, submitted, violations| observe(&mut detector, at, &[guaranteed(0, submitted, violations)]).verdict;
        verdict(1, 0, 0);
        assert_eq!(verdict(2, 60, 0), Verdict::Open);
        // 1060 commands earn 5.3 misses; one is spent.
        assert_eq!(verdict(3, 1060, 1), Verdict::Comfortable);
        assert_eq!(verdict(4, 2060, 4), Verdict::Kept);
        // 6.3 saved and 5 earned pay for eleven misses, not for twelve.
        assert_eq!(verdict(5, 3060, 15), Verdict::Kept);
        assert_eq!(verdict(6, 4060, 21), Verdict::Missed);
        assert_eq!(verdict(7, 4070, 22), Verdict::Open);
        assert_eq!(verdict(20, 4070, 22), Verdict::Missed, "the period's end judges what there is");
    }

    #[test]
    fn a_poller_that_stood_still_is_no_miss() {
        let mut detector = Detector::default();
        let stalled =
            |submitted, violations| TenantReport { stalled: violations, ..guaranteed(0, submitted, violations) };
        observe(&mut detector, 1, &[stalled(0, 0)]);
        assert_eq!(observe(&mut detector, 2, &[stalled(1_000, 900)]).verdict, Verdict::Comfortable);
        let one_more = TenantReport { violations: 1_812, ..stalled(2_000, 1_800) };
        assert_eq!(observe(&mut detector, 3, &[one_more]).verdict, Verdict::Missed);
    }

    #[test]
    fn a_tenant_at_its_own_limit_is_judged_by_its_mean_alone() {
        let mut detector = Detector::default();
        let deep =
            |submitted, violations| TenantReport { completed: submitted - 40, ..guaranteed(0, submitted, violations) };
        observe(&mut detector, 1, &[deep(40, 0)]);
        assert_eq!(observe(&mut detector, 2, &[deep(1040, 900)]).verdict, Verdict::Comfortable);
        let narrow = TenantReport { mean_latency: Nanos::from_micros(46), ..deep(1540, 900) };
        assert_eq!(observe(&mut detector, 3, &[narrow]).verdict, Verdict::Kept);
        let late = TenantReport { mean_latency: Nanos::from_micros(51), ..deep(2040, 900) };
        assert_eq!(observe(&mut detector, 4, &[late]).verdict, Verdict::Missed);
    }

    #[test]
    fn a_sum_that_falls_lost_a_poller_and_counts_on_from_there() {
        let mut detector = Detector::default();
        observe(&mut detector, 1, &[guaranteed(0, 5000, 0)]);
        assert_eq!(observe(&mut detector, 2, &[guaranteed(0, 30, 0)]).slowest, Some(0));
        assert_eq!(observe(&mut detector, 3, &[guaranteed(0, 80, 0)]).slowest, Some(50));
    }

    #[test]
    fn who_left_the_reports_is_forgotten_and_the_next_one_starts_anew() {
        let mut detector = Detector::default();
        observe(&mut detector, 1, &[guaranteed(3, 5000, 0), guaranteed(4, 0, 0)]);
        observe(&mut detector, 2, &[guaranteed(4, 900, 0)]);
        assert_eq!((detector.load_of(TenantId(3)), detector.seen.len()), ((0, 0.0), 1));
        let seen = observe(&mut detector, 3, &[guaranteed(4, 950, 0), guaranteed(5, 30, 0)]);
        assert_eq!(seen.slowest, Some(50), "when the new one sent its 30 is not known");
    }

    #[test]
    fn misses_under_another_promise_are_nobodys() {
        let mut detector = Detector::default();
        observe(&mut detector, 1, &[guaranteed(0, 0, 0)]);
        let looser = |submitted, violations| TenantReport {
            class: Class::guaranteed(Some(Nanos::from_micros(500))),
            ..guaranteed(0, submitted, violations)
        };
        assert_eq!(observe(&mut detector, 2, &[looser(1_000, 900)]).verdict, Verdict::Open);
        assert_eq!(observe(&mut detector, 3, &[looser(2_000, 900)]).verdict, Verdict::Comfortable);
        assert_eq!(observe(&mut detector, 4, &[looser(3_000, 1_800)]).verdict, Verdict::Missed);
    }
}
