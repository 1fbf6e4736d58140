//! Descriptors: how many of them each client can have kept, so that there are some for all who come later.

use std::sync::atomic::{AtomicUsize, Ordering};

use client_socket::gate::raise_open_files;

/// What a client can have kept at most, however much room there is: more than any driver uses.
const MAX_FDS: usize = 2048;
/// What each client can have kept, as long as there is room at all: what a VM with two dozen maps and
/// twenty queues uses.
const MIN_FDS: usize = 48;
/// As many devices are counted on, however few there are.
const MIN_DEVICES: usize = 8;
/// The process's own descriptors, about.
const OWN_FDS: usize = 32;
/// Those of a device, beside its client's: sockets, memory, a waker, and a message on its way.
const DEVICE_FDS: usize = 12;

/// The room that there is, and what of it is in use.
///
/// The first quarter is for any client. After that no client may have more than an equal part of half the room, so that
/// devices that come later find some. No client has to give descriptors back.
#[derive(Debug)]
pub struct Room {
    total: usize,
    devices: AtomicUsize,
    used: AtomicUsize,
}

impl Room {
    /// For a process that can have `total` descriptors open.
    pub fn new(total: usize) -> Self {
        Self { total, devices: AtomicUsize::new(0), used: AtomicUsize::new(0) }
    }

    /// As many as the system lets this process open, and the service manager keeps.
    pub fn find(stored: Option<usize>) -> Self {
        let open = raise_open_files().map_or(usize::MAX, |open| usize::try_from(open).unwrap_or(usize::MAX));
        Self::new(open.min(stored.unwrap_or(usize::MAX)))
    }

    /// A device is there from now on.
    pub fn enter(&self) {
        self.devices.fetch_add(1, Ordering::Relaxed);
    }

    /// A device is gone.
    pub fn leave(&self) {
        self.devices.fetch_sub(1, Ordering::Relaxed);
    }

    /// What each client may have, however many others have.
    pub fn for_each(&self) -> usize {
        (self.for_clients() / 2 / self.devices()).clamp(MIN_FDS, MAX_FDS)
    }

    fn for_clients(&self) -> usize {
        self.total.saturating_sub(OWN_FDS + self.devices().saturating_mul(DEVICE_FDS))
    }

    fn devices(&self) -> usize {
        self.devices.load(Ordering::Relaxed).max(MIN_DEVICES)
    }

    /// A client that had `before` has `now`.
    pub fn changed(&self, before: usize, now: usize) {
        if now > before {
            self.used.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.used.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    /// Whether a client that has `now`, which are counted, has too many.
    pub fn is_exceeded(&self, now: usize) -> bool {
        let (used, all) = (self.used.load(Ordering::Relaxed), self.for_clients());
        now > MAX_FDS || used > all || (used > all / 4 && now > self.for_each())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client takes what it can get.
    fn take_all(room: &Room) -> usize {
        room.enter();
        for now in 1.. {
            room.changed(now - 1, now);
            if room.is_exceeded(now) {
                room.changed(now, now - 1);
                return now - 1;
            }
        }
        unreachable!("there is an end to it")
    }

    #[test]
    fn clients_that_take_all_they_can_leave_room_for_others() {
        // Once eight of them had all of 1024, and nobody else could be served.
        for (total, least) in [(1024, 16), (4096, 100), (65_536, 1_800)] {
            let room = Room::new(total);
            let held: Vec<usize> = (0..12).map(|_| take_all(&room)).collect();
            assert!(held.iter().all(|held| *held >= least), "{total}: {held:?}");
            assert!(held.iter().sum::<usize>() + OWN_FDS + 12 * DEVICE_FDS <= total, "{total}: {held:?}");
        }
    }

    #[test]
    fn a_thousand_ordinary_clients_have_room() {
        let room = Room::new(65_536);
        for _ in 0..1000 {
            room.enter();
            room.changed(0, 30);
            assert!(!room.is_exceeded(30));
        }
        // One more than others: only while there is plenty.
        room.changed(30, 200);
        assert!(room.is_exceeded(200));
        (0..800).for_each(|_| room.changed(30, 0));
        assert!(!room.is_exceeded(200));
    }
}
