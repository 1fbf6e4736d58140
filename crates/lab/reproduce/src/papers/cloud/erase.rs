//! How long it takes to erase a drive: arithmetic.

use super::printed::{ERASE_3_PASS_MINUTES, SHEET_MB_S};
use crate::paper::Paper;
use crate::report::{Figure, Row};
use crate::runner::{Context, Error};

const METRIC: &str = "minutes for 1 TB";
const DRIVE_MB: f64 = 1e6;
const PASSES: f64 = 3.0;

/// The arithmetic.
pub fn measure(_context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = Figure::new(Paper::Cloud, "erase", "Erasing 1 TB before the next tenant");
    figure.shows = "Overwriting three times (DoD 5220.22-M) takes as long as writing does; dropping a key takes \
                    seconds, whatever the size. No simulation: size over rate."
        .into();
    let (read, write) = SHEET_MB_S;
    let minutes = |mb_s: f64| DRIVE_MB / mb_s / 60.0;
    let ways = [
        ("at the sheet's sequential rate", PASSES * minutes(write)),
        ("and every pass read back", PASSES * (minutes(write) + minutes(read))),
    ];
    for (way, minutes) in ways {
        figure.push(Row::new(way, "three passes", METRIC, minutes).beside(ERASE_3_PASS_MINUTES));
    }
    let rate = PASSES * DRIVE_MB / (ERASE_3_PASS_MINUTES.value * 60.0);
    figure.assume(format!(
        "The sheet's rates are {write:.0} MB/s written and {read:.0} MB/s read, held over the whole drive."
    ));
    figure.deviation = Some(format!(
        "The printed 40 minutes are {rate:.0} MB/s, about half of the sheet's rate. Either the drive does not hold its \
         rate over a whole terabyte, or the tool writes with less concurrency than the drive needs; the paper says \
         neither."
    ));
    Ok(vec![figure])
}
