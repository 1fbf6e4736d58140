//! Whether what best-effort tenants are to get at least fits on the drive, beside what others were promised.

use policy::{Floor, PolicyConfig};

use crate::{Load, Site, Tenant, Unmodelled, predict};

/// What is less than that part of a floor does not keep it.
const KEPT: f64 = 0.98;

/// A floor, judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FloorForecast {
    /// Index of the tenant.
    pub tenant: usize,
    /// Commands per second that the floor comes to with the tenant's sizes, or what it declared if that is less.
    pub asked_iops: f64,
    /// Those that it is expected to get of them.
    pub got_iops: f64,
}

impl FloorForecast {
    /// Whether it may be promised.
    pub fn is_kept(&self) -> bool {
        self.got_iops >= KEPT * self.asked_iops
    }
}

/// What becomes of all promises at once.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FloorsForecast {
    /// Each floor, in the order of the tenants.
    pub floors: Vec<FloorForecast>,
    /// Guaranteed tenants, by index, whose targets can't be kept beside the floors alone.
    pub late: Vec<usize>,
}

/// Judges all `floors` (one for each tenant, empty or not). Who was promised nothing is left out: it can be held back
/// as far as need be.
///
/// # Errors
/// A demand that the model does not know.
pub fn judge_floors(site: &Site, tenants: &[Tenant], floors: &[Floor]) -> Result<FloorsForecast, Unmodelled> {
    let asked = |tenant: &Tenant, floor: &Floor| {
        let least = floor.iops(tenant.mean_len_bytes());
        match tenant.load {
            Load::Open { rate_iops } => rate_iops.min(least),
            Load::Closed { .. } => least,
        }
    };
    let each = tenants.iter().zip(floors).enumerate();
    let promised = each.filter(|(_, (tenant, floor))| !floor.is_empty() || tenant.class.is_guaranteed());
    let (places, asking): (Vec<(usize, Option<f64>)>, Vec<Tenant>) = promised
        .map(|(at, (tenant, floor))| match floor.is_empty() {
            true => ((at, None), tenant.clone()),
            false => {
                let rate_iops = asked(tenant, floor);
                ((at, Some(rate_iops)), Tenant { load: Load::Open { rate_iops }, ..tenant.clone() })
            }
        })
        .unzip();
    let mut found = FloorsForecast::default();
    if places.iter().all(|(_, floor)| floor.is_none()) {
        return Ok(found);
    }
    // Nobody is left whom a policy would hold back.
    let forecast = predict(site, &PolicyConfig::Passthrough, &asking)?;
    for ((tenant, floor), own) in places.into_iter().zip(&forecast.tenants) {
        match floor {
            Some(asked_iops) => found.floors.push(FloorForecast { tenant, asked_iops, got_iops: own.iops }),
            None if tenants[tenant].class.promise().is_some_and(|(target, percentile)| own.at(percentile) > target) => {
                found.late.push(tenant)
            }
            None => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use policy::Class;
    use ssd_model::Profile;

    use super::*;
    use crate::{Host, fake};

    #[test]
    fn floors_fit_until_the_drive_is_full_and_targets_count_beside_them() {
        let site = Site { profile: Profile::p5800x(), host: Host::FREE };
        let [a, b] = ["a", "b"].map(|name| Tenant { vcpus: 8, ..fake::best_effort(name, 64) });
        let tenants = [fake::guaranteed("db", 40), a, b];
        let judged = |ios: [u64; 2]| {
            let [a, b] = ios.map(|ios_per_sec| Floor { ios_per_sec, ..Floor::default() });
            judge_floors(&site, &tenants, &[Floor::default(), a, b]).unwrap()
        };
        let few = judged([50_000, 0]);
        let [one] = few.floors[..] else { panic!("{few:?}") };
        assert!(one.is_kept() && one.tenant == 1 && few.late.is_empty(), "{few:?}");
        let many = judged([900_000, 900_000]);
        assert!(many.floors.iter().all(|floor| !floor.is_kept()) && many.late == [0], "{many:?}");
        assert_eq!(judged([0, 0]), FloorsForecast::default());
    }

    #[test]
    fn who_asks_for_less_than_its_floor_is_taken_for_that() {
        let site = Site { profile: Profile::p5800x(), host: Host::FREE };
        let class = Class::BestEffort { weight: 1 };
        let tenant = Tenant { class, load: Load::Open { rate_iops: 1_000.0 }, ..fake::best_effort("a", 1) };
        let floor = Floor { ios_per_sec: 0, mbytes_per_sec: 1_000_000 };
        let judged = judge_floors(&site, &[tenant], &[floor]).unwrap();
        assert!((judged.floors[0].asked_iops - 1_000.0).abs() < 1e-6 && judged.floors[0].is_kept());
    }
}
