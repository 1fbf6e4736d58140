//! Which pollers will run, whom each of them serves, and how eagerly.

use std::ops::Range;

use crate::config::{Config, PollerLayout, Pollers};
use crate::frontend::{Frontend, Mode, Threads};
use crate::policy::Policy;

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

/// What a tenant's pollers depend on.
pub(crate) struct Load<'a> {
    pub guaranteed: bool,
    pub frontend: &'a Frontend,
    pub queues: u16,
}

/// The pollers in three parts: for each guaranteed tenant, for all others, tenants' own.
pub(crate) fn plan(policy: Option<&Policy>, pollers: &Pollers, loads: &[Load<'_>]) -> Vec<Poller> {
    let (sharing, own): (Vec<usize>, Vec<usize>) =
        (0..loads.len()).partition(|index| loads[*index].frontend.threads() == Threads::Shared);
    let one = policy.is_some_and(Policy::needs_one_poller) || pollers.layout == PollerLayout::Shared;
    let (alone, rest) = if one { (vec![], sharing) } else { sharing.into_iter().partition(|i| loads[*i].guaranteed) };
    let groups = alone.into_iter().map(|index| vec![index]).chain([rest]).filter(|group| !group.is_empty());
    let cpus = pollers.cpus.iter().copied().map(Some).cycle().chain(std::iter::repeat(None));
    let shared = groups.zip(cpus).map(|(group, cpu)| {
        let mode = group.iter().map(|index| loads[*index].frontend.mode()).max().unwrap_or(Mode::Adaptive);
        let serves = group.into_iter().map(|tenant| Serves { tenant, queues: 0..loads[tenant].queues });
        Poller { serves: serves.collect(), cpu, mode }
    });
    shared.chain(own.into_iter().flat_map(|tenant| own_pollers(tenant, &loads[tenant]))).collect()
}

fn own_pollers(tenant: usize, load: &Load<'_>) -> Vec<Poller> {
    let len = if load.frontend.threads() == Threads::PerQueue { 1 } else { load.queues.max(1) };
    let parts = (0..load.queues).step_by(len.into()).map(|first| first..first + len);
    let cpus = load.frontend.cpus().iter().copied().map(Some).cycle().chain(std::iter::repeat(None));
    let poller = |(queues, cpu)| Poller { serves: vec![Serves { tenant, queues }], cpu, mode: load.frontend.mode() };
    parts.zip(cpus).map(poller).collect()
}

impl Config {
    /// The pollers that will run: those of guaranteed tenants first, in the file's order, then the one that all
    /// others share (one for all where the policy must see all tenants), then those that tenants have to
    /// themselves, in the file's order and in that of their queues. With fewer CPUs than pollers, CPUs are used
    /// again from the first; [`Pollers::cpus`] are for pollers that no tenant has to itself by its `threads`.
    pub fn poller_plan(&self) -> Vec<Poller> {
        let loads = self.tenants.iter().map(|tenant| Load {
            guaranteed: tenant.is_guaranteed(),
            frontend: &tenant.frontend,
            queues: tenant.queues,
        });
        plan(Some(&self.policy), &self.pollers, &loads.collect::<Vec<_>>())
    }
}
