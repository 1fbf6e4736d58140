//! The drive's own thread: it alone has the controller.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use io_model::{QueuePriority, WrrWeights};
use nvme_driver::{Controller, DmaMemory, Error, PciDevice, QueuePair};
use nvme_spec::Status;
use nvme_spec::feature::fid;
use nvme_spec::log::{SmartLog, event_type, lid};
use rustix::event::{EventfdFlags, eventfd};

use crate::bounces::BOUNCES_BYTES;
use crate::drive::{Health, Shared, StartError};
use crate::queues::{Control, Mail};

/// How often the thread looks whether the drive is still there, and at what it tells of itself.
const TICK: Duration = Duration::from_secs(1);
/// How often it looks if a poller sleeps on queues that can't interrupt.
const POKE: Duration = Duration::from_millis(1);
/// How often the health is asked for without an event.
const HEALTH: Duration = Duration::from_mins(1);
/// The pause doubles so often while the drive does not tell it, to an hour about: each time others wait.
const HEALTH_DOUBLINGS: u32 = 6;
/// Critical warnings that are to be told as events, all of them.
const ALL_WARNINGS: u32 = 0xff;
/// How long an admin command may take while others wait.
pub(crate) const ADMIN_LIMIT: Duration = Duration::from_secs(5);

/// Something that the operator should know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Went well.
    Info(String),
    /// Did not.
    Warning(String),
}

/// What is asked of the thread.
pub(crate) enum Order {
    Open(Open),
    Close {
        id: u64,
        pairs: Vec<QueuePair>,
        bounces: Option<DmaMemory>,
        done: Sender<()>,
    },
    /// A command is late.
    Abort {
        which: Which,
        cid: u16,
    },
    /// A queue has commands that do not end, or lies.
    Recover(Which),
    /// A pair that was replaced.
    Return(Box<QueuePair>),
    /// A poller is going to sleep until its queues have something, or mail.
    Arm {
        id: u64,
        wake: OwnedFd,
    },
    Weights(WrrWeights),
}

/// A poller's queue, between two replacements: another poller's trouble may have had it replaced meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Which {
    pub id: u64,
    pub hwq: u16,
    pub replaced: u32,
}

/// Queues for a poller.
pub(crate) struct Open {
    pub classes: Vec<QueuePriority>,
    pub weights: Option<WrrWeights>,
    pub entries: u16,
    pub reply: Sender<Result<NewQueues, StartError>>,
}

/// What a poller gets.
pub(crate) struct NewQueues {
    pub id: u64,
    pub pairs: Vec<QueuePair>,
    pub bounces: DmaMemory,
    pub mails: Receiver<Mail>,
    pub control: Arc<Control>,
}

/// A poller's queues as the thread knows them.
pub(crate) struct Set {
    id: u64,
    mails: Sender<Mail>,
    control: Arc<Control>,
    wake: Option<OwnedFd>,
    pub entries: u16,
    /// Of each HWQ.
    pub queues: Vec<Queue>,
    pub vector: Option<u16>,
    /// Its queues can't interrupt: it is woken by looks.
    is_poked: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Queue {
    pub qid: u16,
    /// How often it was replaced.
    pub replaced: u32,
    pub class: QueuePriority,
}

impl Set {
    /// Gives its poller a queue in the place of one that the drive has forgotten.
    pub fn replace(&mut self, hwq: u16, pair: QueuePair) {
        let Some(queue) = self.queues.get_mut(usize::from(hwq)) else { return };
        queue.qid = pair.id();
        queue.replaced += 1;
        self.post(Mail::Replace(hwq, Box::new(pair)));
    }

    /// Tells its poller something.
    pub fn post(&self, mail: Mail) {
        // The poller closes its queues before it is gone.
        let _ = self.mails.send(mail);
        self.control.mails.fetch_add(1, Ordering::Release);
        self.poke();
    }

    fn poke(&self) {
        if let Some(wake) = &self.wake {
            // Full: it is awake.
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }
}

/// Owns a drive's controller. One thread runs it.
pub struct DriveThread<D: PciDevice> {
    /// `None`: it was given up.
    pub(crate) controller: Option<Controller<D>>,
    pub(crate) drive: Arc<Shared>,
    pub(crate) sets: Vec<Set>,
    pub(crate) weights: Option<WrrWeights>,
    orders: Receiver<Order>,
    next_id: u64,
    /// Signalled for the admin queue; without it no queue can interrupt.
    interrupts: Option<OwnedFd>,
    /// Signalled when the kernel wants the device back: it waits for that.
    removal: Option<OwnedFd>,
    warned_of: u8,
    next_health: Instant,
    /// How often in a row it was not told.
    health_failures: u32,
}

impl<D: PciDevice> DriveThread<D> {
    pub(crate) fn new(controller: Controller<D>, drive: Arc<Shared>, orders: Receiver<Order>) -> Self {
        Self {
            controller: Some(controller),
            drive,
            sets: Vec::new(),
            weights: None,
            orders,
            next_id: 0,
            interrupts: None,
            removal: None,
            warned_of: 0,
            next_health: Instant::now(),
            health_failures: 0,
        }
    }

    /// Serves the drive until nobody has it any more, and shuts the controller down.
    pub fn run(mut self, mut notify: impl FnMut(Notice)) {
        self.enable_interrupts();
        self.watch_events();
        let mut next_tick = Instant::now();
        loop {
            let now = Instant::now();
            if now >= next_tick {
                self.tick(&mut notify);
                next_tick = now + TICK;
            }
            let is_poked = self.sets.iter().any(|set| set.is_poked);
            let wait = if is_poked { POKE } else { next_tick.saturating_duration_since(Instant::now()) };
            match self.orders.recv_timeout(wait) {
                Ok(order) => self.apply(order, &mut notify),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.sets.iter().filter(|set| set.is_poked).for_each(Set::poke);
        }
    }

    fn apply(&mut self, order: Order, notify: &mut impl FnMut(Notice)) {
        match order {
            Order::Open(open) => {
                let opened = self.open(&open);
                // The asking thread waits for this.
                let _ = open.reply.send(opened);
            }
            Order::Close { id, pairs, bounces, done } => {
                self.close(id, notify);
                self.release(pairs, bounces);
                let _ = done.send(());
            }
            Order::Abort { which, cid } => self.abort(which, cid, notify),
            Order::Recover(which) => self.recover(which, notify),
            Order::Return(pair) => self.release(vec![*pair], None),
            Order::Arm { id, wake } => self.arm(id, wake),
            Order::Weights(weights) => {
                self.weights = Some(weights);
                let set = self.controller.as_mut().map(|controller| controller.set_weights(weights));
                if let Some(Err(error)) = set {
                    notify(Notice::Warning(format!("its weights can't be changed: {error}")));
                }
            }
        }
    }

    /// Without the admin queue's interrupt no other one comes: vectors are refused while MSI-X is off. And what tells
    /// that the device goes.
    fn enable_interrupts(&mut self) {
        let Some(controller) = &mut self.controller else { return };
        let new = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (Ok(admin), Ok(removal)) = (new(), new()) else { return };
        self.interrupts = controller.device().set_interrupt(0, admin.as_fd()).is_ok().then_some(admin);
        let can_tell = controller.device().set_removal_event(removal.as_fd()).unwrap_or_default();
        self.removal = can_tell.then_some(removal);
    }

    fn open(&mut self, open: &Open) -> Result<NewQueues, StartError> {
        let vector = self.interrupts.as_ref().and_then(|_| self.free_vector());
        let Some(controller) = &mut self.controller else { return Err(StartError::Gone) };
        let (wanted, left, granted) = (open.classes.len(), controller.queues_left(), controller.queues());
        if wanted > left {
            return Err(StartError::FewQueues { wanted, left, granted });
        }
        if let Some(weights) = open.weights {
            controller.set_weights(weights)?;
            self.weights = Some(weights);
        }
        let (pairs, vector) = create_all(controller, open.entries, vector, &open.classes)?;
        let bounces = controller.allocate_dma(BOUNCES_BYTES as usize)?;
        let (mails, received) = channel();
        let control = Arc::<Control>::default();
        self.next_id += 1;
        let queue = |(pair, class): (&QueuePair, &QueuePriority)| Queue { qid: pair.id(), replaced: 0, class: *class };
        self.sets.push(Set {
            id: self.next_id,
            mails,
            control: Arc::clone(&control),
            wake: None,
            entries: open.entries,
            queues: pairs.iter().zip(&open.classes).map(queue).collect(),
            vector,
            is_poked: false,
        });
        Ok(NewQueues { id: self.next_id, pairs, bounces, mails: received, control })
    }

    /// The lowest that no other poller has; 0 is the admin queue's.
    fn free_vector(&self) -> Option<u16> {
        (1..u16::MAX).find(|vector| self.sets.iter().all(|set| set.vector != Some(*vector)))
    }

    fn close(&mut self, id: u64, notify: &mut impl FnMut(Notice)) {
        let Some(at) = self.sets.iter().position(|set| set.id == id) else { return };
        let set = self.sets.swap_remove(at);
        let Some(controller) = &mut self.controller else { return };
        let deleted: Result<(), Error> =
            set.queues.iter().try_for_each(|queue| controller.delete_queues(queue.qid, ADMIN_LIMIT));
        if let Err(error) = deleted {
            // Their memory must not be reached any more, whatever it takes.
            self.reset(&format!("its queues can't be deleted: {error}"), notify);
        }
    }

    /// Gives memory back that the drive reaches no more.
    fn release(&mut self, pairs: Vec<QueuePair>, bounces: Option<DmaMemory>) {
        let Some(controller) = &mut self.controller else { return };
        // What can't be given back goes with the controller.
        pairs.into_iter().for_each(|pair| drop(controller.release_queue_pair(pair)));
        bounces.into_iter().for_each(|memory| drop(controller.release_dma(memory)));
    }

    fn arm(&mut self, id: u64, wake: OwnedFd) {
        let Some(set) = self.sets.iter_mut().find(|set| set.id == id) else { return };
        let Some(controller) = &mut self.controller else { return };
        let armed = set.vector.map(|vector| controller.device().set_interrupt(vector, wake.as_fd()));
        set.is_poked = !matches!(armed, Some(Ok(())));
        set.wake = Some(wake);
        set.poke();
    }

    /// A queue's poller. `None`: it is gone, or the queue was replaced meanwhile.
    pub(crate) fn set_of(&mut self, which: Which) -> Option<&mut Set> {
        let set = self.sets.iter_mut().find(|set| set.id == which.id)?;
        let is_it = set.queues.get(usize::from(which.hwq)).is_some_and(|queue| queue.replaced == which.replaced);
        is_it.then_some(set)
    }

    /// Has the drive tell of its warnings. One that can't is asked every minute all the same.
    pub(crate) fn watch_events(&mut self) {
        if let Some(controller) = &mut self.controller {
            let mut admin = controller.admin().within(ADMIN_LIMIT);
            let _ = admin.set_feature(fid::ASYNC_EVENT_CONFIG, ALL_WARNINGS).and_then(|()| admin.request_event());
        }
    }

    /// What is due every second: whether the drive is there, its events and its health, and pollers that sleep on
    /// commands that may be late.
    fn tick(&mut self, notify: &mut impl FnMut(Notice)) {
        let Some(controller) = &mut self.controller else { return };
        let is_wanted_back = |event: &OwnedFd| rustix::io::read(event, &mut [0; 8]).is_ok();
        if self.removal.as_ref().is_some_and(is_wanted_back) {
            return self.give_up("it was unplugged, or is to be released", notify);
        }
        match controller.check() {
            Ok(()) => self.look_at_health(notify),
            Err(error) if is_removed(&error) => self.give_up(&error.to_string(), notify),
            Err(error) => self.reset(&error.to_string(), notify),
        }
        let is_asleep = |set: &&Set| set.wake.is_some() && set.control.is_busy.load(Ordering::Relaxed);
        self.sets.iter().filter(is_asleep).for_each(Set::poke);
    }

    fn look_at_health(&mut self, notify: &mut impl FnMut(Notice)) {
        let Some(controller) = &mut self.controller else { return };
        let mut admin = controller.admin().within(ADMIN_LIMIT);
        let mut is_due = Instant::now() >= self.next_health;
        while let Ok(Some(event)) = admin.take_event() {
            // A drive that reports events but not its health must not keep the thread busy.
            is_due |= self.health_failures == 0;
            if event as u8 & 0b111 == event_type::ERROR {
                notify(Notice::Warning(format!("it reports an error event ({event:#x})")));
            }
            let _ = admin.request_event();
        }
        if !is_due {
            return;
        }
        // To read the page also arms its event again.
        let told = admin.log_page::<SmartLog>(lid::SMART);
        if told.is_ok() && self.health_failures > 0 {
            notify(Notice::Info("it tells its health again".into()));
        }
        self.health_failures = if told.is_ok() { 0 } else { self.health_failures.saturating_add(1) };
        self.next_health = Instant::now() + HEALTH * (1 << self.health_failures.min(HEALTH_DOUBLINGS));
        let log = match told {
            Ok(log) => log,
            Err(error) => {
                self.drive.health.forget();
                if self.health_failures == 1 {
                    let what = format!("it does not tell its health, and is asked less and less often: {error}");
                    notify(Notice::Warning(what));
                }
                return;
            }
        };
        let health = Health::of(&log);
        self.drive.health.set(health);
        if health.critical_warning & !self.warned_of != 0 {
            notify(Notice::Warning(format!("it warns: {}", health.warnings().join("; "))));
        } else if health.critical_warning == 0 && self.warned_of != 0 {
            notify(Notice::Info("it warns of nothing any more".into()));
        }
        self.warned_of = health.critical_warning;
    }
}

/// Whether nothing of the drive is left that could be reset.
pub(crate) fn is_removed(error: &Error) -> bool {
    matches!(error, Error::Removed | Error::Gone { .. })
}

/// All queues of a poller, or none. Where the drive has no such vector they can't interrupt.
pub(crate) fn create_all<D: PciDevice>(
    controller: &mut Controller<D>,
    entries: u16,
    vector: Option<u16>,
    classes: &[QueuePriority],
) -> Result<(Vec<QueuePair>, Option<u16>), Error> {
    let mut pairs = Vec::with_capacity(classes.len());
    for class in classes {
        match controller.create_queue_pair_with(entries, vector, *class) {
            Ok(pair) => pairs.push(pair),
            Err(error) => {
                for pair in pairs {
                    controller.delete_queue_pair(pair)?;
                }
                let bare = |status: Status| (status.sct(), status.sc());
                let no_vector = matches!(&error, Error::Command { status, .. }
                    if bare(*status) == bare(Status::INVALID_INTERRUPT_VECTOR));
                return match vector {
                    Some(_) if no_vector => create_all(controller, entries, None, classes),
                    _ => Err(error),
                };
            }
        }
    }
    Ok((pairs, vector))
}

#[cfg(test)]
mod tests {
    use nvme_driver::fake::Fake;

    use super::*;
    use crate::drive::{NvmeDrive, Options};

    #[test]
    fn what_a_drive_said_of_its_health_is_forgotten_when_it_says_no_more() {
        let fake = Fake::new(64);
        let (drive, mut thread) = NvmeDrive::start(fake.device(), Options::default()).expect("a drive");
        let mut told = Vec::new();
        thread.look_at_health(&mut |notice| told.push(notice));
        assert!(drive.health().get().is_some() && told.is_empty(), "{told:?}");

        fake.state().refuses.health = true;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            thread.next_health = Instant::now();
            thread.look_at_health(&mut |notice| told.push(notice));
            assert_eq!(drive.health().get(), None);
            let pause = thread.next_health.saturating_duration_since(Instant::now());
            pauses.push(pause.as_secs().div_ceil(60));
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 64, 64, 64]);
        let [Notice::Warning(warning)] = &told[..] else { panic!("{told:?}") };
        assert!(warning.contains("does not tell its health"), "{warning}");

        fake.state().refuses.health = false;
        thread.next_health = Instant::now();
        thread.look_at_health(&mut |notice| told.push(notice));
        assert!(drive.health().get().is_some());
        assert_eq!(told[1..], [Notice::Info("it tells its health again".into())]);
        fake.state().refuses.health = true;
        thread.next_health = Instant::now();
        thread.look_at_health(&mut |notice| told.push(notice));
        assert_eq!(told.len(), 3, "told once more: {told:?}");
    }
}
