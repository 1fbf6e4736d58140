//! Whether two lists of figures put the policies in the same order.

use std::cmp::Ordering;

use serde::Serialize;

/// Figures closer than this are a tie: the larger over the smaller.
pub const TIE: f64 = 1.15;

/// Of the rounds, how many must agree on which of two policies is better, or the two are a tie: 4 of 5.
const ROUNDS_AGREE: (usize, usize) = (4, 5);

/// Threads without a CPU for this share of the time make tails of their own, whatever the policy.
pub const WAITED_MAX: f64 = 0.05;

/// Whether the orders are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// No pair is in opposite orders.
    Agree,
    /// At least one is.
    Differ,
    /// The daemon lacked CPU, or its rounds tie most of what the simulator tells apart: that proves nothing.
    Undecided,
}

/// What became of the pairs of policies.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Both sides tell the two apart, in the same order.
    pub same: usize,
    /// Only the simulator tells them apart.
    pub tied_in_daemon: Vec<(String, String)>,
    /// Only the daemon tells them apart.
    pub tied_in_simulator: Vec<(String, String)>,
    /// Neither does.
    pub tied_in_both: usize,
    /// Both tell them apart, in opposite orders; the simulator's lower one first.
    pub opposite: Vec<(String, String)>,
}

impl Verdict {
    /// What follows, if threads of the daemon and the clients stood in line for a CPU for so much of the time.
    pub fn outcome(&self, waited: f64) -> Outcome {
        if waited > WAITED_MAX || self.same <= self.tied_in_daemon.len() {
            Outcome::Undecided
        } else if self.opposite.is_empty() {
            Outcome::Agree
        } else {
            Outcome::Differ
        }
    }
}

/// The median; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    f64::midpoint(sorted[last / 2], sorted[last.div_ceil(2)])
}

/// Two simulated figures: `Equal` is a tie.
pub fn simulated(one: f64, other: f64) -> Ordering {
    if one.max(other) <= TIE * one.min(other) { Ordering::Equal } else { one.total_cmp(&other) }
}

/// Two measured ones, by their medians and round by round: drift between rounds hits both sides of a pair alike.
pub fn measured(one: &[f64], other: &[f64]) -> Ordering {
    let order = simulated(median(one), median(other));
    let agreeing = one.iter().zip(other).filter(|(one, other)| one.total_cmp(other) == order).count();
    let (agree, of) = ROUNDS_AGREE;
    if agreeing * of >= agree * one.len().min(other.len()) { order } else { Ordering::Equal }
}

/// Each one's rank: one more than there are others below it. Ties share a rank.
pub fn ranks<T>(all: &[T], order: impl Fn(&T, &T) -> Ordering) -> Vec<usize> {
    all.iter().map(|one| 1 + all.iter().filter(|other| order(other, one) == Ordering::Less).count()).collect()
}

/// Every pair of `names`, whose figures stand in the same places.
pub fn pairs(names: &[&str], simulated_us: &[f64], measured_us: &[Vec<f64>]) -> Verdict {
    let mut verdict = Verdict::default();
    for one in 0..names.len() {
        for other in one + 1..names.len() {
            let by_simulator = simulated(simulated_us[one], simulated_us[other]);
            let by_daemon = measured(&measured_us[one], &measured_us[other]);
            let (low, high) = match by_simulator {
                Ordering::Greater => (other, one),
                _ => (one, other),
            };
            let pair = || (names[low].to_owned(), names[high].to_owned());
            match (by_simulator, by_daemon) {
                (Ordering::Equal, Ordering::Equal) => verdict.tied_in_both += 1,
                (Ordering::Equal, _) => verdict.tied_in_simulator.push(pair()),
                (_, Ordering::Equal) => verdict.tied_in_daemon.push(pair()),
                (a, b) if a == b => verdict.same += 1,
                _ => verdict.opposite.push(pair()),
            }
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_figures_and_wavering_rounds_are_ties() {
        assert_eq!(simulated(100.0, 114.0), Ordering::Equal);
        assert_eq!(simulated(100.0, 116.0), Ordering::Less);
        assert_eq!(measured(&[10.0; 5], &[20.0, 20.0, 20.0, 20.0, 5.0]), Ordering::Less);
        assert_eq!(measured(&[10.0; 5], &[20.0, 20.0, 20.0, 5.0, 5.0]), Ordering::Equal);
        assert_eq!(measured(&[10.0, 100.0], &[5.0, 50.0]), Ordering::Greater, "rounds are compared in pairs");
    }

    #[test]
    fn ties_share_a_rank() {
        assert_eq!(ranks(&[10.0, 11.0, 30.0, 5.0], |a, b| simulated(*a, *b)), [2, 2, 4, 1]);
    }

    #[test]
    fn pairs_are_sorted_by_what_each_side_tells_apart() {
        let measured_us = [vec![10.0], vec![31.0], vec![30.0], vec![5.0]];
        let verdict = pairs(&["a", "b", "c", "d"], &[10.0, 20.0, 30.0, 29.0], &measured_us);
        let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        assert_eq!(verdict.same, 2, "a below b and c");
        assert_eq!(verdict.tied_in_daemon, [pair("b", "c")]);
        assert_eq!(verdict.tied_in_simulator, [pair("c", "d")]);
        assert_eq!(verdict.opposite, [pair("a", "d"), pair("b", "d")]);
    }

    #[test]
    fn a_measurement_without_cpu_or_full_of_ties_decides_nothing() {
        let outcome =
            |daemon: f64, waited| pairs(&["a", "b"], &[10.0, 20.0], &[vec![10.0], vec![daemon]]).outcome(waited);
        assert_eq!(outcome(15.0, 0.0), Outcome::Agree);
        assert_eq!(outcome(15.0, 0.5), Outcome::Undecided);
        assert_eq!(outcome(11.0, 0.0), Outcome::Undecided);
        let (simulated_us, measured_us) = ([10.0, 20.0, 40.0], [vec![10.0], vec![40.0], vec![20.0]]);
        assert_eq!(pairs(&["a", "b", "c"], &simulated_us, &measured_us).outcome(0.0), Outcome::Differ);
    }
}
