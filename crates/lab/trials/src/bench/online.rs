//! What it takes to make, attach, change and grow a disk among 1,000, and what the others notice of it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::{Deletion, DiskPatch, DiskSpec, OperationState, Rest};
use nvme_driver::{Blocks, Controller, Data, DmaMemory, QueuePair, VfioUserDevice};

use super::idle::{FALLS_ASLEEP, resident_bytes};
use super::server::{Server, cpu_seconds};
use super::{Figure, Goal, Options};

pub(super) const TENANTS: usize = 1_000;
/// This many of them have a vfio-user socket with a client, the others a vhost-user socket without.
pub(super) const ATTACHED: usize = 64;
/// Changes of each kind.
const CHANGES: usize = 50;
const CHANGE_GOAL_MS: f64 = 50.0;
const START_GOAL_S: f64 = 2.0;
/// No iteration of a neighbour's poller may take so much longer because of a change.
const ITERATION_GOAL_US: f64 = 100.0;
const IDLE_GOAL_PERCENT: f64 = 1.0;
const MEMORY_GOAL_MIB: f64 = 1.0;
const IDLE_SECONDS: u64 = 10;
/// A look at the pollers' long iterations.
const SPAN_MS: u64 = 1_000;

/// A client of a vfio-user tenant that can read its first block.
pub(super) struct Client {
    controller: Controller<VfioUserDevice>,
    queue: QueuePair,
    nsid: u32,
    data: Data,
    /// What `data` lies in.
    _memory: DmaMemory,
}

impl Client {
    /// Connects, brings the controller up, makes a queue.
    pub(super) fn attach(socket: &Path) -> Result<Self> {
        let mut controller = Controller::start(VfioUserDevice::connect(socket)?)?;
        let queue = controller.create_queue_pair(32, None)?;
        let namespace = controller.first_namespace()?;
        let memory = controller.allocate_dma(4096)?;
        let data = Data { iova: memory.iova(), len_bytes: u64::from(namespace.block_bytes) };
        Ok(Self { controller, queue, nsid: namespace.nsid, data, _memory: memory })
    }

    /// Reads one block after another until `stop`; what each took, in ns, in order of size.
    pub(super) fn read_until(&mut self, mut stop: impl FnMut() -> bool) -> Result<Vec<u64>> {
        let mut took_ns = Vec::new();
        while !stop() {
            let begun = Instant::now();
            self.queue.read(Blocks { nsid: self.nsid, lba: 0, count: 1 }, self.data)?;
            self.queue.ring()?;
            let mut failed = None;
            while self.queue.in_flight() > 0 {
                self.queue.poll(&mut |done| failed = failed.or((!done.status.is_success()).then_some(done.status)))?;
            }
            ensure!(failed.is_none(), "a read failed: {failed:?}");
            took_ns.push(begun.elapsed().as_nanos() as u64);
        }
        self.controller.check()?;
        took_ns.sort_unstable();
        ensure!(!took_ns.is_empty(), "nothing was read");
        Ok(took_ns)
    }
}

pub(super) fn percentile_us(sorted_ns: &[u64], percent: f64) -> f64 {
    let at = (sorted_ns.len() as f64 * percent / 100.0) as usize;
    sorted_ns[at.min(sorted_ns.len() - 1)] as f64 / 1e3
}

/// One figure that is not of rounds.
pub(super) fn single(name: impl Into<String>, value: f64, unit: &'static str, goal: Option<Goal>) -> Figure {
    let outcome = super::Outcome::Measured { median: value, range: (value, value) };
    Figure { name: name.into(), outcome, unit, goal }
}

/// `count` tenants, of which the first have vfio-user sockets, each with the lines that `more` gives.
pub(super) fn tenants(count: usize, more: impl Fn(usize) -> String) -> String {
    let frontend = |n: usize| if n < ATTACHED { "vfio-user" } else { "vhost-user-blk" };
    let tenant =
        |n: usize| format!("[[tenant]]\nname = \"t{n}\"\nsize = \"4MiB\"\nfrontend = \"{}\"\n{}", frontend(n), more(n));
    (0..count).map(tenant).collect()
}

/// A daemon with `count` tenants, and the seconds until it served all.
fn start(count: usize) -> Result<(Server, f64)> {
    let begun = Instant::now();
    let server = Server::start("memory", "lpns", &tenants(count, |_| String::new()))?;
    Ok((server, begun.elapsed().as_secs_f64()))
}

/// A daemon with [`TENANTS`], and clients that do nothing attached to [`ATTACHED`] of them.
pub(super) struct Host {
    pub(super) server: Server,
    pub(super) clients: Vec<Client>,
    /// How long each attachment took, in ms.
    pub(super) attach_ms: Vec<f64>,
}

impl Host {
    /// Measures the starts in seconds, `start(1)` against `start(TENANTS)` for the memory of each, and what the daemon
    /// takes of a core while nobody asks anything.
    pub(super) fn measure(
        rounds: u32,
        where_: &str,
        start: impl Fn(usize) -> Result<(Server, f64)>,
    ) -> Result<(Self, Vec<Figure>)> {
        let (one, _) = start(1)?;
        let base_bytes = resident_bytes(one.pid())?;
        drop(one);
        let mut starts = Vec::new();
        for _ in 1..rounds {
            starts.push(start(TENANTS)?.1);
        }
        let (server, start_s) = start(TENANTS)?;
        starts.push(start_s);
        let (mut clients, mut attach_ms) = (Vec::new(), Vec::new());
        for n in 0..ATTACHED {
            clients.push(timed(&mut attach_ms, || Client::attach(&server.socket(&format!("t{n}"))))?);
        }
        std::thread::sleep(FALLS_ASLEEP);
        let before = cpu_seconds(server.pid())?;
        std::thread::sleep(Duration::from_secs(IDLE_SECONDS));
        let idle_percent = 100.0 * (cpu_seconds(server.pid())? - before) / IDLE_SECONDS as f64;
        let more_bytes = resident_bytes(server.pid())?.saturating_sub(base_bytes);
        let each_mib = more_bytes as f64 / (TENANTS - 1) as f64 / f64::from(1 << 20);
        let at_most = |goal| Some(Goal::AtMost(goal));
        let idle = format!("{TENANTS} idle tenants{where_}, {ATTACHED} attached");
        let figures = vec![
            Figure::of(format!("start of {TENANTS} tenants{where_}"), starts, "s", at_most(START_GOAL_S))?,
            single(format!("{idle}: memory, each"), each_mib, "MiB", at_most(MEMORY_GOAL_MIB)),
            single(format!("{idle}: CPU, of one core"), idle_percent, "%", at_most(IDLE_GOAL_PERCENT)),
        ];
        Ok((Self { server, clients, attach_ms }, figures))
    }
}

/// 1,000 tenants that are there, and changes among them: while the attached clients do nothing, and beside one that
/// reads without pause, and looks for what comes without pause too.
pub fn measure(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let (Host { server, mut clients, attach_ms }, mut figures) = Host::measure(options.rounds, "", start)?;
    let (changed, long_by_itself) = long_iterations(&server, || change(&server, "idle"))?;
    let mut changed = changed?;
    changed.attach_ms.extend(attach_ms);
    figures.extend(changed.figures(&format!("among {TENANTS} tenants"))?);

    let mut neighbour = clients.swap_remove(0);
    let (calm_ns, calm_long) = long_iterations(&server, || {
        let (begun, span) = (Instant::now(), Duration::from_secs(options.seconds));
        neighbour.read_until(|| begun.elapsed() >= span)
    })?;
    let calm_ns = calm_ns?;
    let is_over = AtomicBool::new(false);
    let (beside, beside_long) = long_iterations(&server, || {
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| neighbour.read_until(|| is_over.load(Ordering::Relaxed)));
            let changed = change(&server, "beside");
            is_over.store(true, Ordering::Relaxed);
            (changed, reader.join())
        })
    })?;
    let (changed, beside_ns) = beside;
    let beside_ns = beside_ns.map_err(|_| anyhow::anyhow!("the neighbour's thread failed"))??;
    figures.extend(changed?.figures(&format!("among {TENANTS} tenants, one reads at QD1"))?);

    for (name, percent) in [("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99), ("longest", 100.0)] {
        for (when, took_ns) in [("while nothing changes", &calm_ns), ("beside changes", &beside_ns)] {
            let name = format!("a neighbour's {name} read at QD1 {when}");
            figures.push(single(name, percentile_us(took_ns, percent), "µs", None));
        }
    }
    let more_us = beside_long.longest_us - calm_long.longest_us;
    let all = [
        ("while nothing changes, one reads at QD1", calm_long),
        ("beside changes, one reads at QD1", beside_long),
        ("beside changes, nobody reads", long_by_itself),
    ];
    for (when, Long { count, longest_us, span_ms }) in all {
        figures.push(single(format!("the poller's longest iteration {when}"), longest_us, "µs", None));
        let per_second = count as f64 * 1e3 / span_ms.max(1) as f64;
        figures.push(single(format!("its iterations of 50 µs and more {when}"), per_second, "/s", None));
    }
    let goal = Some(Goal::AtMost(ITERATION_GOAL_US));
    figures.push(single("the poller's longest iteration, one reads at QD1: more beside changes", more_us, "µs", goal));
    notes.push(
        "an iteration is measured by its poller, without the time in which others had its CPU (what the hypervisor \
         took counts); 0 says that none took 50 µs. Each 10 ms one goes through all tenants, whatever changes. A read \
         at QD1 also waits for the CPU of its client and of the poller: the API, the owner and the clients' threads \
         have none of their own here"
            .to_owned(),
    );
    Ok(figures)
}

/// Iterations of a daemon's pollers of 50 µs and more.
#[derive(Default)]
pub(super) struct Long {
    pub(super) count: u64,
    pub(super) longest_us: f64,
    /// Over so long.
    pub(super) span_ms: u64,
}

/// Does something, and says which long iterations there were meanwhile.
pub(super) fn long_iterations<T>(server: &Server, what: impl FnOnce() -> T) -> Result<(T, Long)> {
    let is_over = AtomicBool::new(false);
    let (begun, has_begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let look = || -> Result<Long> {
            let daemon = api::Rest::new(server.socket("api.sock"));
            let mut long = Long::default();
            while !is_over.load(Ordering::Relaxed) {
                // The waiting thread may have given up.
                let _ = begun.send(());
                let snapshot = daemon.stats(api::StatsAsked { span_ms: SPAN_MS })?;
                long.span_ms += snapshot.span_ms;
                for poller in snapshot.pollers {
                    long.count += poller.long_iterations;
                    long.longest_us = long.longest_us.max(poller.longest_us);
                }
            }
            Ok(long)
        };
        let looking = scope.spawn(look);
        // A thread that failed says so below.
        let _ = has_begun.recv_timeout(Duration::from_secs(10));
        let done = what();
        is_over.store(true, Ordering::Relaxed);
        let long = looking.join().map_err(|_| anyhow::anyhow!("the thread that asks for stats failed"))?;
        let long = long.with_context(|| format!("stats while tenants change; the daemon said: {}", server.log()))?;
        Ok((done, long))
    })
}

fn timed<T>(took_ms: &mut Vec<f64>, what: impl FnOnce() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    let done = what()?;
    took_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    Ok(done)
}

/// What each change took, in ms.
#[derive(Default)]
pub(super) struct Changed {
    pub(super) attach_ms: Vec<f64>,
    create_ms: Vec<f64>,
    set_ms: Vec<f64>,
    grow_ms: Vec<f64>,
    delete_ms: Vec<f64>,
}

impl Changed {
    /// Median, 99th percentile and maximum of each kind; `among`: beside whom.
    pub(super) fn figures(self, among: &str) -> Result<Vec<Figure>> {
        let all = [
            ("create", self.create_ms),
            ("attach, until ready", self.attach_ms),
            ("set", self.set_ms),
            ("grow", self.grow_ms),
            ("delete", self.delete_ms),
        ];
        let mut figures = Vec::new();
        for (what, mut took_ms) in all {
            took_ms.sort_by(f64::total_cmp);
            ensure!(!took_ms.is_empty(), "nothing was measured of {what}");
            let p99 = took_ms[took_ms.len() * 99 / 100];
            let max = took_ms[took_ms.len() - 1];
            let goal = (what != "delete").then_some(Goal::AtMost(CHANGE_GOAL_MS));
            figures.push(Figure::of(format!("{what} {among}"), took_ms, "ms", goal)?);
            figures.push(single(format!("{what} {among}: p99"), p99, "ms", goal));
            figures.push(single(format!("{what} {among}: max"), max, "ms", goal));
        }
        Ok(figures)
    }
}

/// Makes disks one after another whose names begin with `prefix`; attaches to each, changes, grows and deletes it.
pub(super) fn change(server: &Server, prefix: &str) -> Result<Changed> {
    let rest = Rest::new(server.socket("api.sock"));
    let mut changed = Changed::default();
    for n in 0..CHANGES {
        let name = format!("{prefix}{n}");
        let new = DiskSpec { name: name.clone(), size: "4MiB".into(), ..DiskSpec::default() };
        timed(&mut changed.create_ms, || rest.create(&new))?;
        let client = timed(&mut changed.attach_ms, || Client::attach(&server.socket(&name)))?;
        let set = DiskPatch::of(&DiskSpec { rw_iops: Some("20k".into()), ..DiskSpec::default() });
        timed(&mut changed.set_ms, || rest.change(&name, &set))?;
        let grow = DiskPatch::of(&DiskSpec { size: "8MiB".into(), ..DiskSpec::default() });
        timed(&mut changed.grow_ms, || rest.change(&name, &grow))?;
        drop(client);
        timed(&mut changed.delete_ms, || rest.delete(&name, Deletion { force: true, ..Deletion::default() }))?;
    }
    Ok(changed)
}

/// What the wiper asks for, in a plan's words.
const WIPER: &str = "[[tenant]]\nname = \"wiper\"\nsize = \"4MiB\"\n\
                     [tenant.demand]\nrw = \"write\"\nbs = \"128k\"\niodepth = 4\n";
const PROMISED: &str = "[[tenant]]\nname = \"db\"\nsize = \"1GiB\"\nclass = \"guaranteed\"\n\
                        latency_target = \"200us\"\nthreads = \"shared\"\n\
                        [tenant.demand]\nrw = \"randread\"\nbs = \"4k\"\niodepth = 1\n";
const MODEL: &str = "[device]\nbackend = \"model\"\nprofile = \"p5800x\"\nsize = \"64GiB\"\nmemory_backed = false\n\
                     [policy]\nname = \"lpns\"\n[pollers]\ncpus = [0]\n";

/// What a deleted disk left is wiped beside a guaranteed tenant: its p99 against what `evenkeel plan` says.
pub fn wiping(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let planned_us = planned_p99_us()?;
    let (mut wiped, mut calm) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let server = Server::serve(&super::server::evenkeel(), &format!("{MODEL}{PROMISED}"))?;
        let rest = Rest::new(server.socket("api.sock"));
        let mut client = Client::attach(&server.socket("db"))?;
        let span = Duration::from_millis(700);
        let begun = Instant::now();
        calm.push(percentile_us(&client.read_until(|| begun.elapsed() >= span)?, 99.0));
        rest.create(&DiskSpec { name: "old".into(), size: "4GiB".into(), ..DiskSpec::default() })?;
        rest.delete("old", Deletion { force: true, ..Deletion::default() })?;
        let begun = Instant::now();
        wiped.push(percentile_us(&client.read_until(|| begun.elapsed() >= span)?, 99.0));
        let is_wiping = rest.operations()?.iter().any(|it| it.kind == "wipe" && it.state == OperationState::Running);
        ensure!(is_wiping, "the wiper was through before the measurement: there is nothing to compare");
    }
    notes.push(
        "a disk is wiped beside a guaranteed tenant on a modelled drive, which needs its CPU to be on time; it is \
         not memory_backed: the copy of what is written would be the poller's, and of a drive it is the drive's"
            .to_owned(),
    );
    Ok(vec![
        Figure::of("a guaranteed tenant's p99 alone", calm, "µs", None)?,
        Figure::of(
            "a guaranteed tenant's p99 while a deleted disk is wiped",
            wiped,
            "µs",
            Some(Goal::AtMost(planned_us)),
        )?,
    ])
}

/// Of the tenant that is promised something, beside one that writes as the wiper does.
fn planned_p99_us() -> Result<f64> {
    let dir = tempfile::tempdir()?;
    let config = dir.path().join("plan.toml");
    std::fs::write(&config, format!("{MODEL}{PROMISED}{WIPER}"))?;
    let output = std::process::Command::new(super::server::evenkeel())
        .arg("plan")
        .arg(&config)
        .arg("--json")
        .output()
        .context("can't start `evenkeel plan`")?;
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).context("the plan's JSON")?;
    let policies = plan["items"][0]["policies"].as_array().context("no policies in the plan")?;
    let configured = policies.iter().find(|policy| policy["configured"] == true).context("no policy is configured")?;
    let tenants = configured["tenants"].as_array().context("no tenants in the plan")?;
    let promised = tenants.iter().find(|tenant| tenant["tenant"] == "db").context("no such tenant in the plan")?;
    promised["p99_us"].as_f64().context("no p99 in the plan")
}
