//! Drives that are no model, hosts that are busy, and calibrations that are cut short.

use std::sync::atomic::{AtomicBool, Ordering};

use backend_memory::{MemoryDrive, Model, NullDrive};
use backend_wrappers::{Delay, Fate, Fault, Faults, Faulty};
use calibrate::{Clock, DEPTH, Effort, Facts, Failure, HWQS, Rig, Seen, Session, Stage, VirtualClock, fit, judge};
use io_model::{Backend, DeviceError, Nanos, Op, Refused};
use ssd_model::Profile;

use crate::common::{self, NEVER, SIZE_BYTES, WRITABLE, drive, facts, session};

/// Virtual time of a host that is late: by a little always, by a lot now and then.
struct BusyClock {
    inner: VirtualClock,
    random: fastrand::Rng,
}

impl Clock for BusyClock {
    fn now(&mut self) -> Nanos {
        self.inner.now()
    }

    fn wait(&mut self, next: Option<Nanos>) {
        let late_ns = if self.random.u32(..500) == 0 { 200_000 } else { self.random.u64(..200) };
        self.inner.wait(next.map(|next| next + Nanos(late_ns)));
    }
}

#[test]
fn a_busy_host_widens_intervals_and_does_not_mislead() {
    for truth in [Profile::pm1735(), Profile::p5800x(), Profile::p3520()] {
        for seed in 1..=2 {
            let queues = drive(&truth).open_queues(HWQS, DEPTH).expect("queues");
            let clock = BusyClock { inner: VirtualClock::default(), random: fastrand::Rng::with_seed(seed) };
            let rig = Rig::new(queues, clock, facts(WRITABLE), &NEVER).expect("memory");
            let mut session = Session::new(rig, Effort::QUICK, Seen::default());
            session.run_all().expect("measured");
            let found = fit(&session.seen, facts(WRITABLE), "found", "").expect("seen").profile;
            let name = format!("{} with seed {seed}", truth.name);
            let close = |what: &str, truth: u64, found: u64, part: f64| {
                let off = (found as f64 - truth as f64).abs();
                assert!(off <= truth as f64 * part + 250.0, "{name}: {what} is {truth}, found {found}");
            };
            assert_eq!((truth.placement, truth.stripe_bytes), (found.placement, found.stripe_bytes), "{name}");
            assert_eq!(truth.units, found.units, "{name}");
            close("window", truth.window.into(), found.window.into(), 0.02);
            close("read_ns", truth.read_ns, found.read_ns, 0.05);
            close("further_ns", truth.further_ns, found.further_ns, 0.05);
            close("controller_ns", truth.controller_ns, found.controller_ns, 0.05);
            assert_eq!(std::mem::discriminant(&truth.writes), std::mem::discriminant(&found.writes), "{name}");
        }
    }
}

/// Measures all of it and fits; the profile must be one.
fn fits<B: Backend>(queues: B, size_bytes: u64) -> Profile {
    let facts = Facts { size_bytes, block_bytes: 512, overwrite: Some((0, size_bytes)), own_ns: (0.0, 0.0) };
    let mut session = Session::new(
        Rig::new(queues, VirtualClock::default(), facts, &NEVER).expect("memory"),
        Effort::QUICK,
        Seen::default(),
    );
    session.run_all().expect("measured");
    let found = fit(&session.seen, facts, "odd", "").expect("seen").profile;
    let text = found.to_toml("");
    let read = Profile::from_toml(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    judge(&read, facts, Effort::QUICK, &session.seen);
    read
}

#[test]
fn a_drive_that_takes_no_time_has_a_profile_all_the_same() {
    const BYTES: u64 = 64 << 20;
    fits(NullDrive::new(BYTES).open_queues(HWQS, DEPTH), BYTES);
    fits(MemoryDrive::new(BYTES).expect("memory").open_queues(HWQS, DEPTH), BYTES);
}

#[test]
fn profiles_that_no_drive_has_are_measured_without_a_panic() {
    let one = Profile { units: 1, window: 1, ..Profile::p5800x() };
    let slow = Profile { controller_ns: 200_000, units: 2, ..Profile::p3520() };
    let tiny = Profile { stripe_bytes: 4096, link_read_mb_s: 1, ..Profile::p5800x() };
    for odd in [one, slow, tiny] {
        let drive = backend_memory::ModelDrive::without_content(odd, 16 << 20);
        fits(drive.open_queues(HWQS, DEPTH).expect("queues"), 16 << 20);
    }
}

#[test]
fn a_calibration_goes_on_where_it_was_interrupted() {
    let truth = Profile::by_name("p3700").expect("built in");
    let whole = common::calibrate(&truth, WRITABLE).profile;
    let mut seen = Seen::default();
    loop {
        let mut session = session(&drive(&truth), facts(WRITABLE));
        session.seen = seen;
        let Some(stage) = session.stages().find(|stage| !stage.is_done(&session.seen)) else {
            seen = session.seen;
            break;
        };
        session.run(stage).expect("measured");
        // As it is kept in a file.
        let text = serde_json::to_string(&session.seen).expect("written");
        seen = serde_json::from_str(&text).expect("read");
    }
    let again = fit(&seen, facts(WRITABLE), "found", "").expect("seen").profile;
    assert_eq!(again, whole);
}

/// A drive that fails one kind of command, after `spared` of them.
fn failing(op: Op, spared: u64) -> Faulty<Model> {
    let faults = Faults::default();
    faults.add(Fault { op: Some(op), spared, ..Fault::new(Fate::Fails(DeviceError::Medium)) });
    Faulty::new(drive(&Profile::p5800x()).open_queues(HWQS, DEPTH).expect("queues"), &faults)
}

#[test]
fn a_drive_that_may_not_reach_the_memory_is_not_measured() {
    let faults = Faults::default();
    faults.refuse_memory(Some(Refused { errno: 12 }));
    let backend = Faulty::new(drive(&Profile::p5800x()).open_queues(HWQS, DEPTH).expect("queues"), &faults);
    let Err(error) = Rig::new(backend, VirtualClock::default(), facts(None), &NEVER) else { panic!("it is") };
    assert!(error.to_string().contains("Cannot allocate memory") && error.to_string().contains("ulimit -l"), "{error}");
}

#[test]
fn few_queues_do() {
    for hwqs in [calibrate::HWQS_LEAST, 3] {
        let backend = drive(&Profile::p5800x()).open_queues(hwqs, calibrate::DEPTH_LEAST).expect("queues");
        let rig = Rig::new(backend, VirtualClock::default(), facts(WRITABLE), &NEVER).expect("memory");
        let mut session = Session::new(rig, Effort::QUICK, Seen::default());
        session.run_all().expect("measured");
        let found = fit(&session.seen, facts(WRITABLE), "found", "").expect("seen").profile;
        assert_eq!((found.units, found.read_ns), (6, 7_400), "{hwqs}");
    }
}

#[test]
fn a_failed_command_ends_it_with_its_place() {
    let backend = failing(Op::Read, 100);
    let rig = Rig::new(backend, VirtualClock::default(), facts(None), &NEVER).expect("memory");
    let mut session = Session::new(rig, Effort::QUICK, Seen::default());
    let failure = session.run_all().expect_err("a read fails");
    let Failure::Device { op: Op::Read, offset_bytes, error: DeviceError::Medium, .. } = failure else {
        panic!("{failure:?}")
    };
    assert!(offset_bytes < SIZE_BYTES && session.seen.basics.is_none());
}

#[test]
fn a_drive_without_flush_is_measured_by_its_reads() {
    let backend = failing(Op::Flush, 0);
    let rig = Rig::new(backend, VirtualClock::default(), facts(None), &NEVER).expect("memory");
    let mut session = Session::new(rig, Effort::QUICK, Seen::default());
    session.run_all().expect("measured");
    assert_eq!(session.seen.basics.and_then(|basics| basics.flush), None);
    let found = fit(&session.seen, facts(None), "found", "").expect("seen").profile;
    assert_eq!((found.units, found.read_ns, found.window), (6, 7_400, 256));
    assert!(found.controller_ns <= 80, "what the link shows of 512 bytes: {}", found.controller_ns);
}

#[test]
fn an_interrupt_ends_a_stage_and_keeps_the_ones_before() {
    let flag = AtomicBool::new(false);
    let mut commands = 0;
    let backend = Delay::new(drive(&Profile::p5800x()).open_queues(HWQS, DEPTH).expect("queues"), |_| {
        commands += 1;
        flag.fetch_or(commands == 100, Ordering::Relaxed);
        Nanos(0)
    });
    let rig = Rig::new(backend, VirtualClock::default(), facts(WRITABLE), &flag).expect("memory");
    let mut session = Session::new(rig, Effort::QUICK, Seen::default());
    assert_eq!(session.run_all(), Err(Failure::Interrupted));
    assert!(!Stage::Basics.is_done(&session.seen));
    flag.store(false, Ordering::Relaxed);
    session.run(Stage::Basics).expect("goes on");
}
