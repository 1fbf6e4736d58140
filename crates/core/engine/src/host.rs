//! What a command costs the CPUs on its way: the guest's, the poller's, the event loop's.
//!
//! A host's costs are one table for all experiments on that host. What differs between virtualization systems
//! is their [`Layout`] (which tenants share a poller) and their [`PathCosts`] (what its code does per command).

use serde::{Deserialize, Serialize};

/// A guest's own work on one vCPU. Times in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuestCosts {
    /// The application and its system calls between one I/O and the next; not part of the I/O's latency.
    pub app_ns: u64,
    /// From the start of an I/O to its doorbell.
    pub submit_ns: u64,
    /// What a write adds to that: its data are there when it starts.
    pub write_ns: u64,
    /// Taking an interrupt, once for all completions found then.
    pub irq_ns: u64,
    /// Handling one completion.
    pub complete_ns: u64,
    /// How much of `app_ns` and `complete_ns` varies, in 1/1000: that part is exponentially distributed (cache
    /// misses, the guest's timer, its other work). 0 to 1000.
    pub varies_permille: u64,
}

/// A lock that several CPUs want, in turn. Times in ns; all 0: there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contention {
    /// Each holds it so long.
    pub hold_ns: u64,
    /// What each waiter adds to a hand-over: all of them pull at the lock's cache line, or must be woken.
    pub handover_ns: u64,
}

/// No lock.
const NO_LOCK: Contention = Contention { hold_ns: 0, handover_ns: 0 };

/// When a guest must ring so that the host hears it, which is an exit of its vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kick {
    /// Never: the doorbell is memory that a poller looks at.
    Never,
    /// When the event loop sleeps. The first exit wakes it; who rings until it runs need not.
    Asleep,
    /// For every command: the loop never tells the guest to be quiet.
    Always,
}

/// What moves commands between guests and the drive. Times in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathCosts {
    /// One look at all doorbells and queues, beside what is found there.
    pub pass_ns: u64,
    /// What each tenant that is looked at adds to that: in each pass those that do something, of those at rest some.
    pub look_ns: u64,
    /// Fetching, translating and submitting one command.
    pub fetch_ns: u64,
    /// What a write adds to that.
    pub write_ns: u64,
    /// Commands fetched in one pass, at most.
    pub batch: u32,
    /// Reaping and posting one completion.
    pub complete_ns: u64,
    /// Ringing one HWQ's doorbell, once per pass.
    pub doorbell_ns: u64,
    /// Raising one VQ's interrupt, once per pass.
    pub interrupt_ns: u64,
    /// From when an interrupt is raised until the guest's CPU takes it. May be less than `interrupt_ns`: the
    /// sender is still busy when the receiver starts.
    pub delivery_ns: u64,
    /// From an event until a sleeping loop runs. 0: it polls.
    pub wake_ns: u64,
    /// A lock that every submission and every completion on the host takes, held this long each time.
    pub lock_ns: u64,
    /// Which doorbells are exits.
    pub kick: Kick,
    /// Such an exit, for the vCPU.
    pub kick_ns: u64,
    /// The virtual machine monitor's global mutex. An exit holds it for its time; the loop takes it for each pass and
    /// holds it as long as the pass takes. Who waits sleeps.
    pub mutex: Contention,
    /// A VQ's lock in the guest, taken for each submission and each completion. Who waits spins.
    pub ring: Contention,
    /// What a command costs the poller more if another vCPU than the last one's put it into the VQ: its cache lines
    /// come from elsewhere.
    pub bounce_ns: u64,
    /// The thread of a VQ works on the CPU of the VQ's first vCPU, which stands still meanwhile. With a thread for each
    /// VQ.
    pub beside_vcpu: bool,
}

/// All costs of one host. Times in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostCosts {
    /// Guests.
    pub guest: GuestCosts,
    /// A mediated or vfio-user poller: MDev, LPNS, FairNVMe, Evenkeel.
    pub mediated: PathCosts,
    /// SPDK's vhost reactor.
    pub spdk: PathCosts,
    /// QEMU's main loop.
    pub virtio: PathCosts,
    /// Queues handed to the guest by the drive itself.
    pub direct: PathCosts,
    /// The host's own block layer under K2.
    pub k2: PathCosts,
}

impl Default for GuestCosts {
    /// The guests of LPNS's host. Fitted \[F\] to Fig. 7a and 7b: an n1d1 tenant has 61K IOPS at 11.9 µs \[P\], so
    /// 4.5 µs of each I/O pass outside of its latency, and four busy vCPUs stop at about 570K \[P\], 7 µs each.
    fn default() -> Self {
        Self { app_ns: 5_250, submit_ns: 250, write_ns: 530, irq_ns: 250, complete_ns: 1_380, varies_permille: 1_000 }
    }
}

/// Costs nothing.
pub const FREE: PathCosts = PathCosts {
    pass_ns: 0,
    look_ns: 0,
    fetch_ns: 0,
    write_ns: 0,
    batch: 64,
    complete_ns: 0,
    doorbell_ns: 0,
    interrupt_ns: 0,
    delivery_ns: 0,
    wake_ns: 0,
    lock_ns: 0,
    kick: Kick::Never,
    kick_ns: 0,
    mutex: NO_LOCK,
    ring: NO_LOCK,
    bounce_ns: 0,
    beside_vcpu: false,
};

impl GuestCosts {
    /// Costs nothing.
    pub const FREE: Self = Self { app_ns: 0, submit_ns: 0, write_ns: 0, irq_ns: 0, complete_ns: 0, varies_permille: 0 };
}

impl HostCosts {
    /// Costs nothing.
    pub const FREE: Self =
        Self { guest: GuestCosts::FREE, mediated: FREE, spdk: FREE, virtio: FREE, direct: FREE, k2: FREE };
}

impl Default for HostCosts {
    /// LPNS's host. All of it is fitted \[F\] to what its Fig. 7a and 7b print, once, for all experiments:
    ///
    /// - mediated: MDev's shared poller stops at 565K IOPS with one busy neighbour \[P\]: 1.7 µs for each command.
    ///   Short passes (24 commands) explain why a lone tenant waits 64 µs there and not hundreds.
    /// - SPDK: about as much work for each command, longer passes, interrupts that take longer to arrive.
    /// - QEMU's main loop stops at 590 MB/s \[P\], 7 µs for each command; a lone I/O takes 46 µs or more \[P\], so
    ///   waking the loop takes about 16.
    /// - SR-IOV: 3 µs more than MDev for a lone I/O \[P\], though no software is in the way: its interrupts arrive
    ///   late.
    /// - K2's lock: 270K IOPS \[D\], 3.7 µs for each command, half of it when it is submitted and half when it
    ///   completes.
    fn default() -> Self {
        let mediated = PathCosts {
            pass_ns: 340,
            fetch_ns: 760,
            write_ns: 95,
            batch: 24,
            complete_ns: 830,
            doorbell_ns: 100,
            interrupt_ns: 10,
            delivery_ns: 500,
            ..FREE
        };
        let spdk = PathCosts {
            pass_ns: 40,
            fetch_ns: 1_130,
            write_ns: 112,
            batch: 90,
            complete_ns: 590,
            doorbell_ns: 0,
            interrupt_ns: 40,
            delivery_ns: 2_100,
            ..FREE
        };
        let virtio = PathCosts {
            pass_ns: 500,
            fetch_ns: 4_150,
            complete_ns: 3_550,
            interrupt_ns: 1_750,
            delivery_ns: 1_550,
            wake_ns: 16_500,
            ..FREE
        };
        let direct = PathCosts { delivery_ns: 4_700, ..FREE };
        let k2 = PathCosts { lock_ns: 1_850, ..FREE };
        Self { guest: GuestCosts::default(), mediated, spdk, virtio, direct, k2 }
    }
}

/// Which tenants share a poller, and which system's code it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// A poller for each guaranteed tenant, one or several for all others: LPNS's with one, and Evenkeel's default.
    Evenkeel,
    /// One poller for all: MDev-NVMe.
    Mdev,
    /// One reactor for all, with virtio queues: SPDK vhost.
    Spdk,
    /// An event loop for each tenant: QEMU's virtio-blk.
    Virtio,
    /// A queue of the drive for each tenant, without a poller: SR-IOV.
    SrIov,
    /// Host processes under one scheduler with one lock: K2.
    K2,
    /// A thread and a queue of the drive for each VQ: VBMq, and Evenkeel with `threads = "per-queue"`.
    PerQueue,
}

impl Layout {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Evenkeel, Self::Mdev, Self::Spdk, Self::Virtio, Self::SrIov, Self::K2, Self::PerQueue];

    /// As a scenario file writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Evenkeel => "evenkeel",
            Self::Mdev => "mdev",
            Self::Spdk => "spdk",
            Self::Virtio => "virtio",
            Self::SrIov => "sr-iov",
            Self::K2 => "k2",
            Self::PerQueue => "per-queue",
        }
    }

    /// The costs of its code.
    pub fn path(self, host: &HostCosts) -> PathCosts {
        match self {
            Self::Evenkeel | Self::Mdev | Self::PerQueue => host.mediated,
            Self::Spdk => host.spdk,
            Self::Virtio => host.virtio,
            Self::SrIov => host.direct,
            Self::K2 => host.k2,
        }
    }

    /// Which tenants share a poller, given which of them are guaranteed, and how many pollers the others have where
    /// those have their own. With [`Layout::PerQueue`] each such poller is one for each VQ.
    pub fn pollers(self, guaranteed: &[bool], best_effort_pollers: u16) -> Vec<Vec<usize>> {
        let all = 0..guaranteed.len();
        match self {
            Self::Evenkeel => {
                let own = all.clone().filter(|&tenant| guaranteed[tenant]).map(|tenant| vec![tenant]);
                let others: Vec<usize> = all.clone().filter(|&tenant| !guaranteed[tenant]).collect();
                let pollers = usize::from(best_effort_pollers.max(1));
                let shared = (0..pollers).map(|first| others.iter().copied().skip(first).step_by(pollers).collect());
                own.chain(shared.filter(|tenants: &Vec<usize>| !tenants.is_empty())).collect()
            }
            Self::Mdev | Self::Spdk | Self::K2 => vec![all.collect()],
            Self::Virtio | Self::SrIov | Self::PerQueue => all.map(|tenant| vec![tenant]).collect(),
        }
    }
}
