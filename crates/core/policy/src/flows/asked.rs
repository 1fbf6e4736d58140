//! What flows ask for and have, for other pollers that have parts of the same window.

use super::{Flows, Standing, State, Turns};
use crate::Demand;
use crate::window::{Asked, Claim};

/// What was told of a flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    served: u32,
    /// Since the time before.
    lately: u32,
    /// Of what its tenant asks for, the part that is asked for here.
    part: f64,
}

impl Default for Told {
    fn default() -> Self {
        Self { served: 0, lately: 0, part: 1.0 }
    }
}

impl<T: Turns> Flows<T> {
    /// Work of the flow goes to the drive, in what the window counts.
    #[inline]
    pub fn serve(&mut self, flow: u16, work: u32) {
        let flow = &mut self.flows[usize::from(flow)];
        flow.served = flow.served.wrapping_add(work);
    }

    /// Of what the flow's tenant asks for, that part is asked for here.
    pub(crate) fn set_part(&mut self, flow: u16, part: f64) {
        if let Some(told) = self.told.get_mut(usize::from(flow)) {
            told.part = part;
        }
    }

    /// Flows that asked for something in the interval that ended last, each with the [part](Self::set_part) that is
    /// here.
    pub(crate) fn asked(&self) -> impl Iterator<Item = (u16, f64)> {
        let flows = (0..).zip(self.flows.iter().zip(&self.told));
        let asked = flows.filter(|(_, (flow, told))| told.lately > 0 || flow.standing != Standing::Idle);
        asked.map(|(at, (_, told))| (at, told.part))
    }

    /// An interval ended, with so much in the window: what was asked for and had here, for other pollers. `None`: the
    /// window is for any number, or there is no VQ here.
    pub(crate) fn demand(&mut self, taken: u64, claim: impl Fn(&T, u16) -> Claim) -> Option<Demand> {
        if !self.window.is_limited() {
            return None;
        }
        if self.vqs.iter().all(|vq| vq.state == State::Detached) {
            self.window.rest();
            return None;
        }
        let Self { turns, flows, told, window, .. } = self;
        let claim_of = |flow: usize, told: &Told| match claim(turns, flow as u16) {
            Claim::First => Claim::First,
            Claim::Weight(weight) => Claim::Weight(weight * told.part),
        };
        let mut asked = Asked::default();
        for (at, (flow, told)) in flows.iter().zip(&mut *told).enumerate() {
            told.lately = flow.served.wrapping_sub(std::mem::replace(&mut told.served, flow.served));
            if told.lately > 0 || flow.standing != Standing::Idle {
                asked.add(claim_of(at, told), told.lately.into());
            }
        }
        let (mut work, mut weights) = (0.0, 0.0);
        for (at, told) in told.iter().enumerate().filter(|(_, told)| told.lately > 0) {
            if let Claim::Weight(weight) = claim_of(at, told)
                && asked.always_waited(told.lately.into(), weight)
            {
                work += f64::from(told.lately);
                weights += weight;
            }
        }
        let level = if weights > 0.0 { work / weights } else { 0.0 };
        Some(window.tell(&asked, level, taken, self.in_flight))
    }
}
