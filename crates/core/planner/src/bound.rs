//! A latency that no command exceeds: counting what can be ahead of it.
//!
//! It rests on these conditions: addresses are random, so that no unit has more of what is in flight than one command
//! in 10⁹ would see; the drive behaves as its profile says; guests' times vary as [`GuestCosts::varies_permille`]
//! says; the tenant itself has a closed load and no limits. Beside a policy that limits what is in flight nothing is
//! assumed of the neighbours.
//!
//! What fills the drive is through when its busiest part has done its share and a lone command has passed (the lower
//! bound of a closed network's throughput). In every such span as much is sent as may be in flight, and a command that
//! waits for its turn waits for no more spans than what goes before it fills. Within the drive the worst case counts:
//! all that may be ahead at its unit, on its link and in its buffer.

mod drive;
mod turns;

use arbitration::Arbitration;
use engine::{GuestCosts, PathCosts};
use policy::{Class, LpnsConfig, PolicyConfig, lpns_rule};

use crate::play::hwqs;
use crate::{Load, Site, Tenant};
use drive::{Crowd, Kinds};
use turns::Ahead;

/// A time that varies exponentially is cut at this multiple of its mean.
const VARIES_MOST: f64 = 6.3;

/// The longest latency of each tenant's commands, ns; `None` where nothing limits it.
pub(crate) fn bounds_ns(site: &Site, policy: &PolicyConfig, tenants: &[Tenant]) -> Vec<Option<f64>> {
    let crowd = Crowd::new(policy, tenants);
    (0..tenants.len()).map(|at| bound_ns(site, policy, tenants, &crowd, at)).collect()
}

fn bound_ns(site: &Site, policy: &PolicyConfig, tenants: &[Tenant], crowd: &Crowd, at: usize) -> Option<f64> {
    let [own_hwqs, shared_hwqs] = hwqs(policy, tenants);
    let tenant = &tenants[at];
    let Load::Closed { depth } = tenant.load else { return None };
    // A file system has no bound, and nor has a mover that shares with others.
    if tenant.most_iops().is_some() || tenant.first_writes.is_some() || tenants.iter().any(Tenant::has_copies) {
        return None;
    }
    if is_overtaken(site, policy, (tenant, own_hwqs)) {
        return None;
    }
    let kinds = Kinds::of(&site.profile, tenants);
    let alone = own_poller(policy, tenant);
    let sharing = || tenants.iter().filter(|other| alone == own_poller(policy, other));
    let ciphers = sharing().filter(|other| !alone || std::ptr::eq(*other, tenant));
    let path = &with_cipher(site, ciphers);
    let vqs: f64 = if alone { f64::from(tenant.vcpus) } else { sharing().map(|other| f64::from(other.vcpus)).sum() };
    let hwqs = f64::from(if alone || sharing().count() == 1 { own_hwqs } else { shared_hwqs });
    let at_poller = crowd.at_poller(policy, tenants, at)?;
    let pass_ns = pass_ns(path, at_poller, hwqs, vqs);
    let inside = drive::inside(&site.profile, &kinds, crowd, tenants, tenant, hwqs)?;
    let slot_ns = 2.0 * pass_ns + inside.longest_ns;
    // The lower bound of a closed network's throughput: its busiest part never waits longer than for a lone command.
    let per_command = (path.fetch_ns + path.write_ns + path.complete_ns + path.interrupt_ns) as f64;
    let span_ns = 2.0 * pass_ns + inside.lone_ns + inside.busiest_ns.max(at_poller * per_command);
    let turn_ns = match turns::ahead(policy, tenants, at) {
        Ahead::Nobody => 0.0,
        Ahead::Commands { count, spans } => {
            let first_ns = if spans > 0.0 { slot_ns } else { 0.0 };
            first_ns + spans * span_ns + (count / f64::from(path.batch.max(1))).ceil() * pass_ns
        }
        Ahead::Unlimited => return None,
    };
    let delivery_ns = path.delivery_ns as f64;
    Some(guest_ns(&site.costs.guest, tenant, depth) + 3.0 * pass_ns + delivery_ns + turn_ns + slot_ns)
}

/// Whether the drive's weighted round robin may serve any number of others' later commands before this tenant's: what
/// is in flight is no measure of its wait then.
fn is_overtaken(site: &Site, policy: &PolicyConfig, (tenant, own_hwqs): (&Tenant, u16)) -> bool {
    let homes = own_hwqs.saturating_sub(1);
    let is_highest = match policy {
        PolicyConfig::Wrr(_) => false,
        // One HWQ for each VQ, and one to share.
        PolicyConfig::Lpns(_) => own_poller(policy, tenant) && tenant.vcpus <= homes,
        _ => true,
    };
    matches!(site.profile.arbitration, Arbitration::WeightedRoundRobin { .. }) && !is_highest
}

/// What best effort may have in flight at most beside promises like these, in reference commands.
fn lpns_ceiling(config: &LpnsConfig, tenants: &[Tenant]) -> f64 {
    lpns_rule::ceiling(config, tenants.iter().filter_map(|tenant| tenant.class.latency_target()).min())
}

/// What one guaranteed tenant may have in flight, in reference commands.
fn lpns_limit(config: &LpnsConfig, tenants: &[Tenant]) -> f64 {
    let guaranteed = tenants.iter().filter(|tenant| tenant.class.is_guaranteed()).count();
    if guaranteed == 1 && tenants.len() == 1 {
        return f64::INFINITY;
    }
    lpns_rule::guaranteed_limit(config, lpns_ceiling(config, tenants), guaranteed as u32)
}

/// Whether each guaranteed tenant has a poller of its own under this policy.
pub(crate) fn has_own_pollers(policy: &PolicyConfig) -> bool {
    policy.kind().gives_own_pollers()
}

/// Whether a poller serves this tenant alone.
fn own_poller(policy: &PolicyConfig, tenant: &Tenant) -> bool {
    has_own_pollers(policy) && matches!(tenant.class, Class::Guaranteed { .. })
}

/// The costs of a poller that serves these tenants. The cipher may work on each command when it is fetched, and on each
/// when it is completed.
fn with_cipher<'t>(site: &Site, tenants: impl Iterator<Item = &'t Tenant>) -> PathCosts {
    let longest_ns = tenants.map(|tenant| tenant.longest_cipher_ns(&site.profile)).max().unwrap_or(0);
    let path = site.costs.mediated;
    let (write_ns, complete_ns) = (path.write_ns + longest_ns, path.complete_ns + longest_ns);
    PathCosts { write_ns, complete_ns, ..path }
}

/// The longest pass of a poller with this many commands in flight.
fn pass_ns(path: &PathCosts, in_flight: f64, hwqs: f64, vqs: f64) -> f64 {
    let fetch_ns = (path.fetch_ns + path.write_ns) as f64;
    path.pass_ns as f64 * 1.5
        + in_flight * path.complete_ns as f64
        + f64::from(path.batch) * fetch_ns
        + hwqs * path.doorbell_ns as f64
        + vqs * path.interrupt_ns as f64
}

/// The guest's part: its vCPU is at the start of a submission, and all that the vCPU has outstanding completes at once.
fn guest_ns(guest: &GuestCosts, tenant: &Tenant, depth: u32) -> f64 {
    let varies = 1.0 + guest.varies_permille as f64 / 1_000.0 * (VARIES_MOST - 1.0);
    let each = f64::from(depth.div_ceil(u32::from(tenant.vcpus.max(1))));
    let submit_ns = (guest.submit_ns + guest.write_ns) as f64;
    let busy_ns = varies * guest.app_ns as f64 + submit_ns;
    submit_ns + busy_ns + each * (varies * guest.complete_ns as f64) + 2.0 * guest.irq_ns as f64
}

#[cfg(test)]
mod tests {
    use io_model::{Nanos, QueuePriority, WrrWeights};
    use policy::ArbitratedConfig;
    use ssd_model::Profile;

    use super::*;
    use crate::Size;

    #[test]
    fn nothing_is_certain_for_who_may_be_overtaken_in_a_drive_with_weights() {
        let weights = WrrWeights { high: 4, medium: 2, low: 1 };
        let weighted = Arbitration::WeightedRoundRobin { burst: 1, weights };
        let is_bounded = |policy: PolicyConfig, vcpus, arbitration: Option<Arbitration>| {
            let mut profile = Profile::p5800x();
            profile.arbitration = arbitration.unwrap_or(profile.arbitration);
            let tenant = Tenant {
                name: "a".to_owned(),
                class: Class::guaranteed(Some(Nanos::from_micros(100))),
                floor: policy::Floor::default(),
                limits: policy::Limits::default(),
                priority: QueuePriority::High,
                load: Load::Closed { depth: 1 },
                read_share: 1.0,
                sizes: vec![Size { len_bytes: 4096, part: 1.0 }],
                encrypted_sector_bytes: None,
                first_writes: None,
                vcpus,
            };
            bounds_ns(&Site { profile, costs: engine::HostCosts::default() }, &policy, &[tenant])[0].is_some()
        };
        let (lpns, wrr) = (PolicyConfig::Lpns(LpnsConfig::p5800x()), PolicyConfig::Wrr(ArbitratedConfig::wrr()));
        let homes = 5;
        for (policy, vcpus, with_weights) in [(&lpns, homes, true), (&lpns, homes + 1, false), (&wrr, 1, false)] {
            assert!(is_bounded(policy.clone(), vcpus, None), "{} {vcpus}", policy.name());
            assert_eq!(is_bounded(policy.clone(), vcpus, Some(weighted)), with_weights, "{} {vcpus}", policy.name());
        }
    }
}
