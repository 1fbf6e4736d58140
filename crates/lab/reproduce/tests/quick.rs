//! A quick run of each paper's figures: one simulation of each, and everything that is asked of it.
//!
//! Virtual time: alike on every machine. `tests/quick/` has what is kept and what agrees, figure by figure. A policy, a
//! model or a cost that changes may move that: look whether the move is right, then run with `UPDATE=1`.
//!
//! A quick run asks what a full one asks, so it also holds `docs/REPRODUCTION.md` to the code. The document has these
//! demands and printed numbers in this order, and its summary is what its own lines add up to.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Mutex;

use reproduce::report::{Evidence, Figure, Kind, Report, Row, Verdict, X};
use reproduce::{Options, Paper, Progress, run};

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/REPRODUCTION.md"));

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

/// The drive arbitrates here, or nothing is sent at all.
const WITHOUT_POLICY: [&str; 4] = ["qos-fig7", "qos-fig8", "qos-fig8-depth", "cloud-erase"];

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
        assert!(figure.is_good() || !figure.reasons.is_empty(), "{name} misses something and does not say why");
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
        // The default policy is a series wherever a policy is at play.
        let is_its = |row: &Row| row.series.starts_with("evenkeel") || row.x.to_string() == "evenkeel";
        assert_eq!(figure.rows.iter().any(is_its), !WITHOUT_POLICY.contains(&name.as_str()), "{name}");
        for beside in &figure.beside {
            let has = |series: &str| figure.rows.iter().any(|row| row.series == series && row.metric == beside.metric);
            assert!(has(&beside.theirs) && has(&beside.ours), "{name}: {beside:?}");
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

/// What is kept and what agrees is what the repository has of this paper.
fn is_as_before(paper: Paper, report: &Report) {
    let mut now = String::new();
    for figure in &report.figures {
        now += &format!("{}\n", figure.id);
        for evidence in Evidence::ALL.into_iter().filter(|evidence| figure.count(*evidence).1 > 0) {
            now += &format!("  {}: {}\n", evidence.name(), evidence.count(figure.count(evidence)));
        }
        for demand in &figure.criteria {
            now += &format!("  {}: {}\n", demand.verdict(), demand.text);
        }
    }
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/quick/{}.txt", paper.key()));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&kept, &now).expect("the repository can be written");
    }
    assert_eq!(std::fs::read_to_string(&kept).unwrap_or_default(), now, "look, and run this test with UPDATE=1");
    is_in_the_document(paper, report);
}

/// The document's lines of this paper are the report's but for what was seen, and its summary counts them.
fn is_in_the_document(paper: Paper, report: &Report) {
    let (asked, written) = (lines(&report.markdown(), paper), lines(DOCUMENT, paper));
    // A full run asks more of the mixes.
    let names = |lines: &[Vec<String>]| {
        let lines = lines.iter().filter(|cells| cells[0] != "mixes");
        lines.map(|cells| cells[..2].join(" | ")).collect::<Vec<_>>()
    };
    assert_eq!(names(&asked), names(&written), "{paper:?}: run `evenkeel reproduce` and update docs/REPRODUCTION.md");
    let mut counts = Evidence::ALL.map(|evidence| (evidence, 0, 0));
    for cells in written.iter().filter(|cells| cells.len() == 4) {
        let (kind, good, all) = counted(cells, report);
        for count in counts.iter_mut().filter(|(evidence, ..)| Some(*evidence) == kind) {
            (count.1, count.2) = (count.1 + good, count.2 + all);
        }
    }
    let counts = counts.map(|(evidence, good, all)| evidence.count((good, all)));
    let summary = format!("| {} | {} |", paper.name(), counts.join(" | "));
    assert!(DOCUMENT.lines().any(|line| line == summary), "the lines of the document add up to\n{summary}");
}

/// The cells of the lines that speak of a figure, and what is not covered.
fn lines(text: &str, paper: Paper) -> Vec<Vec<String>> {
    let heading = format!("## {}", paper.name());
    let section = text.lines().skip_while(|line| **line != heading).skip(1).take_while(|line| !line.starts_with("## "));
    let mut in_table = false;
    let cells = section.filter_map(|line| {
        in_table = line.starts_with('|') && (in_table || line.starts_with("| figure |"));
        if let Some((figure, why)) = line.split_once(": not covered: ") {
            return Some(vec![figure.to_owned(), why.to_owned()]);
        }
        let is_line = in_table && !line.starts_with("| figure |") && !line.starts_with("| ---");
        is_line.then(|| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
    });
    cells.collect()
}

/// How much holds, of how much: `3 of 4`, `4` where nothing is judged, `–` for nothing.
fn count(text: &str) -> (usize, usize) {
    let number = |text: &str| text.parse::<usize>().unwrap_or_else(|_| panic!("no count: {text:?}"));
    match text.split_once(" of ") {
        Some((good, all)) => (number(good), number(all)),
        None if text == "–" => (0, 0),
        None => (0, number(text)),
    }
}

/// The kind of a line of what was asked, how much of it holds, and how much there is.
fn counted(cells: &[String], report: &Report) -> (Option<Evidence>, usize, usize) {
    if let Some(name) = cells[1].strip_prefix("numbers: ") {
        let (good, all) = count(&cells[2]);
        return (Evidence::ALL.into_iter().find(|evidence| evidence.name() == name), good, all);
    }
    let is_it = |figure: &&Figure| figure.id == cells[0];
    let mut demands = report.figures.iter().filter(is_it).flat_map(|figure| &figure.criteria);
    // A kind that depends on a run without a policy is in the verdict.
    let fixed = demands.find(|demand| demand.text == cells[1]).map(|demand| demand.evidence);
    match &*cells[3] {
        "kept" => (Some(Evidence::Claim), 1, 1),
        "**broken**" => (Some(Evidence::Claim), 0, 1),
        "no claim" => (Some(Evidence::Shown), 0, 1),
        // A figure that is only shown.
        "" => (None, 0, 0),
        verdict => {
            let own = fixed.filter(|kind| *kind != Evidence::Shown).unwrap_or(Evidence::Own);
            (Some(own), usize::from(verdict == "met"), 1)
        }
    }
}

/// The document's summary ends with what its lines add up to.
#[test]
fn the_document_adds_up() {
    let rows = DOCUMENT.lines().skip_while(|line| !line.starts_with("| paper |")).skip(2);
    let rows: Vec<Vec<&str>> =
        rows.take_while(|line| line.starts_with('|')).map(|line| line.trim_matches('|').split('|').collect()).collect();
    let (all, papers) = rows.split_last().expect("the document has a summary");
    assert_eq!(papers.len(), Paper::ALL.len());
    for (at, evidence) in Evidence::ALL.into_iter().enumerate() {
        let counts = papers.iter().map(|cells| count(cells[at + 1].trim()));
        let sum = counts.fold((0, 0), |sum, (good, all)| (sum.0 + good, sum.1 + all));
        assert_eq!(all[at + 1].trim(), evidence.count(sum), "{}", evidence.name());
    }
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
    for figure in &report.figures {
        assert!(!figure.plots.is_empty() && !figure.goal.is_empty(), "{}", figure.id);
    }
    let judged = |id: &str| {
        let rows = figure(&report, id).rows.iter();
        rows.filter(|row| matches!(row.verdict, Verdict::Within | Verdict::Off)).count()
    };
    // Every legible number of the paper is compared: VM1's latencies, then VM2's bandwidths.
    assert_eq!((judged("fig7a"), judged("fig7b")), (24 + 40, 13 + 40));
    let vm1 = |id: &str, system: &str, x: &str| {
        figure(&report, id).ours(system, &X::from(x), "VM1 mean latency (µs)").expect("it was measured")
    };
    assert!(vm1("fig7a", "LPNS", "n8d32") < 0.5 * vm1("fig7a", "MDev", "n8d32"));
    for system in ["lpns corrected", "evenkeel"] {
        assert!(vm1("fig9a", system, "1 + 3 VMs") < 0.1 * vm1("fig9a", "LPNS", "1 + 3 VMs"), "{system}");
    }
}

#[test]
fn fairnvme() {
    let report = quick(Paper::FairNvme, 1);
    is_as_before(Paper::FairNvme, &report);
    let most = |system: &str| {
        let rows = figure(&report, "fig9").rows.iter();
        let rows = rows.filter(|row| row.series == system && row.metric == "maximum slowdown");
        rows.map(|row| row.ours).fold(0.0, f64::max)
    };
    assert!(most("fair corrected") < most("FairNVMe"), "the corrected rules do without the worst");
}

#[test]
fn qos() {
    let report = quick(Paper::Qos, 1);
    is_as_before(Paper::Qos, &report);
    let at = |id: &str, series: &str, x: &str, metric: &str| {
        figure(&report, id).ours(series, &X::from(x), metric).expect("it was measured")
    };
    let ratio = |policy| at("fig8-policies", policy, "3: high 4K, low 8K", "bandwidth ratio A : B");
    assert!(ratio("evenkeel") > 3.0 && ratio("passthrough") < 1.0, "weights do what classes do");
    let p99 = |policy| at("rogue-idle", policy, "four times its share", "the others' p99 (µs)");
    assert!(p99("evenkeel") < 0.6 * p99("drr"), "a promise holds where a share does not");
}

#[test]
fn vbmq() {
    let report = quick(Paper::Vbmq, 1);
    is_as_before(Paper::Vbmq, &report);
    assert_eq!(ids(&report), ["fig7", "fig8", "fig9", "fig10", "fig11"]);
    for figure in &report.figures {
        for demand in &figure.criteria {
            assert!(demand.met, "{}: {demand:?}", figure.id);
        }
    }
    let at = |id: &str, series: &str, jobs: u32| {
        figure(&report, id).ours(series, &X::from(jobs), "4K random read (IOPS)").expect("it was measured")
    };
    for limit in ["evenkeel, one poller", "VBDP"] {
        assert!(at("fig10", limit, 20) < 0.3 * at("fig10", "VBMq", 20), "{limit}: one core is not twenty");
    }
    for jobs in [1, 4, 8, 12, 16, 20] {
        let [baseline, vbdp, vbmq, bare] =
            ["Baseline", "VBDP", "VBMq", "bare metal"].map(|series| at("fig10", series, jobs));
        assert!(baseline <= vbdp && vbdp < vbmq && vbmq < bare, "{jobs} jobs");
        assert!(at("fig8", "VBMq, event-driven", jobs) < at("fig8", "VBMq", jobs), "{jobs} jobs");
    }
    assert!(at("fig10", "Baseline", 20) < 0.8 * at("fig10", "Baseline", 1), "Baseline falls as jobs rise");
    assert!(at("fig10", "VBDP", 20) < 0.8 * at("fig10", "VBDP", 1), "VBDP falls as jobs rise");
}

/// The cheapest paper also shows that neither the number of threads nor anything but the seed decides.
#[test]
fn cloud() {
    let two = quick(Paper::Cloud, 1);
    is_as_before(Paper::Cloud, &two);
    let p95 =
        |way: &str| figure(&two, "fig6-8").ours(way, &X::from(512u32), "p95 latency (µs)").expect("it was measured");
    assert!(p95("passthrough") < p95("evenkeel") && p95("evenkeel") < 0.9 * p95("SPDK vhost"));
    for threads in [1, 3] {
        let (other, _) = simulate(Paper::Cloud, 1, threads);
        assert_eq!(other.json(), two.json(), "the same on {threads} threads as on 2");
        assert_eq!(other.html(), two.html(), "the same on {threads} threads as on 2");
    }
    assert_ne!(simulate(Paper::Cloud, 2, 2).0.json(), two.json(), "another seed, other numbers");
}

/// So short a run tells little of the numbers.
#[test]
fn our_own_policy() {
    let report = quick(Paper::Policy, 3);
    is_in_the_document(Paper::Policy, &report);
    let series: HashSet<_> = figure(&report, "price").rows.iter().map(|row| row.series.as_str()).collect();
    assert_eq!(series, HashSet::from(["evenkeel", "lpns", "best fixed cap"]));
    let policies = &figure(&report, "policies").tables[0];
    let named: HashSet<_> = policies.rows.iter().map(|row| row[0].as_str()).collect();
    assert!(["evenkeel", "lpns", "iocost", "gimbal", "reflex", "drr"].iter().all(|name| named.contains(name)));
    let kept = |policy: &str| {
        figure(&report, "policies").ours(policy, &X::from("all"), "promises kept (%)").expect("it was measured")
    };
    assert!(kept("evenkeel") > kept("passthrough"), "a policy that knows the promises keeps more of them");
}
