//! Quick runs: numbers where numbers should be.

use std::num::NonZeroUsize;

use crate::paper::Paper;
use crate::report::{Figure, Verdict};
use crate::runner::{Options, run};

fn figures() -> Vec<Figure> {
    let threads = NonZeroUsize::new(2).unwrap();
    let options = Options { seed: 1, quick: true, threads };
    run(&[Paper::Lpns], options, &|_| ()).unwrap().figures
}

#[test]
fn a_quick_run_measures_every_figure() {
    let figures = figures();
    let ids: Vec<&str> = figures.iter().map(|figure| figure.id).collect();
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
        "fig12",
        "fig13a",
        "fig13b",
        "waqs",
        "waqs-deep",
    ];
    assert_eq!(ids, expected);
    for figure in &figures {
        for row in &figure.rows {
            assert!(row.ours.is_finite(), "{}: {row:?}", figure.id);
        }
        assert!(!figure.criteria.is_empty() && !figure.plots.is_empty(), "{}", figure.id);
        assert!(!figure.assumptions.is_empty() && !figure.goal.is_empty(), "{}", figure.id);
    }
    let judged = |id: &str| {
        let rows = figures.iter().filter(|figure| figure.id == id).flat_map(|figure| &figure.rows);
        rows.filter(|row| matches!(row.verdict, Verdict::Within | Verdict::Off)).count()
    };
    // Every legible number of the paper is compared: VM1's latencies, then VM2's bandwidths.
    assert_eq!((judged("fig7a"), judged("fig7b")), (24 + 40, 13 + 40));
}
