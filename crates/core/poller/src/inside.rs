//! What a poller and its policy have going on inside, for operators.

use io_model::HwqId;
use policy::PolicyFigure;

use crate::count::{Count, Figures};

/// HWQs whose counts share two cache lines: no other poller's.
const PER_LINE: usize = 16;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line([Count; PER_LINE]);

/// One poller's HWQs and its policy's figures. It writes, anyone reads.
#[derive(Debug)]
pub struct Inside {
    hwqs: u16,
    depth: u32,
    in_flight: Box<[Line]>,
    figures: Figures<{ PolicyFigure::COUNT }>,
}

impl Inside {
    /// No commands in flight on `hwqs` HWQs that hold `depth` commands each.
    pub fn new(hwqs: u16, depth: u32) -> Self {
        let lines = usize::from(hwqs).div_ceil(PER_LINE);
        let in_flight = (0..lines).map(|_| Line::default()).collect();
        Self { hwqs, depth, in_flight, figures: Figures::default() }
    }

    /// Commands that each HWQ holds.
    pub fn hwq_depth(&self) -> u32 {
        self.depth
    }

    /// Commands in flight on each HWQ, in the order of their numbers within the poller.
    pub fn in_flight(&self) -> Vec<u64> {
        let counts = self.in_flight.iter().flat_map(|line| &line.0);
        counts.take(self.hwqs.into()).map(Count::get).collect()
    }

    /// A figure of the policy's, as of the last period (200 ms) in which the poller was awake; `None`: the policy in
    /// force has no such thing.
    pub fn figure(&self, figure: PolicyFigure) -> Option<f64> {
        self.figures.get(figure as usize)
    }

    #[inline]
    pub(crate) fn submitted(&self, hwq: HwqId) {
        if let Some(line) = self.in_flight.get(usize::from(hwq.0) / PER_LINE) {
            line.0[usize::from(hwq.0) % PER_LINE].add(1);
        }
    }

    #[inline]
    pub(crate) fn completed(&self, hwq: HwqId) {
        if let Some(line) = self.in_flight.get(usize::from(hwq.0) / PER_LINE) {
            line.0[usize::from(hwq.0) % PER_LINE].subtract(1);
        }
    }

    /// Publishes what the policy tells now.
    pub(crate) fn publish(&self, tell_all: impl FnOnce(&mut dyn FnMut(PolicyFigure, f64))) {
        let mut told = [None; PolicyFigure::COUNT];
        tell_all(&mut |figure, value| told[figure as usize] = Some(value));
        self.figures.set(told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_policy_in_force_does_not_tell_is_not_told() {
        let inside = Inside::new(1, 8);
        assert_eq!(inside.figure(PolicyFigure::LpnsOmega), None);
        inside.publish(|tell| tell(PolicyFigure::LpnsOmega, 2.5));
        assert_eq!(inside.figure(PolicyFigure::LpnsOmega), Some(2.5));
        inside.publish(|tell| tell(PolicyFigure::Window, 32.0));
        assert_eq!((inside.figure(PolicyFigure::LpnsOmega), inside.figure(PolicyFigure::Window)), (None, Some(32.0)));
    }

    #[test]
    fn each_hwq_is_counted_for_itself() {
        let inside = Inside::new(18, 64);
        [0, 17, 17].into_iter().for_each(|hwq| inside.submitted(HwqId(hwq)));
        inside.completed(HwqId(17));
        let in_flight = inside.in_flight();
        assert_eq!((in_flight.len(), in_flight[0], in_flight[16], in_flight[17]), (18, 1, 0, 1));
    }
}
