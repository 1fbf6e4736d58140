//! The drive model as a back end: time, sharing, queues.

use std::sync::Arc;
use std::thread;

use backend_memory::{Model, ModelDrive};
use guest_memory::{IoBuf, Mapping};
use io_model::{Backend, HwqId, Io, Nanos, Op, Place, QueuePriority, TenantId, WrrWeights};
use ssd_model::{MAX_QUEUES, Profile};

const SIZE_BYTES: u64 = 1 << 30;
const DRIVE: Place = Place::whole_drive(TenantId(0));

/// A closed loop of 4 KiB reads on queue 0.
struct Reader {
    queues: Model,
    memory: Arc<Mapping>,
    started: Vec<Nanos>,
    latencies_ns: Vec<u64>,
    random: fastrand::Rng,
}

impl Reader {
    fn new(drive: &ModelDrive, depth: u32) -> Self {
        Self::over(drive.open_queues(1, depth).expect("a free queue"), depth)
    }

    fn over(queues: Model, depth: u32) -> Self {
        let memory = Mapping::anonymous(4096 * depth as usize).expect("memory");
        let started = vec![Nanos(0); depth as usize];
        let mut reader =
            Self { queues, memory, started, latencies_ns: Vec::new(), random: fastrand::Rng::with_seed(depth.into()) };
        (0..depth).for_each(|tag| reader.start(tag, Nanos(0)));
        reader.queues.kick();
        reader
    }

    fn start(&mut self, tag: u32, now: Nanos) {
        let offset_bytes = self.random.u64(..SIZE_BYTES / 4096) * 4096;
        let mut buf = IoBuf::default();
        assert!(buf.push(&self.memory, u64::from(tag) * 4096, 4096));
        let command = DRIVE.command(Op::Read, offset_bytes, 4096);
        self.started[tag as usize] = now;
        self.queues.submit(HwqId(0), Io { tag, command, buf }, now);
    }

    fn poll(&mut self, now: Nanos) {
        let mut tags = Vec::new();
        self.queues.reap(now, &mut |_, done| {
            assert_eq!(done.outcome, Ok(()));
            tags.push(done.tag);
        });
        for tag in tags {
            self.latencies_ns.push((now - self.started[tag as usize]).0);
            self.start(tag, now);
        }
        self.queues.kick();
    }

    fn mean_ns(&self) -> u64 {
        self.latencies_ns.iter().sum::<u64>() / self.latencies_ns.len() as u64
    }
}

#[test]
fn pollers_disturb_each_other_through_the_drive() {
    let mean_ns = |neighbour_depth: Option<u32>| {
        let drive = ModelDrive::without_content(Profile::p5800x(), SIZE_BYTES);
        let mut light = Reader::new(&drive, 1);
        let mut heavy = neighbour_depth.map(|depth| Reader::new(&drive, depth));
        for step in 1..200_000 {
            let now = Nanos(step * 100);
            light.poll(now);
            heavy.iter_mut().for_each(|heavy| heavy.poll(now));
        }
        light.mean_ns()
    };
    let (alone, beside) = (mean_ns(None), mean_ns(Some(128)));
    assert!((7_440..7_600).contains(&alone), "{alone} ns alone");
    assert!(beside > 10 * alone, "{beside} ns beside a neighbour");
}

#[test]
fn nothing_finishes_before_its_time() {
    let drive = ModelDrive::without_content(Profile::pm1735(), SIZE_BYTES);
    let mut reader = Reader::new(&drive, 1);
    let due = |reader: &Reader| reader.queues.next_event().expect("a command is in the drive");
    let mut now = Nanos(0);
    while reader.latencies_ns.is_empty() {
        let early = due(&reader) - Nanos(1);
        let before = reader.latencies_ns.len();
        reader.poll(early);
        assert_eq!(reader.latencies_ns.len(), before, "at {early}");
        now = due(&reader);
        reader.poll(now);
    }
    assert_eq!(now, Nanos(67_500), "controller, unit and pipeline");
}

#[test]
fn queues_run_out_and_come_back() {
    let drive = ModelDrive::without_content(Profile::p5800x(), SIZE_BYTES);
    let half = drive.open_queues(MAX_QUEUES / 2, 4).unwrap();
    let rest = drive.open_queues(MAX_QUEUES / 2, 4).unwrap();
    assert!(drive.open_queues(1, 4).is_err());
    drop(half);
    assert!(drive.open_queues(MAX_QUEUES, 4).is_err(), "the other half is still in use");
    drop(rest);
    let mut reader = Reader::new(&drive, 4);
    reader.poll(Nanos(10));
    drop(reader);
    assert!(drive.open_queues(MAX_QUEUES, 4).is_err(), "commands are left in flight in one of them");
    let mut idle = drive.open_queues(1, 1).unwrap();
    idle.reap(Nanos(1_000_000), &mut |_, done| panic!("{done:?} is not of this poller"));
    drop(idle);
    assert_eq!(drive.open_queues(MAX_QUEUES, 4).unwrap().hwqs(), MAX_QUEUES);
}

#[test]
fn pollers_on_threads_lose_nothing() {
    let drive = ModelDrive::over_memory(Profile::p5800x(), SIZE_BYTES).unwrap();
    thread::scope(|scope| {
        for depth in [1, 7, 32] {
            let drive = &drive;
            scope.spawn(move || {
                let mut reader = Reader::new(drive, depth);
                let mut now = 0;
                while reader.latencies_ns.len() < 20_000 {
                    now += 200;
                    reader.poll(Nanos(now));
                }
            });
        }
    });
}

#[test]
fn weighted_queues_share_the_drive_by_their_class() {
    let drive = ModelDrive::without_content(Profile { window: 4, ..Profile::p5800x() }, SIZE_BYTES);
    let weights = WrrWeights { high: 3, medium: 2, low: 1 };
    let open = |class| drive.open_weighted_queues(&[class], weights, 64).expect("a free queue");
    let mut readers = [QueuePriority::High, QueuePriority::Low].map(|class| Reader::over(open(class), 64));
    for step in 1..100_000 {
        readers.iter_mut().for_each(|reader| reader.poll(Nanos(step * 100)));
    }
    let [high, low] = readers.each_ref().map(|reader| reader.latencies_ns.len() as f64);
    assert!((high / low / 3.0 - 1.0).abs() < 0.02, "{high} and {low} reads");
    drop(readers);
    let plain = drive.open_queues(MAX_QUEUES / 2, 1).expect("free queues");
    assert!(drive.open_weighted_queues(&[QueuePriority::Urgent; MAX_QUEUES as usize], weights, 1).is_err());
    assert_eq!(plain.hwqs(), MAX_QUEUES / 2);
}
