//! The control socket: one JSON request per line, one JSON answer per line.
//!
//! One thread answers everybody. Nobody costs a thread, or memory beyond a short line and an answer; nobody is waited
//! for; and when there are many who say nothing, the one that has been silent for longest makes room.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use api::{Answer, Ask, MAX_SPAN_MS, WHO_ELSE_MAY_ASK};
use client_socket::{Accepted, Gate, Listener, Received, receive_plain, send};
use confine::ThreadKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::clock::Clock;
use crate::daemon::Handle;
use crate::roles::{Role, Roles};
use crate::snapshot::Marks;
use crate::{panics, threads};

/// A request is one short line.
const MAX_REQUEST_BYTES: usize = 4096;

/// Clients at a time.
const MAX_CLIENTS: usize = 64;

/// A client that says nothing for so long has gone, whatever its socket says.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

/// How long an answer may stay unread.
const UNREAD_LIMIT: Duration = Duration::from_secs(5);

/// What the control socket can see.
#[derive(Clone)]
pub struct View {
    /// Its owner, who knows what was said of the tenants.
    pub daemon: Handle,
    /// The pollers' clock.
    pub clock: Clock,
    /// Who may ask.
    pub roles: Roles,
}

/// The socket; its file goes when this is dropped.
pub struct ControlSocket {
    listener: Arc<Listener>,
}

impl ControlSocket {
    /// Serves `view`, on a thread of its own.
    pub fn serve(listener: Listener, view: View, gate: Option<Arc<Gate>>) -> Result<Self> {
        let listener = Arc::new(listener);
        listener.listen(gate)?;
        let served = Arc::clone(&listener);
        std::thread::Builder::new().name("control".into()).spawn(move || {
            threads::enter(ThreadKind::Control);
            let mut clients = Vec::new();
            while serve_once(&served, &view, &mut clients).is_ok() {}
        })?;
        Ok(Self { listener })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.listener.close();
    }
}

/// One who asks.
struct Client {
    stream: Accepted,
    /// The request as far as it came.
    request: Vec<u8>,
    /// What it did not read yet.
    answer: Vec<u8>,
    /// The span that its answer is about, and when that ends.
    span: Option<(Marks, Instant)>,
    active_at: Instant,
}

/// It has gone, or is to.
struct Gone;

/// Waits for something to do, and does it.
fn serve_once(listener: &Listener, view: &View, clients: &mut Vec<Client>) -> Result<(), Errno> {
    let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
    fds.extend(clients.iter().map(|client| PollFd::new(&client.stream, client.interest())));
    let timeout = clients.iter().map(Client::deadline).min();
    let timeout = timeout.map(|at| at.saturating_duration_since(Instant::now()));
    match poll(&mut fds, timeout.and_then(|timeout| Timespec::try_from(timeout).ok()).as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno),
    }
    if fds[0].revents().contains(PollFlags::HUP) {
        // Taken off its place, which no accept would tell: it has nobody now and later.
        return Err(Errno::INVAL);
    }
    let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    let mut is_ready = ready[1..].iter();
    clients.retain_mut(|client| client.turn(is_ready.next() == Some(&true), view).is_ok());
    if ready[0] {
        accept(listener, view, clients);
    }
    Ok(())
}

fn accept(listener: &Listener, view: &View, clients: &mut Vec<Client>) {
    // It may have changed its mind.
    let Ok(stream) = listener.accept() else { return };
    if listener.admit(&stream).is_err() {
        return;
    }
    if !view.roles.of(&stream).is_ok_and(Role::sees_all) {
        // It gets no place. If it doesn't take the answer at once, it has none.
        let for_whom = format!("root may ask this daemon what its tenants get, {WHO_ELSE_MAY_ASK}");
        let _ = serde_json::to_vec(&Answer::Error(for_whom)).map(|told| send(&stream, &told, None));
        return;
    }
    panics::drill();
    if clients.len() >= MAX_CLIENTS {
        // Where all of them wait for an answer, the one that would wait for longest.
        let silent = (0..clients.len()).filter(|at| clients[*at].span.is_none());
        let longest = silent.min_by_key(|at| clients[*at].active_at);
        let last = || (0..clients.len()).max_by_key(|at| clients[*at].deadline());
        longest.or_else(last).map(|at| clients.swap_remove(at));
    }
    let (request, answer) = (Vec::new(), Vec::new());
    clients.push(Client { stream, request, answer, span: None, active_at: Instant::now() });
}

impl Client {
    fn interest(&self) -> PollFlags {
        match () {
            () if !self.answer.is_empty() => PollFlags::OUT,
            // Only that it goes.
            () if self.span.is_some() => PollFlags::empty(),
            () => PollFlags::IN,
        }
    }

    /// When there is something to do without it.
    fn deadline(&self) -> Instant {
        match &self.span {
            Some((_, end)) => *end,
            None if !self.answer.is_empty() => self.active_at + UNREAD_LIMIT,
            None if self.has_request() => self.active_at,
            None => self.active_at + SILENCE_LIMIT,
        }
    }

    fn has_request(&self) -> bool {
        self.request.contains(&b'\n')
    }

    fn turn(&mut self, is_ready: bool, view: &View) -> Result<(), Gone> {
        if is_ready {
            match self.interest() {
                PollFlags::OUT => self.write()?,
                PollFlags::IN => self.read(view)?,
                _ => return Err(Gone),
            }
        } else if self.deadline() <= Instant::now() {
            match self.span.take() {
                Some((mark, _)) => self.give(&stats(&mark, view))?,
                None if self.answer.is_empty() && self.has_request() => self.next_request(view)?,
                None => return Err(Gone),
            }
        }
        Ok(())
    }

    fn read(&mut self, view: &View) -> Result<(), Gone> {
        let mut piece = [0; 512];
        match receive_plain(&self.stream, &mut piece) {
            Ok(Received::Bytes(n, _)) => self.request.extend_from_slice(&piece[..n]),
            Ok(Received::Nothing) => return Ok(()),
            Ok(Received::End | Received::TooManyFds(_)) | Err(_) => return Err(Gone),
        }
        self.active_at = Instant::now();
        self.next_request(view)
    }

    /// Does what the next whole line asks for, if there is one. One line at a time: others ask too.
    fn next_request(&mut self, view: &View) -> Result<(), Gone> {
        let Some(end) = self.request.iter().position(|byte| *byte == b'\n') else {
            return if self.request.len() < MAX_REQUEST_BYTES { Ok(()) } else { Err(Gone) };
        };
        let line: Vec<u8> = self.request.drain(..=end).collect();
        match serde_json::from_slice(&line) {
            Ok(Ask::Stats { span_ms: 0 }) => self.give(&stats(&Marks::start(), view)),
            Ok(Ask::Stats { span_ms }) if span_ms <= MAX_SPAN_MS => {
                let Ok(drives) = view.daemon.describe() else { return Err(Gone) };
                let end = Instant::now() + Duration::from_millis(span_ms);
                self.span = Some((Marks::now(&drives, view.clock.now()), end));
                Ok(())
            }
            Ok(Ask::Stats { .. }) => self.give(&Answer::Error(format!("span_ms: at most {MAX_SPAN_MS}"))),
            Err(error) => self.give(&Answer::Error(error.to_string())),
        }
    }

    fn give(&mut self, answer: &Answer) -> Result<(), Gone> {
        self.answer = serde_json::to_vec(answer).map_err(|_| Gone)?;
        self.answer.push(b'\n');
        self.active_at = Instant::now();
        self.write()
    }

    fn write(&mut self) -> Result<(), Gone> {
        let sent = send(&self.stream, &self.answer, None).map_err(|_| Gone)?;
        self.answer.drain(..sent);
        if sent > 0 {
            self.active_at = Instant::now();
        }
        Ok(())
    }
}

/// The answer about a span that ends now.
fn stats(marks: &Marks, view: &View) -> Answer {
    match view.daemon.describe() {
        Ok(drives) => Answer::Stats(marks.until(view.clock.now(), &drives)),
        Err(error) => Answer::Error(error.to_string()),
    }
}
