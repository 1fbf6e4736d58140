//! One poller's HWQs.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use guest_memory::{Mapping, Refused};
use io_model::{Backend, DeviceError, Done, HwqId, Io, Nanos, TenantId};
use nvme_driver::QueuePair;
use rustix::event::{EventfdFlags, eventfd};

use crate::bounces::Bounces;
use crate::drive::Shared;
use crate::hwq::{Hwq, Late, Tools};
use crate::pins::Pin;
use crate::reach::Reach;
use crate::thread::{NewQueues, Order, Which};

/// Looks for late commands in a time limit.
const LOOKS: u64 = 16;
/// The seldomest look.
const LOOK_MAX: Nanos = Nanos::from_millis(500);

/// Requests that ended, with their queues.
type Ended = VecDeque<(HwqId, Done)>;

/// What the drive's thread has to say to a poller.
pub(crate) enum Mail {
    /// Every queue is about to be replaced.
    Hold,
    /// A queue is to be replaced: the drive has forgotten the former one.
    Replace(u16, Box<QueuePair>),
    /// The drive is gone: nothing that it was given can reach memory any more.
    Gone,
}

/// What a poller and the drive's thread share; the poller looks at it in each iteration.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// Counts mail.
    pub mails: AtomicU32,
    /// Commands may be with the drive. Changed when the first one comes and the last one goes.
    pub is_busy: AtomicBool,
}

/// One poller's queues on a [`NvmeDrive`](crate::NvmeDrive).
///
/// Dropping it has the drive delete them, and waits for that: commands in flight are lost, and their memory is not
/// reached any more.
pub struct NvmeQueues {
    id: u64,
    hwqs: Vec<Hwq>,
    depth: u32,
    drive: Arc<Shared>,
    reach: Reach,
    told: Vec<Pin>,
    /// Gone only while it is dropped.
    bounces: Option<Bounces>,
    ended: Ended,
    orders: Sender<Order>,
    mails: Receiver<Mail>,
    control: Arc<Control>,
    read: u32,
    is_busy: bool,
    now: Nanos,
    next_look: Nanos,
    wake: Option<OwnedFd>,
}

impl NvmeQueues {
    pub(crate) fn new(
        drive: &Arc<Shared>,
        orders: &Sender<Order>,
        new: NewQueues,
        depth: u32,
    ) -> Result<Self, nvme_driver::Error> {
        let NewQueues { id, pairs, bounces, mails, control } = new;
        let hwqs: Vec<Hwq> = pairs.into_iter().map(|pair| Hwq::new(pair, depth)).collect();
        Ok(Self {
            id,
            ended: VecDeque::with_capacity(hwqs.len() * depth as usize),
            hwqs,
            depth,
            drive: Arc::clone(drive),
            reach: Reach::default(),
            told: Vec::new(),
            bounces: Some(Bounces::new(bounces)?),
            orders: orders.clone(),
            mails,
            control,
            read: 0,
            is_busy: false,
            now: Nanos(0),
            next_look: Nanos(0),
            wake: None,
        })
    }

    /// The queues, what their requests share, and where those go that ended.
    #[inline]
    fn split(&mut self) -> Option<(&mut [Hwq], Tools<'_>, &mut Ended)> {
        let Self { hwqs, drive, reach, bounces, ended, .. } = self;
        let tools =
            Tools { drive: &drive.abilities, reach, bounces: bounces.as_mut()?, copied_bytes: &drive.copied_bytes };
        Some((hwqs, tools, ended))
    }

    /// Orders something of the drive's thread. Where that has ended the drive is gone, and its last mail says so.
    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    /// Has a queue replaced, with which the drive does what it must not.
    #[cold]
    fn recover(&mut self, index: usize) {
        let hwq = &mut self.hwqs[index];
        hwq.hold();
        let which = Which { id: self.id, hwq: index as u16, replaced: hwq.replaced() };
        self.order(Order::Recover(which));
    }

    #[cold]
    fn read_mails(&mut self) {
        while let Ok(mail) = self.mails.try_recv() {
            let Some((hwqs, mut tools, ended)) = self.split() else { return };
            match mail {
                Mail::Hold => hwqs.iter_mut().for_each(Hwq::hold),
                Mail::Replace(index, pair) => {
                    let Some(hwq) = hwqs.get_mut(usize::from(index)) else { continue };
                    let former = hwq.replace(*pair, &mut tools, &mut |done| ended.push_back((HwqId(index), done)));
                    self.order(Order::Return(Box::new(former)));
                }
                Mail::Gone => {
                    for (index, hwq) in (0..).zip(hwqs) {
                        hwq.give_up(&mut tools, &mut |done| ended.push_back((HwqId(index), done)));
                    }
                }
            }
        }
    }

    /// Looks for commands that are too old. Off the way of each: a few times within the limit.
    #[cold]
    fn look_for_late(&mut self) {
        let limit = Nanos(self.drive.limit.as_nanos() as u64);
        let patience = Nanos(self.drive.patience.as_nanos() as u64);
        self.next_look = self.now + Nanos(limit.0 / LOOKS).min(LOOK_MAX);
        for index in 0..self.hwqs.len() {
            let Self { hwqs, orders, now, id, .. } = self;
            let hwq = &mut hwqs[index];
            let which = Which { id: *id, hwq: index as u16, replaced: hwq.replaced() };
            hwq.find_late(*now, limit, patience, &mut |late| {
                let order = match late {
                    Late::Abort(cid) => Order::Abort { which, cid },
                    Late::Recover => Order::Recover(which),
                };
                let _ = orders.send(order);
            });
        }
    }

    #[inline]
    fn tell_busy(&mut self) {
        let is_busy = self.hwqs.iter().any(Hwq::is_busy);
        if is_busy != self.is_busy {
            self.is_busy = is_busy;
            self.control.is_busy.store(is_busy, Ordering::Relaxed);
        }
    }
}

impl Backend for NvmeQueues {
    fn hwqs(&self) -> u16 {
        self.hwqs.len() as u16
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    #[inline]
    fn submit(&mut self, hwq: HwqId, io: Io, now: Nanos) {
        self.now = now;
        let Some((hwqs, mut tools, ended)) = self.split() else { return };
        let refused = match hwqs.get_mut(usize::from(hwq.0)) {
            Some(queue) => queue.submit(io, &mut tools, now),
            None => Err((io, Err(DeviceError::Gone))),
        };
        if let Err((io, outcome)) = refused {
            ended.push_back((hwq, io.done(outcome)));
        }
    }

    #[inline]
    fn kick(&mut self) {
        let now = self.now;
        let mut unreachable = None;
        let Some((hwqs, mut tools, ended)) = self.split() else { return };
        for (index, hwq) in (0..).zip(hwqs) {
            if hwq.kick(&mut tools, now, &mut |done| ended.push_back((HwqId(index), done))).is_err() {
                unreachable = Some(usize::from(index));
            }
        }
        if let Some(index) = unreachable {
            self.recover(index);
        }
        self.tell_busy();
    }

    #[inline]
    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        self.now = now;
        let mut liar = None;
        let Some((hwqs, mut tools, _)) = self.split() else { return };
        for (index, hwq) in (0..).zip(hwqs) {
            if hwq.reap(&mut tools, &mut |ended| done(HwqId(index), ended)).is_err() {
                liar = Some(usize::from(index));
            }
        }
        if let Some(index) = liar {
            self.recover(index);
        }
        let mails = self.control.mails.load(Ordering::Acquire);
        if mails != self.read {
            self.read = mails;
            self.read_mails();
        }
        if now >= self.next_look {
            self.look_for_late();
        }
        while let Some((hwq, ended)) = self.ended.pop_front() {
            done(hwq, ended);
        }
        self.tell_busy();
    }

    fn wake_fd(&mut self) -> Option<BorrowedFd<'_>> {
        if self.wake.is_none() {
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
            // Signalled once when the drive does: what ended until then is looked at.
            self.order(Order::Arm { id: self.id, wake: wake.try_clone().ok()? });
            self.wake = Some(wake);
        }
        self.wake.as_ref().map(AsFd::as_fd)
    }

    fn map_memory(&mut self, _tenant: TenantId, mapping: &Mapping) -> Result<(), Refused> {
        // Without an IOMMU's help everything is copied.
        let Some(pins) = &self.drive.pins else { return Ok(()) };
        let pin = pins.pin(mapping).map_err(|_| Refused { errno: rustix::io::Errno::NOMEM.raw_os_error() })?;
        self.reach.add(pin.addresses(), pin.iova());
        self.told.push(pin);
        Ok(())
    }

    fn unmap_memory(&mut self, _tenant: TenantId, mapping: &Mapping) {
        let addresses = mapping.addresses();
        if let Some(at) = self.told.iter().position(|pin| pin.addresses() == addresses) {
            self.reach.remove(&addresses);
            self.told.swap_remove(at);
        }
    }
}

impl Drop for NvmeQueues {
    fn drop(&mut self) {
        let (pairs, requests): (Vec<_>, Vec<_>) = self.hwqs.drain(..).map(Hwq::into_parts).unzip();
        let bounces = self.bounces.take().map(Bounces::into_memory);
        let (done, answer) = channel();
        if self.orders.send(Order::Close { id: self.id, pairs, bounces, done }).is_ok() {
            // Fails if the thread ends meanwhile, and the drive's connection with it.
            let _ = answer.recv();
        }
        // Only now: until then the drive could write there.
        drop(requests);
    }
}
