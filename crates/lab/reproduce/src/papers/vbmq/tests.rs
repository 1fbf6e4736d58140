//! Quick runs: the orders and shapes that the paper's text speaks of.

use std::num::NonZeroUsize;

use super::systems::{falls, grows};
use crate::paper::Paper;
use crate::report::{Figure, Verdict, X};
use crate::runner::{Options, run};

fn figures() -> Vec<Figure> {
    let threads = NonZeroUsize::new(2).unwrap();
    let options = Options { seed: 1, quick: true, threads };
    run(&[Paper::Vbmq], options, &|_| ()).unwrap().figures
}

#[test]
fn a_quick_run_keeps_every_order() {
    let figures = figures();
    let ids: Vec<&str> = figures.iter().map(|figure| figure.id).collect();
    assert_eq!(ids, ["fig7", "fig8", "fig9", "fig10", "fig11"]);
    for figure in &figures {
        for row in &figure.rows {
            assert!(row.ours.is_finite(), "{}: {row:?}", figure.id);
            assert_ne!(row.verdict, Verdict::OrderBroken, "{}: {row:?}", figure.id);
        }
        for demand in &figure.criteria {
            assert!(demand.met, "{}: {demand:?}", figure.id);
        }
    }
    let at = |id: &str, series: &str, jobs: u32| {
        let figure = figures.iter().find(|figure| figure.id == id).unwrap();
        figure.ours(series, &X::from(jobs), "4K random read (IOPS)").unwrap()
    };
    for jobs in [1, 4, 8, 12, 16, 20] {
        let [baseline, vbdp, vbmq, bare] =
            ["Baseline", "VBDP", "VBMq", "bare metal"].map(|series| at("fig10", series, jobs));
        assert!(baseline <= vbdp && vbdp < vbmq && vbmq < bare, "{jobs} jobs");
        assert!(at("fig8", "VBMq, event-driven", jobs) < at("fig8", "VBMq", jobs), "{jobs} jobs");
    }
    assert!(at("fig10", "Baseline", 20) < 0.8 * at("fig10", "Baseline", 1));
    assert!(at("fig10", "VBDP", 20) < 0.8 * at("fig10", "VBDP", 1));
}

#[test]
fn shapes_have_their_slack() {
    assert!(falls(&[3.0, 3.03, 1.0], 0.02) && !falls(&[3.0, 3.1, 1.0], 0.02));
    assert!(grows(&[1.0, 0.99, 3.0], 0.02) && !grows(&[1.0, 0.9, 3.0], 0.02));
}
