//! How many HWQs each poller gets.

use config::Config;
use policy::PollerShape;

/// HWQs of a poller that serves one guaranteed tenant: one for each queue of a 4-vCPU guest, its admin
/// queue's, and a shared one.
const OWN_HWQS: u16 = 6;

/// HWQs of the poller that everyone else shares.
const SHARED_HWQS: u16 = 8;

/// What one of `pollers` pollers has.
pub fn shape(config: &Config, pollers: usize, planned: &config::Poller) -> PollerShape {
    let guaranteed = planned.tenants.iter().filter(|index| config.tenants[**index].is_guaranteed()).count();
    let alone = guaranteed == planned.tenants.len();
    let wanted = if alone { OWN_HWQS } else { SHARED_HWQS };
    // Each poller needs two at least: an exclusive HWQ and one to share.
    let share = config.device.queues.map(|all| (usize::from(all) / pollers).clamp(2, 1024) as u16);
    PollerShape {
        hwqs: share.unwrap_or(wanted),
        hwq_depth: u32::from(config.device.queue_depth),
        // A guest has about as many I/O queues as vCPUs; four and the admin queue is the usual case.
        guaranteed_vqs: (guaranteed as u16).saturating_mul(OWN_HWQS - 1),
    }
}
