//! Which part of a tenant's commands its latency target is for.

use std::fmt;

/// A percentile of latencies, 50 to 99.9, in steps of 0.01. Shown as `99` or `99.9`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percentile {
    /// Commands of a million that may be late.
    late_ppm: u32,
}

/// Of a million.
const ALL_PPM: u32 = 1_000_000;
const STEP_PPM: u32 = 100;
const LEAST_LATE_PPM: u32 = 1_000;
const MOST_LATE_PPM: u32 = 500_000;

impl Percentile {
    /// 99 of 100 commands.
    pub const P99: Self = Self { late_ppm: 10_000 };

    /// From percent, rounded to a step. `None`: below 50 or above 99.9.
    pub fn new(percent: f64) -> Option<Self> {
        // What is no number stays below all.
        let steps = ((100.0 - percent) * 1e4 / f64::from(STEP_PPM)).round();
        let range = f64::from(LEAST_LATE_PPM / STEP_PPM)..=f64::from(MOST_LATE_PPM / STEP_PPM);
        range.contains(&steps).then(|| Self { late_ppm: steps as u32 * STEP_PPM })
    }

    /// From the commands of a million that may be late, brought into the range.
    pub const fn from_late_ppm(late_ppm: u32) -> Self {
        let late_ppm = if late_ppm < LEAST_LATE_PPM { LEAST_LATE_PPM } else { late_ppm };
        Self { late_ppm: if late_ppm > MOST_LATE_PPM { MOST_LATE_PPM } else { late_ppm } }
    }

    /// Commands of a million that may be late.
    pub const fn late_ppm(self) -> u32 {
        self.late_ppm
    }

    /// The part of commands that may be late, 0.001 to 0.5.
    pub fn late(self) -> f64 {
        f64::from(self.late_ppm) / f64::from(ALL_PPM)
    }

    /// Whether more of `commands` were late than may be.
    pub fn is_missed(self, late: u64, commands: u64) -> bool {
        u128::from(late) * u128::from(ALL_PPM) > u128::from(commands) * u128::from(self.late_ppm)
    }

    /// In percent.
    pub fn percent(self) -> f64 {
        f64::from(ALL_PPM - self.late_ppm) / 1e4
    }

    /// As a quantile, 0.5 to 0.999.
    pub fn quantile(self) -> f64 {
        f64::from(ALL_PPM - self.late_ppm) / f64::from(ALL_PPM)
    }

    /// For sentences about commands: `99 of 100`, `999 of 1000`.
    pub fn in_words(self) -> String {
        let mut all = 100;
        while !(ALL_PPM - self.late_ppm).is_multiple_of(ALL_PPM / all) {
            all *= 10;
        }
        format!("{} of {all}", (ALL_PPM - self.late_ppm) / (ALL_PPM / all))
    }
}

impl Default for Percentile {
    fn default() -> Self {
        Self::P99
    }
}

impl fmt::Display for Percentile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.percent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_told_as_people_say_them() {
        let told = |percent| Percentile::new(percent).map(|it| (it.to_string(), it.in_words()));
        let words = |number: &str, sentence: &str| Some((number.to_owned(), sentence.to_owned()));
        assert_eq!(told(99.0), words("99", "99 of 100"));
        assert_eq!(told(50.0), words("50", "50 of 100"));
        assert_eq!(told(99.9), words("99.9", "999 of 1000"));
        assert_eq!(told(99.25), words("99.25", "9925 of 10000"));
        assert_eq!(told(99.894), words("99.89", "9989 of 10000"));
        assert_eq!([99.91, 100.0, 49.9, -1.0, f64::NAN, f64::INFINITY].map(Percentile::new), [None; 6]);
    }

    #[test]
    fn a_percentile_is_what_it_was_made_from() {
        assert_eq!(Percentile::new(99.0), Some(Percentile::P99));
        for hundredths in 5_000..=9_990_u32 {
            let it = Percentile::new(f64::from(hundredths) / 100.0).expect("in the range");
            assert_eq!(Percentile::from_late_ppm(it.late_ppm()), it);
            assert_eq!((it.percent() * 100.0).round() as u32, hundredths);
            assert!((it.late() + it.quantile() - 1.0).abs() < 1e-12);
        }
        assert_eq!(Percentile::from_late_ppm(0).to_string(), "99.9");
        assert_eq!(Percentile::from_late_ppm(u32::MAX).to_string(), "50");
    }
}
