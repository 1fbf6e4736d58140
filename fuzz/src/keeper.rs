//! What is kept of one device, between a client that sends what it likes, in pieces, and daemons that come, go and say
//! what they like; at any time all of it is saved and gone on with.
//!
//! What must hold: each message is told whole, with its own descriptors, once as a new one and then again to each
//! daemon until it is answered; what is kept comes first, in its order; the client reads exactly what it was answered;
//! each client that a daemon knew is told to be gone once; and no more descriptors are held than there is reason for.

mod model;

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use arbitrary::{Arbitrary, Result, Unstructured};
use client_socket::keeping::wire::{Framing, Gone, Said};
use keeper::bytes::{Reader, Writer};
use keeper::relay::{Limits, Relay};

use model::Model;

const MAX_STEPS: usize = 400;

/// Small enough to be reached.
const LIMITS: Limits = Limits { messages: 5, bytes: 150 };

/// Of a byte's values.
macro_rules! rarely {
    () => {
        0..=12
    };
}

/// A descriptor: its number, and how many have it.
type Fd = Rc<u32>;

#[derive(Debug, Arbitrary)]
enum Step {
    Come,
    /// A message, mostly a sound one.
    Send {
        rest: u8,
        length_is_off_by: u8,
        fds: u8,
    },
    Garbage([u8; 3], u8),
    /// At most this many bytes get through.
    Arrive(u8),
    Read(u8),
    Leave(u8),
    OtherComes,
    DaemonComes(u8),
    DaemonLeaves(u8),
    Hear,
    Accept,
    Answer {
        is_wrong: u8,
        keep: bool,
        forget: u8,
        bytes: u8,
        fds: u8,
    },
    Close {
        is_right: bool,
        rarely: u8,
    },
    Packet(Vec<u8>),
    Save,
}

/// Runs one input.
///
/// # Panics
/// Something did not hold.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok(with_header) = u.arbitrary() else { return };
    let framing = Framing { header_bytes: 6, length_at: 1, with_header, max_bytes: 40, max_fds: 2 };
    let mut world = World { relay: Relay::new(framing), model: Model::new(framing), fds: Vec::new(), clients: 0 };
    world.relay.daemon_came(Duration::ZERO);
    world.model.daemon(true);
    for _ in 0..MAX_STEPS {
        let Ok(step) = Step::arbitrary(&mut u) else { break };
        if u.is_empty() {
            break;
        }
        // Running out of input ends the program.
        let _ = world.step(step);
        world.settle();
    }
    world.drain();
}

struct World {
    relay: Relay<Fd>,
    model: Model,
    /// All that there ever were.
    fds: Vec<Fd>,
    clients: u64,
}

impl World {
    fn fd(&mut self) -> Fd {
        let fd = Rc::new(u32::try_from(self.fds.len()).expect("few"));
        self.fds.push(Rc::clone(&fd));
        fd
    }

    fn fds(&mut self, count: u8) -> Vec<Fd> {
        // Mostly none.
        (0..(count % 64).saturating_sub(50).div_ceil(6)).map(|_| self.fd()).collect()
    }

    fn step(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Come if self.relay.wants_client() => {
                self.clients += 1;
                let socket = self.fd();
                self.model.came(self.clients, *socket);
                self.relay.client_came(self.clients, socket);
            }
            Step::Come => assert!(!self.model.wants_client(), "a client may come"),
            Step::Send { rest, length_is_off_by, fds } => {
                let fds = self.fds(fds);
                self.model.send(rest % 40, length_is_off_by, fds);
            }
            Step::Garbage(bytes, rarely!()) => self.model.send_raw(&bytes),
            Step::Arrive(bytes) => self.arrive(usize::from(bytes)),
            Step::Read(bytes) => self.read(usize::from(bytes)),
            Step::Leave(rarely!()) => {
                self.relay.lose(Gone::Left);
                self.model.lose(Gone::Left);
            }
            Step::OtherComes if self.relay.refuses_others() => {
                self.relay.another_was_refused();
                self.model.refused();
            }
            Step::OtherComes => {}
            Step::DaemonComes(rarely!()) => {
                self.relay.daemon_came(Duration::ZERO);
                self.model.daemon(true);
            }
            Step::DaemonLeaves(rarely!()) => {
                self.relay.daemon_left();
                self.model.daemon(false);
            }
            Step::Hear => {
                self.hear();
            }
            Step::Accept => self.say(Said::Accept, Vec::new()),
            Step::Answer { is_wrong, keep, forget, bytes, fds } => {
                let (client, number) = self.model.unanswered().unwrap_or((self.clients, 1));
                let number = if matches!(is_wrong, rarely!()) { number ^ 1 } else { number };
                let forget = if forget < 100 { vec![forget.into()] } else { Vec::new() };
                let bytes = (0..bytes % 60).collect();
                let fds = self.fds(fds);
                self.say(Said::Answer { client, number, keep, forget, bytes }, fds);
            }
            Step::Close { is_right, rarely: rarely!() } => {
                let client = self.clients + u64::from(!is_right);
                self.say(Said::Close { client }, Vec::new());
            }
            Step::Packet(packet) => {
                if let Some(said) = Said::decode(&packet) {
                    self.say(said, Vec::new());
                }
            }
            Step::Save => self.save(),
            // What ends much is rare, so that there is something to end.
            Step::Garbage(..) | Step::Leave(_) | Step::DaemonComes(_) | Step::DaemonLeaves(_) | Step::Close { .. } => {}
        }
        Ok(())
    }

    /// Bytes of the client's come, as far as they are wanted.
    fn arrive(&mut self, bytes: usize) {
        assert_eq!(self.relay.wanted_bytes().is_some(), self.model.wants_bytes(), "bytes are wanted");
        let Some(wanted) = self.relay.wanted_bytes() else { return };
        assert!(wanted > 0, "nothing is wanted");
        let (bytes, fds) = self.model.take_sent(wanted.min(bytes));
        if !bytes.is_empty() {
            self.relay.receive(&bytes, fds.clone());
            self.model.arrived(&bytes, &fds);
        }
    }

    fn read(&mut self, room: usize) {
        let Some((bytes, fd)) = self.relay.to_client() else { return self.model.has_no_reply() };
        let sent = room.min(bytes.len());
        if sent > 0 {
            self.model.read(&bytes[..sent], fd.map(|fd| **fd));
            self.relay.sent_to_client(sent);
        }
    }

    /// Tells the daemon one thing; `false`: there is nothing.
    fn hear(&mut self) -> bool {
        let Some((told, fds)) = self.relay.to_daemon() else {
            self.model.is_told_all();
            return false;
        };
        self.model.told(&told, &fds.into_iter().map(|fd| **fd).collect::<Vec<_>>());
        self.relay.told();
        true
    }

    fn say(&mut self, said: Said, fds: Vec<Fd>) {
        let has_daemon = self.relay.has_daemon();
        let made_sense = self.relay.said(said.clone(), fds.clone(), &LIMITS).is_ok();
        if !has_daemon {
            assert!(!made_sense, "nobody can have said that");
            return;
        }
        assert_eq!(made_sense, self.model.said(&said, &fds, &LIMITS), "{said:?}");
        if !made_sense {
            self.relay.daemon_left();
            self.model.daemon(false);
        }
    }

    /// All of it goes through bytes.
    fn save(&mut self) {
        let mut to = Writer::default();
        let mut carried = HashMap::new();
        self.relay.save(&mut to, &mut |fd| {
            assert!(carried.insert(u64::from(**fd), Rc::clone(fd)).is_none(), "once each");
            u64::from(**fd)
        });
        let saved = to.finish();
        // Cut off anywhere it is none, and nothing panics.
        let half = saved.len() / 2;
        assert!(Relay::restore(&mut Reader(&saved[..half]), &mut |_| Some(Rc::new(0))).is_none());
        let mut from = Reader(&saved);
        self.relay = Relay::restore(&mut from, &mut |number| carried.remove(&number)).expect("what was saved");
        assert!(from.0.is_empty() && carried.is_empty());
    }

    /// Closes what is to be closed: then no more is held than there is reason for.
    fn settle(&mut self) {
        self.relay.take_discarded();
        let held = self.fds.iter().filter(|fd| Rc::strong_count(fd) > 1 && !self.model.is_on_its_way(***fd)).count();
        assert_eq!(held, self.model.held_fds(), "descriptors");
        assert_eq!(self.relay.client_fds(), self.model.message_fds(), "descriptors that are counted for the client");
    }

    /// A daemon that does all that it should gets everything through.
    fn drain(&mut self) {
        self.relay.daemon_came(Duration::ZERO);
        self.model.daemon(true);
        self.say(Said::Accept, Vec::new());
        for _ in 0..10_000 {
            while self.hear() {}
            self.read(usize::MAX);
            self.arrive(usize::MAX);
            if let Some((client, number)) = self.model.unanswered() {
                while self.hear() {}
                self.say(Said::Answer { client, number, keep: false, forget: Vec::new(), bytes: vec![1] }, Vec::new());
            }
            self.settle();
            if self.model.is_idle() {
                return;
            }
        }
        panic!("it does not get on");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::run_seeds;

    #[test]
    fn random_inputs() {
        run_seeds(4000, 3000, run);
    }
}
