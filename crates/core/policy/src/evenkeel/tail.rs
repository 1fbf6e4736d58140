//! How long a command waits beside others' work with the drive, as was seen lately, and how much of it that leaves.

use crate::by_target::{TARGET_STEPS, span_of};

/// Rows to a doubling of the work.
const PER_OCTAVE: f64 = 2.0;
/// From half a reference command to 2,048.
const ROWS: usize = 25;
const LEAST_UNITS: f64 = 0.5;
/// Places to a row, for what follows from them.
const FINE: usize = 8;
/// A step is spread over its span in so many parts.
const PARTS: usize = 4;
/// What is waited beside so much less work than may be is waited beside any.
const LITTLE: f64 = 0.4;
/// Of fewer commands that is not known; and the most of the aim that it may be.
const FEW: f64 = 10.0;
const MOST_ANYHOW: f64 = 0.8;

/// How many of few commands are late is known badly: so many standard deviations fewer are to be. Fitted.
const CAUTION: f64 = 1.3;

/// What is asked: at most `late` (0 to 1) of the commands are to take longer than `aim`, where each takes `alone` with
/// nothing else there; both in targets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) late: f64,
    pub(super) aim: f64,
    pub(super) alone: f64,
}

/// What may be, by what was seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowed {
    /// Reference commands that others may have with the drive.
    pub(super) units: f64,
    /// What a command takes however few they have, in targets.
    pub(super) anyhow: f64,
}

/// Commands by what others had with the drive, and by the step of the target in which they ended; what is older counts
/// less.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    rows: Box<[Row; ROWS]>,
    total: f64,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    counts: [f32; TARGET_STEPS],
    total: f64,
    /// The mean of where among the rows its commands have their place.
    place: f64,
}

impl Row {
    const EMPTY: Self = Self { counts: [0.0; TARGET_STEPS], total: 0.0, place: 0.0 };

    fn keep(&mut self, part: f64) {
        self.counts.iter_mut().for_each(|count| *count *= part as f32);
        self.total *= part;
    }

    fn add(&mut self, counts: &[f64; TARGET_STEPS], new: f64, place: f64) {
        self.counts.iter_mut().zip(counts).for_each(|(count, more)| *count += *more as f32);
        self.total += new;
        self.place += (place - self.place) * new / self.total;
    }
}

impl Tail {
    /// Nothing seen, but `weight` commands' worth of an expectation.
    pub(super) fn expecting(asked: &Asked, units: f64, weight: f64) -> Self {
        let is_there = |step: &usize| span_of(*step).1 > asked.aim;
        let step = (0..TARGET_STEPS).find(is_there).unwrap_or(TARGET_STEPS - 1);
        let (from, to) = span_of(step);
        let place = place_of(units * ((from + to) / 2.0 - asked.alone) / (asked.aim - asked.alone));
        let mut tail = Self { rows: Box::new([Row::EMPTY; ROWS]), total: weight };
        let mut counts = [0.0; TARGET_STEPS];
        counts[step] = weight;
        if weight > 0.0 {
            tail.rows[place.round() as usize].add(&counts, weight, place);
        }
        tail
    }

    /// Commands ended, `counts` by the steps of the target in which they did, while others had `units`. Each counts as
    /// `weight` (0 to 1) of one. Beyond `memory` commands the oldest count less and less.
    pub(super) fn learn(&mut self, counts: &[u32; TARGET_STEPS], units: f64, (weight, memory): (f64, f64)) {
        let counts = counts.map(|count| f64::from(count) * weight);
        let new = counts.iter().sum::<f64>();
        if new <= 0.0 {
            return;
        }
        if self.total + new > memory {
            let part = ((memory - new) / self.total).clamp(0.0, 1.0);
            self.rows.iter_mut().filter(|row| row.total > 0.0).for_each(|row| row.keep(part));
            self.total *= part;
        }
        let place = place_of(units);
        self.rows[place.round() as usize].add(&counts, new, place);
        self.total += new;
    }

    /// Of what was seen beside more than `units` that part (0 to 1) is left.
    pub(super) fn fade_beyond(&mut self, units: f64, part: f64) {
        let from = place_of(units).ceil() as usize;
        for row in self.rows.iter_mut().skip(from).filter(|row| row.total > 0.0) {
            self.total -= row.total * (1.0 - part);
            row.keep(part);
        }
    }

    /// How much others may have, if they had `units` until now.
    pub(super) fn allows(&self, asked: &Asked, until_now: f64) -> Allowed {
        let anyhow = self.anyhow(asked, until_now * LITTLE).clamp(asked.alone, asked.aim * MOST_ANYHOW);
        Allowed { units: self.most(asked, anyhow), anyhow }
    }

    /// What all but those that may be late take beside at most `units`; 0: too few were seen.
    fn anyhow(&self, asked: &Asked, units: f64) -> f64 {
        let rows = &self.rows[..place_of(units) as usize];
        let seen = rows.iter().map(|row| row.total).sum::<f64>();
        if seen < FEW {
            return 0.0;
        }
        let mut left = seen * asked.late;
        for step in (0..TARGET_STEPS).rev() {
            let count = rows.iter().map(|row| f64::from(row.counts[step])).sum::<f64>();
            let (from, to) = span_of(step);
            if left < count {
                return to - (to - from) * left / count;
            }
            left -= count;
        }
        0.0
    }

    /// Of two commands the one that waits so many times as long is late beside so many times less.
    fn most(&self, asked: &Asked, anyhow: f64) -> f64 {
        // Work beside which a command is late, by how many are.
        let mut late = [0.0; ROWS * FINE];
        for step in 0..TARGET_STEPS {
            let (from, to) = span_of(step);
            for part in 0..PARTS {
                let takes = from + (to - from) * (part as f64 + 0.5) / PARTS as f64;
                let times = (asked.aim - anyhow) / (takes - anyhow);
                let moved = if times > 0.0 { times.log2() * PER_OCTAVE } else { f64::INFINITY };
                for row in self.rows.iter().filter(|row| row.counts[step] > 0.0) {
                    let place = (row.place + moved) * FINE as f64;
                    if place < late.len() as f64 {
                        late[place.max(0.0) as usize] += f64::from(row.counts[step]) / PARTS as f64;
                    }
                }
            }
        }
        let late_ones = asked.late * self.total;
        let mut left = (late_ones - CAUTION * late_ones.sqrt()).max(0.0);
        for (place, count) in late.iter().enumerate() {
            if left < *count {
                return units_at((place as f64 + left / count) / FINE as f64);
            }
            left -= count;
        }
        units_at(ROWS as f64)
    }
}

/// The place of that much work among the rows.
fn place_of(units: f64) -> f64 {
    ((units / LEAST_UNITS).max(1.0).log2() * PER_OCTAVE).min((ROWS - 1) as f64)
}

fn units_at(place: f64) -> f64 {
    LEAST_UNITS * (place / PER_OCTAVE).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Asked = Asked { late: 0.01, aim: 0.9, alone: 0.2 };

    #[test]
    fn an_expectation_gives_way_to_what_is_seen() {
        let mut tail = Tail::expecting(&ASKED, 16.0, 100.0);
        let units = tail.allows(&ASKED, 16.0).units;
        assert!((units / 16.0 - 1.0).abs() < 0.2, "{units}");
        // Beside 8 commands take 3/8 of the target, 0.2 of which they take alone: four times as many are no harm.
        let mut counts = [0; TARGET_STEPS];
        counts[1] = 1_000;
        for _ in 0..10 {
            tail.learn(&counts, 8.0, (1.0, 2_000.0));
        }
        let units = tail.allows(&ASKED, 8.0).units;
        assert!((17.0..22.0).contains(&units), "{units}: one of 100 takes half of the target");
    }

    #[test]
    fn nothing_is_forgotten_of_what_is_rare() {
        let mut tail = Tail::expecting(&ASKED, 16.0, 0.0);
        let mut counts = [0; TARGET_STEPS];
        (counts[0], counts[9]) = (9_800, 200);
        tail.learn(&counts, 16.0, (1.0, 1e9));
        let strict = tail.allows(&ASKED, 16.0).units;
        let lax = tail.allows(&Asked { late: 0.03, ..ASKED }, 16.0).units;
        assert!(strict < 12.0 && lax > 500.0, "{strict} {lax}");
    }

    #[test]
    fn what_was_seen_beside_much_more_fades() {
        let mut tail = Tail::expecting(&ASKED, 16.0, 0.0);
        let (mut in_time, mut late) = ([0; TARGET_STEPS], [0; TARGET_STEPS]);
        (in_time[1], late[TARGET_STEPS - 1]) = (900, 100);
        tail.learn(&in_time, 8.0, (1.0, 1e9));
        let without = tail.allows(&ASKED, 8.0).units;
        tail.learn(&late, 256.0, (1.0, 1e9));
        let beside = |tail: &Tail| tail.allows(&ASKED, 8.0).units;
        assert!(beside(&tail) < without * 0.9, "{} {without}", beside(&tail));
        tail.fade_beyond(300.0, 0.9);
        assert_eq!(tail.total, 1_000.0, "nothing is so far");
        (0..100).for_each(|_| tail.fade_beyond(16.0, 0.9));
        assert!((tail.total - 900.0).abs() < 0.1 && beside(&tail) > without * 0.99, "{} {}", tail.total, beside(&tail));
    }

    #[test]
    fn what_is_waited_beside_little_is_not_laid_to_more() {
        let mut tail = Tail::expecting(&ASKED, 16.0, 0.0);
        let (mut few, mut many) = ([0; TARGET_STEPS], [0; TARGET_STEPS]);
        (few[2], many[3]) = (1_000, 1_000);
        tail.learn(&few, 1.0, (1.0, 1e9));
        tail.learn(&many, 16.0, (1.0, 1e9));
        // An eighth of the target more beside 16 than beside one: so that another eighth is left allows twice as much.
        let Allowed { units, anyhow } = tail.allows(&ASKED, 16.0);
        assert!((0.6..0.63).contains(&anyhow) && (30.0..45.0).contains(&units), "{units} {anyhow}");
    }
}
