//! The whole daemon on real sockets, on a drive that counts what it is given.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use api::{DiskPatch, DiskSpec, Rest, StatsAsked, TenantRow};
use backend_memory::ModelDrive;
use io_model::{Backend, Done, HwqId, Io, Nanos};
use nvme_driver::{Blocks, Controller, Data, DmaMemory, QueuePair, VfioUserDevice};
use policy::{COST_UNIT, Cost, Limits, Lpns, LpnsConfig, lpns_rule};

use super::*;
use crate::startup::Engine;
use config::Config;
use io_model::TenantId;
use policy::PolicyConfig;
use runtime::drive::AnyDrive;
use runtime::drive::Wrapped;

/// One poller, whose policy knows at once that the promised tenant is there: no interval has to pass first.
const FILE: &str = "[device]\nbackend = \"model\"\nprofile = \"p5800x\"\nsize = \"64MiB\"\n[policy]\nname = \"lpns\"\n\
                    [[tenant]]\nname = \"db\"\nsize = \"16MiB\"\nclass = \"guaranteed\"\nlatency_target = \"100us\"\n\
                    threads = \"shared\"\n\
                    [[tenant]]\nname = \"batch\"\nsize = \"16MiB\"\n";
const TARGET: Nanos = Nanos::from_micros(100);
/// The first tenant that came.
const DB: TenantId = TenantId(0);
const BLOCK_BYTES: u64 = 4096;
/// Far more than may be with the drive beside a promise.
const FLOOD: u16 = 400;
const READS: u32 = 1_000;

/// `db` is protected for 200 ms after each command. Less: a poller counts that in whole intervals.
const SURELY_PROTECTED: Nanos = Nanos::from_millis(100);

/// What the drive was given, in cost ticks of the policy that it serves.
#[derive(Default)]
struct Seen {
    cost: Cost,
    /// With the drive: whose, and how much.
    flights: HashMap<u32, (TenantId, u64)>,
    best_effort: u64,
    db_at: Option<Nanos>,
    /// The most best-effort work at a time while nobody was promised anything.
    most_alone: u64,
    /// The most that went beside `db`, and the number of commands.
    most_beside: u64,
    beside: u64,
    /// When each of its commands went.
    batch_at: Vec<Nanos>,
}

impl Seen {
    fn submitted(&mut self, io: &Io, now: Nanos) {
        let command = &io.command;
        let ticks = u64::from(self.cost.of(command.op, command.len_bytes));
        self.flights.insert(io.tag, (command.tenant, ticks));
        if command.tenant == DB {
            self.db_at = Some(now);
            return;
        }
        self.best_effort += ticks;
        self.batch_at.push(now);
        match self.db_at {
            None => self.most_alone = self.most_alone.max(self.best_effort),
            Some(at) if now - at < SURELY_PROTECTED => {
                self.most_beside = self.most_beside.max(self.best_effort);
                self.beside += 1;
            }
            Some(_) => {}
        }
    }

    fn ended(&mut self, tag: u32) {
        if let Some((tenant, ticks)) = self.flights.remove(&tag)
            && tenant != DB
        {
            self.best_effort -= ticks;
        }
    }
}

/// Counts what passes.
struct Gauge<B> {
    inner: B,
    seen: Arc<Mutex<Seen>>,
}

fn locked(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap()
}

impl<B: Backend> Backend for Gauge<B> {
    fn hwqs(&self) -> u16 {
        self.inner.hwqs()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn submit(&mut self, hwq: HwqId, io: Io, now: Nanos) {
        locked(&self.seen).submitted(&io, now);
        self.inner.submit(hwq, io, now);
    }

    fn kick(&mut self) {
        self.inner.kick();
    }

    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        let Self { inner, seen } = self;
        inner.reap(now, &mut |hwq, one| {
            locked(seen).ended(one.tag);
            done(hwq, one);
        });
    }

    fn next_event(&self) -> Option<Nanos> {
        self.inner.next_event()
    }
}

/// One queue pair that reads one block over and over.
struct Reader {
    // Queue and memory go before the connection does.
    queue: QueuePair,
    data: DmaMemory,
    count: u32,
    _controller: Controller<VfioUserDevice>,
}

impl Reader {
    fn attach(directory: &Path, depth: u16) -> Self {
        let mut controller = Controller::start(VfioUserDevice::connect(directory).unwrap()).unwrap();
        let namespace = controller.first_namespace().unwrap();
        let queue = controller.create_queue_pair(depth + 1, None).unwrap();
        let data = controller.allocate_dma(BLOCK_BYTES as usize).unwrap();
        Self { queue, data, count: BLOCK_BYTES as u32 / namespace.block_bytes, _controller: controller }
    }

    /// Keeps `depth` reads outstanding until `is_over`, which is asked with the number of those that ended.
    fn read(&mut self, depth: u16, mut is_over: impl FnMut(u32) -> bool) {
        let mut ended = 0;
        while !is_over(ended) {
            while self.queue.in_flight() < depth {
                let blocks = Blocks { nsid: 1, lba: 0, count: self.count };
                self.queue.read(blocks, Data { iova: self.data.iova(), len_bytes: BLOCK_BYTES }).unwrap();
            }
            self.queue.ring().unwrap();
            self.queue.poll(&mut |done| ended += u32::from(done.status.is_success())).unwrap();
            std::thread::yield_now();
        }
    }
}

/// Ends the flood when this is dropped, also by a check that failed.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What `stats` says of `db` since the start.
fn stats(directory: &Path) -> TenantRow {
    let snapshot = Rest::new(api::api_path(directory)).stats(StatsAsked { span_ms: 0 }).unwrap();
    snapshot.tenants.into_iter().find(|tenant| tenant.name == "db").unwrap()
}

/// The daemon on a drive that counts.
fn start(dir: &Path, policy: PolicyConfig) -> (Daemon, Arc<Mutex<Seen>>) {
    let text = format!("runtime_dir = {dir:?}\nstate_dir = {dir:?}\n{FILE}");
    let config = Config::parse(&dir.join("ek.toml"), &text);
    let seen = Arc::new(Mutex::new(Seen { cost: LpnsConfig::p5800x().cost, ..Seen::default() }));
    let of_pollers = Arc::clone(&seen);
    let open = move |_: &Config, profile: &Profile, size_bytes| {
        let drive = ModelDrive::over_memory(profile.clone(), size_bytes)?;
        let wrap = move |inner| Gauge { inner, seen: Arc::clone(&of_pollers) };
        Ok(Box::new(Wrapped { drive, wrap }) as Box<dyn AnyDrive>)
    };
    let prepared = Prepared::new(config.unwrap()).unwrap();
    let engine = Engine { policy, open };
    (Daemon::start_on(engine, prepared, Profile::p5800x(), Arc::new(|_, _| {})).unwrap(), seen)
}

/// `batch` floods the drive, `db` reads beside it. Returns what the drive saw, and the cap as `stats` published it
/// then.
fn flood_beside_a_promise(policy: PolicyConfig) -> (Seen, f64) {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let (daemon, seen) = start(dir, policy);

    let (mut batch, mut db) = (Reader::attach(&dir.join("batch"), FLOOD), Reader::attach(&dir.join("db"), 1));
    let (over, mut published) = (AtomicBool::new(false), 0.0);
    std::thread::scope(|scope| {
        let _stop = Stop(&over);
        scope.spawn(|| batch.read(FLOOD, |_| over.load(Ordering::Acquire)));
        // The drive is as full as it gets.
        while locked(&seen).flights.len() < usize::from(FLOOD) / 2 {
            std::thread::yield_now();
        }
        db.read(1, |ended| {
            if ended >= READS {
                published = stats(dir).bound.and_then(|bound| bound.best_effort_cap).unwrap();
            }
            ended >= READS
        });
    });
    drop((batch, db));
    assert_eq!(daemon.stop(), 0);
    (std::mem::take(&mut *locked(&seen)), published)
}

/// The most that a cap can be, and one command, which may overdraw it.
fn most_ticks(config: &LpnsConfig) -> u64 {
    let cap = lpns_rule::ceiling(config, Some(TARGET));
    (cap * f64::from(COST_UNIT)) as u64 + u64::from(config.cost.of(io_model::Op::Read, BLOCK_BYTES))
}

#[test]
fn no_more_best_effort_work_is_with_the_drive_than_the_published_cap() {
    let config = LpnsConfig::p5800x();
    let (seen, published) = flood_beside_a_promise(PolicyConfig::Lpns(config.clone()));
    let most = most_ticks(&config);
    assert!(seen.most_alone > 2 * most, "the flood would go far beyond: {} of {most}", seen.most_alone);
    assert!(seen.beside > 100, "it goes on beside the promise: {}", seen.beside);
    assert!(seen.most_beside <= most, "{} ticks with the drive, {most} may be", seen.most_beside);
    assert!(published <= lpns_rule::ceiling(&config, Some(TARGET)), "{published}");

    // A throttle that takes everything for free is seen at once.
    let broken = LpnsConfig { cost: free(), ..config };
    assert!(Lpns::new(broken.clone()).is_ok());
    let (seen, _) = flood_beside_a_promise(PolicyConfig::Lpns(broken));
    assert!(seen.most_beside > 2 * most, "{} ticks with the drive, and nothing held them back", seen.most_beside);
}

fn free() -> Cost {
    Cost { read: policy::Curve::linear(1), ..Cost::default() }
}

/// By how much a limit is exceeded over some span, in commands.
fn most_beyond(limits: &Limits, times: &[Nanos]) -> f64 {
    let slack = limits.burst + Nanos::from_millis(2);
    let allowed = |span: Nanos| limits.rw_ios_per_sec as f64 * (span + slack).0 as f64 / 1e9 + 1.0;
    let spans = times.iter().enumerate().flat_map(|(at, from)| times[at..].iter().zip(1..).map(move |to| (from, to)));
    spans.map(|(from, (to, count))| f64::from(count) - allowed(*to - *from)).fold(f64::MIN, f64::max)
}

#[test]
fn a_limit_that_changes_holds_from_then_on() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let (daemon, seen) = start(dir, PolicyConfig::Lpns(LpnsConfig::p5800x()));
    let rest = Rest::new(api::api_path(dir));
    rest.create(&DiskSpec { name: "made".into(), size: "16MiB".into(), ..DiskSpec::default() }).unwrap();
    let at_most = |rw_ios_per_sec, burst| Limits { rw_ios_per_sec, burst, ..Limits::default() };
    let (first, lifted) = (at_most(500, Nanos(0)), Limits::default());
    let last = at_most(250, Nanos::from_millis(20));
    let mut reader = Reader::attach(&dir.join("made"), 16);
    // What went before a change had reached the poller is left out: `made` has not more than 16 outstanding.
    let mut run = |limits: Limits, commands: u32| {
        let rw_iops = if limits == lifted { "none".to_owned() } else { limits.rw_ios_per_sec.to_string() };
        let burst = (limits.burst > Nanos(0)).then(|| format!("{}ms", limits.burst.0 / 1_000_000));
        let changed = DiskPatch::of(&DiskSpec { rw_iops: Some(rw_iops), burst, ..DiskSpec::default() });
        rest.change("made", &changed.with_none_as_null()).unwrap();
        reader.read(16, |ended| ended >= 32);
        let from = locked(&seen).batch_at.len();
        reader.read(16, |ended| ended >= commands);
        locked(&seen).batch_at[from..].to_vec()
    };
    let limited = run(first, 150);
    let free = run(lifted, 5_000);
    let again = run(last, 100);
    drop(reader);
    assert_eq!(daemon.stop(), 0);
    assert!(most_beyond(&first, &limited) <= 0.0, "{}", most_beyond(&first, &limited));
    assert!(most_beyond(&first, &free) > 100.0, "without a limit it goes far beyond the old one");
    assert!(most_beyond(&last, &again) <= 0.0, "{}", most_beyond(&last, &again));
}
