//! Whole reports, cut short.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Mutex;

use reproduce::report::Report;
use reproduce::{Options, Paper, Progress, run};

fn quick(papers: &[Paper], seed: u64, threads: usize) -> Report {
    let threads = NonZeroUsize::new(threads).expect("at least one");
    run(papers, Options { seed, quick: true, threads }, &|_| ()).expect("every simulation runs")
}

#[test]
fn a_report_is_the_same_on_any_number_of_threads() {
    let papers = [Paper::Qos, Paper::Cloud];
    let (one, three) = (quick(&papers, 7, 1), quick(&papers, 7, 3));
    assert_eq!(one.json(), three.json());
    assert_eq!(one.html(), three.html());
    assert_ne!(one.json(), quick(&papers, 8, 2).json());
}

#[test]
fn our_own_policy_is_held_against_the_best_that_could_be_set() {
    let report = quick(&[Paper::Policy], 3, 2);
    let demands: Vec<_> = report.figures.iter().map(|figure| (figure.id, figure.criteria.len())).collect();
    let expected =
        [("price", 3), ("further", 12), ("policies", 0), ("fairness", 1), ("reaction", 4), ("steadiness", 1)];
    assert_eq!(demands, expected);
    // So short a run tells nothing of the numbers.
    let series: HashSet<_> = report.figures[0].rows.iter().map(|row| row.series.as_str()).collect();
    assert_eq!(series, HashSet::from(["evenkeel", "lpns", "best fixed cap"]));
    let policies = &report.figures[2].tables[0];
    let named: HashSet<_> = policies.rows.iter().map(|row| row[0].as_str()).collect();
    assert!(["evenkeel", "lpns", "iocost", "gimbal", "reflex", "drr"].iter().all(|name| named.contains(name)));
    assert!(
        report
            .figures
            .iter()
            .flat_map(|figure| &figure.tables)
            .all(|table| { !table.rows.is_empty() && table.rows.iter().all(|row| row.len() == table.head.len()) })
    );
}

#[test]
fn every_figure_says_what_it_shows_and_stands_alone() {
    let report = quick(&[Paper::FairNvme, Paper::Qos, Paper::Vbmq, Paper::Cloud], 1, 2);
    let mut anchors = HashSet::new();
    for figure in &report.figures {
        let name = figure.anchor();
        assert!(anchors.insert(name.clone()), "{name} is there twice");
        assert!(!figure.shows.is_empty() && !figure.rows.is_empty() && !figure.assumptions.is_empty(), "{name}");
        assert!(figure.rows.iter().all(|row| row.figure == figure.id), "{name}");
        assert!(figure.is_good() || figure.deviation.is_some(), "{name} misses something and does not say why");
        for plot in &figure.plots {
            let has_rows = figure.rows.iter().any(|row| row.metric == plot.metric);
            assert!(has_rows, "{name}: nothing to draw for {}", plot.metric);
        }
    }
    assert!(report.uncovered.iter().any(|one| one.paper == Paper::Vbmq));
    let rows: HashSet<_> = (report.figures.iter().flat_map(|figure| &figure.rows))
        .map(|row| (row.paper.key(), &row.figure, &row.series, row.x.to_string(), &row.metric))
        .collect();
    let all: usize = report.figures.iter().map(|figure| figure.rows.len()).sum();
    assert_eq!(rows.len(), all, "two rows have one name");
}

#[test]
fn progress_tells_every_experiment_and_ends_full() {
    let seen = Mutex::new(Vec::new());
    let options = Options { seed: 1, quick: true, threads: NonZeroUsize::MIN };
    run(&[Paper::Qos], options, &|progress: &Progress| seen.lock().expect("no test panicked").push(*progress))
        .expect("runs");
    let seen = seen.into_inner().expect("no test panicked");
    let last = seen.last().expect("something was told");
    assert_eq!(last.experiments.0 + 1, last.experiments.1);
    assert_eq!(last.runs.0, last.runs.1);
    let experiments: HashSet<_> = seen.iter().map(|progress| progress.experiments.0).collect();
    assert_eq!(experiments.len(), last.experiments.1);
}
