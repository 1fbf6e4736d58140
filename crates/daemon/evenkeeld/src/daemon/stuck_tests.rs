//! A poller that is stuck in its drive: the owner goes on without it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use api::{DiskPatch, DiskSpec, DiskState, Rest, StatsAsked, api_path};
use backend_memory::MemoryDrive;
use io_model::{Backend, Done, HwqId, Io, Nanos};
use nvme_driver::{Controller, VfioUserDevice};

use super::*;
use crate::startup::Engine;
use config::Config;
use policy::PolicyConfig;
use runtime::drive::{AnyDrive, Wrapped};

/// A drive whose pollers get no further while a test holds the lock.
#[derive(Default)]
struct Stall {
    lock: Mutex<()>,
    is_felt: AtomicBool,
}

struct Stalling<B>(B, Arc<Stall>);

impl<B: Backend> Backend for Stalling<B> {
    fn hwqs(&self) -> u16 {
        self.0.hwqs()
    }

    fn depth(&self) -> u32 {
        self.0.depth()
    }

    fn submit(&mut self, hwq: HwqId, io: Io, now: Nanos) {
        self.0.submit(hwq, io, now);
    }

    fn kick(&mut self) {
        self.0.kick();
    }

    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        if self.1.lock.try_lock().is_err() {
            self.1.is_felt.store(true, Ordering::Release);
            drop(self.1.lock.lock());
        }
        self.0.reap(now, done);
    }
}

#[test]
fn a_stuck_poller_holds_up_only_what_it_has_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let text = format!(
        "runtime_dir = {dir:?}\nstate_dir = {dir:?}\n[device]\nbackend = \"memory\"\nsize = \"8MiB\"\n\
         [policy]\nname = \"passthrough\"\n[[tenant]]\nname = \"old\"\nsize = \"1MiB\"\n"
    );
    let config = Config::parse(&dir.join("ek.toml"), &text).unwrap();
    let stall = Arc::new(Stall::default());
    let of_pollers = Arc::clone(&stall);
    let open = move |_: &Config, _: &Profile, size_bytes| {
        let wrap = move |queues| Stalling(queues, Arc::clone(&of_pollers));
        Ok(Box::new(Wrapped { drive: MemoryDrive::new(size_bytes)?, wrap }) as Box<dyn AnyDrive>)
    };
    let engine = Engine { policy: PolicyConfig::Passthrough, open };
    let prepared = Prepared::new(config).unwrap();
    let daemon = Daemon::start_on(engine, prepared, Profile::p5800x(), Arc::new(|_, _| {})).unwrap();
    let rest = Rest::new(api_path(dir));
    let create =
        |name: &str| rest.create(&DiskSpec { name: name.into(), size: "1MiB".into(), ..DiskSpec::default() }).unwrap();

    let stalled = stall.lock.lock().unwrap();
    create("first");
    while !stall.is_felt.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    assert_eq!(create("second").state, DiskState::Served);
    let seen = rest.stats(StatsAsked { span_ms: 0 }).unwrap().tenants;
    assert_eq!(seen.iter().map(|row| &row.name[..]).collect::<Vec<_>>(), ["old", "first", "second"]);
    std::thread::scope(|scope| {
        let change = DiskPatch::of(&DiskSpec { queues: Some(2), ..DiskSpec::default() });
        let changed = scope.spawn(move || Rest::new(api_path(dir)).change("first", &change).unwrap());
        // The change waits for the poller, and others don't wait for the change.
        while rest.disk("first").unwrap().state != DiskState::Leaving {
            std::thread::yield_now();
        }
        create("third");
        drop(stalled);
        let changed = changed.join().unwrap();
        assert_eq!((changed.queues, changed.state), (Some(2), DiskState::Served));
    });
    for name in ["first", "second", "third"] {
        Controller::start(VfioUserDevice::connect(&dir.join(name)).unwrap()).unwrap();
    }
    assert_eq!(daemon.stop(), 0);
}
