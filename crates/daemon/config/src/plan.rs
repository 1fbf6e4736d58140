//! Which pollers will run, whom each of them serves, and how eagerly.

use std::ops::Range;

use policy::Settings;

use crate::config::{Config, Pollers, Tenant};
use crate::frontend::Frontend;
use crate::values::{Mode, Threads};

/// VQs of an NVMe tenant: a guest has about as many I/O queues as vCPUs; four and the admin queue is the usual case.
const NVME_VQS: u16 = 5;

/// Most HWQs of a poller, and those of the one that everyone else shares. Each is looked at in every iteration.
const SHARED_HWQS: u16 = 8;

/// HWQs that each poller needs: an exclusive one, and one to share.
pub(crate) const LEAST_HWQS: u16 = 2;

/// One poller that will run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poller {
    /// Never empty. Several only where all of them are whole tenants.
    pub serves: Vec<Serves>,
    /// The CPU it is pinned to.
    pub cpu: Option<u32>,
    /// The most eager mode among those whom it serves.
    pub mode: Mode,
}

/// A tenant's queues on one poller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serves {
    /// Index into [`Config::tenants`].
    pub tenant: usize,
    /// Which of its I/O queues, from 0; all of them, or one where each has a thread of its own.
    pub queues: Range<u16>,
}

/// Which pollers serve a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// One of those that all tenants share who need no other: mostly there is one.
    Shared,
    /// One of its own, as its class and the policy call for.
    Alone,
    /// Those that its `threads` ask for.
    Own,
}

/// What a tenant's pollers depend on.
pub(crate) struct Load<'a> {
    pub guaranteed: bool,
    pub frontend: &'a Frontend,
    pub queues: u16,
}

impl<'a> From<&'a Tenant> for Load<'a> {
    fn from(tenant: &'a Tenant) -> Self {
        Self { guaranteed: tenant.is_guaranteed(), frontend: &tenant.frontend, queues: tenant.queues }
    }
}

impl Tenant {
    /// VQs that these of its queues are taken for.
    pub fn vqs(&self, queues: &Range<u16>) -> u16 {
        match &self.frontend {
            Frontend::VfioUser(serving) if serving.threads != Some(Threads::PerQueue) => NVME_VQS,
            Frontend::VfioUser(_) | Frontend::VhostUserBlk(_) | Frontend::Ublk(..) => queues.len() as u16,
        }
    }
}

impl Load<'_> {
    fn home(&self, policy: Option<&Settings>) -> Home {
        let gives_own = policy.is_none_or(|policy| policy.kind().gives_own_pollers());
        match self.frontend.threads() {
            Some(Threads::Dedicated | Threads::PerQueue) => Home::Own,
            None if self.guaranteed && gives_own => Home::Alone,
            None | Some(Threads::Shared) => Home::Shared,
        }
    }
}

/// The pollers in three parts: for each guaranteed tenant, for all others, tenants' own.
pub(crate) fn plan(policy: Option<&Settings>, pollers: &Pollers, loads: &[Load<'_>]) -> Vec<Poller> {
    let at = |home: Home| (0..loads.len()).filter(move |index| loads[*index].home(policy) == home);
    let several = usize::from(pollers.best_effort);
    let rest = (0..several).map(|first| at(Home::Shared).skip(first).step_by(several).collect());
    let alone = at(Home::Alone).map(|index| vec![index]);
    let groups = alone.chain(rest).filter(|group: &Vec<usize>| !group.is_empty());
    let shared = groups.enumerate().map(|(number, group)| {
        let mode = group.iter().map(|index| loads[*index].frontend.mode()).max().unwrap_or(Mode::Adaptive);
        let serves = group.into_iter().map(|tenant| Serves { tenant, queues: 0..loads[tenant].queues });
        Poller { serves: serves.collect(), cpu: pollers.cpu(number), mode }
    });
    shared.chain(at(Home::Own).flat_map(|tenant| own_pollers(tenant, &loads[tenant]))).collect()
}

impl Pollers {
    /// The CPU of the `number`th poller that no tenant has to itself by its `threads`.
    fn cpu(&self, number: usize) -> Option<u32> {
        self.cpus.iter().copied().cycle().nth(self.first % self.cpus.len().max(1) + number)
    }
}

fn own_pollers(tenant: usize, load: &Load<'_>) -> Vec<Poller> {
    let len = if load.frontend.threads() == Some(Threads::PerQueue) { 1 } else { load.queues.max(1) };
    let parts = (0..load.queues).step_by(len.into()).map(|first| first..first + len);
    let cpus = load.frontend.cpus().iter().copied().map(Some).cycle().chain(std::iter::repeat(None));
    let poller = |(queues, cpu)| Poller { serves: vec![Serves { tenant, queues }], cpu, mode: load.frontend.mode() };
    parts.zip(cpus).map(poller).collect()
}

impl Config {
    /// The pollers that will run: those of guaranteed tenants first, in the file's order, then the one or
    /// [several](Pollers::best_effort) that all others share, then those that tenants have to themselves, in the file's
    /// order and in that of their queues. With fewer CPUs than pollers, CPUs are used
    /// again from the first; [`Pollers::cpus`] are for pollers that no tenant has to itself by its `threads`.
    pub fn poller_plan(&self) -> Vec<Poller> {
        plan(Some(&self.policy), &self.pollers, &self.tenants.iter().map(Load::from).collect::<Vec<_>>())
    }

    /// HWQs of one of `pollers` pollers that is to serve these queues of these tenants.
    pub fn hwqs(&self, pollers: usize, serves: &[(&Tenant, Range<u16>)]) -> u16 {
        let own = |tenant: &Tenant| tenant.is_guaranteed() || tenant.frontend.has_own_threads();
        // One for each VQ, and one to share.
        let all_vqs = serves.iter().map(|(tenant, queues)| tenant.vqs(queues)).fold(0, u16::saturating_add);
        let wanted = if serves.iter().all(|(tenant, _)| own(tenant)) {
            all_vqs.saturating_add(1).min(SHARED_HWQS)
        } else {
            SHARED_HWQS
        };
        let share = self.device.queues.map(|all| (usize::from(all) / pollers.max(1)).min(1024) as u16);
        share.unwrap_or(wanted).max(LEAST_HWQS)
    }

    /// HWQs of all pollers that will run.
    pub fn planned_hwqs(&self) -> usize {
        let plan = self.poller_plan();
        let hwqs = |poller: &Poller| {
            let serves = poller.serves.iter().map(|of| (&self.tenants[of.tenant], of.queues.clone()));
            usize::from(self.hwqs(plan.len(), &serves.collect::<Vec<_>>()))
        };
        plan.iter().map(hwqs).sum()
    }

    /// Which pollers serve a tenant of this configuration, or one that would be.
    pub fn home(&self, tenant: &Tenant) -> Home {
        Load::from(tenant).home(Some(&self.policy))
    }

    /// Which threads serve a tenant.
    pub fn threads(&self, tenant: &Tenant) -> Threads {
        let by_class = if self.home(tenant) == Home::Shared { Threads::Shared } else { Threads::Dedicated };
        tenant.frontend.threads().unwrap_or(by_class)
    }

    /// The pollers that one more tenant would need for itself, if `others` run: the queues, mode and CPU of each. For
    /// a tenant that could share one, the one that it would be the first of.
    pub fn own_pollers(&self, tenant: &Tenant, others: usize) -> Vec<(Range<u16>, Mode, Option<u32>)> {
        let load = Load::from(tenant);
        if self.home(tenant) != Home::Own {
            return vec![(0..load.queues, load.frontend.mode(), self.pollers.cpu(others))];
        }
        let queues = |poller: &Poller| poller.serves.first().map_or(0..0, |serves| serves.queues.clone());
        own_pollers(0, &load).into_iter().map(|poller| (queues(&poller), poller.mode, poller.cpu)).collect()
    }
}
