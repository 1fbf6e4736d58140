//! Fig. 7 to 9: how many submission queues; event-driven threads or polling ones.

use super::{BARE_METAL, EVENT, IODEPTH, NULL, ONE_POLLER, VBMQ, VCPUS, kiops, play};
use crate::paper::{Printed, derived, printed};
use crate::papers::bench::{EVENKEEL, each, list, most};
use crate::report::{Figure, Row, short_number};
use crate::runner::{Context, Error};

const IOPS: &str = "4K random read (IOPS)";

/// Fig. 7.
pub fn fig7(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    const QUEUES: [u16; 13] = [1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24];
    /// The number of queues that gives the highest IOPS.
    const BEST: u16 = 20;
    /// "No visible performance improvement".
    const SLACK: f64 = 0.01;
    let mut figure = context.figure("fig7");
    let load = (VCPUS.into(), IODEPTH, 100);
    let seen = context
        .all(each([VBMQ, EVENT, EVENKEEL], QUEUES), |(system, queues)| play(context, system, *queues, NULL, load))?;
    for ((system, queues), (iops, _)) in seen {
        figure.show(system, u32::from(queues), IOPS, iops);
    }
    let polling = figure.curve(VBMQ, IOPS);
    let (up_to, beyond) = polling.split_at(QUEUES.iter().take_while(|queues| **queues <= BEST).count());
    figure.demand(format!("IOPS grow with the queues, 1 to {BEST}"), up_to.is_sorted(), kiops(up_to));
    let best = most(up_to);
    figure.demand(
        format!("no gain beyond {BEST} queues"),
        beyond.iter().all(|iops| *iops <= best * (1.0 + SLACK)),
        format!("{} after {}", kiops(beyond), kiops(&[best])),
    );
    Ok(vec![figure])
}

/// Fig. 8 and 9.
pub fn modes(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    Ok(vec![fig8(context)?, fig9(context)?])
}

fn fig8(context: &Context<'_>) -> Result<Figure, Error> {
    /// "Decreased by 8 %".
    const EVENT_OVER_POLLING: Printed = derived(0.92);
    /// Three points of the loss.
    const TOLERANCE: f64 = 0.03;
    const RATIO: &str = "event-driven over polling (fraction)";
    let mut figure = context.figure("fig8");
    let seen = context.all(each([1, 4, 8, 12, 16, 20], [EVENT, VBMQ, EVENKEEL]), |(jobs, system)| {
        play(context, system, VCPUS, NULL, (*jobs, IODEPTH, 100))
    })?;
    for ((jobs, system), (iops, _)) in &seen {
        figure.show(system, *jobs, IOPS, *iops);
    }
    for by_system in seen.chunks(3) {
        let [((jobs, _), (event, _)), (_, (polling, _)), _] = by_system else { continue };
        figure.push(Row::new(EVENT, *jobs, RATIO, event / polling).against(EVENT_OVER_POLLING, TOLERANCE));
    }
    let ratios = figure.curve(EVENT, RATIO);
    let saw = format!("event-driven over polling: {}", list(&ratios, short_number));
    figure.demand("polling ahead of event-driven at any number of jobs", ratios.iter().all(|it| *it < 1.0), saw);
    Ok(figure)
}

fn fig9(context: &Context<'_>) -> Result<Figure, Error> {
    /// One 4K read takes 40 µs, and 13.5 µs with polling.
    const SYSTEMS: [(&str, Option<Printed>); 7] = [
        (EVENT, Some(printed(40.0))),
        (VBMQ, Some(printed(13.5))),
        ("Baseline", None),
        ("VBDP", None),
        (BARE_METAL, None),
        (EVENKEEL, None),
        (ONE_POLLER, None),
    ];
    let mut figure = context.figure("fig9");
    let seen = context.all(SYSTEMS, |(system, _)| play(context, system, VCPUS, NULL, (1, 1, 100)))?;
    for ((system, print), (_, us)) in seen {
        figure.push(Row::new(system, "n1d1", "time of one 4K read (µs)", us).against(print, 0.15));
    }
    Ok(figure)
}
