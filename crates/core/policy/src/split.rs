//! Splits the cap on best-effort work in flight among the pollers that serve best-effort tenants.
//!
//! After each interval every poller publishes a [`Demand`]: the fraction of the cap that it used, and the weight of the
//! tenants that asked. Each poller computes all shares from the same demands. A poller that used less than its share
//! gets what it used, a quarter more, and one command. The rest of the cap is split by weight, and so is what nobody
//! asks for. The shares add up to the cap, except in an interval in which a demand changed.
//!
//! Some of a poller's tenants may go before all others. The poller publishes the share that they need, and gets at
//! least that, whatever its weight. At least 1/64 of the cap is split by weight.
//!
//! Weights alone don't make fair shares: tenants may send other kinds of commands, or less than their share. So pollers
//! also publish the pace of their virtual time. Each corrects its weight until its pace equals that of the others.
//!
//! A share may not be a whole number of commands. Then it is rounded up for some of the time and down for the rest. The
//! pollers take turns, so that together they stay within the cap: see [`Gate`].

use io_model::Nanos;

/// Kinds of command in a demand.
pub(crate) const DEMAND_KINDS: usize = 6;
/// Number of figures in a [`Demand`].
pub const DEMAND_FIGURES: usize = 7 + DEMAND_KINDS;

/// A poller gets this fraction more than it used, and one command, so that its use can grow.
const HEADROOM: f64 = 0.25;
/// Per interval: the weight of the new pace in the smoothed one, and the fraction of the difference from other pollers
/// that is corrected. Smaller steps don't overshoot.
const SMOOTHING: f64 = 0.25;
const GAIN: f64 = SMOOTHING / 4.0;
/// The largest correction of a weight, up or down, as a logarithm: a factor of 16.
const MOST_BIAS: f64 = 2.772_588_722_239_781;
/// What is left of a correction after an interval in which the poller stayed below its share.
const FORGETS: f64 = 0.95;
/// All minimum shares together get at most this fraction of the cap.
const MOST_FIRST: f64 = 1.0 - 1.0 / 64.0;
/// Two shares count as different if one is below this fraction of the other.
const NEARLY: f64 = 0.95;
/// The period in which each poller has its turn at one more command.
pub(crate) const ROUND: Nanos = Nanos::from_millis(2);

/// What a poller's best-effort tenants had and asked for in the last interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// The most that was in flight, as a fraction of the cap.
    pub used: f64,
    /// The weight of the tenants that asked, corrected.
    pub claim: f64,
    /// The poller reached its share.
    pub is_held: bool,
    /// The advance of virtual time per interval, in ticks at whole weights, smoothed. 0: not known.
    pub pace: f64,
    /// The mean command, as a fraction of the cap. 0: there was none.
    pub grain: f64,
    /// The least share that it needs, as a fraction of the cap.
    pub first: f64,
    /// The cap, in reference commands, that tenants below their minimum here leave for best effort. Infinite: no limit.
    pub level: f64,
    /// Reference commands in flight at the peak, by kind.
    pub units: [f64; DEMAND_KINDS],
}

impl Demand {
    /// Converts the demand to figures, to publish it.
    pub fn to_figures(&self) -> [f64; DEMAND_FIGURES] {
        let mut figures = [0.0; DEMAND_FIGURES];
        let is_held = f64::from(u8::from(self.is_held));
        let one_by_one = [self.used, self.claim, is_held, self.pace, self.grain, self.first, self.level];
        figures[..7].copy_from_slice(&one_by_one);
        figures[7..].copy_from_slice(&self.units);
        figures
    }

    /// Converts figures back to a demand.
    pub fn from_figures(figures: &[f64; DEMAND_FIGURES]) -> Self {
        let [used, claim, is_held, pace, grain, first, level, units @ ..] = *figures;
        Self { used, claim, is_held: is_held > 0.0, pace, grain, first, level, units }
    }

    /// The share beyond which it needs no more.
    fn wants(&self) -> f64 {
        if self.is_held { f64::INFINITY } else { with_headroom(self.used, self.grain) }
    }
}

/// Adds headroom to a use, so that it can grow.
pub(crate) fn with_headroom(used: f64, grain: f64) -> f64 {
    used * (1.0 + HEADROOM) + grain
}

/// One poller's share of the cap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Part {
    /// This fraction, or one command if nothing is in flight: a tenant that starts is served at once.
    Of(f64),
    /// This fraction on average, in whole commands. The poller takes turns at one more command; its turn begins at the
    /// second fraction of a round.
    Turns(f64, f64),
}

impl Part {
    pub(crate) const WHOLE: Self = Self::Of(1.0);

    /// The fraction, averaged over a round.
    pub(crate) fn size(self) -> f64 {
        let (Self::Of(part) | Self::Turns(part, _)) = self;
        part
    }

    /// The average in flight, if the peak was `most` and the poller reached its share.
    pub(crate) fn mean(self, most: f64) -> f64 {
        match self {
            Self::Of(_) => most,
            Self::Turns(part, _) => most.min(part),
        }
    }
}

/// One poller's part in splitting the cap.
#[derive(Debug)]
pub(crate) struct Split {
    /// The logarithm of the correction of this poller's weight.
    bias: f64,
    pace: f64,
    held_before: bool,
    /// Virtual time when the last interval ended.
    clock: u64,
    /// Its share by the interval before. A larger share is used only once all others know that theirs are smaller.
    before: f64,
    /// It still has less than its new share, so its pace is too low.
    is_behind: bool,
    /// Scratch space: the share of each poller.
    parts: Vec<f64>,
}

/// What [`Split::tell`] needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// The weight of the tenants that asked.
    pub(crate) weight: f64,
    pub(crate) is_held: bool,
    /// Virtual time, and the weight that one tick stands for.
    pub(crate) clock: u64,
    pub(crate) scale: u32,
}

impl Split {
    pub(crate) fn new() -> Self {
        Self { bias: 0.0, pace: 0.0, held_before: false, clock: 0, before: 1.0, is_behind: false, parts: Vec::new() }
    }

    /// An interval ended. Returns the corrected weight and the pace.
    pub(crate) fn tell(&mut self, seen: Seen) -> (f64, f64) {
        let went_on = (seen.clock.saturating_sub(self.clock) * u64::from(seen.scale)) as f64;
        self.clock = seen.clock;
        if !seen.is_held {
            self.bias *= FORGETS;
        }
        self.pace = match (seen.is_held, self.held_before, self.pace > 0.0) {
            // A poller that reached its share in the middle of the interval did not advance for all of it.
            (false, ..) | (_, false, _) => 0.0,
            (true, true, false) => went_on,
            (true, true, true) => self.pace + (went_on - self.pace) * SMOOTHING,
        };
        if self.is_behind {
            self.pace = 0.0;
        }
        self.held_before = seen.is_held && !self.is_behind;
        (seen.weight * self.bias.exp(), self.pace)
    }

    /// This poller's share until the next interval ends.
    pub(crate) fn part(&mut self, all: &[Demand], own: usize) -> Part {
        if all.len() < 2 {
            (self.before, self.is_behind) = (1.0, false);
            return Part::WHOLE;
        }
        self.correct(all, own);
        self.share_out(all);
        let Demand { grain, .. } = all[own];
        let before = std::mem::replace(&mut self.before, self.parts[own]);
        let part = self.parts[own].min(before);
        self.is_behind = part < self.parts[own] * NEARLY;
        if !all[own].is_held || self.is_behind || grain <= 0.0 {
            return Part::Of(part);
        }
        let held = |at: usize| all[at].is_held && all[at].grain > 0.0;
        let ahead = (0..own).filter(|at| held(*at)).map(|at| self.parts[at] / all[at].grain).sum::<f64>();
        Part::Turns(part, ahead.fract())
    }

    /// Corrects the weight towards the mean pace of all pollers that reached their share. The corrections add up to 0.
    fn correct(&mut self, all: &[Demand], own: usize) {
        let known = || all.iter().map(|demand| demand.pace).filter(|pace| *pace > 0.0);
        if all[own].pace > 0.0 {
            let mean = known().map(f64::ln).sum::<f64>() / known().count() as f64;
            self.bias = (self.bias + GAIN * (mean - all[own].pace.ln())).clamp(-MOST_BIAS, MOST_BIAS);
        }
    }

    /// Splits the cap by weight. No poller gets more than it wants while others want more, or less than its minimum.
    fn share_out(&mut self, all: &[Demand]) {
        const OPEN: f64 = -1.0;
        let parts = &mut self.parts;
        parts.clear();
        parts.resize(all.len(), OPEN);
        let first = all.iter().map(|demand| demand.first).sum::<f64>();
        let of_first = (MOST_FIRST / first).min(1.0);
        let least = |demand: &Demand| (demand.first * of_first).min(demand.wants());
        let mut left = 1.0;
        loop {
            let open = || all.iter().zip(&*parts).filter(|(_, part)| **part == OPEN).map(|(demand, _)| demand);
            let claims = open().map(|demand| demand.claim).sum::<f64>();
            let by_claim = if claims > 0.0 { left / claims } else { 0.0 };
            // Settle minimums first if they add more than unused shares give back, and unused shares first otherwise.
            let beyond = open().map(|demand| {
                let by_claim = by_claim * demand.claim;
                by_claim.clamp(least(demand), demand.wants()) - by_claim
            });
            let beyond = beyond.sum::<f64>();
            let mut taken = 0.0;
            let mut is_settled = true;
            for (demand, part) in all.iter().zip(&mut *parts).filter(|(_, part)| **part == OPEN) {
                let by_claim = by_claim * demand.claim;
                let at = by_claim.clamp(least(demand), demand.wants());
                if beyond >= 0.0 && at > by_claim || beyond <= 0.0 && at <= by_claim && demand.wants() <= by_claim {
                    (*part, is_settled) = (at, false);
                    taken += at;
                }
            }
            left = (left - taken).max(0.0);
            if is_settled {
                for (demand, part) in all.iter().zip(&mut *parts).filter(|(_, part)| **part == OPEN) {
                    *part = by_claim * demand.claim;
                    left -= *part;
                }
                break;
            }
        }
        let claims = all.iter().map(|demand| demand.claim).sum::<f64>();
        if left > 0.0 && claims > 0.0 {
            all.iter().zip(parts).for_each(|(demand, part)| *part += left * demand.claim / claims);
        }
    }
}

/// How much may be in flight at one poller now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gate {
    most: u64,
    /// Outside of its turn, and in its turn.
    least: u64,
    more: u64,
    /// When its turn begins and how long it lasts, as fractions of a round.
    from: f64,
    lasts: f64,
    /// When the turn next begins or ends.
    turns_at: Nanos,
}

impl Gate {
    /// `grain`: the mean command as a fraction of the cap. `most`: the limit for a fraction of the cap.
    pub(crate) fn new(part: Part, grain: f64, now: Nanos, most: impl Fn(f64) -> u64) -> Self {
        let (part, from) = match part {
            Part::Turns(part, from) if grain > 0.0 => (part, from),
            Part::Of(part) | Part::Turns(part, _) => return Self::fixed(most(part).max(1)),
        };
        let commands = part / grain;
        let whole = commands.floor();
        let least = if whole < 1.0 { 0 } else { most(whole * grain).max(1) };
        let more = most((whole + 1.0) * grain).max(1);
        let mut gate = Self { least, more, from, lasts: commands.fract(), ..Self::fixed(least) };
        gate.turn(now);
        gate
    }

    pub(crate) fn fixed(most: u64) -> Self {
        Self { most, least: most, more: most, from: 0.0, lasts: 0.0, turns_at: Nanos::MAX }
    }

    #[inline]
    pub(crate) fn has_room(&self, taken: u64) -> bool {
        taken < self.most
    }

    /// Whether so much is all that may be there, outside of its turn.
    pub(crate) fn is_reached_by(&self, taken: u64) -> bool {
        taken >= self.least.max(1)
    }

    /// Whether nothing may be sent now.
    #[inline]
    pub(crate) fn is_shut(&self) -> bool {
        self.most == 0
    }

    /// When the turn next begins or ends. `None`: never.
    pub(crate) fn turn_at(&self) -> Option<Nanos> {
        (self.turns_at < Nanos::MAX).then_some(self.turns_at)
    }

    /// Whether there is room by now for a tenant that found none before.
    #[inline]
    pub(crate) fn finds_room(&mut self, taken: u64, now: Nanos) -> bool {
        if now >= self.turns_at {
            self.turn(now);
        }
        self.has_room(taken)
    }

    fn turn(&mut self, now: Nanos) {
        let round = ROUND.0 as f64;
        let at = ((now.0 % ROUND.0) as f64 / round - self.from).rem_euclid(1.0);
        let is_turn = at < self.lasts;
        self.most = if is_turn { self.more } else { self.least };
        let ends = if is_turn { self.lasts } else { 1.0 };
        self.turns_at = now + Nanos(((ends - at) * round) as u64 + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(used: f64, claim: f64, is_held: bool, grain: f64) -> Demand {
        let (level, units) = (f64::INFINITY, [0.0; DEMAND_KINDS]);
        Demand { used, claim, is_held, pace: 0.0, grain, first: 0.0, level, units }
    }

    fn parts(all: &[Demand]) -> Vec<f64> {
        let mut split = Split::new();
        split.share_out(all);
        split.parts
    }

    #[test]
    fn figures_are_a_demand_again() {
        let demand = Demand {
            pace: 7.0,
            first: 0.125,
            level: 3.0,
            units: [0.5; DEMAND_KINDS],
            ..demand(0.25, 2.0, true, 0.125)
        };
        assert_eq!(Demand::from_figures(&demand.to_figures()), demand);
    }

    #[test]
    fn one_poller_has_all() {
        let mut split = Split::new();
        assert_eq!(split.part(&[demand(1.0, 1.0, true, 0.1)], 0), Part::WHOLE);
    }

    #[test]
    fn who_wants_less_has_that_and_the_rest_is_by_weight() {
        let all = [demand(0.08, 5.0, false, 0.02), demand(0.5, 1.0, true, 0.1), demand(0.5, 3.0, true, 0.1)];
        let got = parts(&all);
        assert!((got[0] - 0.12).abs() < 1e-9 && (got[2] / got[1] - 3.0).abs() < 1e-9, "{got:?}");
        // A poller that wants more than its weight gives gets that much.
        let greedy = [demand(0.8, 1.0, false, 0.1), demand(0.2, 3.0, true, 0.1)];
        let got = parts(&greedy);
        assert!((got[0] - 0.25).abs() < 1e-9, "{got:?}");
        assert_eq!(parts(&[demand(0.0, 0.0, false, 0.1), demand(1.0, 2.0, true, 0.1)]), [0.0, 1.0]);
    }

    #[test]
    fn what_goes_first_is_had_whatever_weights_say() {
        let is = |all: &[Demand], expected: &[f64]| {
            let got = parts(all);
            assert!(got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-9), "{got:?}");
        };
        let held = |first: f64, claim: f64| Demand { first, ..demand(0.5, claim, true, 0.1) };
        is(&[held(0.4, 1.0), held(0.0, 2.0)], &[0.4, 0.6]);
        is(&[held(0.4, 1.0), held(0.0, 1.0)], &[0.5, 0.5]);
        is(&[held(1.0, 1.0), held(1.0, 1.0), held(0.0, 8.0)], &[63.0 / 128.0, 63.0 / 128.0, 1.0 / 64.0]);
        // What one poller does not want goes to those above their minimum.
        is(&[held(0.5, 1.0), held(0.0, 1.0), demand(0.08, 2.0, false, 0.0)], &[0.5, 0.4, 0.1]);
        let modest = Demand { first: 0.5, ..demand(0.16, 1.0, false, 0.0) };
        is(&[modest, held(0.0, 1.0)], &[0.2, 0.8]);
    }

    #[test]
    fn all_parts_together_are_the_whole() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..1_000 {
            let mut any = || {
                let first = if random.u8(..4) == 0 { random.f64() } else { 0.0 };
                let used = first.max(random.f64() * 0.4);
                let is_held = random.bool();
                Demand { first, ..demand(used, 0.1 + random.f64() * 10.0, is_held, random.f64() * 0.1) }
            };
            let pollers = 2 + any().claim as usize % 7;
            let all: Vec<Demand> = (0..pollers).map(|_| any()).collect();
            let got = parts(&all);
            assert!((got.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{all:?} {got:?}");
        }
    }

    #[test]
    fn turns_to_have_a_command_more_never_meet() {
        // 7.3 commands for five pollers.
        let all: Vec<Demand> = [1.0, 2.0, 3.0, 4.0, 5.0].map(|claim| demand(0.2, claim, true, 1.0 / 7.3)).to_vec();
        let mut splits: Vec<Split> = all.iter().map(|_| Split::new()).collect();
        let commands = |part: f64| (part * 7.3 * 1e6) as u64;
        let mut mean = 0.0;
        for at in (0..30_000_000).step_by(7_919) {
            let now = Nanos(at);
            let gates = splits
                .iter_mut()
                .enumerate()
                .map(|(own, split)| Gate::new(split.part(&all, own), 1.0 / 7.3, now, commands));
            let most = gates.map(|gate| gate.most).sum::<u64>();
            assert!((6_999_990..=8_000_000).contains(&most), "{most} at {at}");
            mean += most as f64 / 1e6 / (30_000_000.0 / 7_919.0);
        }
        assert!((mean - 7.3).abs() < 0.05, "{mean}");
    }

    #[test]
    fn a_gate_turns_when_it_said() {
        let mut gate = Gate::new(Part::Turns(0.125, 0.5), 0.5, Nanos(0), |part| (part * 100.0) as u64);
        assert!(gate.is_shut() && !gate.has_room(0) && gate.is_reached_by(1));
        let opens = gate.turns_at;
        assert!(opens.0.abs_diff(ROUND.0 / 2) < 10, "{opens:?}");
        assert!(!gate.finds_room(0, opens - Nanos(10)) && gate.finds_room(0, opens) && !gate.finds_room(50, opens));
        let closes = gate.turns_at;
        assert!(closes.0.abs_diff(ROUND.0 / 4 * 3) < 10 && !gate.finds_room(0, closes), "{closes:?}");
    }

    #[test]
    fn weights_are_corrected_until_all_go_on_as_fast() {
        // For the same share, the first poller's tenants do four times the work.
        let ease = [4.0, 1.0, 1.0];
        let mut splits = ease.map(|_| Split::new());
        let (mut clocks, mut got) = ([0.0; 3], [1.0 / 3.0; 3]);
        for _ in 0..150 {
            let mut all = Vec::new();
            for (at, split) in splits.iter_mut().enumerate() {
                clocks[at] += got[at] * ease[at] * 1e6;
                let seen = Seen { weight: 1.0, is_held: true, clock: clocks[at] as u64, scale: 1 };
                let (claim, pace) = split.tell(seen);
                all.push(Demand { pace, ..demand(got[at], claim, true, 1e-6) });
            }
            for (at, split) in splits.iter_mut().enumerate() {
                split.part(&all, at);
                got[at] = split.parts[at];
            }
        }
        let paces: Vec<f64> = got.iter().zip(ease).map(|(got, ease)| got * ease).collect();
        assert!(paces.iter().all(|pace| (pace / paces[0] - 1.0).abs() < 0.02), "{paces:?}");
    }
}
