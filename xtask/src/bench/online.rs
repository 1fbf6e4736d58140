//! What it takes to make, attach, change and grow a disk among 1,000, and what the others notice of it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::{Deletion, DiskChange, NewDisk, OperationState, Rest, Wipe};
use nvme_driver::{Blocks, Controller, Data, DmaMemory, QueuePair, VfioUserDevice};

use super::idle::resident_bytes;
use super::server::{Server, cpu_seconds, fill_with};
use super::{Figure, Goal, Options};

const TENANTS: usize = 1_000;
/// Of these, so many have a vfio-user socket with a client; the others a vhost-user one without.
const ATTACHED: usize = 64;
/// Changes of each kind.
const CHANGES: usize = 50;
const CHANGE_GOAL_MS: f64 = 50.0;
const START_GOAL_S: f64 = 2.0;
/// No iteration of a neighbour's poller may take longer because of a change.
const NEIGHBOUR_GOAL_US: f64 = 100.0;
const IDLE_GOAL_PERCENT: f64 = 1.0;
const MEMORY_GOAL_MIB: f64 = 1.0;
const IDLE_SECONDS: u64 = 10;
/// Pollers fall asleep half a second after the last I/O, and the scan of doorbells slows down a second later.
const FALLS_ASLEEP: Duration = Duration::from_secs(3);

/// A client of a vfio-user tenant that can read its first block.
struct Client {
    controller: Controller<VfioUserDevice>,
    queue: QueuePair,
    nsid: u32,
    data: Data,
    /// What `data` lies in.
    _memory: DmaMemory,
}

impl Client {
    /// Connects, brings the controller up, makes a queue.
    fn attach(socket: &Path) -> Result<Self> {
        let mut controller = Controller::start(VfioUserDevice::connect(socket)?)?;
        let queue = controller.create_queue_pair(32, None)?;
        let namespace = controller.first_namespace()?;
        let memory = controller.allocate_dma(4096)?;
        let data = Data { iova: memory.iova(), len_bytes: u64::from(namespace.block_bytes) };
        Ok(Self { controller, queue, nsid: namespace.nsid, data, _memory: memory })
    }

    /// Reads one block after another until `stop`; what each took, in ns, in order of size.
    fn read_until(&mut self, stop: impl Fn() -> bool) -> Result<Vec<u64>> {
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

fn percentile_us(sorted_ns: &[u64], percent: f64) -> f64 {
    let at = (sorted_ns.len() as f64 * percent / 100.0) as usize;
    sorted_ns[at.min(sorted_ns.len() - 1)] as f64 / 1e3
}

/// One figure that is not of rounds.
fn single(name: impl Into<String>, value: f64, unit: &'static str, goal: Option<Goal>) -> Figure {
    Figure { name: name.into(), median: value, range: (value, value), unit, goal }
}

fn tenants(count: usize) -> String {
    let frontend = |n: usize| if n < ATTACHED { "vfio-user" } else { "vhost-user-blk" };
    let tenant = |n: usize| format!("[[tenant]]\nname = \"t{n}\"\nsize = \"4MiB\"\nfrontend = \"{}\"\n", frontend(n));
    (0..count).map(tenant).collect()
}

/// A daemon with so many tenants, and after how many seconds it served all.
fn start(count: usize) -> Result<(Server, f64)> {
    let begun = Instant::now();
    let server = Server::start_with("memory", "lpns", "shared", &tenants(count))?;
    Ok((server, begun.elapsed().as_secs_f64()))
}

/// 1,000 tenants that are there, and changes among them.
pub fn measure(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let (one, _) = start(1)?;
    let base_bytes = resident_bytes(one.pid())?;
    drop(one);
    let mut starts = Vec::new();
    for _ in 1..options.rounds {
        starts.push(start(TENANTS)?.1);
    }
    let (server, start_s) = start(TENANTS)?;
    starts.push(start_s);
    let more_bytes = resident_bytes(server.pid())?.saturating_sub(base_bytes);
    let each_mib = more_bytes as f64 / (TENANTS - 1) as f64 / f64::from(1 << 20);
    let mut attach_ms = Vec::new();
    let mut clients = Vec::new();
    for n in 0..ATTACHED {
        clients.push(timed(&mut attach_ms, || Client::attach(&server.socket(&format!("t{n}"))))?);
    }
    std::thread::sleep(FALLS_ASLEEP);
    let before = cpu_seconds(server.pid())?;
    std::thread::sleep(Duration::from_secs(IDLE_SECONDS));
    let idle_percent = 100.0 * (cpu_seconds(server.pid())? - before) / IDLE_SECONDS as f64;

    let mut neighbour = clients.swap_remove(0);
    let (begun, span) = (Instant::now(), Duration::from_secs(options.seconds));
    let calm_ns = neighbour.read_until(|| begun.elapsed() >= span)?;
    let is_over = AtomicBool::new(false);
    let (changed, beside_ns) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| neighbour.read_until(|| is_over.load(Ordering::Relaxed)));
        let changed = change(&server, &mut attach_ms);
        is_over.store(true, Ordering::Relaxed);
        (changed, reader.join())
    });
    let beside_ns = beside_ns.map_err(|_| anyhow::anyhow!("the neighbour's thread failed"))??;
    let Changed { create_ms, set_ms, grow_ms, delete_ms } = changed?;
    drop(clients);

    let mut figures = vec![
        Figure::of(format!("start of {TENANTS} tenants"), starts, "s", Some(Goal::AtMost(START_GOAL_S)))?,
        single(
            format!("memory of each of {TENANTS} idle tenants"),
            each_mib,
            "MiB",
            Some(Goal::AtMost(MEMORY_GOAL_MIB)),
        ),
        single(
            format!("{TENANTS} idle tenants, {ATTACHED} attached: CPU, of one core"),
            idle_percent,
            "%",
            Some(Goal::AtMost(IDLE_GOAL_PERCENT)),
        ),
    ];
    let all = [
        ("create", create_ms),
        ("attach, until ready", attach_ms),
        ("set", set_ms),
        ("grow", grow_ms),
        ("delete", delete_ms),
    ];
    for (what, mut took_ms) in all {
        took_ms.sort_by(f64::total_cmp);
        let p99 = took_ms[(took_ms.len() * 99 / 100).min(took_ms.len() - 1)];
        let goal = (what != "delete").then_some(Goal::AtMost(CHANGE_GOAL_MS));
        let max = took_ms[took_ms.len() - 1];
        figures.push(Figure::of(format!("{what} among {TENANTS} tenants"), took_ms, "ms", goal)?);
        figures.push(single(format!("{what} among {TENANTS} tenants: p99"), p99, "ms", goal));
        figures.push(single(format!("{what} among {TENANTS} tenants: max"), max, "ms", goal));
    }
    for (name, percent) in [("p99.9", 99.9), ("longest", 100.0)] {
        let [calm_us, beside_us] = [&calm_ns, &beside_ns].map(|took_ns| percentile_us(took_ns, percent));
        // Where the machine alone takes longer, nothing is seen of the daemon.
        let is_calm = calm_us <= NEIGHBOUR_GOAL_US;
        let goal = (percent == 100.0 && is_calm).then_some(Goal::AtMost(NEIGHBOUR_GOAL_US));
        figures.push(single(format!("a neighbour's {name} read at QD1 while nothing changes"), calm_us, "µs", None));
        figures.push(single(format!("a neighbour's {name} read at QD1 beside changes"), beside_us, "µs", None));
        figures.push(single(
            format!("a neighbour's {name} read at QD1: more beside changes"),
            beside_us - calm_us,
            "µs",
            goal,
        ));
    }
    notes.push(
        "a neighbour's reads stand for its poller's iterations, which the daemon does not time; what else runs on the \
         client's and the poller's CPUs counts too, and where that alone exceeds the goal, nothing is held to it"
            .to_owned(),
    );
    Ok(figures)
}

fn timed<T>(took_ms: &mut Vec<f64>, what: impl FnOnce() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    let done = what()?;
    took_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    Ok(done)
}

/// What each change took, in ms.
#[derive(Default)]
struct Changed {
    create_ms: Vec<f64>,
    set_ms: Vec<f64>,
    grow_ms: Vec<f64>,
    delete_ms: Vec<f64>,
}

/// Makes disks one after another, attaches to each, changes, grows and deletes it.
fn change(server: &Server, attach_ms: &mut Vec<f64>) -> Result<Changed> {
    let rest = Rest::new(server.socket("api.sock"));
    let mut changed = Changed::default();
    for n in 0..CHANGES {
        let name = format!("new{n}");
        let new = NewDisk { name: name.clone(), size: "4MiB".into(), ..NewDisk::default() };
        timed(&mut changed.create_ms, || rest.create(&new))?;
        let client = timed(attach_ms, || Client::attach(&server.socket(&name)))?;
        let set = DiskChange { rw_iops: Some("20k".into()), ..DiskChange::default() };
        timed(&mut changed.set_ms, || rest.change(&name, &set))?;
        let grow = DiskChange { size: Some("8MiB".into()), ..DiskChange::default() };
        timed(&mut changed.grow_ms, || rest.change(&name, &grow))?;
        drop(client);
        timed(&mut changed.delete_ms, || rest.delete(&name, Deletion { force: true, wipe: Wipe::Zeros }))?;
    }
    Ok(changed)
}

/// What the wiper asks for, in a plan's words.
const WIPER: &str = "[[tenant]]\nname = \"wiper\"\nsize = \"4MiB\"\n\
                     [tenant.demand]\nrw = \"write\"\nbs = \"128k\"\niodepth = 4\n";
const PROMISED: &str = "[[tenant]]\nname = \"db\"\nsize = \"1GiB\"\nclass = \"guaranteed\"\nlatency_target = \"200us\"\n\
                        [tenant.demand]\nrw = \"randread\"\nbs = \"4k\"\niodepth = 1\n";
const MODEL: &str = "[device]\nbackend = \"model\"\nprofile = \"p5800x\"\nsize = \"64GiB\"\n[policy]\nname = \"lpns\"\n\
                     [pollers]\nlayout = \"shared\"\ncpus = [0]\n";

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
        rest.create(&NewDisk { name: "old".into(), size: "4GiB".into(), ..NewDisk::default() })?;
        // So that the drive's memory is there: pages that come while it is wiped would be the poller's time.
        fill_with(&server.socket("old"), 4 << 30)?;
        rest.delete("old", Deletion { force: true, wipe: Wipe::Zeros })?;
        let begun = Instant::now();
        wiped.push(percentile_us(&client.read_until(|| begun.elapsed() >= span)?, 99.0));
        let is_wiping = rest.operations()?.iter().any(|it| it.kind == "wipe" && it.state == OperationState::Running);
        ensure!(is_wiping, "the wiper was through before the measurement: there is nothing to compare");
    }
    notes.push(
        "a disk is wiped beside a guaranteed tenant on a modelled drive, which needs its CPU to be on time".to_owned(),
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
    let policies = plan["policies"].as_array().context("no policies in the plan")?;
    let configured = policies.iter().find(|policy| policy["configured"] == true).context("no policy is configured")?;
    let tenants = configured["tenants"].as_array().context("no tenants in the plan")?;
    let promised = tenants.iter().find(|tenant| tenant["tenant"] == "db").context("no such tenant in the plan")?;
    promised["p99_us"].as_f64().context("no p99 in the plan")
}
