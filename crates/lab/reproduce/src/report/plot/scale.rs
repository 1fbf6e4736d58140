//! From quantities to places, and where the ticks go.

use super::Axis;

/// A mapping from quantities to pixels.
pub struct Scale {
    axis: Axis,
    low: f64,
    high: f64,
    from_px: f64,
    to_px: f64,
}

/// The approximate number of ticks.
const TICKS: f64 = 5.0;

impl Scale {
    /// For heights: a linear one starts at 0, both end at a round number. `values` are finite, and above 0 for
    /// a log axis.
    pub fn heights(axis: Axis, values: &[f64], from_px: f64, to_px: f64) -> Self {
        let (min, max) = range(values);
        let (low, high) = match axis {
            Axis::Linear => {
                let (min, max) = (min.min(0.0), max.max(0.0));
                let step = nice_step(max - min);
                let low = (min / step).floor() * step;
                (low, ((max / step).ceil() * step).max(low + step))
            }
            Axis::Log => (round_down(min), round_up(max)),
        };
        Self::over(axis, low, high, from_px, to_px)
    }

    /// For a horizontal axis of numbers: from the first to the last of them.
    pub fn widths(axis: Axis, values: &[f64], from_px: f64, to_px: f64) -> Self {
        let (min, max) = range(values);
        Self::over(axis, min, max, from_px, to_px)
    }

    fn over(axis: Axis, low: f64, high: f64, from_px: f64, to_px: f64) -> Self {
        // One value alone still needs some room around it.
        let (low, high) = match axis {
            _ if high > low => (low, high),
            Axis::Linear => (low - 0.5, low + 0.5),
            Axis::Log => (low / 2.0, low * 2.0),
        };
        Self { axis, low, high, from_px, to_px }
    }

    /// Where a quantity lies. One outside, or a log axis's zero, lies at the nearest end.
    pub fn at(&self, value: f64) -> f64 {
        let share = match self.axis {
            Axis::Linear => (value - self.low) / (self.high - self.low),
            Axis::Log if value <= 0.0 => 0.0,
            Axis::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from_px + share.clamp(0.0, 1.0) * (self.to_px - self.from_px)
    }

    /// Round quantities, within the scale.
    pub fn ticks(&self) -> Vec<f64> {
        match self.axis {
            Axis::Linear => {
                let step = nice_step(self.high - self.low);
                let (first, last) = ((self.low / step - 1e-9).ceil() as i64, (self.high / step + 1e-9).floor() as i64);
                (first..=last).map(|i| i as f64 * step).collect()
            }
            Axis::Log => {
                let decades = (self.high / self.low).log10();
                let digits: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
                let all = (first..=last).flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
                all.filter(|tick| (self.low * 0.999..=self.high * 1.001).contains(tick)).collect()
            }
        }
    }
}

fn range(values: &[f64]) -> (f64, f64) {
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if min <= max { (min, max) } else { (1.0, 1.0) }
}

/// 1, 2 or 5 times a power of ten, about a fifth of `span`.
fn nice_step(span: f64) -> f64 {
    if span <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf((span / TICKS).log10().floor());
    let digit = span / TICKS / power;
    let nice = match digit {
        _ if digit < 1.5 => 1.0,
        _ if digit < 3.5 => 2.0,
        _ if digit < 7.5 => 5.0,
        _ => 10.0,
    };
    nice * power
}

/// The largest of 1, 2, 5, 10, … that is not above `value`.
fn round_down(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let digit = [5.0, 2.0, 1.0].into_iter().find(|digit| digit * power <= value * 1.000_001).unwrap_or(1.0);
    digit * power
}

/// The smallest of 1, 2, 5, 10, … that is not below `value`.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= value * 0.999_999).unwrap_or(10.0);
    digit * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_heights_start_at_zero_and_end_round() {
        let scale = Scale::heights(Axis::Linear, &[249.0, 2323.0], 100.0, 0.0);
        assert_eq!(scale.ticks(), [0.0, 500.0, 1000.0, 1500.0, 2000.0, 2500.0]);
        assert_eq!((scale.at(0.0), scale.at(2500.0), scale.at(1250.0)), (100.0, 0.0, 50.0));
    }

    #[test]
    fn log_heights_hold_what_they_show() {
        let scale = Scale::heights(Axis::Log, &[11.8, 248.0], 100.0, 0.0);
        assert_eq!(scale.ticks(), [10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!((scale.at(10.0), scale.at(0.0)), (100.0, 100.0));
        assert!((scale.at(500.0) - 0.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_and_one_value_still_make_a_scale() {
        for axis in [Axis::Linear, Axis::Log] {
            for values in [&[][..], &[7.0], &[1.0, 1.0]] {
                for scale in [Scale::heights(axis, values, 0.0, 1.0), Scale::widths(axis, values, 0.0, 1.0)] {
                    assert!(scale.ticks().iter().chain([&7.0]).all(|tick| scale.at(*tick).is_finite()));
                }
            }
        }
        assert_eq!(Scale::heights(Axis::Linear, &[0.0], 0.0, 1.0).at(0.0), 0.0);
    }
}
