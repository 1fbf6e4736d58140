//! Devices that stand still, so that another program can go on with them.

use std::os::fd::AsFd;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Common, Device, Order, Slot, State, spawn};
use crate::relay::Relay;
use crate::saved::bytes::{Reader, Writer};
use crate::saved::{Carried, Found};

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
        // Those would be closed by whoever executes the program.
        let is_still = slot.parked.is_some() && slot.leftovers.is_empty();
        is_still.then_some(Held { device: self, slot })
    }

    /// Waits that long until it closes nothing more, at most; `false`: it still does.
    pub fn has_closed(&self, patience: Duration) -> bool {
        let slot = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(slot, patience, |slot| slot.is_closing);
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_closing
    }

    /// One that was [saved](Held::save), and goes on. `None`: it can't.
    pub fn restore(name: &str, from: &mut Reader<'_>, fds: &mut Found, common: &Arc<Common>) -> Option<Self> {
        let is_wanted = from.flag()?;
        let listener = Arc::new(fds.take(from.u64()?)?);
        let memory = from.several(|from| fds.take(from.u64()?).map(Arc::new))?;
        let channel = from.maybe(|from| fds.take(from.u64()?))?;
        let [alone_since, midway_since, unread_since] =
            [(); 3].map(|()| from.maybe(|from| from.u64().map(Duration::from_nanos)));
        let relay = Relay::restore(from, &mut |number| fds.take(number))?;
        let (alone_since, midway_since, unread_since) = (alone_since?, midway_since?, unread_since?);
        let state = State { relay, channel, listener: Arc::clone(&listener), alone_since, midway_since, unread_since };
        let shared = spawn(name, state, Arc::clone(common)).ok()?;
        Some(Self { shared, listener, memory, is_wanted })
    }
}

impl Slot {
    /// Does what the thread was to do and has not, as it closes something.
    fn settle(&mut self) {
        if let Some(state) = &mut self.parked
            && let Some(Order { channel, listener, framing }) = self.order.take()
        {
            state.channel = Some(channel);
            state.listener = listener;
            state.relay.reframe(framing);
            state.relay.daemon_came();
            state.alone_since = None;
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
        state.relay.save(to, &mut |fd| carried.number(fd.as_fd()));
    }
}
