//! The control socket: a request, its answer, the next request.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::say;
use super::wire::{Answer, Request};
use crate::message::{Received, has_hung_up, receive};
use crate::server::wait;

/// An answer, and what comes along.
pub type Answered = (Answer, Vec<OwnedFd>);

/// A daemon's end of it.
#[derive(Debug)]
pub struct Talk {
    socket: OwnedFd,
    /// Answers that are to come. One that comes too late is nobody's: the next request's must not be taken for it.
    owed: usize,
    answered_at: Instant,
}

impl Talk {
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, owed: 0, answered_at: Instant::now() }
    }

    pub fn has_ended(&self) -> bool {
        has_hung_up(&self.socket)
    }

    /// When it last answered in time.
    pub fn answered_at(&self) -> Instant {
        self.answered_at
    }

    /// Asks, and waits for the answer so long. While an earlier one is still to come nothing is asked: `TIMEDOUT`.
    pub fn ask(&mut self, request: &Request, fds: &[BorrowedFd<'_>], limit: Duration) -> Result<Answered, Errno> {
        self.forget_late_ones()?;
        if self.owed > 0 {
            return Err(Errno::TIMEDOUT);
        }
        self.tell(request, fds)?;
        self.answer(limit)
    }

    /// Asks.
    pub fn tell(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        say(&self.socket, &request.encode(), fds)?;
        self.owed += 1;
        Ok(())
    }

    /// Waits so long for the answer to what was told last.
    pub fn answer(&mut self, limit: Duration) -> Result<Answered, Errno> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(answer) = self.hear()?
                && self.owed == 0
            {
                self.answered_at = Instant::now();
                return answer.ok_or(Errno::PROTO);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            wait([(self.socket.as_fd(), PollFlags::IN)], Some(left))?;
        }
    }

    fn forget_late_ones(&mut self) -> Result<(), Errno> {
        while self.hear()?.is_some() {}
        Ok(())
    }

    /// What it answers, if it does; nothing in that: it is no answer.
    fn hear(&mut self) -> Result<Option<Option<Answered>>, Errno> {
        let mut packet = [0; 4096];
        let answer = match receive(&self.socket, &mut packet, RecvFlags::DONTWAIT)? {
            Received::Nothing => return Ok(None),
            Received::Bytes(bytes, fds) => Answer::decode(&packet[..bytes]).map(|answer| (answer, fds)),
            Received::End => return Err(Errno::PIPE),
            Received::TooManyFds(_) => None,
        };
        self.owed = self.owed.saturating_sub(1);
        Ok(Some(answer))
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(20);

    fn pair() -> (Talk, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Talk::new(ours), theirs)
    }

    #[test]
    fn a_late_answer_is_nobodys() {
        let (mut talk, keeper) = pair();
        let find = |name: &str| Request::Find(name.to_owned());
        assert_eq!(talk.ask(&find("a"), &[], LIMIT).unwrap_err(), Errno::TIMEDOUT);
        // The keeper was not even asked: once it is silent, it is not waited for again.
        let begun = Instant::now();
        assert_eq!(talk.ask(&find("b"), &[], Duration::from_secs(60)).unwrap_err(), Errno::TIMEDOUT);
        assert!(begun.elapsed() < Duration::from_secs(60));
        talk.tell(&Request::Forget("a".to_owned()), &[]).unwrap();
        for late in [Answer::Found { has_client: true }, Answer::Done] {
            say(&keeper, &late.encode(), &[]).unwrap();
        }
        let asked = std::thread::spawn(move || talk.ask(&find("c"), &[], Duration::from_secs(60)).map(|it| it.0));
        let mut packet = [0; 64];
        let mut asked_for = Vec::new();
        while asked_for.len() < 3 {
            match receive(&keeper, &mut packet, RecvFlags::DONTWAIT).unwrap() {
                Received::Bytes(bytes, _) => asked_for.push(Request::decode(&packet[..bytes]).unwrap()),
                _ => drop(wait([(keeper.as_fd(), PollFlags::IN)], Some(LIMIT))),
            }
        }
        assert_eq!(asked_for, [find("a"), Request::Forget("a".to_owned()), find("c")]);
        say(&keeper, &Answer::Unknown.encode(), &[]).unwrap();
        assert_eq!(asked.join().unwrap(), Ok(Answer::Unknown));
    }

    #[test]
    fn who_has_ended_or_makes_no_sense_is_told_apart() {
        let (mut talk, keeper) = pair();
        say(&keeper, &[9, 9], &[]).unwrap();
        talk.tell(&Request::ForgetOthers, &[]).unwrap();
        assert_eq!(talk.answer(LIMIT).unwrap_err(), Errno::PROTO);
        drop(keeper);
        assert!(talk.has_ended());
        let ended = talk.ask(&Request::ForgetOthers, &[], LIMIT).unwrap_err();
        assert!(matches!(ended, Errno::PIPE | Errno::CONNRESET), "{ended}");
    }
}
