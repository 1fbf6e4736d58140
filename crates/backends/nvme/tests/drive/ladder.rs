//! What is done about a drive that does not end its commands, lies, or goes, step by step. Time is the poller's, and
//! passes as the test says.

#![allow(clippy::disallowed_methods, reason = "the drive's thread is the test's")]

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use backend_nvme::{Notice, NvmeDrive, NvmeQueues, Options};
use fake_device::Fake;
use guest_memory::Mapping;
use io_model::{Backend, DeviceError, HwqId, Io, IoBuf, Nanos, Op, Outcome, Place, TenantId};
use nvme_spec::Status;

const LIMIT: Duration = Duration::from_secs(8);
/// A quarter of the limit.
const PATIENCE: Nanos = Nanos::from_millis(2_000);
const PLACE: Place = Place::whole_drive(TenantId(3));

struct Bench {
    fake: Fake,
    drive: Option<NvmeDrive>,
    queues: Option<NvmeQueues>,
    running: Option<JoinHandle<()>>,
    notices: Arc<Mutex<Vec<Notice>>>,
    memory: Arc<Mapping>,
    now: Nanos,
    ended: Vec<(u32, Outcome)>,
}

impl Bench {
    fn new() -> Self {
        let fake = Fake::new(4096).with_dma_space().with_interrupts();
        let options = Options { command_timeout: LIMIT, ..Options::default() };
        let (drive, thread) = NvmeDrive::start(fake.device(), options).expect("a drive");
        let notices = Arc::<Mutex<Vec<Notice>>>::default();
        let told = Arc::clone(&notices);
        let running = thread::spawn(move || thread.run(|notice| told.lock().expect("nobody panics").push(notice)));
        let mut queues = drive.open_queues(2, 4).expect("two queues");
        let (memory, _) = Mapping::memfd("ladder", 64 << 10).expect("memory");
        queues.map_memory(PLACE.tenant, &memory).expect("memory that the drive reaches");
        Self {
            fake,
            drive: Some(drive),
            queues: Some(queues),
            running: Some(running),
            notices,
            memory,
            now: Nanos(1),
            ended: Vec::new(),
        }
    }

    fn queues(&mut self) -> &mut NvmeQueues {
        self.queues.as_mut().expect("open until the end")
    }

    /// Submits a write of one block and has the drive told.
    fn write(&mut self, hwq: u16, tag: u32) {
        let mut buf = IoBuf::default();
        assert!(buf.push(&self.memory, u64::from(tag) * 512, 512));
        let command = PLACE.command(Op::Write, u64::from(tag) * 512, 512);
        let now = self.now;
        self.queues().submit(HwqId(hwq), Io { tag, command, buf }, now);
        self.queues().kick();
    }

    fn poll(&mut self) {
        let (now, mut ended) = (self.now, Vec::new());
        self.queues().kick();
        self.queues().reap(now, &mut |_, done| ended.push((done.tag, done.outcome)));
        self.ended.extend(ended);
    }

    /// Polls until `count` requests have ended in all. They come from the drive's thread at any time.
    fn until_ended(&mut self, count: usize) {
        while self.ended.len() < count {
            self.poll();
            thread::yield_now();
        }
        self.poll();
        assert_eq!(self.ended.len(), count, "each ends once");
    }

    fn until(&mut self, what: impl Fn(&Self) -> bool) {
        while !what(self) {
            self.poll();
            thread::yield_now();
        }
    }

    fn pass(&mut self, time: Nanos) {
        self.now += time;
        self.poll();
    }

    fn was_told(&self, part: &str) -> bool {
        let has = |notice: &Notice| matches!(notice, Notice::Warning(text) if text.contains(part));
        self.notices.lock().expect("nobody panics").iter().any(has)
    }

    fn outcome(&self, tag: u32) -> Outcome {
        self.ended.iter().find(|(of, _)| *of == tag).expect("it ended").1
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.queues = None;
        self.drive = None;
        let running = self.running.take().expect("once").join();
        assert!(running.is_ok() || thread::panicking(), "the drive's thread panicked");
    }
}

fn limit() -> Nanos {
    Nanos(LIMIT.as_nanos() as u64)
}

#[test]
fn a_late_completion_is_one() {
    let mut bench = Bench::new();
    bench.fake.state().holds = true;
    bench.write(0, 1);
    bench.pass(Nanos(limit().0 - 1));
    bench.fake.execute_held();
    bench.until_ended(1);
    assert_eq!(bench.outcome(1), Ok(()));
    assert_eq!(bench.notices.lock().unwrap().len(), 0);
}

#[test]
fn what_was_aborted_in_vain_still_ends_well() {
    let mut bench = Bench::new();
    bench.fake.state().holds = true;
    bench.fake.state().refuses.abort = true;
    bench.write(0, 1);
    bench.pass(limit());
    bench.until(|bench| bench.was_told("is aborted"));
    bench.fake.execute_held();
    bench.until_ended(1);
    assert_eq!(bench.outcome(1), Ok(()));
}

#[test]
fn what_the_drive_aborts_is_sent_again() {
    let mut bench = Bench::new();
    bench.fake.state().holds = true;
    bench.write(0, 1);
    bench.pass(limit());
    // The abort takes it from those that are held; what is sent again is one of them.
    bench.until(|bench| bench.was_told("is aborted") && bench.fake.state().held.is_empty());
    bench.fake.state().holds = false;
    bench.until_ended(1);
    assert_eq!(bench.outcome(1), Ok(()));
}

#[test]
fn a_queue_that_does_not_answer_is_made_anew_and_the_other_goes_on() {
    let mut bench = Bench::new();
    bench.fake.state().holds = true;
    bench.fake.state().refuses.abort = true;
    bench.write(0, 1);
    bench.pass(limit());
    // Younger, on the other queue: nothing happens to it.
    bench.write(1, 2);
    bench.pass(PATIENCE);
    bench.write(0, 3);
    bench.until_ended(1);
    assert_eq!(bench.outcome(1), Err(DeviceError::Gone));
    bench.until(|bench| bench.was_told("was created again"));
    // What waited was sent to the new queue.
    bench.until(|bench| bench.fake.state().held.len() == 2);
    bench.fake.execute_held();
    bench.until_ended(3);
    assert_eq!((bench.outcome(2), bench.outcome(3)), (Ok(()), Ok(())));
    assert_eq!(bench.fake.state().resets.1, 0);
}

fn stuck(refuses: impl Fn(&mut fake_device::Refusals)) -> Bench {
    let mut bench = Bench::new();
    bench.fake.state().holds = true;
    bench.fake.state().refuses.abort = true;
    bench.fake.state().refuses.delete = true;
    refuses(&mut bench.fake.state().refuses);
    bench.write(0, 1);
    bench.write(1, 2);
    bench.pass(limit());
    bench.pass(PATIENCE);
    bench.until_ended(2);
    assert_eq!((bench.outcome(1), bench.outcome(2)), (Err(DeviceError::Gone), Err(DeviceError::Gone)));
    bench
}

fn goes_on(bench: &mut Bench) {
    bench.fake.state().holds = false;
    bench.fake.state().refuses.delete = false;
    for (hwq, tag) in [(0, 3), (1, 4)] {
        bench.write(hwq, tag);
    }
    bench.until_ended(4);
    assert_eq!((bench.outcome(3), bench.outcome(4)), (Ok(()), Ok(())));
}

#[test]
fn where_queues_can_t_be_deleted_the_controller_is_reset() {
    let mut bench = stuck(|_| {});
    bench.until(|bench| bench.was_told("its controller was reset"));
    goes_on(&mut bench);
    // Once for both queues; the other one is of the start.
    assert_eq!(bench.fake.state().resets, (1, 0));
}

#[test]
fn where_that_does_not_help_the_function_is_reset() {
    let mut bench = stuck(|refuses| refuses.controller_reset = true);
    bench.until(|bench| bench.was_told("its function was reset"));
    bench.fake.state().refuses.controller_reset = false;
    goes_on(&mut bench);
    assert_eq!(bench.fake.state().resets.1, 1);
}

#[test]
fn where_nothing_helps_the_drive_is_given_up() {
    let mut bench = stuck(|refuses| {
        refuses.controller_reset = true;
        refuses.function_reset = true;
    });
    bench.until(|bench| bench.was_told("is given up"));
    bench.write(0, 3);
    bench.until_ended(3);
    assert_eq!(bench.outcome(3), Err(DeviceError::Gone));
    let drive = bench.drive.as_ref().expect("open");
    assert!(drive.is_gone() && drive.open_queues(1, 4).is_err());
}

#[test]
fn a_drive_that_is_unplugged_fails_everything_once() {
    let mut bench = Bench::new();
    bench.fake.state().holds = true;
    for tag in 1..=4 {
        bench.write((tag % 2) as u16, tag);
    }
    bench.fake.state().unplugged = true;
    bench.until_ended(4);
    assert!((1..=4).all(|tag| bench.outcome(tag) == Err(DeviceError::Gone)));
    bench.until(|bench| bench.was_told("registers read as ones"));
}

#[test]
fn a_queue_that_tells_of_what_it_was_not_given_is_made_anew() {
    let mut bench = Bench::new();
    bench.fake.state().holds = true;
    bench.write(0, 1);
    let (qid, sqe) = bench.fake.state().held[0];
    bench.fake.forge_completion(qid, sqe.cid + 1);
    bench.until_ended(1);
    assert_eq!(bench.outcome(1), Err(DeviceError::Gone));
    bench.until(|bench| bench.was_told("wrong completions"));
    bench.fake.state().holds = false;
    bench.write(0, 2);
    bench.until_ended(2);
    assert_eq!(bench.outcome(2), Ok(()));
}

#[test]
fn statuses_are_told_apart() {
    let mut bench = Bench::new();
    for (tag, (status, expected)) in (1..).zip([
        (Status::new(2, 0x81), DeviceError::Medium),
        (Status::CAPACITY_EXCEEDED, DeviceError::NoSpace),
        (Status::NAMESPACE_NOT_READY, DeviceError::Gone),
    ]) {
        bench.fake.state().failures.push_back(status);
        bench.write(0, tag);
        bench.until_ended(tag as usize);
        assert_eq!(bench.outcome(tag), Err(expected), "{status:?}");
    }
}

#[test]
fn what_the_drive_warns_of_is_told_at_its_event() {
    let mut bench = Bench::new();
    bench.until(|bench| bench.drive.as_ref().expect("open").health().get().is_some());
    {
        let mut state = bench.fake.state();
        state.smart.critical_warning = 0b10;
        state.smart.temperature_k = 358_u16.to_le_bytes();
    }
    assert!(bench.fake.tell_event(0x02_01_01), "a request for events waits");
    bench.until(|bench| bench.was_told("its temperature is out of range"));
    let health = bench.drive.as_ref().expect("open").health().get().expect("known");
    assert_eq!((health.temperature_celsius, health.critical_warning), (85, 2));
}

#[test]
fn a_poller_that_sleeps_is_woken_by_completions() {
    let mut bench = Bench::new();
    bench.fake.state().holds = true;
    let wake = bench.queues().wake_fd().expect("an eventfd").try_clone_to_owned().expect("a copy");
    // Once, when it is armed.
    let read = |wake: &std::os::fd::OwnedFd| rustix::io::read(wake, &mut [0; 8]).is_ok();
    while !read(&wake) {
        thread::yield_now();
    }
    bench.write(0, 1);
    bench.fake.execute_held();
    assert!(read(&wake), "a completion signals");
    bench.until_ended(1);
}
