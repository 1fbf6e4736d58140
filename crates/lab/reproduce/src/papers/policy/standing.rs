//! How each policy stands beside the best fixed caps: over all cases, and by drive and by kind of case.

use super::cases::{Case, FURTHER};
use super::contenders::{Contender, LPNS, OTHERS, OURS};
use super::median;
use super::price::{KEPT, Outcome, is_for_all};
use crate::report::{Figure, Table};
use crate::runner::Context;

/// Over cases in which some fixed cap keeps the promise.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    /// Promises kept, and all promises.
    pub kept: usize,
    pub of: usize,
    /// The highest percentile, in targets.
    pub worst: f64,
    /// Others' throughput, in what the best fixed cap gives them.
    pub median: f64,
    pub least: f64,
    /// The median over those cases whose promise was kept.
    pub median_kept: f64,
}

impl Standing {
    pub fn of<'a>(contender: Contender, seen: impl Iterator<Item = &'a Outcome>) -> Self {
        let seen: Vec<(f64, f64)> = seen
            .filter_map(|outcome| outcome.beside_best(contender))
            .map(|(got, price)| (got.reached, price))
            .collect();
        let kept: Vec<f64> = seen.iter().filter(|(reached, _)| *reached <= KEPT).map(|(_, price)| *price).collect();
        let prices: Vec<f64> = seen.iter().map(|(_, price)| *price).collect();
        Self {
            kept: kept.len(),
            of: seen.len(),
            worst: seen.iter().map(|(reached, _)| *reached).fold(0.0, f64::max),
            least: prices.iter().copied().reduce(f64::min).unwrap_or(f64::NAN),
            median: median(prices),
            median_kept: median(kept),
        }
    }

    fn cells(&self) -> [String; 5] {
        [
            format!("{} of {}", self.kept, self.of),
            times(self.worst),
            percent(self.median),
            percent(self.least),
            percent(self.median_kept),
        ]
    }
}

fn times(value: f64) -> String {
    if value < 9.95 { format!("{value:.2}") } else { format!("{value:.0}") }
}

fn percent(value: f64) -> String {
    if value.is_finite() { format!("{:.1} %", value * 100.0) } else { "–".to_owned() }
}

const HEAD: [&str; 5] =
    ["promises kept", "worst p99, in targets", "others get, median", "others get, least", "median where kept"];

/// All policies.
pub fn draw(context: &Context<'_>, seen: &[(Case, Outcome)]) -> Figure {
    let mut figure = context.figure("policies");
    let seen: Vec<&(Case, Outcome)> = seen.iter().filter(|(case, _)| is_for_all(case)).collect();
    let contenders: Vec<Contender> = [OURS, LPNS].into_iter().chain(OTHERS).collect();
    let title = "Of the promises that some fixed cap keeps; what others get is of what they get under that cap";
    let mut all = Table::new(title, &["policy"]);
    all.head.extend(HEAD.map(str::to_owned));
    for contender in &contenders {
        let standing = Standing::of(*contender, seen.iter().map(|(_, outcome)| outcome));
        all.rows.push(std::iter::once(contender.name()).chain(standing.cells()).collect());
        let mut push = |metric, ours| figure.show(&contender.name(), "all", metric, ours);
        push("promises kept (%)", standing.kept as f64 / standing.of as f64 * 100.0);
        push("worst 99th percentile (targets)", standing.worst);
        push("others' throughput, median (%)", standing.median * 100.0);
        push("others' throughput, least (%)", standing.least * 100.0);
    }
    figure.tables.extend([all, by_drive(&seen, &contenders)]);
    figure
}

fn by_drive(seen: &[&(Case, Outcome)], contenders: &[Contender]) -> Table {
    let mut drives: Vec<&str> = Vec::new();
    seen.iter().map(|(case, _)| &*case.profile.name).for_each(|drive| {
        if !drives.contains(&drive) {
            drives.push(drive);
        }
    });
    let mut table =
        Table::new("By drive: promises kept, worst p99 in targets, others' throughput in the median", &["policy"]);
    table.head.extend(drives.iter().map(|drive| (*drive).to_owned()));
    for contender in contenders {
        let cell = |drive: &&str| {
            let here = seen.iter().filter(|(case, _)| *case.profile.name == **drive);
            let standing = Standing::of(*contender, here.map(|(_, outcome)| outcome));
            let Standing { kept, of, worst, median, .. } = standing;
            format!("{kept}/{of}, {}, {:.0} %", times(worst), median * 100.0)
        };
        table.rows.push(std::iter::once(contender.name()).chain(drives.iter().map(cell)).collect());
    }
    table
}

/// Those that know targets, by kind of case.
pub fn by_group(seen: &[(Case, Outcome)]) -> Table {
    let mut table = Table::new("By kind of case", &["case", "policy"]);
    table.head.extend(HEAD.map(str::to_owned));
    for group in FURTHER {
        for contender in [OURS, LPNS] {
            let here = seen.iter().filter(|(case, _)| case.group == group);
            let standing = Standing::of(contender, here.map(|(_, outcome)| outcome));
            table.rows.push([group.to_owned(), contender.name()].into_iter().chain(standing.cells()).collect());
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::price::Got;
    use super::*;

    #[test]
    fn only_what_a_cap_can_keep_counts() {
        let got = |reached, others_bytes_s| Got { reached, others_bytes_s };
        let outcome = |ours, best| Outcome { seen: vec![(OURS, ours)], best };
        let seen = [
            outcome(got(0.9, 80.0), Some(got(1.0, 100.0))),
            outcome(got(1.5, 120.0), Some(got(0.9, 100.0))),
            outcome(got(0.8, 99.0), Some(got(0.9, 100.0))),
            outcome(got(3.0, 1.0), None),
        ];
        let Standing { kept, of, worst, median, least, median_kept } = Standing::of(OURS, seen.iter());
        assert_eq!((kept, of, worst), (2, 3, 1.5));
        assert_eq!((median, least, median_kept), (0.99, 0.8, 0.99));
    }
}
