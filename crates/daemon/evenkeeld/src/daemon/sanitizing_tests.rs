//! A drive that is told to erase itself while it has not answered the wiper.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

use api::{Deletion, Drive, NewDisk, Problem, Rest, SanitizeStep, Wipe, api_path};
use backend_uring::{Kind, UringDrive};
use io_model::{Backend, Done, HwqId, Io, Nanos};

use super::*;
use crate::drive::Wrapped;

/// Whether something was sent, and whether the drive answers.
#[derive(Default)]
struct Gate {
    is_used: AtomicBool,
    is_open: AtomicBool,
}

/// A drive's queues behind a gate.
struct Gated<B>(B, Arc<Gate>);

impl<B: Backend> Backend for Gated<B> {
    fn hwqs(&self) -> u16 {
        self.0.hwqs()
    }

    fn depth(&self) -> u32 {
        self.0.depth()
    }

    fn submit(&mut self, hwq: HwqId, io: Io, now: Nanos) {
        self.0.submit(hwq, io, now);
        self.1.is_used.store(true, Ordering::Release);
    }

    fn kick(&mut self) {
        self.0.kick();
    }

    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        if self.1.is_open.load(Ordering::Acquire) {
            self.0.reap(now, done);
        }
    }
}

#[test]
fn what_the_wiper_has_in_flight_ends_before_the_drive_is_anybodys() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let image = dir.join("drive.img");
    File::create_new(&image).unwrap().set_len(8 << 20).unwrap();
    let text = format!(
        "runtime_dir = {dir:?}\nstate_dir = {dir:?}\n[device]\nbackend = \"file\"\npath = {image:?}\n\
         [policy]\nname = \"passthrough\"\n"
    );
    let config = Config::parse(&dir.join("ek.toml"), &text).unwrap();
    let gate = Arc::new(Gate::default());
    let of_queues = Arc::clone(&gate);
    let open = move |_: &Config, _: &Profile, _| {
        let drive = UringDrive::open(&image, Kind::File, None)?;
        let wrap = move |queues| Gated(queues, Arc::clone(&of_queues));
        Ok(Box::new(Wrapped { drive, wrap }) as Box<dyn AnyDrive>)
    };
    let engine = Engine { policy: PolicyConfig::Passthrough, open };
    let prepared = Prepared::new(config).unwrap();
    let daemon = Daemon::start_on(engine, prepared, Profile::p5800x(), Arc::new(|_, _| {})).unwrap();

    let rest = Rest::new(api_path(dir));
    let step = |step| rest.sanitize("device", step);
    let code = |told: anyhow::Result<Drive>| told.unwrap_err().downcast::<Problem>().unwrap().code;
    rest.create(&NewDisk { name: "old".into(), size: "4MiB".into(), ..NewDisk::default() }).unwrap();
    daemon.handle().wait_until_served().unwrap();
    rest.delete("old", Deletion { wipe: Wipe::ThreePasses, ..Deletion::default() }).unwrap();
    while !gate.is_used.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    assert_eq!(code(step(SanitizeStep::Begins)), "not-quiet");
    assert_eq!(code(step(SanitizeStep::Ended)), "not-quiet");
    let held = rest.drives().unwrap().remove(0);
    assert!(held.sanitizing && held.free_bytes == 0, "{held:?}");
    gate.is_open.store(true, Ordering::Release);
    while step(SanitizeStep::Begins).is_err() {
        std::thread::yield_now();
    }
    let ended = step(SanitizeStep::Ended).unwrap();
    assert_eq!((ended.sanitizing, ended.free_bytes), (false, 8 << 20));
    assert_eq!(daemon.stop(), 0);
}
