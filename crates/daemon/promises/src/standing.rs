//! Earlier promises. A promise is made where it will be kept, and stands until a change makes it worse.
//!
//! "Worse" means later by more than forecasts can tell apart.

use std::sync::Arc;

use config::{Config, Tenant};
use io_model::Nanos;
use planner::FloorForecast;
use policy::Terms;
use ssd_model::Profile;

use crate::forecasts::Forecasts;
use crate::judged::Judged;
use crate::planning;

/// What of a promise is missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A latency.
    Target,
    /// What a tenant gets at least.
    Floor,
}

/// What forecasts can't tell apart: a promise that stands may seem to be missed by so much.
const RESOLUTION: f64 = 0.05;

/// Whether a latency is one that a target stands with.
pub(crate) fn is_within(latency: Nanos, target: Nanos) -> bool {
    latency.0 as f64 <= target.0 as f64 * (1.0 + RESOLUTION)
}

/// Whether what a tenant gets of a floor is enough for one that stands.
pub(crate) fn is_enough(floor: &FloorForecast) -> bool {
    FloorForecast { got_iops: floor.got_iops / (1.0 - RESOLUTION), ..*floor }.is_kept()
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
    judged: Arc<Judged>,
}

impl Before {
    /// `None`: there is no forecast yet.
    pub(crate) fn new(config: &Config, profile: &Profile, forecasts: &Forecasts) -> Option<Self> {
        let question = planning::of_config(config, profile);
        Some(Self { judged: forecasts.judged(&question)?, tenants: question.tenants })
    }

    /// Whether a tenant's promise was missed by less than it is now, or not at all.
    pub(crate) fn was_better(&self, tenants: &[planner::Tenant], now: &Judged, tenant: usize, kind: Kind) -> bool {
        let Some(at) = self.tenants.iter().position(|it| it.name == tenants[tenant].name) else { return true };
        match kind {
            Kind::Target => {
                let latencies = self.judged.latency(at).zip(now.latency(tenant));
                // Where there is no telling, what is missed is what the drive takes alone.
                let was_told = || self.judged.promises().iter().any(|it| it.tenant == at);
                latencies.map_or_else(|| !was_told(), |(had, has)| !is_within(has, had))
            }
            Kind::Floor => {
                let floors = self.judged.floor(at).zip(now.floor(tenant));
                floors.is_none_or(|(had, has)| had.got_iops * (1.0 - RESOLUTION) > has.got_iops)
            }
        }
    }
}
