//! Whether the floors of best-effort tenants are kept, beside all other promises.

use policy::{Floor, PolicyConfig};

use crate::{LimitedBy, Load, Outcome, Planner, Tenant, TenantForecast, Verdict};

/// A floor is kept if its tenant gets this fraction of it: arrivals of a play are random.
const KEPT: f64 = 0.97;
/// If one tenant alone keeps the drive busier than this, the drive limits that tenant.
const BUSY: f64 = 0.9;

/// What keeps a tenant from its floor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FloorObstacle {
    /// Nothing.
    None,
    /// The tenant's own limits.
    Limits,
    /// The tenant's queue depth, even with the drive to itself.
    Depth {
        /// The queue depth.
        depth: u32,
        /// Commands per second with that depth, with the drive to itself.
        alone_iops: f64,
    },
    /// The tenant's queue depth, beside the other promises.
    DepthBeside {
        /// The queue depth.
        depth: u32,
    },
    /// The drive's speed, even with no other tenant.
    DriveAlone {
        /// Commands per second with no other tenant.
        alone_iops: f64,
    },
    /// Floors and targets of other tenants: together they exceed the drive.
    Others,
}

/// The prediction for one floor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FloorForecast {
    /// Index of the tenant.
    pub tenant: usize,
    /// Commands per second that the floor amounts to at the tenant's command sizes, or the declared load if that is
    /// less.
    pub asked_iops: f64,
    /// Commands per second of these that the tenant is expected to get.
    pub got_iops: f64,
    /// What keeps it from more.
    pub obstacle: FloorObstacle,
}

impl FloorForecast {
    /// Whether the floor may be promised.
    pub fn is_kept(&self) -> bool {
        self.got_iops >= KEPT * self.asked_iops
    }
}

/// The prediction for all promises together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FloorsForecast {
    /// Each floor, in the order of the tenants.
    pub floors: Vec<FloorForecast>,
    /// Indices of guaranteed tenants whose targets fit together, but not beside the floors.
    pub late: Vec<usize>,
}

/// Judges all floors under a policy that keeps floors. `outcome` is that of `policy` and `tenants`.
pub fn judge_floors(
    planner: &Planner<'_>,
    policy: &PolicyConfig,
    tenants: &[Tenant],
    outcome: &Outcome,
) -> FloorsForecast {
    let all = || tenants.iter().zip(&outcome.forecast.tenants).enumerate();
    if !policy.kind().keeps_floors() || tenants.iter().all(|tenant| tenant.floor.is_empty()) {
        return FloorsForecast::default();
    }
    let with_floor = all().filter(|(_, (tenant, _))| !tenant.floor.is_empty());
    let floor = |(at, (tenant, own)): (usize, (&Tenant, &TenantForecast))| {
        let floor_iops = tenant.floor_iops();
        let asked_iops = match tenant.load {
            Load::Open { rate_iops } => rate_iops.min(floor_iops),
            Load::Closed { .. } => floor_iops,
        };
        let got_iops = own.iops.min(asked_iops);
        let forecast = FloorForecast { tenant: at, asked_iops, got_iops, obstacle: FloorObstacle::None };
        let obstacle = || obstacle(planner, policy, (tenant, own), asked_iops);
        if forecast.is_kept() { forecast } else { FloorForecast { obstacle: obstacle(), ..forecast } }
    };
    FloorsForecast { floors: with_floor.map(floor).collect(), late: late(planner, policy, tenants, outcome) }
}

/// What keeps a tenant from its floor.
fn obstacle(
    planner: &Planner<'_>,
    policy: &PolicyConfig,
    (tenant, own): (&Tenant, &TenantForecast),
    asked_iops: f64,
) -> FloorObstacle {
    if tenant.most_iops().is_some_and(|most| most < KEPT * asked_iops) {
        return FloorObstacle::Limits;
    }
    let alone = planner.guess(policy, std::slice::from_ref(tenant)).map(|outcome| outcome.forecast);
    let alone_iops = alone.as_ref().and_then(|alone| alone.tenants.first()).map_or(f64::INFINITY, |own| own.iops);
    let waits_for_turn = matches!(own.limited_by, LimitedBy::Share | LimitedBy::Throttle | LimitedBy::Poller);
    match tenant.load {
        Load::Closed { depth } if alone_iops < KEPT * asked_iops => match alone {
            Some(alone) if alone.drive_utilization < BUSY => FloorObstacle::Depth { depth, alone_iops },
            _ => FloorObstacle::DriveAlone { alone_iops },
        },
        Load::Open { .. } if alone_iops < KEPT * asked_iops => FloorObstacle::DriveAlone { alone_iops },
        Load::Closed { depth } if !waits_for_turn => FloorObstacle::DepthBeside { depth },
        _ => FloorObstacle::Others,
    }
}

/// Tenants that miss their targets beside floors, and would not without these.
fn late(planner: &Planner<'_>, policy: &PolicyConfig, tenants: &[Tenant], outcome: &Outcome) -> Vec<usize> {
    let missed = |outcome: &Outcome| -> Vec<usize> {
        outcome.broken().filter(|it| it.verdict == Verdict::NotKept).map(|it| it.tenant).collect()
    };
    let mut late = missed(outcome);
    if !late.is_empty() {
        let without = |tenant: &Tenant| Tenant { floor: Floor::default(), ..tenant.clone() };
        let without = planner.outcome(policy, &tenants.iter().map(without).collect::<Vec<_>>());
        let still = without.map_or_else(|_| late.clone(), |outcome| missed(&outcome));
        late.retain(|at| !still.contains(at));
    }
    late
}

#[cfg(test)]
mod tests {
    use policy::{EvenkeelConfig, Limits};

    use super::*;
    use crate::fake;

    fn judged(tenants: &[Tenant]) -> FloorsForecast {
        let site = fake::site();
        let (planner, policy) = (Planner::new(&site), PolicyConfig::Evenkeel(EvenkeelConfig::p5800x()));
        let outcome = planner.outcome(&policy, tenants).unwrap();
        judge_floors(&planner, &policy, tenants, &outcome)
    }

    /// A tenant that reads 4 KiB at this depth with this floor.
    fn floor(name: &str, depth: u32, ios_per_sec: u64) -> Tenant {
        let floor = Floor { ios_per_sec, ..Floor::default() };
        Tenant { vcpus: 8, floor, ..fake::best_effort(name, depth) }
    }

    #[test]
    fn floors_fit_until_the_drive_is_full() {
        let judged = |ios: [u64; 2]| judged(&[floor("a", 64, ios[0]), floor("b", 64, ios[1])]);
        let few = judged([50_000, 0]);
        let [one] = few.floors[..] else { panic!("{few:?}") };
        assert!(one.is_kept() && one.tenant == 0 && few.late.is_empty(), "{few:?}");
        let many = judged([700_000, 500_000]);
        assert!(many.floors.iter().any(|floor| !floor.is_kept()), "{many:?}");
        assert_eq!(judged([0, 0]), FloorsForecast::default());
    }

    #[test]
    fn a_tenant_with_too_few_commands_or_a_limit_is_told_why() {
        let limits = Limits { rw_mbytes_per_sec: 10, ..Limits::default() };
        let tenants = [floor("lone", 1, 200_000), Tenant { limits, ..floor("held", 64, 20_000) }];
        let [lone, held] = judged(&tenants).floors[..] else { panic!("two floors") };
        assert!(matches!(lone.obstacle, FloorObstacle::Depth { depth: 1, .. }), "{lone:?}");
        assert_eq!(held.obstacle, FloorObstacle::Limits);
        assert!((100_000.0..140_000.0).contains(&lone.got_iops) && (2_400.0..2_700.0).contains(&held.got_iops));
        let [much] = judged(&[floor("much", 256, 10_000_000)]).floors[..] else { panic!("one floor") };
        assert!(matches!(much.obstacle, FloorObstacle::DriveAlone { .. }), "{much:?}");
    }

    #[test]
    fn a_tenant_that_asks_for_less_than_its_floor_is_judged_by_what_it_asks() {
        let floor = Floor { ios_per_sec: 0, mbytes_per_sec: 1_000_000 };
        let tenant = Tenant { load: Load::Open { rate_iops: 1_000.0 }, floor, ..fake::best_effort("a", 1) };
        let judged = judged(&[tenant]);
        assert!((judged.floors[0].asked_iops - 1_000.0).abs() < 1e-6 && judged.floors[0].is_kept(), "{judged:?}");
    }
}
