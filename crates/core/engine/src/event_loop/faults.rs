//! What goes wrong, and when it is over.

use policy::Policy;

use super::{Engine, Event};
use crate::contestant::Contestant;
use crate::scenario::FaultKind;

/// How long a guest's driver needs to bring a reset controller up again.
const RESET_NS: u64 = 1_000_000;

impl<C: Contestant, P: Policy> Engine<'_, C, P> {
    pub(super) fn fault(&mut self, number: u16) {
        let fault = self.scenario.faults[usize::from(number)];
        let now_ns = self.now_ns;
        let ends_ns = match fault.kind {
            FaultKind::Errors { ppm, lasts } => {
                self.drive.borrow_mut().set_errors(ppm);
                Some(now_ns.saturating_add(lasts.0))
            }
            FaultKind::Stall { lasts } => {
                self.drive.borrow_mut().stall(now_ns.saturating_add(lasts.0));
                None
            }
            FaultKind::LoseHwq { hwq, timeout } => {
                self.drive.borrow_mut().lose(hwq, timeout.0, now_ns);
                None
            }
            FaultKind::Reset { tenant } => {
                let mut port = self.guests[tenant].port.borrow_mut();
                port.set_live(false);
                port.abort(now_ns + RESET_NS);
                drop(port);
                if self.guests[tenant].interrupt(&mut self.asks) {
                    self.answer(tenant as u16);
                }
                self.poke_all(tenant);
                Some(now_ns + RESET_NS)
            }
            FaultKind::Leave { tenant } => {
                self.leave(tenant);
                None
            }
            FaultKind::Rogue { tenant } => {
                self.guests[tenant].port.borrow_mut().turn_rogue();
                self.poke_all(tenant);
                None
            }
        };
        if let Some(ends_ns) = ends_ns {
            self.push(ends_ns, Event::FaultEnds { fault: number });
        }
    }

    /// The tenant's guest is gone, its commands that are with the drive aren't yet.
    pub(super) fn leave(&mut self, tenant: usize) {
        let guest = &mut self.guests[tenant];
        guest.stopped = true;
        guest.awaited = false;
        let mut port = guest.port.borrow_mut();
        port.set_live(false);
        port.forget();
        drop(port);
        self.let_go(tenant);
        self.poke_all(tenant);
    }

    pub(super) fn fault_ends(&mut self, number: u16) {
        match self.scenario.faults[usize::from(number)].kind {
            FaultKind::Errors { .. } => self.drive.borrow_mut().set_errors(0),
            FaultKind::Reset { tenant } if !self.guests[tenant].stopped => {
                self.guests[tenant].port.borrow().set_live(true);
                self.poke_all(tenant);
            }
            _ => {}
        }
    }
}
