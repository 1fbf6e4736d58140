//! From a policy as configured to the policy that runs, for the daemon and the simulator alike.

use config::{Arbitrated, Policy, Variant};
use io_model::Nanos;
use policy::{
    AnyPolicy, ArbitratedConfig, ConfigError, D2fqConfig, FairConfig, FairVariant, K2Config, Lpns, LpnsConfig,
    MqfqConfig, PolicyConfig, PollerShape,
};
use ssd_model::Profile;

use crate::drive_profile;

/// The policy for a drive.
pub fn configure(policy: &Policy, profile: &Profile) -> PolicyConfig {
    match policy {
        Policy::Passthrough => PolicyConfig::Passthrough,
        Policy::Lpns(settings) => PolicyConfig::Lpns(lpns(settings, profile)),
        Policy::Fair(settings) => PolicyConfig::Fair(fair(settings, profile)),
        Policy::K2(settings) => PolicyConfig::K2(K2Config { max_in_flight: settings.max_in_flight }),
        Policy::Mqfq(settings) => PolicyConfig::Mqfq(MqfqConfig {
            gap_commands: settings.throttle_gap,
            max_in_flight: settings.max_in_flight,
            guaranteed_weight: settings.guaranteed_weight,
            cost: drive_profile::lpns(profile).cost,
        }),
        Policy::D2fq(settings) => PolicyConfig::D2fq(D2fqConfig {
            medium_gap_commands: settings.medium_gap,
            low_gap_commands: settings.low_gap,
            ratio: settings.ratio,
            adaptive: settings.adaptive,
            guaranteed_weight: settings.guaranteed_weight,
            cost: drive_profile::lpns(profile).cost,
        }),
        Policy::Wrr(settings) => PolicyConfig::Wrr(arbitrated(settings, profile)),
        Policy::Drr(settings) => PolicyConfig::Drr(arbitrated(settings, profile)),
        Policy::Caps => PolicyConfig::Caps,
    }
}

/// One poller's policy: `configured` is [`configure`]'s of `policy`.
///
/// # Errors
/// A setting out of its range.
pub fn build(policy: &Policy, configured: &PolicyConfig, shape: &PollerShape) -> Result<AnyPolicy, ConfigError> {
    let (Policy::Lpns(settings), PolicyConfig::Lpns(lpns)) = (policy, configured) else {
        return configured.build(shape);
    };
    let PollerShape { hwqs, hwq_depth, guaranteed_vqs } = *shape;
    let mut lpns = lpns.clone().with_hwqs(hwqs, guaranteed_vqs, hwq_depth);
    if let Some(exclusive) = settings.exclusive_queues {
        lpns.hwqs_exclusive = exclusive.min(hwqs.saturating_sub(1));
        lpns.hwqs_shared = hwqs - lpns.hwqs_exclusive;
    }
    if let Some(shared) = settings.shared_queues {
        lpns.hwqs_shared = shared.min(hwqs - lpns.hwqs_exclusive).max(1);
    }
    Ok(Lpns::new(lpns)?.into())
}

fn lpns(settings: &config::Lpns, profile: &Profile) -> LpnsConfig {
    let drive = drive_profile::lpns(profile);
    LpnsConfig {
        variant: match settings.variant {
            Variant::Published => policy::Variant::Published,
            Variant::Corrected => policy::Variant::Corrected,
        },
        omega: settings.omega.map_or(drive.omega, f64::from),
        r_iops: settings.rate_iops.map_or(drive.r_iops, |rate| rate.0 as f64),
        l_h: settings.min_latency.unwrap_or(drive.l_h),
        ..drive
    }
}

fn fair(settings: &config::Fair, profile: &Profile) -> FairConfig {
    let drive = drive_profile::fair(profile);
    let or = |own: Option<Nanos>, drive: Nanos| own.unwrap_or(drive);
    FairConfig {
        variant: match settings.variant {
            Variant::Published => FairVariant::Published,
            Variant::Corrected => FairVariant::Corrected,
        },
        thresh_min: or(settings.min_latency, drive.thresh_min),
        thresh_max: or(settings.max_latency, drive.thresh_max),
        epoch: or(settings.epoch, drive.epoch),
        ..drive
    }
}

fn arbitrated(settings: &Arbitrated, profile: &Profile) -> ArbitratedConfig {
    // The configuration holds weights to 1024.
    let weight = |weight: u32| u16::try_from(weight).unwrap_or(u16::MAX);
    ArbitratedConfig {
        high_weight: weight(settings.high_weight),
        medium_weight: weight(settings.medium_weight),
        low_weight: weight(settings.low_weight),
        arbitration_burst: weight(settings.arbitration_burst),
        max_in_flight: settings.max_in_flight.unwrap_or_else(|| drive_profile::saturating_in_flight(profile)),
    }
}
