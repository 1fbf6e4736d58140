//! A device's thread: the descriptors around its [`Relay`](crate::relay::Relay).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use client_socket::keeping::wire::{Gone, MAX_PACKET_BYTES, Said, Told};
use client_socket::{Door, HeldSockets, Intake, Passed, Received, has_hung_up, receive, send, send_now};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, SocketFlags, accept_with, shutdown, sockopt};

use super::{Common, Order, Shared, State};
use crate::clock::now;
use crate::log::Log;
use crate::relay::{Discarded, Limits};

/// Nobody is accepted for so long after there was no descriptor left for it.
const REST: Duration = Duration::from_secs(1);

/// Packets that are still taken of a daemon in whose place another one is.
const LAST_WORDS: usize = 1024;

/// Which descriptors have something to say.
#[derive(Debug, Clone, Copy)]
struct Ready {
    channel: PollFlags,
    client: PollFlags,
    listener: PollFlags,
}

pub struct Thread {
    shared: Arc<Shared>,
    common: Arc<Common>,
    name: String,
    log: Log,
    /// Room for one packet, and to see that there was more.
    buffer: Vec<u8>,
    /// The daemon has to read before it can be told more.
    channel_is_full: bool,
    /// Its place at the gate.
    door: Door,
    /// How its client's messages come in.
    intake: Intake,
    /// Descriptors of its client that are counted.
    counted_fds: usize,
    /// Nobody is accepted until then.
    rests_until: Option<Duration>,
    /// Which of the relay's changes is written down.
    written: Option<u64>,
}

/// Tells that the thread ended, whatever it ended for.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.has_client.store(false, Ordering::Release);
        self.0.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl Thread {
    pub fn new(name: &str, shared: Arc<Shared>, common: Arc<Common>) -> Self {
        let buffer = vec![0; MAX_PACKET_BYTES + 1];
        let (name, log) = (name.to_owned(), Log::new(name));
        let door = Door::new(Arc::clone(&common.gate));
        let intake = Intake::new(Some(door.clone()));
        let (channel_is_full, counted_fds, rests_until, written) = (false, 0, None, None);
        Self { shared, common, name, log, buffer, channel_is_full, door, intake, counted_fds, rests_until, written }
    }

    pub fn run(mut self, mut state: Box<State>) {
        (self.common.begin)();
        let _ended = Ended(Arc::clone(&self.shared));
        self.common.room.enter();
        // What came before this process keeps, however much it is.
        self.counted_fds = state.relay.client_fds();
        self.common.room.changed(0, self.counted_fds);
        while self.obey(&mut state) {
            self.count(&mut state);
            // Before a daemon hears of the client: it may ask.
            self.publish(&state);
            self.write_down(&mut state);
            self.tell(&mut state);
            self.reply(&mut state);
            // Closing can take for ever: what it is for is told and written down before.
            self.tell(&mut state);
            self.write_down(&mut state);
            if let Some(discarded) = state.relay.take_discarded() {
                state = self.aside(state, discarded);
                continue;
            }
            if self.shared.lock().is_to_park() {
                state = self.aside(state, Discarded::default());
                continue;
            }
            match self.wait(&state) {
                Ok(ready) => self.act(&mut state, ready),
                Err(errno) => {
                    self.log.line(&format!("waiting for its client failed: {errno}; no client can connect any more"));
                    break;
                }
            }
        }
        self.common.room.changed(self.counted_fds, 0);
        self.common.room.leave();
        self.end(state);
    }

    /// Counts its client's descriptors, and ends a client that has too many.
    fn count(&mut self, state: &mut State) {
        let (room, before) = (&self.common.room, self.counted_fds);
        self.counted_fds = state.relay.client_fds();
        room.changed(before, self.counted_fds);
        if self.counted_fds > before && room.is_exceeded(self.counted_fds) {
            self.log.line(&format!(
                "its client left {} descriptors, each may have {} here; raise LimitNOFILE and FileDescriptorStoreMax \
                 of the keeper for more",
                self.counted_fds,
                room.for_each()
            ));
            state.relay.lose(Gone::Socket(Errno::NOBUFS.raw_os_error()));
        }
    }

    /// Has the service manager know how it stands, if that changed.
    fn write_down(&mut self, state: &mut State) {
        let changes = state.relay.changes();
        if self.written != Some(changes)
            && let Some(mut file) = state.file.take()
        {
            file.write(|number| state.write_down(&self.name, number));
            state.file = Some(file);
            self.written = Some(changes);
            let mut slot = self.shared.lock();
            // An order that came meanwhile is still to be written.
            slot.is_written = slot.order.is_none();
            drop(slot);
            self.shared.changed.notify_all();
        }
    }

    fn publish(&self, state: &State) {
        self.shared.has_client.store(state.relay.socket().is_some(), Ordering::Release);
    }

    /// Does what the main thread wants; `false`: that is to end.
    fn obey(&mut self, state: &mut State) -> bool {
        let mut slot = self.shared.lock();
        if slot.is_to_end {
            return false;
        }
        let order = slot.order.take();
        let leftovers = std::mem::take(&mut slot.leftovers);
        drop(slot);
        if let Some(Order { channel, listener, memory, framing }) = order {
            // What the one before said last counts.
            (0..LAST_WORDS).all(|_| self.hear(state));
            state.relay.discard(state.channel.replace(channel));
            state.relay.reframe(framing);
            state.daemon_came();
            state.listener = listener;
            state.memory = memory;
            self.channel_is_full = false;
        }
        state.relay.discard(leftovers.into_iter().filter_map(Arc::into_inner));
        true
    }

    /// Closes a client's descriptors without holding any lock: the main thread may take the device's state meanwhile,
    /// for as long as it likes.
    fn aside(&mut self, state: Box<State>, discarded: Discarded<OwnedFd>) -> Box<State> {
        self.publish(&state);
        let Discarded { client, fds } = discarded;
        let mut slot = self.shared.lock();
        slot.parked = Some(state);
        slot.is_closing = client.is_some() || !fds.is_empty();
        self.shared.changed.notify_all();
        if slot.is_closing {
            drop(slot);
            if let Some((socket, why)) = client {
                let _ = shutdown(&socket, Shutdown::Both);
                self.log.line(&format!("the client is gone: {}", reason(why)));
                self.intake = Intake::new(Some(self.door.clone()));
                self.door.dispose(socket);
            }
            HeldSockets::let_go(fds, Some(&self.door));
            slot = self.shared.lock();
            slot.is_closing = false;
            self.shared.changed.notify_all();
        }
        loop {
            if !slot.is_held
                && let Some(state) = slot.parked.take()
            {
                return state;
            }
            slot = self.shared.wait(slot);
        }
    }

    /// Lets go of everything.
    fn end(&mut self, mut state: Box<State>) {
        if let Some(file) = &mut state.file {
            file.remove();
        }
        state.channel = None;
        state.relay.lose(Gone::Left);
        let discarded = state.relay.take_discarded().unwrap_or_default();
        if let Some((socket, _)) = discarded.client {
            let _ = shutdown(&socket, Shutdown::Both);
            self.intake = Intake::new(None);
            self.door.dispose(socket);
        }
        HeldSockets::let_go(discarded.fds, Some(&self.door));
        let leftovers = std::mem::take(&mut self.shared.lock().leftovers);
        drop((state, leftovers));
    }

    /// Tells the daemon what there is to be told.
    fn tell(&mut self, state: &mut State) {
        while let Some((told, fds)) = state.relay.to_daemon() {
            let Some(channel) = &state.channel else { return };
            let fds: Vec<BorrowedFd<'_>> = fds.into_iter().map(AsFd::as_fd).collect();
            match send_now(channel, &told.encode(), &fds) {
                Ok(()) => state.relay.told(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.channel_is_full = true;
                    return;
                }
                // Sockets in sockets in sockets: the client's doing.
                Err(errno @ Errno::TOOMANYREFS) if matches!(told, Told::Client { .. } | Told::Message { .. }) => {
                    state.relay.lose(Gone::Socket(errno.raw_os_error()));
                }
                Err(_) => return self.lose_daemon(state),
            }
        }
        self.channel_is_full = false;
    }

    /// Sends the client what it is answered.
    fn reply(&mut self, state: &mut State) {
        while let (Some(socket), Some((bytes, fd))) = (state.relay.socket(), state.relay.to_client()) {
            match send(socket, bytes, fd.map(AsFd::as_fd)) {
                Ok(0) => {
                    state.unread_since.get_or_insert_with(now);
                    return;
                }
                Ok(sent) => state.relay.sent_to_client(sent),
                Err(Errno::PIPE | Errno::CONNRESET) => state.relay.lose(Gone::Left),
                Err(errno) => state.relay.lose(Gone::Socket(errno.raw_os_error())),
            }
            state.unread_since = None;
        }
        state.unread_since = None;
    }

    fn wait(&self, state: &State) -> Result<Ready, Errno> {
        let Self { shared, channel_is_full, .. } = self;
        let idle = (shared.waker.as_fd(), PollFlags::empty());
        let channel = state.channel.as_ref().map(|channel| {
            let room = if *channel_is_full { PollFlags::OUT } else { PollFlags::empty() };
            (channel.as_fd(), PollFlags::IN | room)
        });
        let client = state.relay.socket().map(|socket| {
            let mut interest = PollFlags::empty();
            interest.set(PollFlags::IN, state.relay.wanted_bytes().is_some());
            interest.set(PollFlags::OUT, state.relay.to_client().is_some());
            (socket.as_fd(), interest)
        });
        let is_open = self.rests_until.is_none() && (state.relay.wants_client() || state.relay.refuses_others());
        let listener = is_open.then(|| (state.listener.as_fd(), PollFlags::IN));
        let of = |one: Option<_>| one.unwrap_or(idle);
        let fds = [(shared.waker.as_fd(), PollFlags::IN), of(channel), of(client), of(listener)];
        let mut polled = fds.each_ref().map(|(fd, interest)| PollFd::new(fd, *interest));
        // Rounded up by the kernel, so that a time limit is over when it returns.
        let timeout = self.patience(state).and_then(|patience| Timespec::try_from(patience).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let [woken, channel, client, listener] = polled.each_ref().map(PollFd::revents);
        if !woken.is_empty() {
            // Before the orders are looked at: one that comes meanwhile wakes us again.
            shared.waker.drain();
        }
        Ok(Ready { channel, client, listener })
    }

    fn patience(&self, state: &State) -> Option<Duration> {
        let stall_limit = self.common.stall_limit;
        let after = |since: Option<Duration>, limit: Duration| since.map(|since| since.saturating_add(limit));
        let gives_up_at = match (state.relay.socket(), self.common.give_up_after) {
            (Some(_), Some(limit)) => after(state.alone_since, limit),
            _ => None,
        };
        let until = [
            after(state.midway_since, stall_limit),
            after(state.unread_since, stall_limit),
            gives_up_at,
            self.rests_until,
        ];
        until.into_iter().flatten().min().map(|until| until.saturating_sub(now()))
    }

    fn act(&mut self, state: &mut State, ready: Ready) {
        if !ready.channel.is_empty() && state.channel.is_some() {
            self.hear(state);
        }
        if !ready.client.is_empty() && state.relay.socket().is_some() {
            self.read(state, ready.client);
        }
        if !ready.listener.is_empty() {
            self.accept(state);
        }
        self.look_at_clock(state);
    }

    /// Takes one packet of the daemon's; `false`: there is none.
    fn hear(&mut self, state: &mut State) -> bool {
        let Some(channel) = &state.channel else { return false };
        // It is taken when it is written down: the next process may hear it again, and not never.
        let is_taken = state.file.is_none();
        let how = if is_taken { RecvFlags::DONTWAIT } else { RecvFlags::DONTWAIT | RecvFlags::PEEK };
        match receive(channel, &mut self.buffer, how) {
            Ok(Received::Nothing) => return false,
            Ok(Received::Bytes(bytes, fds)) => {
                let said = (bytes <= MAX_PACKET_BYTES).then(|| Said::decode(&self.buffer[..bytes])).flatten();
                let made_sense = match said {
                    Some(said) => state.relay.said(said, fds, &Limits::default()).is_ok(),
                    None => {
                        state.relay.discard(fds);
                        false
                    }
                };
                if !made_sense {
                    self.log.line("the daemon sent an invalid message; its channel is closed");
                    self.lose_daemon(state);
                }
            }
            Ok(Received::TooManyFds(fds)) => {
                state.relay.discard(fds);
                self.log.line("no descriptor is left for the daemon's message; its channel is closed");
                self.lose_daemon(state);
            }
            Ok(Received::End) | Err(_) => self.lose_daemon(state),
        }
        if !is_taken {
            self.write_down(state);
            if let Some(channel) = &state.channel {
                // Copies of what came along are closed, which is not the end of anything.
                let _ = receive(channel, &mut self.buffer, RecvFlags::DONTWAIT);
            }
        }
        true
    }

    fn lose_daemon(&mut self, state: &mut State) {
        state.relay.discard(state.channel.take());
        state.relay.daemon_left();
        state.alone_since = Some(now());
        self.channel_is_full = false;
        if state.relay.socket().is_some() {
            self.log.line("the daemon ended; the client waits for the next daemon");
        }
    }

    /// Takes what the client sent, or sees that it is gone.
    fn read(&mut self, state: &mut State, ready: PollFlags) {
        let Some(wanted) = state.relay.wanted_bytes() else {
            if ready.intersects(PollFlags::HUP | PollFlags::ERR) {
                state.relay.lose(Gone::Left);
            }
            return;
        };
        let Some(socket) = state.relay.socket() else { return };
        let room = wanted.min(self.buffer.len());
        match self.intake.take(socket, &mut self.buffer[..room]) {
            Ok(Passed::Received(Received::Nothing)) => {}
            Ok(Passed::Received(Received::Bytes(bytes, fds))) => {
                state.relay.receive(&self.buffer[..bytes], fds);
                state.midway_since = state.relay.is_midway().then(now);
            }
            Ok(Passed::Received(Received::TooManyFds(fds))) => {
                state.relay.discard(fds);
                state.relay.lose(Gone::TooManyFds);
            }
            Ok(Passed::Foreign | Passed::Closing) => state.relay.lose(Gone::ForeignFd),
            Ok(Passed::NoAnswer(errno)) => {
                self.log.line(&format!("the process that takes descriptors does not answer: {errno}"));
                state.relay.lose(Gone::Socket(errno.raw_os_error()));
            }
            Ok(Passed::Received(Received::End)) | Err(Errno::CONNRESET | Errno::PIPE) => state.relay.lose(Gone::Left),
            Err(errno) => state.relay.lose(Gone::Socket(errno.raw_os_error())),
        }
    }

    fn accept(&mut self, state: &mut State) {
        // What was seen before may be over: a client that just left makes room for this one.
        let is_next = state.relay.wants_client();
        if !is_next && !state.relay.refuses_others() {
            return;
        }
        // It will be seen that this one left, and the next one comes then.
        if !is_next && state.relay.socket().is_some_and(has_hung_up) {
            return;
        }
        if self.door.is_full() {
            self.log.line("no client is served until descriptors of former clients are closed");
            self.rests_until = Some(now() + REST);
            return;
        }
        match accept_with(&state.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) if is_next => {
                let pid = sockopt::socket_peercred(&socket).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
                self.log.line(&format!("a client came (process {pid})"));
                let number = self.common.next_client.fetch_add(1, Ordering::Relaxed);
                self.intake = Intake::new(Some(self.door.clone()));
                state.relay.client_came(number, socket);
            }
            Ok(socket) => {
                let _ = shutdown(&socket, Shutdown::Both);
                self.door.dispose(socket);
                state.relay.another_was_refused();
            }
            Err(Errno::MFILE | Errno::NFILE) => {
                self.log.line("no client can be accepted: too many open files; raise LimitNOFILE");
                self.rests_until = Some(now() + REST);
            }
            // The client's own: it changed its mind.
            Err(_) => {}
        }
    }

    fn look_at_clock(&mut self, state: &mut State) {
        let now = now();
        let is_over = |since: Option<Duration>, limit| since.is_some_and(|since| now.saturating_sub(since) >= limit);
        self.rests_until = self.rests_until.filter(|until| *until > now);
        if state.relay.socket().is_none() {
            (state.midway_since, state.unread_since) = (None, None);
            return;
        }
        if is_over(state.unread_since, self.common.stall_limit) {
            state.relay.lose(Gone::NotReading);
        } else if is_over(state.midway_since, self.common.stall_limit) {
            state.relay.lose(Gone::Stalled);
        } else if self.common.give_up_after.is_some_and(|limit| is_over(state.alone_since, limit)) {
            self.log.line("no daemon came back; the client is disconnected");
            state.relay.lose(Gone::Left);
        }
    }
}

fn reason(why: Gone) -> String {
    match why {
        Gone::Left => "its connection is closed".into(),
        Gone::TooManyFds => "more descriptors with a message than its protocol has, or than can be opened".into(),
        Gone::ForeignFd => "a descriptor that is neither memory nor an eventfd nor a Unix socket".into(),
        Gone::Stalled => "it left a message unfinished for too long".into(),
        Gone::NotReading => "it does not read its replies".into(),
        Gone::BadLength => "a message of a length outside its protocol".into(),
        Gone::Socket(errno) if errno == Errno::NOBUFS.raw_os_error() => "its state is too large to keep".into(),
        Gone::Socket(errno) => format!("its socket failed: {}", Errno::from_raw_os_error(errno)),
    }
}
