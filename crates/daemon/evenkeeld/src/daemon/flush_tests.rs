//! What a guest wrote leaves the drive's cache when the guest does, whichever way it goes.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::{Deletion, DiskSpec, Rest, api_path};
use backend_uring::{Kind, UringDrive};
use backend_wrappers::{Fate, Fault, Faults, Faulty, Record, Recorded};
use io_model::{DeviceError, Op, Outcome};
use load::{JobSpec, Options, Patience, Rw, Target};

use super::*;
use crate::startup::Engine;
use config::Config;
use io_model::TenantId;
use policy::PolicyConfig;
use runtime::drive::AnyDrive;
use runtime::drive::Wrapped;

const FILE: &str = "[device]\nbackend = \"file\"\npath = \"DIR/drive.img\"\nsize = \"32MiB\"\ncreate = true\n\
                    [policy]\nname = \"passthrough\"\n";
/// In the order in which they are made.
const TENANTS: [(&str, TenantId); 2] = [("nvme", TenantId(0)), ("virtio", TenantId(1))];

struct World {
    directory: tempfile::TempDir,
    daemon: Daemon,
    record: Record,
    faults: Faults,
    log: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path().to_str().unwrap();
        let text = format!("runtime_dir = {dir:?}\nstate_dir = {dir:?}\n{}", FILE.replace("DIR", dir));
        let config = Config::parse(&directory.path().join("ek.toml"), &text).unwrap();
        let (record, faults, log) = (Record::default(), Faults::default(), Arc::new(Mutex::new(Vec::new())));
        let (of_queues, on_demand, image) = (record.clone(), faults.clone(), directory.path().join("drive.img"));
        let open = move |_: &Config, _: &Profile, _| {
            let drive = UringDrive::open(&image, Kind::File, None)?;
            let wrap = move |queues| Recorded::new(Faulty::new(queues, &on_demand), &of_queues);
            Ok(Box::new(Wrapped { drive, wrap }) as Box<dyn AnyDrive>)
        };
        let engine = Engine { policy: PolicyConfig::Passthrough, open };
        let lines = Arc::clone(&log);
        let sink: Sink = Arc::new(move |_, line: &str| lines.lock().unwrap().push(line.to_owned()));
        let daemon = Daemon::start_on(engine, Prepared::new(config).unwrap(), Profile::p5800x(), sink).unwrap();
        let rest = Rest::new(api_path(directory.path()));
        let new = |name: &str| DiskSpec { name: name.into(), size: "4MiB".into(), ..DiskSpec::default() };
        let threads = Some("per-queue".into());
        let virtio = DiskSpec { frontend: Some("vhost-user-blk".into()), queues: Some(2), threads, ..new("virtio") };
        [new("nvme"), virtio].iter().for_each(|disk| drop(rest.create(disk).unwrap()));
        daemon.handle().wait_until_served().unwrap();
        Self { directory, daemon, record, faults, log }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn ended(&self, tenant: TenantId) -> Vec<(Op, Outcome)> {
        of(&self.record, tenant)
    }
}

/// What the drive answered to a tenant.
fn of(record: &Record, tenant: TenantId) -> Vec<(Op, Outcome)> {
    let ended = record.ended().into_iter().filter(|(command, _)| command.tenant == tenant);
    ended.map(|(command, outcome)| (command.op, outcome)).collect()
}

/// A client of a tenant that moves all of its disk with two queues, or until `stop`.
fn work(socket: &Path, rw: Rw, runtime: Option<Duration>, stop: &AtomicBool) -> bool {
    let spec = JobSpec { rw, iodepth: 4, numjobs: 2, runtime, ..JobSpec::default() };
    // Commands that a daemon left unanswered are waited for that long.
    let options = Options { patience: Patience::Yield, timeout: Duration::from_secs(1), ..Options::default() };
    let target = Target::connect(socket, vec![spec]).unwrap();
    load::run(vec![target], &options, stop, &mut |_| {}).is_ok_and(|jobs| jobs.iter().all(|job| job.error.is_none()))
}

/// Runs `act` while both tenants' clients write.
fn while_they_write(act: impl FnOnce(World)) {
    let world = World::start();
    let sockets = TENANTS.map(|(name, _)| world.socket(name));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&over);
        for socket in &sockets {
            let over = &over;
            scope.spawn(move || work(socket, Rw::Write, Some(Duration::from_secs(600)), over));
        }
        while !TENANTS.iter().all(|(_, id)| world.ended(*id).len() > 100) {
            std::thread::yield_now();
        }
        act(world);
    });
}

/// Set when this is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Each poller flushed once, NVMe's one and virtio's two, and nothing was written after the last flush. The client
/// itself does not flush.
fn assert_flushed(ended: &[(Op, Outcome)], name: &str) {
    let flushed = (Op::Flush, Ok(()));
    let flushes = ended.iter().filter(|one| **one == flushed).count();
    assert!(ended.iter().any(|(op, _)| *op == Op::Write), "{name} wrote nothing");
    assert_eq!((flushes, ended.last()), (if name == "virtio" { 2 } else { 1 }, Some(&flushed)), "{name}");
}

#[test]
fn a_client_that_goes_leaves_nothing_in_the_cache() {
    let world = World::start();
    for (name, id) in TENANTS {
        assert!(work(&world.socket(name), Rw::Write, None, &AtomicBool::new(false)), "{name}");
        // It is gone once another one is served.
        assert!(work(&world.socket(name), Rw::Read, None, &AtomicBool::new(false)), "{name}");
        let ended = world.ended(id);
        assert!(matches!(ended.last(), Some((Op::Read, Ok(())))), "what only reads leaves nothing to flush");
        let reads = ended.iter().position(|(op, _)| *op == Op::Read).unwrap();
        assert_flushed(&ended[..reads], name);
    }
    let World { daemon, record, .. } = world;
    let before = record.ended().len();
    assert_eq!((daemon.stop(), record.ended().len()), (0, before), "nothing is left to flush");
}

#[test]
fn a_daemon_that_ends_flushes_for_each_tenant() {
    while_they_write(|world| {
        let World { daemon, record, directory, .. } = world;
        assert_eq!(daemon.stop(), 0);
        TENANTS.iter().for_each(|(name, id)| assert_flushed(&of(&record, *id), name));
        drop(directory);
    });
}

#[test]
fn a_disk_that_is_deleted_is_flushed() {
    while_they_write(|world| {
        for (name, id) in TENANTS {
            let rest = Rest::new(api_path(world.directory.path()));
            rest.delete(name, Deletion { force: true, ..Deletion::default() }).unwrap();
            while !rest.operations().unwrap().is_empty() {
                std::thread::yield_now();
            }
            assert_flushed(&world.ended(id), name);
        }
        assert_eq!(world.daemon.stop(), 0);
    });
}

#[test]
fn a_disk_that_is_still_being_let_go_of_is_deleted_once_and_not_made_again() {
    let World { directory, daemon, faults, .. } = World::start();
    let rest = Rest::new(api_path(directory.path()));
    let disk = DiskSpec { name: "made".into(), size: "1MiB".into(), ..DiskSpec::default() };
    rest.create(&disk).unwrap();
    faults.add(Fault { op: Some(Op::Write), ..Fault::new(Fate::Held) });
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&over);
        scope.spawn(|| work(&directory.path().join("made"), Rw::Write, None, &over));
        while faults.held() == 0 {
            std::thread::yield_now();
        }
        let deletion = || Deletion { force: true, ..Deletion::default() };
        rest.delete("made", deletion()).unwrap();
        let operations = rest.delete("made", deletion()).unwrap();
        assert_eq!(operations.len(), 1, "as good as the first time");
        let refused = rest.create(&disk).unwrap_err().to_string();
        assert!(refused.contains("\"made\" is being deleted"), "{refused}");
        faults.clear();
        faults.release();
    });
    while !rest.operations().unwrap().is_empty() {
        std::thread::yield_now();
    }
    rest.create(&disk).unwrap();
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_last_flush_that_fails_is_told_and_waited_for_by_nobody() {
    while_they_write(|world| {
        let fails = Fault { op: Some(Op::Flush), ..Fault::new(Fate::Fails(DeviceError::Medium)) };
        world.faults.add(fails);
        assert_eq!(world.daemon.stop(), 0);
        let log = world.log.lock().unwrap();
        for (name, flushes) in [("nvme", 1), ("virtio", 2)] {
            let told = format!("{name}: the drive failed the last flush (Medium)");
            assert_eq!(log.iter().filter(|line| line.starts_with(&told)).count(), flushes, "{log:#?}");
        }
    });
}
