//! A new range is zeroed while everything else goes on.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use api::{Deletion, Disk, DiskSpec, DiskState, Operation};
use backend_uring::{Kind, Uring, UringDrive};
use nvme_driver::{Controller, VfioUserDevice};

use super::*;
use crate::startup::Engine;
use api::DiskError;
use config::Config;
use policy::PolicyConfig;
use runtime::command::Command;
use runtime::command::DiskCommand;
use runtime::drive::AnyDrive;
use runtime::drive::{Drive, Facts, ZeroRange};

const IMAGE_BYTES: u64 = 8 << 20;
const TENANTS: [&str; 2] = ["old", "new"];

/// A drive of 4 KiB blocks whose zeroing waits at each step for a rendezvous.
#[derive(Clone)]
struct Held {
    drive: UringDrive,
    steps: Arc<Mutex<Receiver<()>>>,
}

struct HeldZeroer {
    drive: Box<dyn ZeroRange>,
    steps: Arc<Mutex<Receiver<()>>>,
}

impl Drive for Held {
    type Queues = Uring;

    fn facts(&self) -> Facts {
        Facts { block_bytes: 4096, ..Drive::facts(&self.drive) }
    }

    fn open_queues(&self, hwqs: u16, depth: u32) -> Result<Uring> {
        Drive::open_queues(&self.drive, hwqs, depth)
    }

    fn zeroer(&self) -> Option<Box<dyn ZeroRange>> {
        Some(Box::new(HeldZeroer { drive: Drive::zeroer(&self.drive)?, steps: Arc::clone(&self.steps) }))
    }
}

impl ZeroRange for HeldZeroer {
    fn zero(&mut self, offset_bytes: u64, len_bytes: u64) -> Result<()> {
        let step = self.steps.lock().unwrap_or_else(PoisonError::into_inner).recv();
        step.context("the test has ended")?;
        self.drive.zero(offset_bytes, len_bytes)
    }

    fn sync(&mut self) -> Result<()> {
        self.drive.sync()
    }
}

/// A daemon, and what lets its zeroing go on.
fn start(dir: &Path, tenants: &[&str]) -> (Daemon, SyncSender<()>) {
    let image = dir.join("drive.img");
    let mut text = format!(
        "runtime_dir = {dir:?}\nstate_dir = {dir:?}\n[device]\nbackend = \"file\"\npath = {image:?}\n\
         [policy]\nname = \"passthrough\"\n"
    );
    tenants.iter().for_each(|name| text += &format!("[[tenant]]\nname = \"{name}\"\nsize = \"2MiB\"\n"));
    let config = Config::parse(&dir.join("ek.toml"), &text).unwrap();
    let (step, steps) = sync_channel(0);
    let open = move |_: &Config, _: &Profile, _| {
        let drive = UringDrive::open(&image, Kind::File, None)?;
        Ok(Box::new(Held { drive, steps: Arc::new(Mutex::new(steps)) }) as Box<dyn AnyDrive>)
    };
    let engine = Engine { policy: PolicyConfig::Passthrough, open };
    let prepared = Prepared::new(config).unwrap();
    (Daemon::start_on(engine, prepared, Profile::p5800x(), Arc::new(|_, _| {})).unwrap(), step)
}

fn layout(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("drive.img.layout.toml")).unwrap()
}

fn attach(dir: &Path, name: &str) -> Result<Controller<VfioUserDevice>, nvme_driver::Error> {
    Controller::start(VfioUserDevice::connect(&dir.join(name))?)
}

/// An image on which `old` is placed, with other data behind it.
fn prepare(dir: &Path) -> File {
    let image = File::options().create_new(true).read(true).write(true).open(dir.join("drive.img")).unwrap();
    image.set_len(IMAGE_BYTES).unwrap();
    let (daemon, step) = start(dir, &TENANTS[..1]);
    step.send(()).unwrap();
    daemon.handle().wait_until_served().unwrap();
    assert_eq!(daemon.stop(), 0);
    image.write_all_at(&vec![0xee; IMAGE_BYTES as usize - (2 << 20)], 2 << 20).unwrap();
    image
}

fn content(image: &File) -> Vec<u8> {
    let mut content = vec![1; 2 << 20];
    image.read_exact_at(&mut content, 2 << 20).unwrap();
    content
}

#[test]
fn others_are_served_while_a_new_range_is_zeroed() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let image = prepare(dir);
    let (daemon, step) = start(dir, &TENANTS);
    assert!(attach(dir, "old").is_ok(), "it was there before");
    assert!(attach(dir, "new").is_err() && layout(dir).contains("zeroed_bytes = 0"));
    assert!(content(&image).iter().all(|byte| *byte == 0xee));
    step.send(()).unwrap();
    daemon.handle().wait_until_served().unwrap();
    assert!(content(&image).iter().all(|byte| *byte == 0));
    assert!(attach(dir, "new").is_ok() && !layout(dir).contains("zeroed_bytes ="));
    let mut next = [0];
    image.read_exact_at(&mut next, 4 << 20).unwrap();
    assert_eq!(next, [0xee], "the range ends there");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_daemon_that_is_stopped_meanwhile_goes_on_at_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let image = prepare(dir);
    let (daemon, step) = start(dir, &TENANTS);
    // Nobody waits for the step that it is at.
    assert_eq!(daemon.stop(), 0);
    drop(step);
    assert!(layout(dir).contains("zeroed_bytes = 0"));
    let (daemon, step) = start(dir, &TENANTS);
    assert!(attach(dir, "new").is_err());
    step.send(()).unwrap();
    daemon.handle().wait_until_served().unwrap();
    assert!(attach(dir, "new").is_ok() && content(&image).iter().all(|byte| *byte == 0));
    assert_eq!(daemon.stop(), 0);
}

fn ask<T: Send + 'static>(daemon: &Daemon, command: impl FnOnce(runtime::command::Reply<T>) -> DiskCommand) -> T {
    let (answer, answered) = channel();
    daemon.handle().tell(Command::Disk(command(Box::new(move |it| answer.send(it).unwrap()))));
    answered.recv().unwrap()
}

fn create(daemon: &Daemon) -> (Disk, bool) {
    let new = Box::new(DiskSpec { name: "new".into(), size: "2MiB".into(), ..DiskSpec::default() });
    ask::<Result<(Disk, bool), DiskError>>(daemon, |reply| DiskCommand::Create(new, reply)).unwrap()
}

#[test]
fn a_disk_that_comes_later_waits_for_its_range_too() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let image = prepare(dir);
    let (daemon, step) = start(dir, &TENANTS[..1]);
    assert_eq!(create(&daemon).0.state, DiskState::Zeroing);
    assert!(layout(dir).contains("zeroed_bytes = 0") && attach(dir, "new").is_err());
    step.send(()).unwrap();
    daemon.handle().wait_until_served().unwrap();
    assert!(attach(dir, "new").is_ok() && content(&image).iter().all(|byte| *byte == 0));
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_disk_that_can_not_be_zeroed_is_there_to_be_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    prepare(dir);
    let (daemon, step) = start(dir, &TENANTS[..1]);
    let (disk, _) = create(&daemon);
    assert_eq!((disk.state, disk.lba_bytes), (DiskState::Zeroing, 4096), "no smaller than the drive's");
    // The drive fails it.
    drop(step);
    while create(&daemon).0.state == DiskState::Zeroing {
        std::thread::yield_now();
    }
    let (disk, is_new) = create(&daemon);
    assert_eq!((disk.state, is_new), (DiskState::Failed, false));
    assert!(attach(dir, "new").is_err());
    let deleted: Result<Vec<Operation>, _> =
        ask(&daemon, |reply| DiskCommand::Delete("new".into(), Deletion::default(), reply));
    assert_eq!(deleted.unwrap()[0].kind, "wipe");
    assert_eq!(daemon.stop(), 0);
}
