//! A quick run of each paper's figures: one simulation of each, and everything that is asked of it.
//!
//! Virtual time: the same on every machine. A policy, a model or a cost that changes may move what [`MISSED`] and
//! [`HELD`] say; then look whether the move is right, and put down what is new. A demand that is met now and was not
//! before comes off the list.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Mutex;

use reproduce::report::{Figure, Kind, Report, Verdict, X};
use reproduce::{Options, Paper, Progress, run};

/// The demands that a quick run with seed 1 misses. All others are met.
const MISSED: &[(&str, &str)] = &[
    ("lpns-fig2", "SPDK's worst multiple within 25 %"),
    ("lpns-fig2", "SR-IOV's worst multiple within 25 %"),
    ("lpns-fig7a", "MDev: VM1's mean within 15 % from n2d1 on"),
    ("lpns-fig7a", "SPDK: VM1's mean within 25 % from n2d1 on"),
    ("lpns-fig7a", "Virtio: VM2's bandwidth within 25 % from n2d1 on"),
    ("lpns-fig7b", "LPNS: VM2's bandwidth within 10 % from n2d1 on"),
    ("lpns-fig7b", "MDev: VM1's mean within 15 % from n2d1 on"),
    ("lpns-fig7b", "SPDK: VM1's mean within 25 % from n2d1 on"),
    ("lpns-fig7b", "Systems in the printed order of VM1's mean"),
    ("lpns-fig7d", "VM2 loses at most 12.1 % against MDev"),
    ("lpns-fig8", "LPNS's read p99.99 better than SPDK's by at least three quarters of what is printed"),
    ("lpns-fig8", "LPNS's write p99.99 better than SPDK's by at least three quarters of what is printed"),
    ("lpns-fig9a", "LPNS: VM1's mean and all windows ≤ 90 µs"),
    ("lpns-fig9a", "LPNS nearly coincides with VM1 alone"),
    ("lpns-fig9b", "LPNS nearly coincides with VM1 alone"),
    ("lpns-fig11", "LPNS's mean loss within 5 points of 18.46 %"),
    ("lpns-fig11", "LPNS's throughput beside six within 20 % of 2.45 times K2 (32)'s"),
    ("lpns-fig13b", "VM1's p99.9 below the bound that holds at every Ω"),
    ("lpns-waqs", "LPNS: VM1's mean within 5 % with any number of HWQs, any scheduling"),
    ("fairnvme-fig6", "FairNVMe's p99.9 latency at least level with Virtio's in 3 of 4 cases"),
    ("fairnvme-fig6", "Evenkeel fair's p99.9 latency at least level with Virtio's in 3 of 4 cases"),
    ("fairnvme-fig6", "Evenkeel fair's p99.9 latency at least level with SPDK's in 3 of 4 cases"),
    ("fairnvme-fig10", "FairNVMe's standard deviation at least level with Virtio's in 8 of 12 cases"),
    ("fairnvme-fig10", "Evenkeel fair's standard deviation at least level with Virtio's in 8 of 12 cases"),
    ("fairnvme-fig10", "FairNVMe's standard deviation at least level with SPDK's in 8 of 12 cases"),
    ("fairnvme-fig10", "Evenkeel fair's standard deviation at least level with SPDK's in 8 of 12 cases"),
    ("fairnvme-fig10", "FairNVMe's standard deviation at least level with LPNS's in 8 of 12 cases"),
    ("fairnvme-fig10", "Evenkeel fair's standard deviation at least level with LPNS's in 8 of 12 cases"),
    ("fairnvme-fig11", "FairNVMe's standard deviation at least level with Virtio's in 8 of 12 cases"),
    ("fairnvme-fig11", "FairNVMe's standard deviation at least level with SPDK's in 8 of 12 cases"),
    ("fairnvme-fig11", "Evenkeel fair's standard deviation at least level with SPDK's in 8 of 12 cases"),
    ("fairnvme-fig11", "FairNVMe's standard deviation at least level with LPNS's in 8 of 12 cases"),
    ("fairnvme-fig11", "Evenkeel fair's standard deviation at least level with LPNS's in 8 of 12 cases"),
    ("qos-rogue", "drr, writes up to 128 KiB: p99 rises by less than 5 %"),
    ("qos-rogue", "drr, 1 MiB, more than the drive is let to hold at a time: p99 rises by less than 5 %"),
];
/// Demands of each figure, and rows that agree with print, at the least.
const HELD: &[(&str, usize, usize)] = &[
    ("lpns-fig2", 3, 9),
    ("lpns-table1", 1, 0),
    ("lpns-fig7a", 9, 58),
    ("lpns-fig7b", 9, 46),
    ("lpns-fig7c", 2, 30),
    ("lpns-fig7d", 2, 30),
    ("lpns-fig7e-p5800x", 4, 1),
    ("lpns-fig7e-pm1735", 4, 0),
    ("lpns-fig8", 4, 1),
    ("lpns-fig9a", 5, 0),
    ("lpns-fig9b", 5, 0),
    ("lpns-fig10", 6, 0),
    ("lpns-fig11", 2, 1),
    ("lpns-fig13a", 3, 1),
    ("lpns-fig13b", 2, 0),
    ("lpns-waqs", 2, 0),
    ("lpns-waqs-deep", 2, 0),
    ("fairnvme-table2", 1, 18),
    ("fairnvme-fig4", 6, 34),
    ("fairnvme-fig5", 6, 36),
    ("fairnvme-fig6", 6, 6),
    ("fairnvme-fig7", 6, 28),
    ("fairnvme-fig8", 6, 36),
    ("fairnvme-fig10", 6, 18),
    ("fairnvme-fig7-pm1735", 6, 27),
    ("fairnvme-fig9", 6, 25),
    ("fairnvme-fig11", 6, 13),
    ("fairnvme-fig14", 0, 0),
    ("fairnvme-fig15", 2, 0),
    ("fairnvme-fig16", 2, 0),
    ("qos-fig7", 1, 22),
    ("qos-fig7-tenants", 1, 0),
    ("qos-fig8", 1, 15),
    ("qos-fig8-policies", 1, 15),
    ("qos-fig8-depth", 0, 0),
    ("qos-rogue", 4, 0),
    ("qos-rogue-idle", 0, 0),
    ("qos-mixes", 1, 0),
    ("vbmq-fig7", 2, 0),
    ("vbmq-fig8", 1, 6),
    ("vbmq-fig9", 0, 2),
    ("vbmq-fig10", 16, 178),
    ("vbmq-fig11", 6, 6),
    ("cloud-fig6-8", 2, 0),
    ("cloud-table2", 0, 2),
    ("cloud-erase", 0, 0),
];

/// Runs one paper's experiments and checks what holds for every paper's.
fn quick(paper: Paper, seed: u64) -> Report {
    let (report, told) = simulate(paper, seed, 2);
    progress_ends_full(paper, &told);
    figures_stand_alone(paper, &report);
    report
}

fn simulate(paper: Paper, seed: u64, threads: usize) -> (Report, Vec<Progress>) {
    let threads = NonZeroUsize::new(threads).expect("at least one");
    let told = Mutex::new(Vec::new());
    let tell = |progress: &Progress| told.lock().expect("no test panicked").push(*progress);
    let report = run(&[paper], Options { seed, quick: true, threads }, &tell).expect("every simulation runs");
    (report, told.into_inner().expect("no test panicked"))
}

fn progress_ends_full(paper: Paper, told: &[Progress]) {
    let last = told.last().expect("something was told");
    assert_eq!(last.experiments.0 + 1, last.experiments.1, "{paper:?}: the last one told is of the last experiment");
    assert_eq!(last.runs.0, last.runs.1, "{paper:?}: all simulations of the last experiment were told");
    let experiments: HashSet<_> = told.iter().map(|progress| progress.experiments.0).collect();
    assert_eq!(experiments.len(), last.experiments.1, "{paper:?}: every experiment was told");
}

/// Every figure says what it shows, draws only what it has, and names no two rows alike.
fn figures_stand_alone(paper: Paper, report: &Report) {
    let mut anchors = HashSet::new();
    for figure in &report.figures {
        let name = figure.anchor();
        assert!(anchors.insert(name.clone()), "{name} is there twice");
        assert!(!figure.shows.is_empty() && !figure.rows.is_empty() && !figure.assumptions.is_empty(), "{name}");
        for row in &figure.rows {
            assert_eq!((row.paper, row.figure.as_str()), (paper, figure.id), "{name}: a row of another figure");
            assert!(row.ours.is_finite(), "{name}: {row:?}");
        }
        assert!(figure.is_good() || figure.deviation.is_some(), "{name} misses something and does not say why");
        for plot in &figure.plots {
            // A box is drawn from the percentiles of its metric.
            let percentile = format!("{} p", plot.metric);
            let is_its = |metric: &str| match plot.kind {
                Kind::Boxes => metric.starts_with(&percentile),
                _ => metric == plot.metric,
            };
            let has_rows = figure.rows.iter().any(|row| is_its(&row.metric));
            assert!(has_rows, "{name}: nothing to draw for {}", plot.metric);
        }
        for table in &figure.tables {
            assert!(!table.rows.is_empty(), "{name}: {} is empty", table.title);
            assert!(table.rows.iter().all(|row| row.len() == table.head.len()), "{name}: {}", table.title);
        }
    }
    let rows: HashSet<_> = (report.figures.iter().flat_map(|figure| &figure.rows))
        .map(|row| (&row.figure, &row.series, row.x.to_string(), &row.metric))
        .collect();
    let all: usize = report.figures.iter().map(|figure| figure.rows.len()).sum();
    assert_eq!(rows.len(), all, "{paper:?}: two rows have one name");
    assert!(report.uncovered.iter().all(|one| one.paper == paper), "{paper:?}");
}

/// Demands are met, and rows agree with print, as on the lists.
fn is_as_before(paper: Paper, report: &Report) {
    let of_paper = |figure: &str| figure.strip_prefix(paper.key()).is_some_and(|rest| rest.starts_with('-'));
    let (mut missed, mut fewer) = (Vec::new(), Vec::new());
    for figure in &report.figures {
        let anchor = figure.anchor();
        let missing = figure.criteria.iter().filter(|criterion| !criterion.met);
        missed.extend(missing.map(|criterion| (anchor.clone(), criterion.text.clone())));
        let held = HELD.iter().find(|(name, ..)| *name == anchor);
        let (_, demands, rows) = held.unwrap_or_else(|| panic!("{anchor} is not on the list"));
        assert_eq!(figure.criteria.len(), *demands, "demands of {anchor}");
        if figure.rows_good().0 < *rows {
            fewer.push(format!("{anchor}: {:?} agree, {rows} did", figure.rows_good()));
        }
    }
    let listed = HELD.iter().filter(|(figure, ..)| of_paper(figure)).count();
    assert_eq!(report.figures.len(), listed, "figures of {paper:?}");
    let known = MISSED.iter().filter(|(figure, _)| of_paper(figure));
    let known: Vec<_> = known.map(|(figure, text)| ((*figure).to_owned(), (*text).to_owned())).collect();
    assert_eq!(missed, known, "missed demands of {paper:?}");
    assert!(fewer.is_empty(), "{fewer:#?}");
}

fn ids(report: &Report) -> Vec<&str> {
    report.figures.iter().map(|figure| figure.id).collect()
}

fn figure<'a>(report: &'a Report, id: &str) -> &'a Figure {
    report.figures.iter().find(|figure| figure.id == id).unwrap_or_else(|| panic!("{id} is missing"))
}

#[test]
fn lpns() {
    let report = quick(Paper::Lpns, 1);
    is_as_before(Paper::Lpns, &report);
    let expected = [
        "fig2",
        "table1",
        "fig7a",
        "fig7b",
        "fig7c",
        "fig7d",
        "fig7e-p5800x",
        "fig7e-pm1735",
        "fig8",
        "fig9a",
        "fig9b",
        "fig10",
        "fig11",
        "fig13a",
        "fig13b",
        "waqs",
        "waqs-deep",
    ];
    assert_eq!(ids(&report), expected);
    for figure in &report.figures {
        assert!(!figure.criteria.is_empty() && !figure.plots.is_empty() && !figure.goal.is_empty(), "{}", figure.id);
    }
    let judged = |id: &str| {
        let rows = figure(&report, id).rows.iter();
        rows.filter(|row| matches!(row.verdict, Verdict::Within | Verdict::Off)).count()
    };
    // Every legible number of the paper is compared: VM1's latencies, then VM2's bandwidths.
    assert_eq!((judged("fig7a"), judged("fig7b")), (24 + 40, 13 + 40));
    assert_eq!(report.uncovered.len(), 2, "what waits for RocksDB is told");
}

#[test]
fn fairnvme() {
    let report = quick(Paper::FairNvme, 1);
    is_as_before(Paper::FairNvme, &report);
    assert_eq!(report.uncovered.len(), 2, "what waits for RocksDB and Filebench is told");
}

#[test]
fn qos() {
    is_as_before(Paper::Qos, &quick(Paper::Qos, 1));
}

#[test]
fn vbmq() {
    let report = quick(Paper::Vbmq, 1);
    is_as_before(Paper::Vbmq, &report);
    assert_eq!(ids(&report), ["fig7", "fig8", "fig9", "fig10", "fig11"]);
    for figure in &report.figures {
        for row in &figure.rows {
            assert_ne!(row.verdict, Verdict::OrderBroken, "{}: {row:?}", figure.id);
        }
        for demand in &figure.criteria {
            assert!(demand.met, "{}: {demand:?}", figure.id);
        }
    }
    let at = |id: &str, series: &str, jobs: u32| {
        figure(&report, id).ours(series, &X::from(jobs), "4K random read (IOPS)").expect("it was measured")
    };
    for jobs in [1, 4, 8, 12, 16, 20] {
        let [baseline, vbdp, vbmq, bare] =
            ["Baseline", "VBDP", "VBMq", "bare metal"].map(|series| at("fig10", series, jobs));
        assert!(baseline <= vbdp && vbdp < vbmq && vbmq < bare, "{jobs} jobs");
        assert!(at("fig8", "VBMq, event-driven", jobs) < at("fig8", "VBMq", jobs), "{jobs} jobs");
    }
    assert!(at("fig10", "Baseline", 20) < 0.8 * at("fig10", "Baseline", 1), "Baseline falls as jobs rise");
    assert!(at("fig10", "VBDP", 20) < 0.8 * at("fig10", "VBDP", 1), "VBDP falls as jobs rise");
    assert_eq!(report.uncovered.len(), 1);
}

/// The cheapest paper also shows that neither the number of threads nor anything but the seed decides.
#[test]
fn cloud() {
    let two = quick(Paper::Cloud, 1);
    is_as_before(Paper::Cloud, &two);
    for threads in [1, 3] {
        let (other, _) = simulate(Paper::Cloud, 1, threads);
        assert_eq!(other.json(), two.json(), "the same on {threads} threads as on 2");
        assert_eq!(other.html(), two.html(), "the same on {threads} threads as on 2");
    }
    assert_ne!(simulate(Paper::Cloud, 2, 2).0.json(), two.json(), "another seed, other numbers");
}

/// So short a run tells nothing of the numbers.
#[test]
fn our_own_policy() {
    let report = quick(Paper::Policy, 3);
    let demands: Vec<_> = report.figures.iter().map(|figure| (figure.id, figure.criteria.len())).collect();
    let expected =
        [("price", 3), ("further", 12), ("policies", 0), ("fairness", 1), ("reaction", 4), ("steadiness", 1)];
    assert_eq!(demands, expected);
    let series: HashSet<_> = figure(&report, "price").rows.iter().map(|row| row.series.as_str()).collect();
    assert_eq!(series, HashSet::from(["evenkeel", "lpns", "best fixed cap"]));
    let policies = &figure(&report, "policies").tables[0];
    let named: HashSet<_> = policies.rows.iter().map(|row| row[0].as_str()).collect();
    assert!(["evenkeel", "lpns", "iocost", "gimbal", "reflex", "drr"].iter().all(|name| named.contains(name)));
}
