//! What is simulated: a drive, a host, a policy, tenants, faults.

use io_model::{Nanos, QueuePriority};
use policy::{PolicyConfig, Terms};
use ssd_model::Profile;

use crate::contestant::Contestant;
use crate::host::{HostCosts, Layout};
use crate::thin::FirstWrites;
use crate::workload::{Access, BlockSize, Fio, Workload};

/// Most tenants of a scenario, counting tenants that come when others left.
const MOST_TENANTS: usize = 16_384;

/// One consumer with its own virtual disk.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// For reports.
    pub name: String,
    /// The promise or the weight, with what `caps`, `wrr` and `drr` want to know.
    pub terms: Terms,
    /// CPUs of the guest; jobs are spread over them. At least 1.
    pub vcpus: u16,
    /// Its VQs; vCPUs share them if there are fewer. 1 to 127.
    pub vqs: u16,
    /// What its driver asks for when it creates its VQs, from the first one on; medium beyond the end. Policies that
    /// don't ask take no notice.
    pub queue_priorities: Vec<QueuePriority>,
    /// Its disk.
    pub size_bytes: u64,
    /// The sectors that its data is encrypted in, in bytes. `None`: it is not encrypted.
    pub encrypted_sector_bytes: Option<u32>,
    /// Of a thin disk.
    pub first_writes: Option<FirstWrites>,
    /// What it does.
    pub workload: Workload,
}

impl Tenant {
    /// Whether two guests do the same all the time: only closed loops are compared.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (&self.workload, &other.workload) {
            (Workload::Fio(own), Workload::Fio(others)) => {
                own == others
                    && (self.vcpus, self.vqs, self.first_writes) == (other.vcpus, other.vqs, other.first_writes)
            }
            _ => false,
        }
    }
}

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When, from the start of the run (warm-up included).
    pub at: Nanos,
    /// What.
    pub kind: FaultKind,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The drive fails commands with a medium error.
    Errors {
        /// How many in a million.
        ppm: u32,
        /// For how long.
        lasts: Nanos,
    },
    /// The drive finishes nothing.
    Stall {
        /// For how long.
        lasts: Nanos,
    },
    /// Completions of one of the drive's HWQs never come; the host gives their commands up.
    LoseHwq {
        /// Which, counted over all pollers.
        hwq: u16,
        /// How long the host waits for each command.
        timeout: Nanos,
    },
    /// The tenant's driver resets its controller; what was not fetched fails and its jobs go on after 1 ms.
    Reset {
        /// Index into the tenants.
        tenant: usize,
    },
    /// The tenant goes away with commands in flight.
    Leave {
        /// Index into the tenants.
        tenant: usize,
    },
    /// The tenant rings its doorbells for commands that aren't there, from then on.
    Rogue {
        /// Index into the tenants.
        tenant: usize,
    },
}

/// A tenant comes, goes or gets other terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// When, from the start of the run (warm-up included).
    pub at: Nanos,
    /// The tenant: index into the tenants.
    pub tenant: usize,
    /// What.
    pub kind: ChangeKind,
}

/// What changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// The tenant comes: it was not there before. Once for each tenant; later ones change nothing. Where
    /// [disks move](Scenario::disks_move) it gets its place on the drive now, and does not come if there is none.
    Joins,
    /// It has other terms from now on. Its target counts from now on too.
    NewTerms(Terms),
    /// It goes, with commands in flight, and never comes back. Its disk stays.
    Leaves,
    /// Its disk grows by this many bytes, a multiple of 4096, if there is space, and its guest gets a thread that uses
    /// all of it (`grown_fio`). Only if [disks move](Scenario::disks_move).
    Grows(u64),
    /// It goes as with `Leaves`; then the wiper overwrites what its disk had, and others may get that. Only where
    /// [disks move](Scenario::disks_move).
    Deleted,
}

/// What a guest does beside its workload with a disk that grew.
pub fn grown_fio() -> Fio {
    let block_sizes = [4 << 10, 128 << 10].map(|bytes| BlockSize { bytes, weight: 1 }).to_vec();
    Fio { jobs: 1, iodepth: 4, access: Access { block_sizes, ..Access::random_4k(50) } }
}

/// A whole run. `C`: the settings of a policy.
#[derive(Debug, Clone)]
pub struct Scenario<C = PolicyConfig> {
    /// The drive.
    pub profile: Profile,
    /// Its size; tenants' disks follow one another on it, but where [disks move](Scenario::disks_move).
    pub drive_bytes: u64,
    /// What CPUs pay.
    pub costs: HostCosts,
    /// Which tenants share a poller.
    pub layout: Layout,
    /// Pollers for best-effort tenants, under [`Layout::Evenkeel`]: they are spread over them in turn. 1 or more.
    pub best_effort_pollers: u16,
    /// How pollers choose.
    pub policy: C,
    /// HWQs of a poller that serves one tenant alone.
    pub hwqs_own: u16,
    /// HWQs of a poller that several tenants share.
    pub hwqs_shared: u16,
    /// Commands that an HWQ holds.
    pub hwq_depth: u32,
    /// 1 to 16384 of them.
    pub tenants: Vec<Tenant>,
    /// Not measured.
    pub warmup: Nanos,
    /// Measured.
    pub duration: Nanos,
    /// What ends is also counted for every span of this length; 0 for none.
    pub window: Nanos,
    /// Everything random follows from it.
    pub seed: u64,
    /// Tenants that come, go and get other terms meanwhile. A tenant keeps the poller that its first terms give it.
    pub changes: Vec<Change>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// A tenant whose oldest command waits longer than this counts as starved.
    pub starvation_limit: Nanos,
}

impl<C: Contestant> Scenario<C> {
    /// Nobody on a healthy drive of 400 GB under `passthrough`: a start to change.
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            drive_bytes: 400_000_000_000,
            costs: HostCosts::default(),
            layout: Layout::Evenkeel,
            best_effort_pollers: 1,
            policy: PolicyConfig::Passthrough.into(),
            hwqs_own: 6,
            hwqs_shared: 8,
            hwq_depth: 1_024,
            tenants: Vec::new(),
            warmup: Nanos::from_millis(200),
            duration: Nanos::from_millis(1_000),
            window: Nanos(0),
            seed: 1,
            changes: Vec::new(),
            faults: Vec::new(),
            starvation_limit: Nanos::from_millis(1_000),
        }
    }

    /// The scenario with one tenant only and what makes its copies, for its slowdown. Faults that name tenants are left
    /// out.
    pub fn alone(&self, tenant: usize) -> Self {
        let mut tenants: Vec<Tenant> = self.tenants.get(tenant).cloned().into_iter().collect();
        let copies = tenants.first_mut().and_then(|own| own.first_writes.as_mut()?.copies.as_mut());
        let copier = copies.and_then(|copies| self.tenants.get(std::mem::replace(&mut copies.by, 1)));
        tenants.extend(copier.cloned());
        Self { tenants, changes: Vec::new(), faults: Vec::new(), ..self.clone() }
    }

    /// # Errors
    /// What can't be simulated.
    pub fn validate(&self) -> Result<(), ScenarioError> {
        let tenants = self.tenants.len();
        if tenants == 0 || tenants > MOST_TENANTS {
            return Err(ScenarioError::Tenants { found: tenants });
        }
        let mut start_bytes = 0_u64;
        for (at, tenant) in self.tenants.iter().enumerate() {
            let name = || tenant.name.clone();
            let is_there = !self.disks_move() || !self.comes_later(at);
            start_bytes = start_bytes.saturating_add(if is_there { tenant.size_bytes } else { 0 });
            if start_bytes > self.drive_bytes {
                return Err(ScenarioError::DriveFull { name: name(), drive_bytes: self.drive_bytes });
            }
            if tenant.vcpus == 0 || tenant.vcpus > 1024 || tenant.vqs == 0 || tenant.vqs > 127 {
                return Err(ScenarioError::Queues { name: name() });
            }
            let valid = tenant.workload.validate(tenant.size_bytes);
            valid.map_err(|error| ScenarioError::Workload { name: name(), error: error.to_string() })?;
            let copier = tenant.first_writes.and_then(|it| it.copies).map(|copies| copies.by);
            let copies = |at: usize| self.tenants.get(at).is_some_and(|tenant| tenant.workload == Workload::Copy);
            if let Some(tenant) = copier.filter(|at| !copies(*at)) {
                return Err(ScenarioError::NoSuchTenant { tenant });
            }
        }
        let hwqs = self.poller_hwqs().iter().map(|&hwqs| usize::from(hwqs)).sum::<usize>();
        if hwqs > usize::from(ssd_model::MAX_QUEUES)
            || self.hwq_depth == 0
            || self.hwqs_own == 0
            || self.hwqs_shared == 0
        {
            return Err(ScenarioError::Hwqs { wanted: hwqs });
        }
        for fault in &self.faults {
            if let FaultKind::Reset { tenant } | FaultKind::Leave { tenant } | FaultKind::Rogue { tenant } = fault.kind
                && tenant >= tenants
            {
                return Err(ScenarioError::NoSuchTenant { tenant });
            }
        }
        if let Some(change) = self.changes.iter().find(|change| change.tenant >= tenants) {
            return Err(ScenarioError::NoSuchTenant { tenant: change.tenant });
        }
        Ok(())
    }

    /// Whether disks come, grow and are deleted, which takes a tenant with [`Workload::Wipe`]: then the daemon's layout
    /// says where they lie.
    pub fn disks_move(&self) -> bool {
        self.wiper().is_some()
    }

    pub(crate) fn wiper(&self) -> Option<usize> {
        self.tenants.iter().position(|tenant| matches!(tenant.workload, Workload::Wipe))
    }

    pub(crate) fn comes_later(&self, tenant: usize) -> bool {
        self.changes.iter().any(|change| change.tenant == tenant && change.kind == ChangeKind::Joins)
    }

    /// All terms that each tenant ever has.
    pub fn terms(&self) -> Vec<Vec<Terms>> {
        let mut terms: Vec<Vec<Terms>> = self.tenants.iter().map(|tenant| vec![tenant.terms]).collect();
        for change in &self.changes {
            if let ChangeKind::NewTerms(new) = change.kind {
                terms[change.tenant].push(new);
            }
        }
        terms
    }

    /// Whether each tenant is guaranteed.
    fn guaranteed(&self) -> Vec<bool> {
        self.tenants.iter().map(|tenant| tenant.terms.class.is_guaranteed()).collect()
    }

    /// The tenants of each poller. With a poller for each VQ a tenant has as many as it has VQs, one after another.
    pub fn pollers(&self) -> Vec<Vec<usize>> {
        let pollers = self.layout.pollers(&self.guaranteed(), self.best_effort_pollers);
        if self.layout != Layout::PerQueue {
            return pollers;
        }
        let vqs = |tenants: &Vec<usize>| tenants.iter().map(|&at| usize::from(self.tenants[at].vqs)).sum();
        pollers.into_iter().flat_map(|tenants| std::iter::repeat_n(tenants.clone(), vqs(&tenants))).collect()
    }

    /// How many pollers serve a tenant.
    pub(crate) fn parts(&self, tenant: usize) -> u16 {
        if self.layout == Layout::PerQueue { self.tenants[tenant].vqs } else { 1 }
    }

    /// The HWQs of each poller, in their order.
    pub fn poller_hwqs(&self) -> Vec<u16> {
        let hwqs = |tenants: &Vec<usize>| match (self.layout, tenants.len()) {
            // A queue for each virtual function (LPNS §5: SR-IOV), for each main loop, for each thread.
            (Layout::SrIov | Layout::Virtio | Layout::PerQueue, _) => 1,
            (_, 1) => self.hwqs_own,
            _ => self.hwqs_shared,
        };
        self.pollers().iter().map(hwqs).collect()
    }
}

/// Why a scenario can't be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// None, or too many.
    #[error("a scenario has 1 to {MOST_TENANTS} tenants, this one has {found}")]
    Tenants {
        /// How many there are.
        found: usize,
    },
    /// The disks don't fit.
    #[error("the drive of {drive_bytes} bytes is full before tenant {name:?}: make disks smaller or the drive larger")]
    DriveFull {
        /// The first that does not fit.
        name: String,
        /// The drive's size.
        drive_bytes: u64,
    },
    /// Too few or too many.
    #[error("tenant {name:?} needs 1 to 1024 vCPUs and 1 to 127 queues")]
    Queues {
        /// The tenant.
        name: String,
    },
    /// A workload that can't run.
    #[error("tenant {name:?}: {error}")]
    Workload {
        /// The tenant.
        name: String,
        /// What is wrong with it.
        error: String,
    },
    /// More than a drive has.
    #[error("all pollers together need {wanted} queues of the drive: it has 1 to {}", ssd_model::MAX_QUEUES)]
    Hwqs {
        /// How many.
        wanted: usize,
    },
    /// Disks come and go, and nothing places them.
    #[error("disks come and go here, and no layout places them")]
    NoSpace,
    /// A fault names it.
    #[error("a fault or a change names tenant {tenant}, which is not there")]
    NoSuchTenant {
        /// Index.
        tenant: usize,
    },
    /// The policy refuses its settings.
    // Not a source: the message has it, and a chain of causes would tell it twice.
    #[error("policy: {0}")]
    Policy(policy::ConfigError),
}

impl From<policy::ConfigError> for ScenarioError {
    fn from(error: policy::ConfigError) -> Self {
        Self::Policy(error)
    }
}
