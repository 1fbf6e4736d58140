//! What each promise costs the others now, and what limits best-effort tenants, for the measured load.
//!
//! `evenkeel stats` asks for it. What is not known yet is played on another thread, and told the next time.

use api::{HeldRow, PriceRow};
use planner::{LimitedBy, Price, Tenant, TenantForecast};

use crate::ceilings::{Ceiling, Loads};
use crate::cpu_waits::CpuUse;
use crate::foresight::{Foresight, Observed};
use crate::verdict::{A_LOT, VERY_STARVED};

/// A tenant that waits for less than this fraction of a command's time is not limited by the policy.
const WAITS: f64 = 0.1;
/// A poller that is busy for this part of the time can't move more commands.
const BUSY: f64 = 0.95;

impl Foresight {
    /// Fills in what each promise costs and what holds others back; nothing where the policy holds nobody back for
    /// promises, the model could only mislead, or there is no answer yet. `cpu`: what pollers spent of the span.
    pub fn explain(&self, observed: &mut [Observed], cpu: &CpuUse) {
        if !self.model().is_some_and(|(_, policy)| policy.kind().throttles_best_effort()) {
            return;
        }
        let asking = |at: usize| Some((at, observed[at].measured.as_demand(self.asks_of(observed[at].id)?)?));
        let (places, tenants): (Vec<usize>, Vec<Tenant>) = (0..observed.len()).filter_map(asking).unzip();
        if tenants.is_empty() {
            return;
        }
        let question = self.question(&tenants);
        let Some(Ok(outcome)) = self.forecasts().outcome(&question) else { return };
        let Some(prices) = self.forecasts().prices(&question) else { return };
        let whose = strictest(&prices, &tenants).map(|tenant| observed[places[tenant]].row.name.clone());
        let loads = Loads::observed(observed, cpu);
        let held = |(at, forecast): (&usize, &TenantForecast)| {
            self.held(observed, *at, (&loads, cpu), forecast.limited_by, whose.as_deref())
        };
        let held: Vec<_> = places.iter().zip(&outcome.forecast.tenants).map(held).collect();
        for (at, held) in places.iter().zip(held) {
            observed[*at].row.held = held;
        }
        for price in prices.iter() {
            observed[places[price.tenant]].row.price = Some(row(price));
        }
    }

    /// What holds a tenant back that asks: what was measured first, then what the model takes for its limit. `whose`:
    /// the promise for which others are held back.
    fn held(
        &self,
        observed: &[Observed],
        at: usize,
        (loads, cpu): (&Loads<'_>, &CpuUse),
        limited_by: LimitedBy,
        whose: Option<&str>,
    ) -> Option<HeldRow> {
        let Observed { row, .. } = &observed[at];
        row.weight?;
        let by = |by: &str, whose: Option<&str>| Some(HeldRow { by: by.to_owned(), whose: whose.map(str::to_owned) });
        if let Some((plain, group)) = self.held_plainly(&observed[at], loads, cpu) {
            return by(plain, group.as_deref());
        }
        if limited_by == LimitedBy::Limits {
            return by("limits", None);
        }
        if limited_by == LimitedBy::Throttle {
            return by("promise", whose);
        }
        let all_bytes: f64 = observed.iter().map(|it| it.row.bw_bytes).sum();
        let others = || observed.iter().enumerate().filter(|(other, it)| *other != at && !it.measured.is_idle());
        let with_floor = others().filter(|(_, it)| it.row.floor.is_some() && it.row.bw_bytes > all_bytes * A_LOT);
        let heaviest = with_floor.max_by(|(_, one), (_, other)| one.row.bw_bytes.total_cmp(&other.row.bw_bytes));
        match (heaviest, limited_by) {
            (Some((_, it)), _) => by("floor", Some(&it.row.name)),
            (None, LimitedBy::Poller) => by("poller", None),
            (None, LimitedBy::Share) if others().next().is_some() => by("share", None),
            (None, _) => by("drive", None),
        }
    }

    /// What needs no model; the group, if it is its ceiling.
    fn held_plainly(&self, own: &Observed, loads: &Loads<'_>, cpu: &CpuUse) -> Option<(&'static str, Option<String>)> {
        let row = &own.row;
        let (spent, waits) = (cpu.most(&row.pollers), row.waited_us >= row.mean_us * WAITS);
        if let Some(Ceiling { group, .. }) = self.ceiling(own.id, loads).filter(|_| waits) {
            return Some((if group.is_some() { "group" } else { "limits" }, group));
        }
        if spent.waited > VERY_STARVED {
            return Some(("cpu", None));
        }
        if !waits {
            return Some(("depth", None));
        }
        (spent.busy > BUSY).then_some(("poller", None))
    }
}

/// The promise that limits the others most: without it they would get most. Among equals, the one with the lowest
/// target.
fn strictest(prices: &[Price], tenants: &[Tenant]) -> Option<usize> {
    let most = prices.iter().map(|price| price.without_bytes_s).fold(0.0, f64::max);
    let alike = prices.iter().filter(|price| price.without_bytes_s >= most * 0.99);
    alike.map(|price| price.tenant).min_by_key(|tenant| tenants[*tenant].target())
}

fn row(price: &Price) -> PriceRow {
    PriceRow {
        others_bw_bytes: price.others_bytes_s,
        without_bw_bytes: price.without_bytes_s,
        looser_target_us: price.looser.as_micros_f64(),
        looser_bw_bytes: price.looser_bytes_s,
    }
}

#[cfg(test)]
mod tests {

    use io_model::{Nanos, TenantId};

    use super::*;
    use crate::cpu_waits::Spent;
    use crate::verdict::{Lateness, Measured};

    const FILE: &str = "[device]\nbackend = \"model\"\nprofile = \"p5800x\"\nsize = \"64MiB\"\n\
        [policy]\nname = \"evenkeel\"\n\
        [[tenant]]\nname = \"db\"\nsize = \"8MiB\"\nclass = \"guaranteed\"\nlatency_target = \"50us\"\n\
        [[tenant]]\nname = \"batch\"\nsize = \"8MiB\"\n\
        [[tenant]]\nname = \"web\"\nsize = \"8MiB\"\nrw_iops = \"20k\"\n\
        [[tenant]]\nname = \"log\"\nsize = \"8MiB\"\nmin_iops = \"10k\"\n";

    /// A tenant with `depth` commands of 16 KiB outstanding, which spend the fraction `waited` of their time in the
    /// queue.
    fn observed(foresight: &Foresight, id: u32, depth: f64, iops: f64, waited: f64) -> Observed {
        let mean_ns = if iops > 0.0 { depth * 1e9 / iops } else { 0.0 };
        let mean_us = mean_ns / 1e3;
        let row = serde_json::json!({
            "name": "", "drive": "fast", "class": "", "weight": (id > 1).then_some(1),
            "latency_target_us": (id == 1).then_some(50.0), "limits": null, "priority": null, "overcommit": false,
            "demand": "", "assumed": true, "iops": iops, "bw_bytes": iops * 16_384.0, "mean_us": mean_us,
            "waited_us": mean_us * waited, "served_us": mean_us * (1.0 - waited), "p50_us": 0.0, "p99_us": 0.0,
            "p999_us": 0.0, "p9999_us": 0.0, "bound_us": null, "bound": null, "violations": 0, "errors": 0, "hwqs": [],
            "predicted": null, "kept": null, "blame": null, "pollers": [id]
        });
        let mut row = serde_json::from_value(row).expect("a row");
        foresight.describe(TenantId(id), &mut row);
        let mean = Nanos(mean_ns as u64);
        let (read_share, mean_len_bytes, lateness) = (0.0, 16_384.0, Lateness::default());
        let measured = Measured { iops, read_share, mean_len_bytes, mean, at_percentile: mean, served: mean, lateness };
        Observed { id: TenantId(id), span: Nanos::from_millis(1_000), commands: 1, outage: Nanos(0), row, measured }
    }

    #[test]
    fn a_promise_has_a_price_and_each_one_is_told_what_holds_it_back() {
        let foresight = Foresight::of_file(FILE);
        let of = |id, depth, iops, waited| observed(&foresight, id, depth, iops, waited);
        let mut all = [
            of(1, 1.0, 30_000.0, 0.1),
            of(2, 256.0, 40_000.0, 0.9),
            of(3, 32.0, 20_000.0, 0.9),
            of(4, 8.0, 9_000.0, 0.02),
        ];
        foresight.explain(&mut all, &CpuUse::default());
        let price = all[0].row.price.as_ref().expect("a price");
        assert_eq!(price.looser_target_us, 75.0);
        assert!(
            price.others_bw_bytes < price.looser_bw_bytes && price.looser_bw_bytes < price.without_bw_bytes,
            "{price:?}"
        );
        let held = |at: usize| all[at].row.held.as_ref().map(HeldRow::in_words);
        assert_eq!(held(0), None);
        assert_eq!(held(1).as_deref(), Some("the promise to \"db\""));
        assert_eq!(held(2).as_deref(), Some("its own limits"));
        assert_eq!(held(3).as_deref(), Some("nothing: the drive has all of its commands"));
    }

    #[test]
    fn where_the_promised_one_is_silent_floors_and_shares_hold_others_back() {
        let foresight = Foresight::of_file(FILE);
        let of = |id, depth, iops, waited| observed(&foresight, id, depth, iops, waited);
        let held = |log_iops: f64| {
            let mut all = [of(1, 0.0, 0.0, 0.0), of(2, 256.0, 40_000.0, 0.9), of(4, 256.0, log_iops, 0.9)];
            foresight.explain(&mut all, &CpuUse::default());
            assert_eq!((&all[0].row.price, &all[0].row.held), (&None, &None));
            all[1].row.held.as_ref().map(HeldRow::in_words)
        };
        assert_eq!(held(40_000.0).as_deref(), Some("the floor of \"log\""));
        assert_eq!(held(4_000.0).as_deref(), Some("its share beside the others"));
    }

    #[test]
    fn a_poller_without_cpu_time_is_no_fault_of_the_drive() {
        let foresight = Foresight::of_file(FILE);
        let held = |id: u32, iops: f64, waited: f64, spent: Spent| {
            let mut all = [observed(&foresight, id, 256.0, iops, waited)];
            foresight.explain(&mut all, &CpuUse([(id as usize, spent), (77, Spent { waited: 0.9, busy: 1.0 })].into()));
            all[0].row.held.as_ref().map(HeldRow::in_words).expect("something")
        };
        let (idle, busy) = (Spent { waited: 0.02, busy: 0.7 }, Spent { waited: 0.02, busy: 0.99 });
        let starved = Spent { waited: 0.4, busy: 0.5 };
        assert_eq!(held(2, 40_000.0, 0.9, idle), "the drive");
        assert_eq!(held(2, 40_000.0, 0.9, busy), "the host: its poller has no CPU time left");
        assert_eq!(held(2, 40_000.0, 0.9, starved), "the host: its poller had to wait for a CPU");
        assert_eq!(held(2, 40_000.0, 0.02, starved), "the host: its poller had to wait for a CPU");
        assert_eq!(held(2, 40_000.0, 0.02, busy), "nothing: the drive has all of its commands");
        // More CPU time would not help it.
        assert_eq!(held(3, 20_000.0, 0.9, starved), "its own limits");
    }

    #[test]
    fn a_policy_that_holds_nobody_back_has_no_prices() {
        let text = FILE.replace("\"evenkeel\"", "\"fair\"").replace("min_iops = \"10k\"\n", "");
        let foresight = Foresight::of_file(&text);
        let mut all = [observed(&foresight, 1, 1.0, 30_000.0, 0.1), observed(&foresight, 2, 256.0, 40_000.0, 0.9)];
        foresight.explain(&mut all, &CpuUse::default());
        assert!(all.iter().all(|it| it.row.price.is_none() && it.row.held.is_none()));
    }
}
