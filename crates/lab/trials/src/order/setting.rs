//! The one setting that both sides run: written down once, put into words for the daemon and for the simulator.

use std::time::Duration;

use load::spec::{JobSpec, Rw};
use load::value::{Amount, BlockSizes};

/// As a configuration names them.
pub const POLICIES: [&str; 6] = ["passthrough", "lpns", "evenkeel", "fair", "wrr", "drr"];

/// The guaranteed tenant.
pub const GUARANTEED: &str = "db";
const TARGET: &str = "100us";

/// The best-effort tenants.
pub const NOISY: [&str; 3] = ["noisy-1", "noisy-2", "noisy-3"];
const NOISY_BLOCK_BYTES: u64 = 4096;
const NOISY_DEPTH: u16 = 32;

/// Each tenant's disk; both sides lay them out one after another, so that they meet the same units of the drive.
const DISK: &str = "256MiB";
/// What each tenant uses of it.
const WORKING_SET_BYTES: u64 = 4 << 20;

/// What the simulator takes this daemon and its polling clients to cost, ns: `evenkeel load` on the `null` back end
/// takes 1.15 µs for a lone command and 0.13 µs for one of many.
pub const COSTS_NS: [(&str, u64); 10] = [
    ("guest_app", 50),
    ("guest_submit", 150),
    ("guest_irq", 0),
    ("guest_complete", 100),
    ("poller_pass", 100),
    ("poller_fetch", 150),
    ("poller_complete", 150),
    ("poller_doorbell", 0),
    ("poller_interrupt", 0),
    ("delivery", 250),
];

/// Which CPUs run which threads.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// CPUs of the pollers, in the daemon's order.
    pub poller_cpus: &'static [u32],
    /// CPUs of the clients: the guaranteed tenant's first, the same one for all if it is the only one.
    pub client_cpus: &'static [u32],
}

impl Machine {
    /// For this many CPUs. `None`: too few for one poller and one client.
    pub fn with_cpus(cpus: usize) -> Option<Self> {
        match cpus {
            0 | 1 => None,
            2 | 3 => Some(Self { poller_cpus: &[0], client_cpus: &[1] }),
            _ => Some(Self { poller_cpus: &[0, 1], client_cpus: &[2, 3] }),
        }
    }

    /// A second poller needs a core of its own: without one, all tenants share the first under every policy.
    pub fn has_two_pollers(self) -> bool {
        self.poller_cpus.len() > 1
    }

    /// Pollers and clients that spin.
    pub fn threads(self) -> usize {
        self.poller_cpus.len() + self.client_cpus.len()
    }
}

/// The daemon's configuration, but for its directories. Promises that fail are measured too, so none is refused. The
/// model keeps no data: a drive moves them by itself, where a poller that copies waits for each page of memory.
pub fn daemon(policy: &str, drive: &str, machine: Machine) -> String {
    let mut text = format!(
        "[device]\nbackend = \"model\"\nprofile = {drive:?}\nsize = \"1GiB\"\n\
         memory_backed = false\n\
         [policy]\nname = {policy:?}\n\
         [pollers]\ncpus = {:?}\n",
        machine.poller_cpus
    );
    text += &tenant(GUARANTEED);
    text += "overcommit = true\n";
    if !machine.has_two_pollers() {
        text += "threads = \"shared\"\n";
    }
    for name in NOISY {
        text += &tenant(name);
    }
    text
}

/// The simulator's scenario: every policy, and the guaranteed tenant alone.
pub fn scenario(drive: &str, machine: Machine) -> String {
    let layout = if machine.has_two_pollers() { "evenkeel" } else { "mdev" };
    let mut text = format!(
        "policies = {POLICIES:?}\n[drive]\nprofile = {drive:?}\nsize = \"1GiB\"\n[run]\nwarmup = \"500ms\"\n\
         duration = \"4s\"\n[host]\nlayout = {layout:?}\n"
    );
    for (cost, ns) in COSTS_NS {
        text += &format!("{cost} = \"{ns}ns\"\n");
    }
    // The daemon takes every guest for one with four queues and the admin queue when it shares out HWQs.
    text += &format!("{}vcpus = 1\nqueues = 5\n", tenant(GUARANTEED));
    text += &format!("workload = {{ kind = \"fio\", rw = \"randread\", size = {WORKING_SET_BYTES} }}\n");
    for name in NOISY {
        text += &format!("{}vcpus = 1\nqueues = 1\n", tenant(name));
        text += &format!(
            "workload = {{ kind = \"fio\", rw = \"randrw\", bs = {NOISY_BLOCK_BYTES}, iodepth = {NOISY_DEPTH}, \
             size = {WORKING_SET_BYTES} }}\n"
        );
    }
    text
}

fn tenant(name: &str) -> String {
    let class = match name {
        GUARANTEED => format!("class = \"guaranteed\"\nlatency_target = {TARGET:?}\n"),
        _ => "class = \"best-effort\"\n".to_owned(),
    };
    format!("[[tenant]]\nname = {name:?}\nsize = {DISK:?}\n{class}")
}

/// What a tenant does, for the clients.
pub fn job(name: &str, ramp: Duration, runtime: Duration) -> JobSpec {
    let (rw, block_bytes, iodepth) = match name {
        GUARANTEED => (Rw::RandRead, 4096, 1),
        _ => (Rw::RandRw, NOISY_BLOCK_BYTES, NOISY_DEPTH),
    };
    JobSpec {
        rw,
        block_sizes: BlockSizes::fixed(block_bytes),
        iodepth,
        ramp_time: ramp,
        runtime: Some(runtime),
        size: Some(Amount::Bytes(WORKING_SET_BYTES)),
        ..JobSpec::default()
    }
}

/// The setting in a sentence.
pub fn in_words(drive: &str, machine: Machine) -> String {
    let pollers = if machine.has_two_pollers() {
        "a poller for the guaranteed tenant and one for the others under passthrough, lpns and evenkeel, one for all \
         elsewhere"
    } else {
        "one poller for all tenants, because this machine has fewer than four CPUs"
    };
    format!(
        "{GUARANTEED}: 4 KiB random reads, one at a time, promised {TARGET}; beside it {} tenants with {NOISY_DEPTH} \
         random reads and writes of {} KiB in flight each; model of a {drive}; {pollers}",
        NOISY.len(),
        NOISY_BLOCK_BYTES >> 10
    )
}
