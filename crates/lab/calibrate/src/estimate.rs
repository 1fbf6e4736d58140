//! Numbers with their uncertainty.

use serde::{Deserialize, Serialize};

/// A measured number and its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The best guess: a median, or what follows from medians.
    pub value: f64,
    /// The interval's start.
    pub low: f64,
    /// Its end.
    pub high: f64,
}

impl Estimate {
    /// A number without doubt.
    pub fn exact(value: f64) -> Self {
        Self { value, low: value, high: value }
    }

    /// The median of samples, with the order statistics that enclose the true median in 95 of 100 cases (binomial,
    /// normal approximation); with fewer than 6 samples the least and the largest. `None` without samples.
    pub fn median(samples: &mut [f64]) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        let n = samples.len();
        let reach = if n < 6 { n as f64 } else { 0.98 * (n as f64).sqrt() };
        let middle = (n as f64 - 1.0) / 2.0;
        let at = |rank: f64| samples.get(rank.clamp(0.0, (middle * 2.0).max(0.0)) as usize).copied();
        let value = (at(middle.floor())? + at(middle.ceil())?) / 2.0;
        Some(Self { value, low: at((middle - reach).floor())?, high: at((middle + reach).ceil())? })
    }

    /// Half the interval's width, the wider side.
    fn reach(self) -> f64 {
        (self.high - self.value).max(self.value - self.low)
    }

    /// `Σ factor × estimate` of independent estimates: their intervals add as squares.
    pub fn sum(terms: &[(f64, Self)]) -> Self {
        let value: f64 = terms.iter().map(|(factor, term)| factor * term.value).sum();
        let reach = terms.iter().map(|(factor, term)| (factor * term.reach()).powi(2)).sum::<f64>().sqrt();
        Self { value, low: value - reach, high: value + reach }
    }

    /// `self` − `other`.
    pub fn minus(self, other: Self) -> Self {
        Self::sum(&[(1.0, self), (-1.0, other)])
    }

    /// Times a factor above 0.
    pub fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, low: self.low * factor, high: self.high * factor }
    }

    /// `numerator` over this; the interval turns around.
    pub fn under(self, numerator: f64) -> Self {
        let over = |value: f64| numerator / value.max(f64::MIN_POSITIVE);
        Self { value: over(self.value), low: over(self.high), high: over(self.low) }
    }

    /// Not below `least`.
    pub fn at_least(self, least: f64) -> Self {
        Self { value: self.value.max(least), low: self.low.max(least), high: self.high.max(least) }
    }
}

/// The least-squares slope of `y` over `x`; 0 where all `x` are alike.
pub(crate) fn slope(points: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let n = points.clone().count().max(1) as f64;
    let (sum_x, sum_y) = points.clone().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
    let (mean_x, mean_y) = (sum_x / n, sum_y / n);
    let (mut xy, mut xx) = (0.0, 0.0);
    for (x, y) in points {
        xy += (x - mean_x) * (y - mean_y);
        xx += (x - mean_x).powi(2);
    }
    if xx > 0.0 { xy / xx } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_shrugs_off_what_a_busy_host_adds() {
        let mut samples: Vec<f64> = (0..101).map(|i| if i % 5 == 0 { 1e9 } else { 100.0 + f64::from(i % 3) }).collect();
        let median = Estimate::median(&mut samples).expect("samples");
        assert!((100.0..=102.0).contains(&median.value), "{median:?}");
        assert!(median.low >= 100.0 && median.high <= 102.0, "{median:?}");
        assert_eq!(Estimate::median(&mut []), None);
        assert_eq!(Estimate::median(&mut [7.0]), Some(Estimate::exact(7.0)));
    }

    #[test]
    fn independent_doubts_add_as_squares() {
        let a = Estimate { value: 10.0, low: 7.0, high: 13.0 };
        let b = Estimate { value: 4.0, low: 2.0, high: 6.0 };
        let difference = a.minus(b.times(2.0));
        assert_eq!((difference.value, difference.low, difference.high), (2.0, -3.0, 7.0));
        assert_eq!(b.under(12.0), Estimate { value: 3.0, low: 2.0, high: 6.0 });
    }

    #[test]
    fn a_slope_is_that_of_the_line() {
        assert!((slope((0..10).map(|x| (f64::from(x), 3.0 * f64::from(x) + 1.0))) - 3.0).abs() < 1e-9);
        assert_eq!(slope([(1.0, 1.0), (1.0, 2.0)].into_iter()), 0.0);
    }
}
