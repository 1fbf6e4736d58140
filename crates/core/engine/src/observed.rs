//! A tenant's front end as its poller sees it: the ledger hears of every command that goes to the drive and comes back.

use io_model::{Command, Extents, Fetch, IoBuf, Nanos, Outcome, Placed, QueuePriority, Source, Token};

use crate::check::Fetched;
use crate::port::SimSource;
use crate::sabotage::Sabotage;

/// A command with the drive: one of the guest's, or a part of one.
#[derive(Debug)]
struct Flight {
    token: Token,
    command: Command,
    /// Its number in the ledger.
    serial: u64,
    fetched_ns: u64,
}

/// [`Placed`] around a [`SimSource`], as around the daemon's front ends.
#[derive(Debug)]
pub(crate) struct Observed {
    source: Placed<SimSource>,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
}

impl Observed {
    pub(crate) fn new(source: SimSource, extents: Extents) -> Self {
        Self { source: Placed::new(source, vec![extents]), flights: Vec::new(), free: Vec::new() }
    }

    /// The disk lies there from now on.
    pub(crate) fn set_disk(&mut self, extents: Extents) {
        self.source.set_disk(0, extents);
    }

    fn enter(&mut self, flight: Flight) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.flights[at as usize] = Some(flight);
                at
            }
            None => {
                self.flights.push(Some(flight));
                (self.flights.len() - 1) as u32
            }
        }
    }
}

impl Source for Observed {
    #[inline]
    fn live_vqs(&self) -> u128 {
        self.source.live_vqs()
    }

    fn priority(&self, vq: u16) -> QueuePriority {
        self.source.priority(vq)
    }

    #[inline]
    fn rung(&mut self) -> u128 {
        self.source.rung()
    }

    #[inline]
    fn backlog(&mut self, vq: u16) -> u32 {
        self.source.backlog(vq)
    }

    #[inline]
    fn fetch(&mut self, vq: u16) -> Fetch {
        let (mut command, buf, token) = match self.source.fetch(vq) {
            Fetch::Command(command, buf, token) => (command, buf, token),
            nothing => return nothing,
        };
        if self.source.sabotage == Sabotage::ForeignRange {
            command.offset_bytes = command.tenant_offset_bytes;
        }
        let by = Fetched { poller: self.source.poller, tenant: self.source.tenant, bound: self.source.bound() };
        let serial = self.source.ledger.borrow_mut().fetched(by, &command);
        let at = self.enter(Flight { token, command, serial, fetched_ns: self.source.meter.now_ns() });
        Fetch::Command(command, buf, Token::new(vq, serial as u16, at))
    }

    #[inline]
    fn complete(&mut self, token: Token, outcome: Outcome, buf: IoBuf) {
        self.source.spend_completion();
        let (vq, generation, at) = token.spend();
        let place = self.flights.get_mut(at as usize);
        let known = place.and_then(|place| place.take_if(|flight| flight.serial as u16 == generation));
        let Some(Flight { token, command, serial, fetched_ns }) = known else {
            return self.source.ledger.borrow_mut().wrong_completion(self.source.tenant, vq, at);
        };
        self.free.push(at);
        let served = Nanos(self.source.meter.now_ns() - fetched_ns);
        self.source.ledger.borrow_mut().completed(self.source.tenant, serial, served, &command, outcome.is_ok());
        self.source.decrypt(&command);
        self.source.complete(token, outcome, buf);
    }

    fn notify(&mut self) {
        self.source.notify();
    }

    fn set_wakeup(&mut self, wanted: bool) {
        self.source.set_wakeup(wanted);
    }
}
