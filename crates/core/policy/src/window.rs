//! A limit on what all tenants may have with the drive together, of which each of several pollers has its
//! [part](crate::split). What it counts, commands or what they cost, is the policy's.

use io_model::Nanos;

use crate::Next;
use crate::split::{DEMAND_KINDS, Demand, Gate, Part, Seen, Split, with_headroom};

/// What is remembered of the most work from one interval to the next, of which only the ends are seen.
const REMEMBERS: f64 = 0.75;
/// What is heard of the size of commands at each interval's end.
const SMOOTHING: f64 = 0.25;
/// Of the last command of a part of whole ones, what is left out: the limit is passed by who finds it not yet reached.
const LAST: f64 = 15.0 / 16.0;
/// Those who go first are short of room where others had no more than this of what was served.
const LEFT_TO_OTHERS: f64 = 0.05;
/// A flow that had less than this of what another had for its weight did not always wait.
const ALWAYS: f64 = 0.5;
/// Virtual time that one unit of work takes at weight 1.
const TICKS: f64 = 1024.0;

/// What a flow counts for where a limit is parted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Claim {
    /// It goes before all others, without limit.
    First,
    /// By weight.
    Weight(f64),
}

/// What flows asked for and had at this poller in an interval.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    weight: f64,
    /// The work of those who go first, and of all.
    first: f64,
    served: f64,
    /// The most work for its weight that a flow had.
    most: f64,
}

impl Asked {
    /// A flow that asked had so much work done.
    pub(crate) fn add(&mut self, claim: Claim, served: f64) {
        self.served += served;
        match claim {
            Claim::First => self.first += served,
            Claim::Weight(weight) => {
                self.weight += weight;
                self.most = self.most.max(served / weight);
            }
        }
    }

    /// Whether a flow had all that there was for its weight, as far as can be seen.
    pub(crate) fn always_waited(&self, served: f64, weight: f64) -> bool {
        served >= self.most * weight * ALWAYS
    }
}

#[derive(Debug)]
pub(crate) struct Window {
    /// At all pollers together.
    all: u64,
    gate: Gate,
    split: Split,
    /// A tenant found no room since this was last reported.
    was_held: bool,
    /// The most that was there lately and what a command is, in parts of all.
    work: f64,
    grain: f64,
    /// How far those who always waited have come, in ticks by weight.
    clock: u64,
    part: f64,
}

impl Window {
    pub(crate) fn new(all: u64) -> Self {
        let grain = 1.0 / all as f64;
        let (gate, split) = (Gate::fixed(all), Split::new());
        Self { all, gate, split, was_held: false, work: 0.0, grain, clock: 0, part: 1.0 }
    }

    /// Any number of commands.
    pub(crate) fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.all < u64::MAX
    }

    /// What this poller's part is, in the mean.
    pub(crate) fn size(&self) -> f64 {
        self.all as f64 * self.part
    }

    /// Whether another command may go beside `taken`. Asked when a tenant waits.
    #[inline]
    pub(crate) fn has_room(&mut self, taken: u64, now: Nanos) -> bool {
        self.gate.has_room(taken) || self.finds_room(taken, now)
    }

    fn finds_room(&mut self, taken: u64, now: Nanos) -> bool {
        self.was_held = !self.gate.finds_room(taken, now) || self.was_held;
        self.gate.has_room(taken)
    }

    /// Where there is none: until when.
    pub(crate) fn wait(&self) -> Next {
        Next::WaitUntil(self.gate.turn_at().unwrap_or(Nanos::MAX))
    }

    /// There is nobody here who could ask.
    pub(crate) fn rest(&mut self) {
        self.set(Part::WHOLE, Nanos(0));
    }

    /// An interval ended with this work and these commands in flight. `level`: the work per weight of the tenants that
    /// always waited.
    pub(crate) fn tell(&mut self, asked: &Asked, level: f64, taken: u64, commands: u32) -> Demand {
        let is_held = std::mem::take(&mut self.was_held);
        let there = taken as f64 / self.all as f64;
        self.work = there.max(self.work * REMEMBERS);
        if commands > 0 {
            self.grain += (there / f64::from(commands) - self.grain) * SMOOTHING;
        }
        self.clock += (level * TICKS) as u64;
        let seen = Seen { weight: asked.weight, is_held, clock: self.clock, scale: 1 };
        let (claim, pace) = self.split.tell(seen);
        let part_of_first = asked.first / asked.served.max(f64::MIN_POSITIVE);
        let first = match part_of_first {
            0.0 => 0.0,
            part if is_held && part > 1.0 - LEFT_TO_OTHERS => 1.0,
            part => with_headroom(self.work * part, self.grain),
        };
        let (level, units) = (f64::INFINITY, [0.0; DEMAND_KINDS]);
        Demand { used: self.work.max(first), claim, is_held, pace, grain: self.grain, first, level, units }
    }

    /// What all pollers told, this one's at `own`.
    pub(crate) fn hear(&mut self, all: &[Demand], own: usize, now: Nanos) {
        let part = self.split.part(all, own);
        self.set(part, now);
    }

    fn set(&mut self, part: Part, now: Nanos) {
        self.part = part.size();
        if part == Part::WHOLE {
            self.gate = Gate::fixed(self.all);
            return;
        }
        let all = self.all as f64;
        let last = if matches!(part, Part::Of(_)) { 0.0 } else { self.grain * LAST };
        // What is a whole number but for rounding is that.
        self.gate = Gate::new(part, self.grain, now, |part| (all * (part - last) - 1e-6).ceil() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::ROUND;

    /// One poller's tenants: they keep up to `depth` commands in flight, and ask by their weight.
    #[derive(Clone, Copy)]
    struct Load {
        depth: u64,
        claim: Claim,
    }

    /// Intervals of pollers that fill their windows of `all` commands; the most that was there together, and what each
    /// had of all at the end.
    fn play(all: u64, loads: &[Load], intervals: u64) -> (u64, Vec<f64>) {
        let mut windows: Vec<Window> = loads.iter().map(|_| Window::new(all)).collect();
        let mut most = 0;
        let mut had = vec![0.0; loads.len()];
        for interval in 0..intervals {
            had.fill(0.0);
            let steps = 40;
            let mut there = vec![0; loads.len()];
            for step in 0..steps {
                let now = Nanos(interval * 10_000_000 + step * ROUND.0 / 8);
                for (at, load) in loads.iter().enumerate() {
                    there[at] = 0;
                    while there[at] < load.depth && windows[at].has_room(there[at], now) {
                        there[at] += 1;
                    }
                    had[at] += there[at] as f64;
                }
                if interval > 2 {
                    most = most.max(there.iter().sum());
                }
            }
            let now = Nanos((interval + 1) * 10_000_000);
            let told = windows.iter_mut().zip(loads).enumerate().map(|(at, (window, load))| {
                let mut asked = Asked::default();
                asked.add(load.claim, had[at]);
                let level = if let Claim::Weight(weight) = load.claim { had[at] / weight } else { 0.0 };
                window.tell(&asked, level, there[at], there[at] as u32)
            });
            let demands: Vec<Demand> = told.collect();
            windows.iter_mut().enumerate().for_each(|(own, window)| window.hear(&demands, own, now));
        }
        let sum = had.iter().sum::<f64>();
        (most, had.into_iter().map(|had| had / sum).collect())
    }

    #[test]
    fn all_together_have_no_more_than_there_is_and_a_command_each() {
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..200 {
            let all = random.u64(1..64);
            let loads: Vec<Load> = (0..random.usize(1..12))
                .map(|_| Load { depth: random.u64(0..40), claim: Claim::Weight(f64::from(random.u8(1..8))) })
                .collect();
            let (most, _) = play(all, &loads, 40);
            assert!(most <= all + loads.len() as u64, "{most} of {all} at {}", loads.len());
        }
    }

    #[test]
    fn parts_are_by_weight() {
        let loads = [1.0, 2.0, 5.0].map(|weight| Load { depth: 100, claim: Claim::Weight(weight) });
        let (most, had) = play(32, &loads, 200);
        assert!(most <= 33, "{most}");
        for (had, weight) in had.iter().zip([1.0, 2.0, 5.0]) {
            assert!((had / (weight / 8.0) - 1.0).abs() < 0.1, "{had:?}");
        }
    }

    #[test]
    fn who_goes_first_has_all_that_it_asks_for_and_others_the_rest() {
        let first = |depth| Load { depth, claim: Claim::First };
        let other = Load { depth: 100, claim: Claim::Weight(1.0) };
        let (_, had) = play(32, &[first(100), other, other], 50);
        assert!(had[0] > 0.9, "{had:?}");
        // 16 commands are with the drive at a time, and a quarter and one is kept for more.
        let (_, had) = play(32, &[first(16), other, other], 50);
        assert!((0.5..0.62).contains(&had[0]) && (had[1] / had[2] - 1.0).abs() < 0.1, "{had:?}");
    }
}
