//! Devices that stand still, so that another program can go on with them.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Common, Device, Order, Slot, State};
use crate::bytes::{Reader, Writer};
use crate::clock::now;
use crate::log::line;
use crate::relay::Relay;
use crate::relay::save::{restore_framing, save_framing};
use crate::saved::{Carried, Found};
use crate::store::File;

/// A device whose thread does nothing, until this is dropped.
#[derive(Debug)]
pub struct Held<'a> {
    device: &'a Device,
    slot: MutexGuard<'a, Slot>,
}

impl Device {
    /// Has its thread stand still, soon.
    pub fn hold(&self) {
        self.shared.lock().is_held = true;
        self.shared.waker.wake();
    }

    /// It goes on.
    pub fn let_go(&self) {
        self.shared.lock().is_held = false;
        self.shared.changed.notify_all();
    }

    /// Waits that long for it to stand still, at most.
    pub fn held(&self, patience: Duration) -> Option<Held<'_>> {
        let slot = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(slot, patience, |slot| slot.parked.is_none());
        let mut slot = waited.unwrap_or_else(PoisonError::into_inner).0;
        slot.settle();
        // Executing the new program would close these descriptors, which may block.
        let is_still = slot.parked.is_some() && slot.leftovers.is_empty();
        is_still.then_some(Held { device: self, slot })
    }

    /// Waits that long until it closes nothing more, at most; `false`: it still does.
    pub fn has_closed(&self, patience: Duration) -> bool {
        let slot = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(slot, patience, |slot| slot.is_closing);
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_closing
    }

    /// Restores a device that was [saved](Held::save). `None`: the state is invalid.
    pub fn restore(name: &str, from: &mut Reader<'_>, fds: &mut Found, common: &Arc<Common>) -> Option<Self> {
        let is_wanted = from.flag()?;
        let listener = Arc::new(fds.take(from.u64()?)?);
        let memory = from.several(|from| fds.take(from.u64()?).map(Arc::new))?;
        let channel = from.maybe(|from| fds.take(from.u64()?))?;
        let [alone_since, midway_since, unread_since] =
            [(); 3].map(|()| from.maybe(|from| from.u64().map(Duration::from_nanos)));
        let file = from.maybe(|from| Some((fds.take(from.u64()?)?, str::from_utf8(from.bytes()?).ok()?)))?;
        let relay = Relay::restore(from, &mut |number| fds.take(number))?;
        let (alone_since, midway_since, unread_since) = (alone_since?, midway_since?, unread_since?);
        let mut state = State { relay, channel, listener, memory, file: None, alone_since, midway_since, unread_since };
        if let (Some((file, word)), Some(store)) = (file, &common.store) {
            state.adopt(File::adopt(store, file, word));
        }
        let device = Self::go_on(name, state, Arc::clone(common)).ok()?;
        Some(Self { is_wanted, ..device })
    }

    /// One as the service manager has it of a process that died: whatever is missing, its name and listening socket
    /// must be there.
    pub fn restore_stored(
        file: File,
        fd: &mut dyn FnMut(u64) -> Option<OwnedFd>,
        common: &Arc<Common>,
    ) -> Option<(String, Self)> {
        let written = file.read()?;
        let mut from = Reader(&written);
        let name = str::from_utf8(from.bytes()?).ok()?;
        let framing = restore_framing(&mut from)?;
        let listener = Arc::new(fd(from.u64()?)?);
        let memory = from.several(|from| fd(from.u64()?).map(Arc::new))?;
        let channel = from.maybe(|from| from.u64())?.and_then(&mut *fd);
        let mut tried = Vec::new();
        let mut of_client = |name| fd(name).inspect(|fd| tried.push(fd.as_raw_fd()));
        let mut relay = Relay::restore(&mut from, &mut of_client).unwrap_or_else(|| {
            line(&format!("{name}: its client is lost: its state was not kept completely"));
            file.forget(&tried);
            Relay::new(framing)
        });
        // It may not be the daemon that knew a client which is lost.
        let knows = relay.has_daemon() && channel.is_some();
        if !knows {
            relay.daemon_left();
        }
        let mut state = State::new(relay, listener, memory);
        state.channel = channel.filter(|_| knows);
        state.alone_since = (!knows).then(now);
        state.adopt(Some(file));
        Some((name.to_owned(), Self::go_on(name, state, Arc::clone(common)).ok()?))
    }
}

impl State {
    /// As the service manager is to have it; `number` gives names to descriptors.
    pub(super) fn write_down(&self, name: &str, number: &mut dyn FnMut(&OwnedFd) -> u64) -> Vec<u8> {
        let mut to = Writer::default();
        to.bytes(name.as_bytes());
        save_framing(&self.relay.framing, &mut to);
        to.u64(number(&self.listener));
        to.u64(self.memory.len() as u64);
        self.memory.iter().for_each(|fd| to.u64(number(fd)));
        to.maybe(self.channel.as_ref(), |to, channel| to.u64(number(channel)));
        self.relay.save(&mut to, &mut |fd| number(fd));
        to.finish()
    }

    /// It is written down there already.
    fn adopt(&mut self, file: Option<File>) {
        self.file = file;
        if let Some(mut file) = self.file.take() {
            let mut mentioned = Vec::new();
            self.write_down("", &mut |fd| {
                mentioned.push(fd.as_raw_fd());
                0
            });
            file.mentions(mentioned);
            self.file = Some(file);
        }
    }
}

impl Slot {
    /// Does what the thread was to do and has not, as it closes something.
    fn settle(&mut self) {
        if let Some(state) = &mut self.parked
            && let Some(Order { channel, listener, memory, framing }) = self.order.take()
        {
            state.memory = memory;
            state.channel = Some(channel);
            state.listener = listener;
            state.relay.reframe(framing);
            state.daemon_came();
        }
    }
}

impl Held<'_> {
    /// Writes it, and takes its descriptors along.
    pub fn save<'a>(&'a self, to: &mut Writer, carried: &mut Carried<'a>) {
        let Some(state) = &self.slot.parked else { return };
        to.flag(self.device.is_wanted);
        to.u64(carried.number(self.device.listener.as_fd()));
        to.u64(self.device.memory.len() as u64);
        self.device.memory.iter().for_each(|fd| to.u64(carried.number(fd.as_fd())));
        to.maybe(state.channel.as_ref(), |to, channel| to.u64(carried.number(channel.as_fd())));
        for since in [state.alone_since, state.midway_since, state.unread_since] {
            to.maybe(since, |to, since| to.u64(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)));
        }
        to.maybe(state.file.as_ref(), |to, file| {
            let (file, word) = file.parts();
            to.u64(carried.number(file.as_fd()));
            to.bytes(word.as_bytes());
        });
        state.relay.save(to, &mut |fd| carried.number(fd.as_fd()));
    }
}
