//! From the configuration to a policy for each poller, and how many HWQs it gets.

use anyhow::{Context, Result};
use config::{Config, LpnsVariant, Profile};
use io_model::Nanos;
use policy::{AnyPolicy, Lpns, LpnsConfig, Passthrough, Variant};

/// HWQs of a poller that serves one guaranteed tenant: one for each queue of a 4-vCPU guest, its admin
/// queue's, and a shared one.
const OWN_HWQS: u16 = 6;

/// HWQs of the poller that everyone else shares.
const SHARED_HWQS: u16 = 8;

/// HWQs, and commands that each holds, for one of `pollers` pollers.
pub fn queues(config: &Config, pollers: usize, planned: &config::Poller) -> (u16, u32) {
    let guaranteed = planned.tenants.iter().filter(|index| config.tenants[**index].is_guaranteed()).count();
    let alone = guaranteed == planned.tenants.len();
    let wanted = if alone { OWN_HWQS } else { SHARED_HWQS };
    // Each poller needs two at least: an exclusive HWQ and one to share.
    let share = config.device.queues.map(|all| (usize::from(all) / pollers).clamp(2, 1024) as u16);
    (share.unwrap_or(wanted), u32::from(config.device.queue_depth))
}

/// The policy of one poller.
pub fn build(config: &Config, planned: &config::Poller, hwqs: u16, depth: u32) -> Result<AnyPolicy> {
    let config::Policy::Lpns(settings) = &config.policy else {
        return Ok(Passthrough::new(hwqs, depth).into());
    };
    let drive = match config.device.profile {
        Profile::P5800x => LpnsConfig::p5800x(),
        Profile::Pm1735 => LpnsConfig::pm1735(),
    };
    // A guest has about as many I/O queues as vCPUs; four and the admin queue is the usual case.
    let guaranteed = planned.tenants.iter().filter(|index| config.tenants[**index].is_guaranteed()).count() as u16;
    let mut lpns = drive.with_hwqs(hwqs, guaranteed.saturating_mul(OWN_HWQS - 1), depth);
    lpns.variant = match settings.variant {
        LpnsVariant::Published => Variant::Published,
        LpnsVariant::Corrected => Variant::Corrected,
    };
    lpns.omega = f64::from(settings.omega);
    lpns.r_iops = settings.rate_iops.0 as f64;
    lpns.l_h = Nanos(settings.min_latency.0);
    if let Some(exclusive) = settings.exclusive_queues {
        lpns.hwqs_exclusive = exclusive.min(hwqs - 1);
        lpns.hwqs_shared = hwqs - lpns.hwqs_exclusive;
    }
    if let Some(shared) = settings.shared_queues {
        lpns.hwqs_shared = shared.clamp(1, hwqs - lpns.hwqs_exclusive);
    }
    Ok(Lpns::new(lpns).context("[policy]")?.into())
}
