//! From a configuration to what the planner asks: the site, the policy, the tenants with their demands.

use config::{BlockSize, Config, Demand, DemandLoad, Encryption};
use engine::{GuestCosts, HostCosts, PathCosts};
use io_model::QueuePriority;
use planner::{FirstWrites, Load, Site, Size, Tenant, drive_figures};
use policy::{DriveFigures, PolicyConfig};
use ssd_model::Profile;

/// What a command costs the daemon's host. Times in ns; measured on it, see docs/PERFORMANCE.md ("The order of the
/// policies").
///
/// Latencies of the daemon begin when a doorbell is seen and end when the completion is posted, so nothing of the
/// guest is in them. What a client does between two commands is that of one that polls: a guest with interrupts takes
/// longer and asks less.
const DAEMON: HostCosts = HostCosts {
    guest: GuestCosts { app_ns: 550, ..GuestCosts::FREE },
    mediated: PathCosts { pass_ns: 100, fetch_ns: 300, complete_ns: 150, ..engine::FREE },
    ..HostCosts::FREE
};

/// The load assumed for a best-effort tenant that declares none: this many commands outstanding, on `GREEDY_QUEUES`
/// queues.
const GREEDY_DEPTH: u32 = 128;
const GREEDY_QUEUES: u16 = 4;

/// All that a plan follows from.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The drive and its host.
    pub site: Site,
    /// The policy.
    pub policy: PolicyConfig,
    /// In the file's order.
    pub tenants: Vec<Tenant>,
    /// One for each tenant: nobody declared its demand.
    pub assumed: Vec<bool>,
}

/// Measured loads that differ by less than this fraction are one.
const ALIKE: f64 = 0.1;

impl Question {
    /// Whether the other one's answer will do: all but the loads is equal, and these are about the same.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let pairs = || self.tenants.iter().zip(&other.tenants);
        self.tenants.len() == other.tenants.len()
            && pairs().all(|(one, other)| does_like(one, other))
            && self.policy == other.policy
            && self.site == other.site
    }
}

fn does_like(one: &Tenant, other: &Tenant) -> bool {
    let is_near = |one: f64, other: f64| (one - other).abs() <= ALIKE * one.max(other);
    let loads = match (one.load, other.load) {
        (Load::Closed { depth: one }, Load::Closed { depth: other }) => is_near(one.into(), other.into()),
        (Load::Open { rate_iops: one }, Load::Open { rate_iops: other }) => is_near(one, other),
        _ => false,
    };
    loads
        && is_near(one.mean_len_bytes(), other.mean_len_bytes())
        && (one.read_share - other.read_share).abs() <= ALIKE
        && (&one.name, one.class, one.floor, one.limits) == (&other.name, other.class, other.floor, other.limits)
        && (one.priority, one.vcpus, one.encrypted_sector_bytes, one.first_writes)
            == (other.priority, other.vcpus, other.encrypted_sector_bytes, other.first_writes)
}

/// The daemon's drive and host.
pub fn site(profile: Profile) -> Site {
    Site { profile, costs: DAEMON }
}

/// The daemon's policy, as it will run on a drive.
pub fn policy(config: &Config, profile: &Profile) -> PolicyConfig {
    let is_assumed = !config.device.profile_named;
    config.policy.on(&DriveFigures { is_assumed, ..drive_figures(profile) })
}

/// A tenant of the daemon's file, and whether its demand is assumed: one read of 4 KiB at a time for a guaranteed one,
/// a greedy mix for the others. Each job of a closed demand is taken for a queue of its own, and a tenant whose queues
/// have priorities of their own for a medium one: what processes have that ask for nothing.
pub fn tenant(tenant: &config::Tenant) -> (Tenant, bool) {
    let asked = Tenant {
        name: tenant.name.clone(),
        class: tenant.terms.class,
        floor: tenant.terms.floor,
        limits: tenant.terms.limits,
        priority: tenant.terms.priority.unasked(),
        encrypted_sector_bytes: (tenant.encryption != Encryption::None).then_some(tenant.lba_bytes),
        ..undeclared(tenant.is_guaranteed())
    };
    let (asked, is_assumed) = with_load(tenant, asked);
    (Tenant { first_writes: first_writes(tenant, &asked), ..asked }, is_assumed)
}

/// First writes of a thin disk. Where nobody declared them they are as many as where the disk is written in turn for
/// the first time.
fn first_writes(tenant: &config::Tenant, asked: &Tenant) -> Option<FirstWrites> {
    let declared = tenant.demand.as_ref().and_then(|demand| demand.first_writes);
    let in_turn = (asked.mean_len_bytes() / tenant.piece_bytes as f64).min(1.0);
    let first = FirstWrites {
        share: declared.map_or(in_turn, |declared| f64::from(declared.of_10_000) / 10_000.0),
        piece_bytes: tenant.piece_bytes,
        are_shared: declared.is_some_and(|declared| declared.are_shared),
    };
    Some(first).filter(|first| tenant.is_thin && asked.read_share < 1.0 && first.share > 0.0)
}

/// The tenant asking for what was declared, or for what is assumed: `true`.
fn with_load(tenant: &config::Tenant, asked: Tenant) -> (Tenant, bool) {
    let queues = |jobs: u32| u16::try_from(jobs).unwrap_or(u16::MAX).clamp(1, tenant.queues.max(1));
    match &tenant.demand {
        Some(demand @ Demand { load: DemandLoad::Closed { numjobs, .. }, .. }) => {
            (Tenant { vcpus: queues(*numjobs), ..with_demand(asked, demand) }, false)
        }
        Some(demand) => {
            let asked = Tenant { vcpus: queues(GREEDY_QUEUES.into()), ..with_demand(asked, demand) };
            (Tenant { load: within_limits(tenant, demand, asked.load), ..asked }, false)
        }
        None => (Tenant { vcpus: asked.vcpus.min(tenant.queues), ..asked }, true),
    }
}

/// A best-effort tenant is taken for one that asks no more often than its limits let through: what it declared is a
/// ceiling. A promise is not judged by less than was declared.
fn within_limits(tenant: &config::Tenant, demand: &Demand, load: Load) -> Load {
    match (load, demand.most_iops(&tenant.terms.limits)) {
        (Load::Open { rate_iops }, Some(most)) if !tenant.is_guaranteed() => {
            Load::Open { rate_iops: rate_iops.min(most) }
        }
        _ => load,
    }
}

/// What a configuration asks, on the drive that it names.
pub fn of_config(config: &Config, profile: &Profile) -> Question {
    let (tenants, assumed) = config.tenants.iter().map(tenant).unzip();
    Question { site: site(profile.clone()), policy: policy(config, profile), tenants, assumed }
}

/// A tenant without a name of which nobody said what it will ask for.
pub fn undeclared(guaranteed: bool) -> Tenant {
    Tenant {
        name: String::new(),
        class: policy::Class::BestEffort { weight: 1 },
        floor: policy::Floor::default(),
        limits: policy::Limits::default(),
        priority: QueuePriority::Medium,
        load: Load::Closed { depth: if guaranteed { 1 } else { GREEDY_DEPTH } },
        read_share: if guaranteed { 1.0 } else { 0.5 },
        sizes: vec![Size { len_bytes: 4096, part: 1.0 }],
        encrypted_sector_bytes: None,
        first_writes: None,
        vcpus: if guaranteed { 1 } else { GREEDY_QUEUES },
    }
}

/// The tenant, asking for that.
pub fn with_demand(tenant: Tenant, demand: &Demand) -> Tenant {
    let load = match demand.load {
        DemandLoad::Closed { numjobs, iodepth } => Load::Closed { depth: numjobs.saturating_mul(iodepth).max(1) },
        DemandLoad::Open { rate_iops } => Load::Open { rate_iops: rate_iops.0 as f64 },
    };
    Tenant { load, read_share: demand.rw.read_share(), sizes: sizes(&demand.rw.block_sizes), ..tenant }
}

fn sizes(block_sizes: &[BlockSize]) -> Vec<Size> {
    let weights: f64 = block_sizes.iter().map(|size| f64::from(size.weight)).sum();
    let size = |size: &BlockSize| Size { len_bytes: size.bytes.into(), part: f64::from(size.weight) / weights };
    block_sizes.iter().map(size).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_is_declared_is_asked_and_the_rest_assumed() {
        let text = "[device]\nbackend = \"model\"\nsize = \"1GiB\"\n[policy]\nname = \"wrr\"\n\
                    [[tenant]]\nname = \"db\"\nsize = \"4MiB\"\nclass = \"guaranteed\"\nlatency_target = \"1ms\"\n\
                    priority = \"high\"\n\
                    [[tenant]]\nname = \"web\"\nsize = \"4MiB\"\npriority = \"client\"\nqueues = 2\n\
                    [tenant.demand]\nrw = \"randrw\"\nrwmixread = 70\nbs = \"4k/75:64k/25\"\niodepth = 8\n\
                    numjobs = 4\n\
                    [[tenant]]\nname = \"log\"\nsize = \"4MiB\"\n[tenant.demand]\nrw = \"write\"\nrate_iops = \"2k\"\n\
                    [[tenant]]\nname = \"bulk\"\nsize = \"4MiB\"\nw_bandwidth = \"5MiB/s\"\n[tenant.demand]\n\
                    rw = \"write\"\nrate_iops = \"2k\"\n\
                    [[tenant]]\nname = \"any\"\nsize = \"4MiB\"\nencryption = \"tenant\"\n";
        let config = Config::parse(Path::new("ek.toml"), text).expect("good");
        let profile = Profile::by_name("p5800x").expect("built in");
        let Question { tenants, assumed, policy, .. } = of_config(&config, &profile);
        assert_eq!(assumed, [true, false, false, false, true]);
        assert_eq!(policy.name(), "wrr");
        let encrypted = tenants.iter().map(|tenant| tenant.encrypted_sector_bytes);
        assert_eq!(encrypted.collect::<Vec<_>>(), [None, None, None, None, Some(4096)]);
        let loads: Vec<Load> = tenants.iter().map(|tenant| tenant.load).collect();
        let closed = |depth| Load::Closed { depth };
        let open = |rate_iops| Load::Open { rate_iops };
        assert_eq!(loads, [closed(1), closed(32), open(2_000.0), open(1_280.0), closed(128)]);
        assert_eq!(tenants.iter().map(|tenant| tenant.read_share).collect::<Vec<_>>(), [1.0, 0.7, 0.0, 0.0, 0.5]);
        let priorities: Vec<QueuePriority> = tenants.iter().map(|tenant| tenant.priority).collect();
        use QueuePriority::{High, Medium};
        assert_eq!(priorities, [High, Medium, Medium, Medium, Medium]);
        assert_eq!(tenants[1].sizes, [Size { len_bytes: 4096, part: 0.75 }, Size { len_bytes: 65_536, part: 0.25 }]);
        assert_eq!((tenants[1].vcpus, tenants[4].vcpus), (2, 4), "no more than its queues");
    }
}
