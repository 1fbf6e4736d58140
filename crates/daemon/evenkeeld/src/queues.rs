//! How many HWQs each poller gets.

use config::{Config, Frontend, Poller, Serves, Threads};
use policy::PollerShape;

/// VQs of an NVMe tenant: a guest has about as many I/O queues as vCPUs; four and the admin queue is the usual case.
const NVME_VQS: u16 = 5;

/// Most HWQs of a poller, and those of the one that everyone else shares. Each is looked at in every iteration.
const SHARED_HWQS: u16 = 8;

/// What one of `pollers` pollers has.
pub fn shape(config: &Config, pollers: usize, planned: &Poller) -> PollerShape {
    let tenant = |serves: &Serves| &config.tenants[serves.tenant];
    let own = |serves: &Serves| tenant(serves).is_guaranteed() || tenant(serves).frontend.threads() != Threads::Shared;
    let vqs = |serves: &Serves| match tenant(serves).frontend {
        Frontend::VfioUser => NVME_VQS,
        Frontend::VhostUserBlk(_) => serves.queues.len() as u16,
    };
    // One for each VQ, and one to share.
    let all_vqs = planned.serves.iter().map(vqs).fold(0, u16::saturating_add);
    let wanted = if planned.serves.iter().all(own) { all_vqs.saturating_add(1).min(SHARED_HWQS) } else { SHARED_HWQS };
    // Each poller needs two at least: an exclusive HWQ and one to share.
    let share = config.device.queues.map(|all| (usize::from(all) / pollers).clamp(2, 1024) as u16);
    PollerShape {
        hwqs: share.unwrap_or(wanted).max(2),
        hwq_depth: u32::from(config.device.queue_depth),
        guaranteed_vqs: planned
            .serves
            .iter()
            .filter(|serves| tenant(serves).is_guaranteed())
            .map(vqs)
            .fold(0, u16::saturating_add),
    }
}
