//! Checks of `evenkeel` over a longer time: floors are kept, and a looser promise never costs other tenants more.
//!
//! The second check plays the scenario again with other targets.

use fastrand::Rng;
use io_model::{Nanos, Op};
use planner::drive_figures;
use policy::{COST_UNIT, Class, EvenkeelConfig, Floor, Limits, PolicyConfig, Terms};
use rivals::LabConfig::Product;
use ssd_model::Profile;

use crate::workload::{Access, Arrivals, BlockSize, Fio, Open, Workload};
use crate::{
    Change, ChangeKind, Layout, Moments, Report, Rule, Scenario, ScenarioError, Tenant, TenantReport, Violation,
};

/// A floor counts as kept from this fraction of it on.
const KEPT: f64 = 0.98;
/// The drive can give the floors if it gives this percentage of each with only the tenants that have a promise.
const SPARE_PERCENT: u64 = 110;
/// If floors don't fit, all tenants with a floor get the same fraction of it, up to this one. A tenant with a queue
/// depth below `DEEP` is exempt, because the depth may be too small for its floor.
const SAME: f64 = 0.8;
const DEEP: u32 = 32;
/// Other tenants' throughput may change in the wrong direction by this fraction: each play draws other random numbers.
const TOLERANCE: f64 = 0.05;
/// The number of plays to average, each with other random numbers.
const PLAYS: u64 = 5;
/// How long a tenant without any promise may get nothing. It has 1/64 of the work, and its next long write may be a
/// large part of that. The second limit is for several pollers with floors that can't be kept.
const STARVATION: Nanos = Nanos::from_millis(100);
const STARVATION_BESIDE_POLLERS: Nanos = Nanos::from_millis(400);
/// Targets for playing again, in percent.
const LOOSER_PERCENT: u64 = 150;
const TIGHTER_PERCENT: u64 = 67;

/// Plays a scenario, with its own policy or one that is broken on purpose.
pub(super) type Play<'a> = dyn FnMut(&Scenario) -> Result<Report, ScenarioError> + 'a;

/// The verdict on a scenario.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) report: Report,
    /// Violations without an excuse.
    pub(super) violations: Vec<Violation>,
    /// Why a floor that was not kept need not be.
    pub(super) excuses: Vec<&'static str>,
    /// I/Os of all plays together.
    pub(super) simulated_ios: u64,
}

/// Plays the scenario, and again with other targets.
///
/// # Errors
/// The scenario can't be played.
pub(super) fn judge(scenario: &Scenario, play: &mut Play<'_>) -> Result<Judged, ScenarioError> {
    let report = play(scenario)?;
    let simulated_ios = report.simulated_ios;
    let violations = report.broken.clone();
    let mut judged = Judged { report, violations, excuses: Vec::new(), simulated_ios };
    judged.floors(scenario, play)?;
    for percent in [LOOSER_PERCENT, TIGHTER_PERCENT] {
        judged.monotone(scenario, percent, play)?;
    }
    Ok(judged)
}

impl Judged {
    fn violate(&mut self, scenario: &Scenario, rule: Rule, tenant: Option<usize>, what: String) {
        let at_ns = (scenario.warmup + scenario.duration).0;
        self.violations.push(Violation { at_ns, rule, tenant: tenant.map(|at| at as u16), what });
    }

    /// Checks floors: a tenant with a steady load gets its floor if the drive can give all of them. Otherwise all get
    /// the same fraction.
    fn floors(&mut self, scenario: &Scenario, play: &mut Play<'_>) -> Result<(), ScenarioError> {
        let short: Vec<(usize, f64)> = self.parts(scenario).filter(|(_, part)| *part < KEPT).collect();
        if short.is_empty() {
            return Ok(());
        }
        let alone = alone_with_promises(scenario);
        let reference = play(&Scenario { policy: PolicyConfig::Passthrough.into(), ..alone.clone() })?;
        self.simulated_ios += reference.simulated_ios;
        let spare = SPARE_PERCENT as f64 / 100.0;
        let fits = |(tenant, seen): (&Tenant, &TenantReport)| {
            tenant.terms.floor.is_empty() || part(&tenant.terms.floor, seen) >= KEPT * spare
        };
        let all_fit = alone.tenants.iter().zip(&reference.tenants).all(fits);
        // What all get at least, as a fraction of their floors. It is below 1 if the floors don't fit.
        let most = self.parts(scenario).map(|(_, part)| part.min(1.0)).fold(0.0, f64::max);
        let least = if all_fit { KEPT } else { most * SAME };
        for (at, part) in short {
            let depth = commands(&scenario.tenants[at].workload);
            if part >= least {
                self.excuses.push("evenkeel: floors that the drive can't give beside what was promised");
            } else if depth < 2 || !all_fit && depth < DEEP {
                self.excuses.push("evenkeel: a floor of who has few commands at a time");
            } else {
                let what = format!(
                    "tenant {at} got {:.1} % of its floor and always asked, {:.1} % is the least",
                    part * 100.0,
                    least * 100.0
                );
                self.violate(scenario, Rule::Floors, Some(at), what);
            }
        }
        Ok(())
    }

    /// Each tenant with a floor, and the fraction of it that it got.
    fn parts(&self, scenario: &Scenario) -> impl Iterator<Item = (usize, f64)> {
        let tenants = scenario.tenants.iter().zip(&self.report.tenants).enumerate();
        let with_floor = tenants.filter(|(_, (tenant, _))| !tenant.terms.floor.is_empty());
        with_floor.map(|(at, (tenant, seen))| (at, part(&tenant.terms.floor, seen)))
    }

    /// Checks that other tenants get no less beside looser targets, and no more beside tighter ones. Near the drive's
    /// limit their throughput varies, so a failure is played again with other random numbers.
    fn monotone(&mut self, scenario: &Scenario, percent: u64, play: &mut Play<'_>) -> Result<(), ScenarioError> {
        let other = with_targets(scenario, percent);
        let again = play(&other)?;
        self.simulated_ios += again.simulated_ios;
        let work = [&self.report, &again].map(|report| others_work(scenario, report));
        if !is_worse(percent, work) {
            return Ok(());
        }
        // With all work in flight, weights decide nothing: equal work may take one tenant longer than another.
        let alone = others_alone(scenario, play)?;
        self.simulated_ios += alone.iter().map(|report| report.simulated_ios).sum::<u64>();
        let mut parts = [&self.report, &again].map(|report| others_part(scenario, report, &alone));
        if !is_worse(percent, parts) {
            return Ok(());
        }
        for seed in 1..PLAYS {
            for (part, scenario) in parts.iter_mut().zip([scenario, &other]) {
                let report = play(&Scenario { seed: scenario.seed.wrapping_add(seed), ..scenario.clone() })?;
                self.simulated_ios += report.simulated_ios;
                *part += others_part(scenario, &report, &alone);
            }
        }
        let parts = parts.map(|part| part / PLAYS as f64);
        if is_worse(percent, parts) {
            let ([before, after], [was, is]) = (work, parts);
            let what = format!(
                "others got {before:.0} commands' worth, {after:.0} beside {percent} % of every target; in {PLAYS} \
                 plays {was:.2} and {is:.2} of what each gets alone"
            );
            self.violate(scenario, Rule::Monotone, None, what);
        }
        Ok(())
    }
}

/// Whether the other tenants' throughput changed in the wrong direction.
fn is_worse(percent: u64, [before, after]: [f64; 2]) -> bool {
    if percent > 100 { after < before * (1.0 - TOLERANCE) } else { after > before * (1.0 + TOLERANCE) }
}

/// The fraction of its floor that a tenant got.
fn part(floor: &Floor, seen: &TenantReport) -> f64 {
    let part = |got: f64, of: u64| if of == 0 { f64::INFINITY } else { got / of as f64 };
    part(seen.iops, floor.ios_per_sec).min(part(seen.bandwidth_bytes_s, floor.mbytes_per_sec << 20))
}

/// The scenario without tenants that have no promise. Tenants with a floor ask for it and a little more.
fn alone_with_promises(scenario: &Scenario) -> Scenario {
    let mut alone = scenario.clone();
    for (at, tenant) in alone.tenants.iter_mut().enumerate() {
        let Floor { ios_per_sec, mbytes_per_sec } = tenant.terms.floor;
        if !tenant.terms.floor.is_empty() {
            // Only one of the two kinds is drawn; the other is no limit.
            let [rw_ios_per_sec, rw_mbytes_per_sec] =
                [ios_per_sec, mbytes_per_sec].map(|of| (of * SPARE_PERCENT).div_ceil(100));
            tenant.terms.limits = Limits { rw_ios_per_sec, rw_mbytes_per_sec, ..Limits::default() };
        } else if !tenant.terms.class.is_guaranteed() {
            alone.changes.push(Change { at: Nanos(0), tenant: at, kind: ChangeKind::Leaves });
        }
    }
    alone
}

fn with_targets(scenario: &Scenario, percent: u64) -> Scenario {
    let mut again = scenario.clone();
    for tenant in &mut again.tenants {
        if let Class::Guaranteed { latency_target: Some(target), .. } = &mut tenant.terms.class {
            target.0 = target.0 * percent / 100;
        }
    }
    again
}

/// Work of all tenants without a promise, in reference commands. A cap leaves them work, and bytes read and bytes
/// written are not worth the same.
fn others_work(scenario: &Scenario, report: &Report) -> f64 {
    let Product(PolicyConfig::Evenkeel(EvenkeelConfig { cost, .. })) = &scenario.policy else { return 0.0 };
    let others = scenario.tenants.iter().zip(&report.tenants);
    let work = |(_, seen): (&Tenant, &TenantReport)| {
        let len_bytes = (seen.bandwidth_bytes_s / seen.iops.max(1.0)) as u64;
        let of = |op: Op, seen: &Moments| seen.count as f64 * f64::from(cost.of(op, len_bytes));
        (of(Op::Read, &seen.reads) + of(Op::Write, &seen.writes)) / f64::from(COST_UNIT)
    };
    others.filter(|(tenant, _)| is_other(tenant)).map(work).sum()
}

fn is_other(tenant: &Tenant) -> bool {
    !tenant.terms.class.is_guaranteed()
}

/// Scenarios with one tenant without a promise each, alone on the drive.
fn others_alone(scenario: &Scenario, play: &mut Play<'_>) -> Result<Vec<Report>, ScenarioError> {
    let others = scenario.tenants.iter().filter(|tenant| is_other(tenant));
    let alone = others.map(|tenant| Scenario {
        policy: PolicyConfig::Passthrough.into(),
        tenants: vec![tenant.clone()],
        ..scenario.clone()
    });
    alone.map(|alone| play(&alone)).collect()
}

/// The sum of what each got as a fraction of what it gets alone: the fraction of the drive's time.
fn others_part(scenario: &Scenario, report: &Report, alone: &[Report]) -> f64 {
    let others = scenario.tenants.iter().zip(&report.tenants).filter(|(tenant, _)| is_other(tenant));
    let parts = others.zip(alone).map(|((_, seen), alone)| seen.iops / alone.tenants[0].iops.max(1.0));
    parts.sum()
}

/// Commands that a closed loop keeps outstanding.
fn commands(workload: &Workload) -> u32 {
    if let Workload::Fio(fio) = workload { fio.jobs.saturating_mul(fio.iodepth) } else { 0 }
}

/// A scenario under `evenkeel` on a known drive. Its promises can be kept, some tenants would use the whole drive, and
/// the floors usually fit. It is long enough for the policy to learn.
pub(super) fn draw(seed: u64) -> Scenario {
    let mut rng = Rng::with_seed(seed.rotate_left(40) ^ 0xf100);
    let known = Profile::built_in();
    let profile = known[rng.usize(..known.len())].clone();
    let config = EvenkeelConfig::on(&drive_figures(&profile));
    let mut tenants: Vec<Tenant> = (0..rng.usize(1..=2)).map(|_| promised(&mut rng, config.alone)).collect();
    for _ in 0..rng.usize(1..=3) {
        let weight = *pick(&mut rng, &[1, 1, 2, 8]);
        tenants.push(busy(&mut rng, Terms::best_effort(weight)));
    }
    // Their sum is 1/10 to 1/2 of the small commands that the drive can do. Sometimes it exceeds the drive.
    let floors = rng.usize(0..=2);
    let most = config.rate_iops * if rng.u8(..8) == 0 { 2.0 } else { rng.f64() * 0.4 + 0.1 };
    for _ in 0..floors {
        let mut tenant = busy(&mut rng, Terms::best_effort(1));
        tenant.terms.floor = floor(&mut rng, most / floors as f64, &tenant.workload);
        tenants.push(tenant);
    }
    for (at, tenant) in tenants.iter_mut().enumerate() {
        tenant.name = format!("t{at}");
    }
    let best_effort_pollers = pollers(seed);
    Scenario {
        layout: *pick(&mut rng, &[Layout::Evenkeel, Layout::Mdev]),
        best_effort_pollers,
        policy: PolicyConfig::Evenkeel(config).into(),
        tenants,
        // By then the policy has learned.
        warmup: Nanos::from_millis(2_000),
        duration: Nanos::from_millis(400),
        seed,
        starvation_limit: if best_effort_pollers > 1 { STARVATION_BESIDE_POLLERS } else { STARVATION },
        ..Scenario::new(profile)
    }
}

/// Sometimes several pollers, so that a tenant with a floor may be alone on one. Uses a random number generator of its
/// own.
fn pollers(seed: u64) -> u16 {
    let mut rng = Rng::with_seed(seed.rotate_left(24) ^ 0x5e11);
    if rng.u8(..4) == 0 { rng.u16(2..=3) } else { 1 }
}

fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.usize(..from.len())]
}

fn tenant(terms: Terms, workload: Workload) -> Tenant {
    Tenant {
        name: String::new(),
        terms,
        vcpus: 4,
        vqs: 4,
        queue_priorities: Vec::new(),
        encrypted_sector_bytes: None,
        first_writes: None,
        size_bytes: 1 << 30,
        workload,
    }
}

/// `alone`: the latency of a command with nothing else on the drive.
fn promised(rng: &mut Rng, alone: Nanos) -> Tenant {
    let target = Nanos(alone.0 * pick(rng, &[3, 4, 6, 10, 16]));
    let access = Access::random_4k(*pick(rng, &[100, 100, 70]));
    let workload = if rng.bool() {
        Workload::Fio(Fio { jobs: 1, iodepth: *pick(rng, &[1, 1, 4]), access })
    } else {
        let iops = *pick(rng, &[5_000.0, 10_000.0, 20_000.0]);
        Workload::Open(Open { jobs: 2, arrivals: Arrivals::Poisson { iops }, access, max_outstanding: 1_024 })
    };
    tenant(Terms::guaranteed(Some(target)), workload)
}

fn busy(rng: &mut Rng, terms: Terms) -> Tenant {
    let block_sizes = vec![BlockSize { bytes: *pick(rng, &[4, 16, 64, 128]) << 10, weight: 1 }];
    let access = Access { block_sizes, ..Access::random_4k(*pick(rng, &[0, 50, 70, 100])) };
    tenant(terms, Workload::Fio(Fio { jobs: 4, iodepth: *pick(rng, &[1, 4, 16, 64]), access }))
}

/// A floor worth this many commands of 4 KiB per second, as commands or as bytes.
fn floor(rng: &mut Rng, iops: f64, workload: &Workload) -> Floor {
    let kib = if let Workload::Fio(fio) = workload { fio.access.block_sizes[0].bytes >> 10 } else { 4 };
    match rng.bool() {
        true => Floor { ios_per_sec: (iops * 4.0 / f64::from(kib)).max(1.0) as u64, mbytes_per_sec: 0 },
        false => Floor { ios_per_sec: 0, mbytes_per_sec: (iops / 256.0).max(1.0) as u64 },
    }
}
