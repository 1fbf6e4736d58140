//! Earlier promises. A promise is made where it will be kept, and stands until a change makes it worse.
//!
//! "Worse" means later by more than forecasts can tell apart.

use config::{Config, Tenant};
use io_model::Nanos;
use planner::FloorForecast;
use policy::{Class, Terms};
use ssd_model::Profile;

use crate::judged::Judged;
use crate::planning;

/// What of a promise is missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A latency, beside all that others ask for.
    Target,
    /// What a tenant gets at least.
    Floor,
    /// A latency, beside nothing but floors.
    BesideFloors,
}

/// What forecasts can't tell apart: a promise that stands may seem to be missed by so much.
const RESOLUTION: f64 = 0.02;

/// Whether a latency is one that a target stands with.
pub(crate) fn is_within(latency: Nanos, target: Nanos) -> bool {
    latency.0 as f64 <= target.0 as f64 * (1.0 + RESOLUTION)
}

/// Whether what a tenant gets of a floor is enough for one that stands.
pub(crate) fn is_enough(floor: &FloorForecast) -> bool {
    FloorForecast { got_iops: floor.got_iops / (1.0 - RESOLUTION), ..*floor }.is_kept()
}

/// The tenants with the targets that they stand with.
pub(crate) fn loosened(tenants: &[planner::Tenant], stands: &[bool]) -> Vec<planner::Tenant> {
    let each = tenants.iter().zip(stands).map(|(tenant, stands)| match tenant.class {
        Class::Guaranteed { latency_target: Some(target), percentile } if *stands => {
            let target = Nanos((target.0 as f64 * (1.0 + RESOLUTION)) as u64);
            planner::Tenant { class: Class::Guaranteed { latency_target: Some(target), percentile }, ..tenant.clone() }
        }
        _ => tenant.clone(),
    });
    each.collect()
}

/// Whether a tenant has been promised by that name all that it is promised now.
pub(crate) fn was_promised(before: &Config, tenant: &Tenant) -> bool {
    if !tenant.is_promised() {
        return true;
    }
    let had = before.tenants.iter().find(|had| had.name == tenant.name);
    had.is_some_and(|had| !had.overcommit && asks_no_more(&had.terms, &tenant.terms))
}

fn asks_no_more(before: &Terms, now: &Terms) -> bool {
    let target = match (before.class.promise(), now.class.promise()) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some((had, of)), Some((wants, now_of))) => wants >= had && now_of.percent() <= of.percent(),
    };
    let (had, wants) = (before.floor, now.floor);
    target && wants.ios_per_sec <= had.ios_per_sec && wants.mbytes_per_sec <= had.mbytes_per_sec
}

/// What was served before a change.
pub(crate) struct Before {
    tenants: Vec<planner::Tenant>,
    judged: Judged,
}

impl Before {
    pub(crate) fn new(config: &Config, profile: &Profile) -> Self {
        let question = planning::of_config(config, profile);
        Self { judged: Judged::new(&question), tenants: question.tenants }
    }

    /// Whether a tenant's promise was missed by less than it is now, or not at all.
    pub(crate) fn was_better(&self, tenants: &[planner::Tenant], now: &Judged, tenant: usize, kind: Kind) -> bool {
        let Some(at) = self.tenants.iter().position(|it| it.name == tenants[tenant].name) else { return true };
        match kind {
            Kind::Target => {
                let latencies = self.judged.latency(&self.tenants, at).zip(now.latency(tenants, tenant));
                // Where there is no telling, what is missed is what the drive takes alone.
                latencies.map_or(!self.judged.promises().iter().any(|it| it.tenant == at), |(had, has)| had < has)
            }
            Kind::Floor => {
                let floors = self.judged.floor(at).zip(now.floor(tenant));
                floors.is_none_or(|(had, has)| had.got_iops > has.got_iops)
            }
            Kind::BesideFloors => !self.judged.floors.late.contains(&at),
        }
    }
}
