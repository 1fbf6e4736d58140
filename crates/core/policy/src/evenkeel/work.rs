//! Best-effort work in flight, by kind of command: the kinds that other commands wait for differently.
//!
//! Here "others" are the best-effort tenants.

use io_model::{Nanos, Op};

use crate::cost::COST_UNIT;
use crate::split::{DEMAND_KINDS, Gate, Part};

/// Kinds of command: reads and all others, each short, medium and long.
pub(super) const KINDS: usize = DEMAND_KINDS;
/// One value per kind.
pub(super) type ByKind<T> = [T; KINDS];

/// The least length of a medium and of a long command.
pub(super) const MEDIUM_BYTES: u64 = 16 << 10;
const LONG_BYTES: u64 = 64 << 10;

/// The whole cap, in the units of `Work::taken`.
const ALL: u64 = 1 << 32;

/// The kind of a command.
#[inline]
pub(super) fn kind_of(op: Op, len_bytes: u64) -> usize {
    let size = usize::from(len_bytes >= MEDIUM_BYTES) + usize::from(len_bytes >= LONG_BYTES);
    if op == Op::Read { size } else { size + KINDS / 2 }
}

/// The length of the shortest command of a kind.
pub(super) fn least_bytes(kind: usize) -> u64 {
    [0, MEDIUM_BYTES, LONG_BYTES][kind % (KINDS / 2)]
}

/// The most that others had in flight in an interval.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peak {
    /// Reference commands of each kind, in proportion to what was sent.
    pub(super) units: ByKind<f64>,
    /// As a fraction of the cap.
    pub(super) part: f64,
    /// Others reached their cap at this poller.
    pub(super) is_held: bool,
    /// The fraction of the interval in which an oversized command was in flight too. `None`: oversized commands are not
    /// paced.
    pub(super) large: Option<f64>,
}

impl Peak {
    pub(super) const NONE: Self = Self { units: [0.0; KINDS], part: 0.0, is_held: false, large: None };

    /// Lowers the peak to the fraction `part` of the cap, if it was higher.
    pub(super) fn lower_to(&mut self, part: f64) {
        if part < self.part {
            let scale = part / self.part;
            self.units.iter_mut().for_each(|units| *units *= scale);
            self.part = part;
        }
    }
}

/// Best-effort work in flight.
#[derive(Debug)]
pub(super) struct Work {
    in_flight: ByKind<u64>,
    /// The sum of `in_flight`.
    all: u64,
    /// What one unit of each kind takes of [`ALL`], and what all work in flight takes.
    takes: ByKind<u64>,
    taken: u64,
    /// How much may be taken at this poller.
    gate: Gate,
    /// Since the last interval: the most that was taken, and the work that was sent.
    peak: u64,
    sent: ByKind<u64>,
    commands: u64,
    /// Of the last work: the fraction of each kind, and the mean cost of a command.
    mix: ByKind<f64>,
    mean: f64,
}

impl Work {
    pub(super) fn new() -> Self {
        let mut mix = [0.0; KINDS];
        mix[0] = 1.0;
        Self {
            in_flight: [0; KINDS],
            all: 0,
            takes: [0; KINDS],
            taken: 0,
            gate: Gate::fixed(ALL),
            peak: 0,
            sent: [0; KINDS],
            commands: 0,
            mix,
            mean: 0.0,
        }
    }

    /// Counts work that goes to the drive (`goes`) or comes back.
    #[inline]
    pub(super) fn count(&mut self, kind: usize, cost: u64, goes: bool) {
        // Absurd lengths may saturate `taken` until the interval ends.
        let taken = cost.saturating_mul(self.takes[kind]);
        if goes {
            self.in_flight[kind] += cost;
            self.all += cost;
            self.taken = self.taken.saturating_add(taken);
        } else {
            self.in_flight[kind] = self.in_flight[kind].saturating_sub(cost);
            self.all = self.all.saturating_sub(cost);
            self.taken = self.taken.saturating_sub(taken);
        }
    }

    /// Records a command that was sent and counted.
    #[inline]
    pub(super) fn sent(&mut self, kind: usize, cost: u64) {
        self.peak = self.peak.max(self.taken);
        self.sent[kind] += cost;
        self.commands += 1;
    }

    /// Work in flight, in cost ticks.
    #[inline]
    pub(super) fn in_flight(&self) -> u64 {
        self.all
    }

    #[inline]
    pub(super) fn has_room(&mut self, now: Nanos) -> bool {
        self.gate.has_room(self.taken) || self.gate.finds_room(self.taken, now)
    }

    /// Whether a command may be sent because nothing is in flight.
    #[inline]
    pub(super) fn may_start(&self) -> bool {
        self.all == 0 && !self.gate.is_shut()
    }

    /// Whether a command of this cost exceeds the whole cap alone.
    #[inline]
    pub(super) fn is_more_than_all(&self, kind: usize, cost: u64) -> bool {
        cost.saturating_mul(self.takes[kind]) > ALL
    }

    /// When room may come up without a completion. A time in the past is skipped: the waiting tenants have looked
    /// since.
    pub(super) fn has_turn_after(&self, now: Nanos) -> Nanos {
        self.gate.turn_at().filter(|at| *at > now).unwrap_or(Nanos::MAX)
    }

    /// The mean command, as a fraction of the cap.
    pub(super) fn grain(&self) -> f64 {
        self.takes_each() / ALL as f64
    }

    fn takes_each(&self) -> f64 {
        self.mix.iter().zip(&self.takes).map(|(part, takes)| part * *takes as f64).sum::<f64>() * self.mean
    }

    /// Sets the caps, in reference commands of one kind; with several kinds their fractions add up to 1. This poller
    /// gets `part` of it.
    pub(super) fn allow(&mut self, caps: ByKind<f64>, part: Part, now: Nanos) {
        self.takes = caps.map(|cap| (ALL as f64 / (cap * f64::from(COST_UNIT)).max(1.0)).ceil() as u64);
        let taken = self.in_flight.iter().zip(&self.takes).map(|(work, takes)| work.saturating_mul(*takes));
        self.taken = taken.fold(0, u64::saturating_add);
        self.peak = self.taken;
        // A command's cost is known only once it is fetched, so the last one exceeds the cap as often as not.
        let overdraft = (self.takes_each() / 2.0) as u64;
        // An oversized command may go in its turn. That must not admit two smaller ones.
        let most = |part: f64| ((ALL as f64 * part) as u64).saturating_sub(overdraft).min(ALL);
        self.gate = Gate::new(part, self.grain(), now, most);
    }

    /// An interval ended. [`allow`](Self::allow) starts the next one. `without`: work in flight of one kind that was
    /// not recorded as sent.
    pub(super) fn turn_over(&mut self, without: Option<(usize, u64)>) -> Peak {
        let sent = std::mem::take(&mut self.sent);
        let commands = std::mem::take(&mut self.commands);
        let mut seen: ByKind<f64> = std::array::from_fn(|kind| (sent[kind] + self.in_flight[kind]) as f64);
        if let Some((kind, cost)) = without {
            seen[kind] = (seen[kind] - cost as f64).max(0.0);
        }
        let sum = seen.iter().sum::<f64>();
        if sum > 0.0 {
            self.mix = seen.map(|work| work / sum);
        }
        if commands > 0 {
            self.mean = sent.iter().sum::<u64>() as f64 / commands as f64;
        }
        let taken = seen.iter().zip(&self.takes).map(|(work, takes)| work * *takes as f64).sum::<f64>();
        let scale = if taken > 0.0 { self.peak as f64 / taken } else { 0.0 };
        Peak {
            units: seen.map(|work| work * scale / f64::from(COST_UNIT)),
            part: self.peak as f64 / ALL as f64,
            is_held: self.gate.is_reached_by(self.peak),
            ..Peak::NONE
        }
    }

    /// The cap for the last mix of commands, in reference commands.
    pub(super) fn window(&self, caps: ByKind<f64>) -> f64 {
        1.0 / self.mix.iter().zip(caps).map(|(part, cap)| part / cap).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos(0);
    const READ: usize = 0;
    const LONG_WRITE: usize = KINDS - 1;

    /// The cap is 10 short reads or 4 units of long writes.
    fn work() -> Work {
        let mut work = Work::new();
        let mut caps = [100.0; KINDS];
        (caps[READ], caps[LONG_WRITE]) = (10.0, 4.0);
        work.allow(caps, Part::WHOLE, NOW);
        work
    }

    fn send(work: &mut Work, kind: usize, units: u64) {
        work.count(kind, units * u64::from(COST_UNIT), true);
        work.sent(kind, units * u64::from(COST_UNIT));
    }

    #[test]
    fn a_command_is_of_one_kind_by_what_it_does_and_its_length() {
        assert_eq!((kind_of(Op::Read, 4096), kind_of(Op::Read, 16 << 10), kind_of(Op::Read, 1 << 20)), (0, 1, 2));
        assert_eq!(
            (kind_of(Op::Write, 4096), kind_of(Op::Flush, 0), kind_of(Op::Write, 128 << 10)),
            (3, 3, LONG_WRITE)
        );
    }

    #[test]
    fn parts_of_several_caps_add_up_to_one() {
        let mut work = work();
        (0..5).for_each(|_| send(&mut work, READ, 1));
        assert!(work.has_room(NOW));
        send(&mut work, LONG_WRITE, 2);
        assert!(!work.has_room(NOW), "half of each");
        work.count(READ, u64::from(COST_UNIT), false);
        assert!(work.has_room(NOW));
        let peak = work.turn_over(None);
        assert!((peak.part - 1.0).abs() < 1e-6, "{peak:?}");
        assert!(peak.units[READ] > 4.0 && peak.units[LONG_WRITE] > 1.5, "{peak:?}");
    }

    #[test]
    fn the_next_command_of_another_kind_finds_its_own_cap() {
        let mut work = work();
        (0..10).for_each(|_| send(&mut work, READ, 1));
        assert!(!work.has_room(NOW));
        for _ in 0..10 {
            work.count(READ, u64::from(COST_UNIT), false);
        }
        send(&mut work, LONG_WRITE, 4);
        assert!(!work.has_room(NOW));
    }

    #[test]
    fn a_turn_is_for_one_command_though_others_would_be_more_than_all() {
        let mut work = Work::new();
        // Reads of 32 units are four times their cap, writes a little more than theirs.
        let mut caps = [100.0; KINDS];
        (caps[2], caps[LONG_WRITE]) = (8.0, 26.0);
        work.allow(caps, Part::WHOLE, NOW);
        (0..9).for_each(|_| send(&mut work, 2, 32));
        work.turn_over(None);
        (0..9).for_each(|_| work.count(2, 32 * u64::from(COST_UNIT), false));
        work.allow(caps, Part::Turns(0.8, 0.0), NOW);
        assert!(work.has_room(NOW));
        send(&mut work, LONG_WRITE, 32);
        assert!(!work.has_room(NOW), "64 units would be there where 26 may be");
    }

    #[test]
    fn absurd_lengths_stop_others_and_no_more() {
        let mut work = work();
        (0..3).for_each(|_| work.count(LONG_WRITE, u64::MAX / 4, true));
        assert!(!work.has_room(NOW));
        (0..3).for_each(|_| work.count(LONG_WRITE, u64::MAX / 4, false));
        work.turn_over(None);
        work.allow([10.0; KINDS], Part::WHOLE, NOW);
        assert!(work.has_room(NOW));
    }
}
