//! Deterministic network calculus as far as one drive needs it: one token bucket at one rate-latency server, in closed
//! form.
//!
//! Work is counted in reference commands (4 KiB random writes), rates in commands per second, spans in ns.
//!
//! The published rule (LPNS, Eq. 1 to 5) is [`published_rate`], [`published_burst`] and [`published_bound`]; its
//! service curve β(t) = R·t + L_h serves work before it arrives, so the bound that really holds is kept apart:
//! [`delay_bound`], with a rate-latency curve, and only where the arrivals don't outrun the drive. It is for commands
//! served in the order that they came.

use io_model::Nanos;

const NANOS_PER_SECOND: f64 = 1e9;

/// What the sources may send: α(t) = v·t + b in any span t.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArrivalCurve {
    /// v, commands per second.
    pub rate_iops: f64,
    /// b, commands at once.
    pub burst: f64,
}

/// What the drive serves at least: β(t) = R·max(0, t − T), a rate-latency curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServiceCurve {
    /// R, commands per second.
    pub rate_iops: f64,
    /// T: the completion latency of a command that finds the drive empty (L_h).
    pub latency: Nanos,
}

impl ServiceCurve {
    /// Commands served at least within `span` of a busy drive.
    pub fn at(&self, span: Nanos) -> f64 {
        self.rate_iops * (span - self.latency).0 as f64 / NANOS_PER_SECOND
    }
}

/// Why no bound can be given: the sources may send faster than the drive serves, so that the backlog
/// grows without end.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("arrivals of {arriving_iops:.0}/s outrun a service of {served_iops:.0}/s: no bound holds")]
pub struct Unstable {
    /// v, commands per second.
    pub arriving_iops: f64,
    /// R, commands per second.
    pub served_iops: f64,
}

fn stable(arrival: &ArrivalCurve, service: &ServiceCurve) -> Result<(), Unstable> {
    // The negation also refuses rates that are no numbers.
    if !(arrival.rate_iops <= service.rate_iops && service.rate_iops > 0.0) {
        return Err(Unstable { arriving_iops: arrival.rate_iops, served_iops: service.rate_iops });
    }
    Ok(())
}

/// Longest time that a command spends in the drive: b/R + T, the horizontal distance of the curves.
///
/// # Errors
/// [`Unstable`] unless v ≤ R.
pub fn delay_bound(arrival: &ArrivalCurve, service: &ServiceCurve) -> Result<Nanos, Unstable> {
    stable(arrival, service)?;
    Ok(span(arrival.burst / service.rate_iops) + service.latency)
}

/// Commands in the drive, the waiting one included, with which `target` still holds: R·(target − T). 0
/// where the target is shorter than an empty drive's latency.
pub fn in_flight_for(target: Nanos, service: &ServiceCurve) -> f64 {
    service.at(target)
}

/// LPNS Eq. 1, v = p·Ω: the drive-wide submission rate that the θ rule allows, commands per second.
pub fn published_rate(guaranteed_iops: f64, omega: f64) -> f64 {
    guaranteed_iops * omega
}

/// LPNS Eq. 2, b = d·Ω: the commands that the rule takes to be sent at once. Nothing enforces it.
pub fn published_burst(depth: u32, omega: f64) -> f64 {
    f64::from(depth) * omega
}

/// LPNS Eq. 5 as printed: L_max = d·Ω/R + L_h. It holds only if b is enforced and v ≤ R.
pub fn published_bound(depth: u32, omega: f64, service: &ServiceCurve) -> Nanos {
    span(published_burst(depth, omega) / service.rate_iops) + service.latency
}

/// Seconds as a span; what is not finite is "never".
fn span(seconds: f64) -> Nanos {
    let nanos = seconds * NANOS_PER_SECOND;
    if nanos.is_finite() { Nanos(nanos.round() as u64) } else { Nanos::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P5800X: ServiceCurve = ServiceCurve { rate_iops: 800_000.0, latency: Nanos(11_050) };

    #[test]
    fn printed_figures_of_eq_5() {
        assert_eq!(published_bound(1, 10.0, &P5800X), Nanos(23_550));
        assert_eq!(published_bound(1, 190.0, &P5800X), Nanos(248_550));
        assert_eq!(published_bound(2, 190.0, &P5800X), Nanos(486_050));
    }

    #[test]
    fn a_bound_of_50_us_needs_omega_31() {
        assert!((in_flight_for(Nanos::from_micros(50), &P5800X) - 31.16).abs() < 1e-9);
        assert!(published_bound(1, 31.0, &P5800X) <= Nanos::from_micros(50));
        assert!(published_bound(1, 32.0, &P5800X) > Nanos::from_micros(50));
        assert_eq!(in_flight_for(Nanos::from_micros(11), &P5800X), 0.0);
    }

    #[test]
    fn no_command_of_a_simulated_queue_takes_longer_than_the_bound() {
        // Bursts as large as may be, at rates up to the drive's, and a command every now and then.
        for (rate_iops, burst) in [(800_000.0, 1_u32), (800_000.0, 64), (500_000.0, 200), (1_000.0, 31)] {
            let bound = delay_bound(&ArrivalCurve { rate_iops, burst: burst.into() }, &P5800X).unwrap();
            let (mut free_ns, mut longest_ns) = (0.0_f64, 0.0_f64);
            for command in 0..20_000 {
                let arrived_ns = f64::from((command + 1_u32).saturating_sub(burst)) * 1e9 / rate_iops;
                free_ns = free_ns.max(arrived_ns) + 1e9 / P5800X.rate_iops;
                longest_ns = longest_ns.max(free_ns + P5800X.latency.0 as f64 - arrived_ns);
            }
            assert!(longest_ns <= bound.0 as f64 + 1.0, "{longest_ns} of {bound}");
            assert!(longest_ns >= bound.0 as f64 * 0.9, "the bound is met: {longest_ns} of {bound}");
        }
    }

    #[test]
    fn the_published_rule_binds_only_below_4_2k_iops() {
        // v = p·Ω reaches R at p = R/Ω = 4210.5 IOPS: above, Eq. 1 allows more than the drive serves.
        assert!(published_rate(4_210.0, 190.0) < P5800X.rate_iops);
        assert!(published_rate(4_211.0, 190.0) > P5800X.rate_iops);
    }

    #[test]
    fn bounds_hold_up_to_the_rate_and_not_above() {
        let arrival = ArrivalCurve { rate_iops: 800_000.0, burst: 31.0 };
        assert_eq!(delay_bound(&arrival, &P5800X), Ok(Nanos(38_750 + 11_050)));
        let faster = ArrivalCurve { rate_iops: 800_001.0, ..arrival };
        let refused = Unstable { arriving_iops: 800_001.0, served_iops: 800_000.0 };
        assert_eq!(delay_bound(&faster, &P5800X), Err(refused));
        let nonsense = ArrivalCurve { rate_iops: f64::NAN, burst: 1.0 };
        assert!(delay_bound(&nonsense, &P5800X).is_err());
    }

    #[test]
    fn the_service_curve_is_a_rate_latency_server() {
        assert_eq!(P5800X.at(Nanos(11_050)), 0.0);
        assert_eq!(P5800X.at(Nanos(5)), 0.0);
        assert!((P5800X.at(Nanos(21_050)) - 8.0).abs() < 1e-9);
    }
}
