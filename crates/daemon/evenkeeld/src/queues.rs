//! How many HWQs each poller gets.

use std::ops::Range;

use config::{Config, Frontend, Tenant, Threads};
use policy::PollerShape;

/// VQs of an NVMe tenant: a guest has about as many I/O queues as vCPUs; four and the admin queue is the usual case.
const NVME_VQS: u16 = 5;

/// Most HWQs of a poller, and those of the one that everyone else shares. Each is looked at in every iteration.
const SHARED_HWQS: u16 = 8;

/// What one of `pollers` pollers has that is to serve these queues of these tenants, on a drive whose queues may have
/// weights.
pub fn shape(config: &Config, pollers: usize, serves: &[(&Tenant, Range<u16>)], weighted: bool) -> PollerShape {
    let own = |tenant: &Tenant| tenant.is_guaranteed() || tenant.frontend.threads() != Threads::Shared;
    let vqs = |(tenant, queues): &(&Tenant, Range<u16>)| match tenant.frontend {
        Frontend::VfioUser => NVME_VQS,
        Frontend::VhostUserBlk(_) | Frontend::Ublk(..) => queues.len() as u16,
    };
    // One for each VQ, and one to share.
    let all_vqs = serves.iter().map(vqs).fold(0, u16::saturating_add);
    let wanted = if serves.iter().all(|(tenant, _)| own(tenant)) {
        all_vqs.saturating_add(1).min(SHARED_HWQS)
    } else {
        SHARED_HWQS
    };
    // Each poller needs two at least: an exclusive HWQ and one to share.
    let share = config.device.queues.map(|all| (usize::from(all) / pollers.max(1)).clamp(2, 1024) as u16);
    let guaranteed = serves.iter().filter(|(tenant, _)| tenant.is_guaranteed());
    PollerShape {
        hwqs: share.unwrap_or(wanted).max(2),
        hwq_depth: u32::from(config.device.queue_depth),
        guaranteed_vqs: guaranteed.map(vqs).fold(0, u16::saturating_add),
        weighted,
    }
}
