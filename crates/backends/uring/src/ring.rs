//! One HWQ: an io_uring and the commands in it.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_model::{DeviceError, Done, Io, Outcome};
use io_uring::register::Restriction;
use io_uring::{Submitter, opcode, squeue};
use rustix::io::Errno;

use crate::bounces::Bounces;
use crate::drive::{NoRing, OpenError, Opened};
use crate::errno::is_transient;
use crate::flight::{Flight, Iovec, Next};
use crate::flushes::Writers;
use crate::kernel_ring::KernelRing;

/// Most entries that the kernel gives a ring.
const MAX_ENTRIES: u32 = 32_768;

/// Registrations that are still allowed once a ring runs (io_uring.h): an eventfd to wake a poller, and the farewell.
const IORING_UNREGISTER_FILES: u8 = 3;
const IORING_REGISTER_EVENTFD: u8 = 4;

/// A place for one command, with at most one entry in the kernel's queues at a time: so those never run over.
#[derive(Debug, Default)]
struct Slot {
    flight: Option<Flight>,
    /// Kept, so that it grows once.
    iovecs: Vec<Iovec>,
    /// See [`Writers::start`].
    epoch: u64,
}

/// A ring. It owns a command's buffers from submission until the kernel is done with them.
pub(crate) struct Ring {
    drive: Arc<Opened>,
    uring: KernelRing,
    slots: Vec<Slot>,
    free: Vec<u32>,
    writers: Writers,
    /// Slots that wait for a bounce buffer.
    waiting: VecDeque<u32>,
    /// Slots whose entries the kernel has not taken yet, in the order of the entries.
    queued: VecDeque<u32>,
    /// Entries that the kernel took and has not completed.
    in_kernel: u32,
    /// Slots to submit again; empty between calls.
    again: Vec<u32>,
    /// Bound to the thread that kicked first.
    enabled: bool,
    /// The kernel refused the ring itself: nothing is submitted any more.
    broken: bool,
}

impl Ring {
    pub(crate) fn new(drive: &Arc<Opened>, depth: u32) -> Result<Self, OpenError> {
        let no_ring = |source| OpenError::NoRing(NoRing(source));
        let namespace = drive.namespace.as_ref();
        let uring = KernelRing::new(depth.clamp(1, MAX_ENTRIES), namespace.is_some()).map_err(no_ring)?;
        // The block device's too: its exclusive opener keeps it until the last command is over.
        let files: Vec<_> = drive.files.descriptors().chain(namespace.map(|it| it.file.as_raw_fd())).collect();
        uring.submitter().register_files(&files).map_err(no_ring)?;
        restrict(&uring.submitter(), namespace.is_some()).map_err(no_ring)?;
        Ok(Self {
            drive: Arc::clone(drive),
            uring,
            slots: (0..depth).map(|_| Slot::default()).collect(),
            free: (0..depth).rev().collect(),
            writers: Writers::default(),
            waiting: VecDeque::with_capacity(depth as usize),
            queued: VecDeque::with_capacity(depth as usize),
            in_kernel: 0,
            again: Vec::with_capacity(depth as usize),
            enabled: false,
            broken: false,
        })
    }

    /// Has the kernel signal an eventfd whenever there is something to reap.
    pub(crate) fn signal(&self, wake: &OwnedFd) -> std::io::Result<()> {
        self.uring.submitter().register_eventfd(wake.as_raw_fd())
    }

    /// Takes a command in, or says how it ended already.
    pub(crate) fn submit(&mut self, io: Io, bounces: &mut Bounces) -> Result<(), (Io, Outcome)> {
        let Some(&index) = self.free.last().filter(|_| !self.broken) else {
            return Err((io, Err(DeviceError::Gone)));
        };
        let mut flight = Flight::start(io, &self.drive)?;
        let slot = &mut self.slots[index as usize];
        let epoch = self.writers.start(flight.command(), self.drive.flushes(flight.command()));
        if flight.moves_at_once(&self.drive) {
            let outcome = flight.move_at_once(&mut slot.iovecs, &self.drive);
            let (io, _) = flight.end();
            let outcome = self.writers.end(&io.command, epoch, outcome, self.drive.flushes(&io.command));
            return Err((io, outcome));
        }
        slot.epoch = epoch;
        slot.flight = Some(flight);
        self.free.pop();
        self.queue(index, bounces);
        Ok(())
    }

    /// Puts a slot's next step into the submission queue, or among those that wait.
    fn queue(&mut self, index: u32, bounces: &mut Bounces) {
        let Slot { flight: Some(flight), iovecs, .. } = &mut self.slots[index as usize] else { return };
        if flight.wants_bounce() {
            match bounces.take(flight.command().tenant) {
                Some(bounce) => flight.give_bounce(bounce),
                None => return self.waiting.push_back(index),
            }
        }
        let entry = flight.entry(iovecs, &self.drive).user_data(u64::from(index));
        // SAFETY: what the entry points to is guest memory and bounce memory pinned by the flight, the flight's
        // segment list and range, and the slot's iovecs. The slot keeps all of them, unmoved and unchanged, until the
        // completion arrives; `drop` waits for that or leaks them.
        if unsafe { self.uring.push(&entry) } {
            self.queued.push_back(index);
        } else {
            self.waiting.push_back(index);
        }
    }

    /// Hands what is queued to the kernel. Commands that it will never take end in `ended`.
    pub(crate) fn kick(&mut self, bounces: &mut Bounces, ended: &mut impl FnMut(Done)) {
        loop {
            for _ in 0..self.waiting.len() {
                if let Some(index) = self.waiting.pop_front() {
                    self.queue(index, bounces);
                }
            }
            if self.queued.is_empty() || self.broken {
                return;
            }
            match self.enter_queued() {
                Ok(taken) => {
                    let taken = taken.min(self.queued.len());
                    self.queued.drain(..taken);
                    self.in_kernel += taken as u32;
                }
                // Too much in flight, or a signal: the next kick tries again.
                Err(error) if may_retry(&error) => return,
                Err(_) => return self.give_up(bounces, ended),
            }
            // What found no room in the submission queue has some now.
            if self.waiting.is_empty() || !self.queued.is_empty() {
                return;
            }
        }
    }

    fn enter_queued(&mut self) -> std::io::Result<usize> {
        if !self.enabled {
            self.uring.submitter().register_enable_rings()?;
            self.enabled = true;
        }
        self.uring.submit()
    }

    /// The kernel won't have the ring. What it took still ends on its own; the rest ends here. The entries stay
    /// in the submission queue, but nothing is ever submitted from it again.
    fn give_up(&mut self, bounces: &mut Bounces, ended: &mut impl FnMut(Done)) {
        self.broken = true;
        while let Some(index) = self.queued.pop_front().or_else(|| self.waiting.pop_front()) {
            self.end(index, Err(DeviceError::Gone), bounces, ended);
        }
    }

    fn end(&mut self, index: u32, outcome: Outcome, bounces: &mut Bounces, ended: &mut impl FnMut(Done)) {
        let Slot { flight, epoch, .. } = &mut self.slots[index as usize];
        if let Some(flight) = flight.take() {
            let (io, bounce) = flight.end();
            let outcome = self.writers.end(&io.command, *epoch, outcome, self.drive.flushes(&io.command));
            bounce.into_iter().for_each(|bounce| bounces.give(io.command.tenant, bounce));
            self.free.push(index);
            ended(io.done(outcome));
        }
    }

    /// Takes completions off the ring. Enters the kernel only if it says that it has some to post.
    pub(crate) fn reap(&mut self, bounces: &mut Bounces, ended: &mut impl FnMut(Done)) {
        if self.in_kernel == 0 {
            return;
        }
        if self.uring.taskrun() {
            // An error leaves the flag set: the next poll tries again.
            let _ = self.uring.enter_completions(0);
        }
        while let Some((user_data, result)) = self.next_completion() {
            let index = user_data as u32;
            let Some(Slot { flight: Some(flight), .. }) = self.slots.get_mut(index as usize) else { continue };
            match flight.step_ended(result, &self.drive) {
                Next::Again if !self.broken => self.again.push(index),
                Next::Again => self.end(index, Err(DeviceError::Gone), bounces, ended),
                Next::End(outcome) => self.end(index, outcome, bounces, ended),
            }
        }
        while let Some(index) = self.again.pop() {
            self.queue(index, bounces);
        }
    }

    fn next_completion(&mut self) -> Option<(u64, i32)> {
        let completion = self.uring.next();
        self.in_kernel -= u32::from(completion.is_some());
        completion
    }

    /// Waits until the kernel is done with every buffer. `false`: that can't be known.
    fn drain(&mut self) -> bool {
        loop {
            while let Some((user_data, _)) = self.next_completion() {
                if let Some(slot) = self.slots.get_mut(user_data as usize) {
                    slot.flight = None;
                }
            }
            if self.in_kernel == 0 {
                return true;
            }
            if let Err(error) = self.uring.enter_completions(1)
                && !may_retry(&error)
            {
                return false;
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.drain() {
            // Dropped by another thread than the one that used it, which the kernel does not allow to wait.
            // Buffers that the drive may still write to must never be unmapped: they are leaked.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
        // The kernel takes a closed ring apart later. Until then it would hold the file, and keep a block device busy.
        let _ = self.uring.submitter().unregister_files();
    }
}

/// From its start on the ring does nothing but I/O on the one drive that was registered, and nothing gives it another:
/// what a ring does no seccomp filter sees. Which NVMe commands it may send is decided by the kernel.
fn restrict(submitter: &Submitter<'_>, sends_nvme: bool) -> std::io::Result<()> {
    let of_files: &[u8] = &[
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
    ];
    let opcodes = if sends_nvme { &[opcode::UringCmd80::CODE] } else { of_files };
    let registered_only = squeue::Flags::FIXED_FILE.bits();
    let flags = [Restriction::sqe_flags_allowed(registered_only), Restriction::sqe_flags_required(registered_only)];
    let registrations = [IORING_REGISTER_EVENTFD, IORING_UNREGISTER_FILES].map(Restriction::register_op);
    let opcodes = opcodes.iter().copied().map(Restriction::sqe_op);
    let mut all: Vec<_> = opcodes.chain(flags).chain(registrations).collect();
    submitter.register_restrictions(&mut all)
}

fn may_retry(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    errno.is_some_and(|errno| is_transient(errno) || errno == Errno::BUSY)
}

#[cfg(test)]
mod tests;
