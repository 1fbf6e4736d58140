//! Recently measured latencies beside best-effort work in flight, and the cap that follows from them.
//!
//! Here "others" are the best-effort tenants.

use crate::by_target::{TARGET_STEPS, span_of};

/// Rows per doubling of others' work.
const PER_OCTAVE: f64 = 2.0;
/// The rows reach from half a reference command to 2,048.
const ROWS: usize = 25;
const LEAST_UNITS: f64 = 0.5;
/// Places per row, in results.
const FINE: usize = 8;
/// Each latency step counts as this many points spread over its span.
const PARTS: usize = 4;
/// Latency measured beside less than this fraction of the cap is base latency: it occurs beside any work.
const LITTLE: f64 = 0.4;
/// With fewer commands the base latency is not known. It is at most the second fraction of the aim.
const FEW: f64 = 10.0;
const MOST_ANYHOW: f64 = 0.8;

/// Safety margin, in standard deviations: a small number of late commands is measured badly. Fitted.
const CAUTION: f64 = 1.3;

/// What is wanted: at most the fraction `late` (0 to 1) of the commands takes longer than `aim`. A command takes
/// `alone` on an idle drive. Both are fractions of the target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) late: f64,
    pub(super) aim: f64,
    pub(super) alone: f64,
}

/// The result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowed {
    /// The cap on others' work in flight, in reference commands.
    pub(super) units: f64,
    /// Base latency: what a command takes however little work others have, as a fraction of the target.
    pub(super) anyhow: f64,
}

/// Counts of commands, by others' work in flight and by latency step. Older commands count less.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    rows: Box<[Row; ROWS]>,
    total: f64,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    counts: [f32; TARGET_STEPS],
    total: f64,
    /// The mean place among the rows at which its commands were measured.
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
    /// A table without measurements, but with an expectation that counts as `weight` commands.
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

    /// Adds commands that ended while others had `units` in flight. `counts` is by latency step, and each command
    /// counts as `weight` (0 to 1). Beyond `memory` commands, old ones fade.
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

    /// Fades what was measured beside more than `units`: the fraction `part` (0 to 1) is left.
    pub(super) fn fade_beyond(&mut self, units: f64, part: f64) {
        let from = place_of(units).ceil() as usize;
        for row in self.rows.iter_mut().skip(from).filter(|row| row.total > 0.0) {
            self.total -= row.total * (1.0 - part);
            row.keep(part);
        }
    }

    /// The cap that the measurements allow. `until_now`: the cap until now.
    pub(super) fn allows(&self, asked: &Asked, until_now: f64) -> Allowed {
        let anyhow = self.anyhow(asked, until_now * LITTLE).clamp(asked.alone, asked.aim * MOST_ANYHOW);
        Allowed { units: self.most(asked, anyhow), anyhow }
    }

    /// The latency that all commands but the fraction `late` meet beside at most `units`. 0: too few were measured.
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

    /// The largest cap at which few enough commands are late. Waits are taken to be proportional to others' work.
    fn most(&self, asked: &Asked, anyhow: f64) -> f64 {
        // Number of late commands by the work from which on they are late.
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

/// The place of this much work among the rows.
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
        // Beside 8, commands take 3/8 of the target, 0.2 of it base latency. Four times the work is harmless.
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
        // Beside 16, commands take 1/8 of the target longer than beside 1. Another 1/8 is left, so twice the work is
        // allowed.
        let Allowed { units, anyhow } = tail.allows(&ASKED, 16.0);
        assert!((0.6..0.63).contains(&anyhow) && (30.0..45.0).contains(&units), "{units} {anyhow}");
    }
}
