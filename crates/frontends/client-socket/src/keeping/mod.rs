//! Clients that another process keeps, so that they don't notice when this one ends: the daemon's side of it.
//!
//! A [`Keeper`] is a connection to that process. A [`Listener`](crate::Listener) that is
//! [kept](crate::Listener::bind_kept) is served as any other, by a [`Server`](crate::Server); its clients' messages
//! come through the keeper, one by one, and what they are answered goes that way too.

mod served;
mod talk;
pub mod wire;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

pub(crate) use self::served::Channel;
use self::talk::Talk;
use self::wire::{Answer, Framing, Request, VERSION};
use crate::message::send_now;

/// How long the keeper may take for an answer: it waits for nobody. The daemon's owner waits for it, since no client
/// may come before the keeper has what outlives the daemon.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// For the first one it waits for the daemon before this one to end.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// A wait for the keeper that takes longer than this is reported.
const SILENT_WAIT: Duration = Duration::from_secs(1);
/// How long an answer shows that it answers.
const FRESH: Duration = Duration::from_secs(1);
/// Between two tries to reach one whom too many want to.
const RETRY: Duration = Duration::from_millis(50);
/// No device's name.
const NOBODY: &str = "?";

/// Why the keeper is of no use.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum KeeperError {
    #[error("the keeper at {path} does not answer ({errno}); see whether evenkeel-keeper runs, and only one daemon")]
    Lost { path: PathBuf, errno: Errno },
    #[error("the keeper at {path} speaks version {theirs}, and this daemon {VERSION}; restart evenkeel-keeper")]
    Version { path: PathBuf, theirs: u32 },
    #[error("the keeper at {path} refuses: {why}")]
    Refused { path: PathBuf, why: String },
}

impl KeeperError {
    /// Whether the keeper has ended, and no other one is there: its data is lost, and the daemon goes on without it.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Lost { errno: Errno::PIPE | Errno::CONNRESET, .. })
    }
}

/// A process that keeps clients.
#[derive(Debug)]
pub struct Keeper {
    path: PathBuf,
    /// `None`: this process has let go of it.
    control: Mutex<Option<Talk>>,
}

/// What is kept of a device.
#[derive(Debug)]
pub struct Held {
    /// Whether a client is.
    pub has_client: bool,
    /// Its listening socket.
    pub socket: OwnedFd,
    /// Its memory, as it was given.
    pub memory: Vec<OwnedFd>,
}

impl Keeper {
    /// Connects to the keeper that listens at `path`, once no other daemon is served there.
    ///
    /// Calls `waits` if that takes longer than a second; waits 10 s at most. `None`: there is no keeper.
    ///
    /// # Errors
    /// It is not a keeper, has another version, or does not answer.
    pub fn connect(path: &Path, waits: impl FnOnce()) -> Result<Option<Arc<Self>>, KeeperError> {
        let this = Self { path: path.to_owned(), control: Mutex::new(None) };
        let deadline = Instant::now() + HELLO_LIMIT;
        let Some(talk) = this.reach(deadline)? else { return Ok(None) };
        let talk = this.greet(talk, waits, deadline)?;
        Ok(Some(Arc::new(Self { control: Mutex::new(Some(talk)), ..this })))
    }

    /// A new connection to the keeper that listens there, if there is one.
    fn reach(&self, deadline: Instant) -> Result<Option<Talk>, KeeperError> {
        let lost = |errno| self.lost(errno);
        let address = SocketAddrUnix::new(&self.path).map_err(lost)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(lost)?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => return Ok(Some(Talk::new(socket))),
                Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
                // Others wait to be accepted, more than may.
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(RETRY),
                Err(errno) => return Err(lost(errno)),
            }
        }
    }

    /// Says hello.
    fn greet(&self, mut talk: Talk, waits: impl FnOnce(), deadline: Instant) -> Result<Talk, KeeperError> {
        let hello = Request::Hello { version: VERSION };
        let mut answered = talk.tell(&hello, &[]).and_then(|()| talk.answer(SILENT_WAIT));
        if let Err(Errno::TIMEDOUT) = answered {
            waits();
            answered = talk.answer(deadline.saturating_duration_since(Instant::now()));
        }
        match answered.map_err(|errno| self.lost(errno))? {
            (Answer::Hello { version: VERSION }, _) => Ok(talk),
            (Answer::Hello { version: theirs }, _) => Err(KeeperError::Version { path: self.path.clone(), theirs }),
            (other, _) => Err(self.unexpected(other)),
        }
    }

    /// Where it has ended, connects to one that is at its place by now, which has nothing yet. `true`: there is one.
    /// For the process to call now and then; it waits for a second at most.
    ///
    /// # Errors
    /// Another one is of no use.
    pub fn reconnect(&self) -> Result<bool, KeeperError> {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(talk) = control.as_mut().filter(|talk| talk.has_ended()) else { return Ok(false) };
        let now = Instant::now();
        let Some(other) = self.reach(now)? else { return Ok(false) };
        *talk = self.greet(other, || {}, now)?;
        Ok(true)
    }

    /// Whether it answers: one that was stopped, or is stuck, has what it has and is of no use meanwhile.
    pub fn answers(&self) -> bool {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        control.as_mut().is_some_and(|talk| {
            talk.answered_at().elapsed() < FRESH
                || talk.ask(&Request::Find(NOBODY.to_owned()), &[], ANSWER_LIMIT).is_ok()
        })
    }

    /// What it has under that name.
    ///
    /// # Errors
    /// It does not answer.
    pub fn find(&self, name: &str) -> Result<Option<Held>, KeeperError> {
        match self.ask(&Request::Find(name.to_owned()), &[])? {
            (Answer::Unknown, _) => Ok(None),
            (Answer::Found { has_client }, fds) => {
                let mut fds = fds.into_iter();
                let socket = fds.next().ok_or_else(|| self.lost(Errno::PROTO))?;
                Ok(Some(Held { has_client, socket, memory: fds.collect() }))
            }
            (other, _) => Err(self.unexpected(other)),
        }
    }

    /// Has it keep a device from now on; returns the channel over which it tells of its clients.
    pub(crate) fn keep(&self, name: &str, framing: Framing, fds: &[BorrowedFd<'_>]) -> Result<OwnedFd, KeeperError> {
        match self.ask(&Request::Keep(name.to_owned(), framing), fds)? {
            (Answer::Kept, fds) => fds.into_iter().next().ok_or_else(|| self.lost(Errno::PROTO)),
            (other, _) => Err(self.unexpected(other)),
        }
    }

    /// Has it let go of a device, and send its client away.
    ///
    /// # Errors
    /// It does not answer.
    pub fn forget(&self, name: &str) -> Result<(), KeeperError> {
        self.done(&Request::Forget(name.to_owned()))
    }

    /// Has it let go of all devices that this process did not have it keep.
    ///
    /// # Errors
    /// It does not answer.
    pub fn forget_others(&self) -> Result<(), KeeperError> {
        self.done(&Request::ForgetOthers)
    }

    /// This process ends. What is kept stays, for the next one.
    pub fn let_go(&self) {
        *self.control.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether this process has let go of it.
    pub fn is_let_go(&self) -> bool {
        self.control.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// As [`Keeper::forget`], of a device that it may keep by now, though it did not say so in time. Waits for nothing.
    fn forget_late(&self, name: &str) {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(talk) = control.as_mut() {
            // A keeper that is gone keeps nothing.
            let _ = talk.tell(&Request::Forget(name.to_owned()), &[]);
        }
    }

    fn done(&self, request: &Request) -> Result<(), KeeperError> {
        match self.ask(request, &[])? {
            (Answer::Done, _) => Ok(()),
            (other, _) => Err(self.unexpected(other)),
        }
    }

    fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>), KeeperError> {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(talk) = control.as_mut() else { return Err(self.lost(Errno::SHUTDOWN)) };
        talk.ask(request, fds, ANSWER_LIMIT).map_err(|errno| self.lost(errno))
    }

    fn lost(&self, errno: Errno) -> KeeperError {
        KeeperError::Lost { path: self.path.clone(), errno }
    }

    fn unexpected(&self, answer: Answer) -> KeeperError {
        match answer {
            Answer::Refused(why) => KeeperError::Refused { path: self.path.clone(), why },
            _ => self.lost(Errno::PROTO),
        }
    }
}

/// Sends a packet. There is always room: neither side says more than it was asked for.
fn say(socket: impl AsFd, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    loop {
        match send_now(&socket, packet, fds) {
            Err(Errno::INTR) => {}
            sent => return sent,
        }
    }
}

/// One device's place with a keeper.
#[derive(Debug)]
pub(crate) struct Kept {
    keeper: Arc<Keeper>,
    /// What it is known by there.
    name: String,
    /// Whether a client was found there that is still held.
    pub has_client: bool,
    /// What is kept beside the listening socket.
    pub memory: Vec<OwnedFd>,
    /// Whether it is kept: not before it begins, nor once the keeper is gone.
    is_kept: AtomicBool,
}

impl Kept {
    pub fn new(keeper: Arc<Keeper>, name: String, has_client: bool, memory: Vec<OwnedFd>) -> Self {
        Self { keeper, name, has_client, memory, is_kept: AtomicBool::new(false) }
    }

    /// Has it kept from now on.
    pub fn begin(&self, listening: BorrowedFd<'_>, framing: Framing) -> Result<Channel, KeeperError> {
        let memory = self.memory.iter().map(AsFd::as_fd);
        let fds: Vec<_> = std::iter::once(listening).chain(memory).collect();
        let kept = self.keeper.keep(&self.name, framing, &fds).inspect_err(|error| {
            if matches!(error, KeeperError::Lost { errno: Errno::TIMEDOUT, .. }) {
                self.keeper.forget_late(&self.name);
            }
        });
        let channel = Channel::new(kept?, &framing);
        self.is_kept.store(true, Ordering::Release);
        Ok(channel)
    }

    /// The keeper is gone.
    pub fn lost(&self) {
        self.is_kept.store(false, Ordering::Release);
    }

    /// Whether it is kept now.
    pub fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Acquire)
    }

    /// Whether it is, by a keeper that is of use.
    pub fn is_well_kept(&self) -> bool {
        self.is_kept() && self.keeper.answers()
    }

    /// Has it kept no more. `false`: this process has let go of the keeper, and all stays for the next.
    pub fn end(&self) -> bool {
        if self.is_left() {
            return false;
        }
        if self.is_kept() {
            // A keeper that does not answer keeps nothing that could be taken from it.
            let _ = self.keeper.forget(&self.name);
        }
        true
    }

    /// Whether it stays with the keeper, as this process ends.
    pub fn is_left(&self) -> bool {
        self.is_kept() && self.keeper.is_let_go()
    }
}
