//! What is in flight where a cap is met: a policy learns what a command costs when it is fetched, so the last one may
//! overdraw it.

use super::{Flow, Pool, Price};

/// Points between nothing and the cap.
const POINTS: usize = 64;
/// From a cap of this many of the dearest commands on, the excess no longer depends on the cap.
const WIDE: f64 = 8.0;

/// Cost in flight on average when the cap is reached.
pub(super) fn in_flight_at_cap(pool: &Pool, flows: &[Flow]) -> f64 {
    let members = || pool.members.iter().map(|&at| &flows[at]);
    let (mut slots, mut held, mut cost, mut square, mut least) = (0.0, 0.0, 0.0, 0.0, f64::INFINITY);
    for flow in members() {
        slots += flow.x * flow.slot_ns;
        held += flow.x * flow.held_ns();
        cost += flow.x * flow.cost;
        square += flow.x * flow.cost_square;
        least = f64::min(least, flow.cost_least);
    }
    if slots <= 0.0 || cost <= 0.0 || !pool.cap.is_finite() {
        return pool.cap;
    }
    if pool.rounds {
        // Met exactly, where it is wide. Narrow: one command at a time.
        let narrow = (held / slots).max(pool.cap);
        let width = ((pool.cap - least) / (square / cost - least).max(1e-3)).clamp(0.0, 1.0);
        return narrow + (pool.cap - narrow) * width;
    }
    let prices = members().flat_map(|flow| {
        let part = move |price: &Price| price.part * flow.x * flow.slots_ns[price.kind] / slots;
        flow.prices.iter().map(move |price| (price.cost, part(price)))
    });
    match commands_until(pool.cap, prices) {
        Some(commands) => commands * held / slots,
        None => pool.cap + square / cost / 2.0,
    }
}

/// How many commands are admitted one after another until they cost `cap` together. By Wald's identity their cost is
/// then that number times the mean. `prices`: each cost and how often it occurs. `None` if the cap is too wide for it
/// to matter, or for this to be exact.
fn commands_until(cap: f64, prices: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let step = cap / POINTS as f64;
    let mut parts = [0.0_f64; POINTS + 1];
    let (mut dearest, mut least) = (0.0_f64, f64::INFINITY);
    for (cost, part) in prices {
        (dearest, least) = (dearest.max(cost), least.min(cost));
        parts[((cost / step).round() as usize).clamp(1, POINTS)] += part;
    }
    if least < step || cap > WIDE * dearest {
        return None;
    }
    let mut commands = [0.0_f64; POINTS + 1];
    for at in 1..=POINTS {
        commands[at] = 1.0 + (1..at).map(|cost| parts[cost] * commands[at - cost]).sum::<f64>();
    }
    Some(commands[POINTS])
}

impl Flow {
    /// How long a command holds what it costs, as cost times ns.
    pub(super) fn held_ns(&self) -> f64 {
        if self.prices.is_empty() {
            return self.cost * self.slot_ns;
        }
        self.prices
            .iter()
            .filter(|price| !price.is_paced)
            .map(|price| price.part * price.cost * self.slots_ns[price.kind])
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_command_overdraws_the_cap() {
        let until = |cap, prices: &[(f64, f64)]| commands_until(cap, prices.iter().copied()).unwrap();
        // A whole number of them fits, or the last one is too much.
        assert!((until(8.0, &[(2.0, 1.0)]) - 4.0).abs() < 1e-9);
        assert!((until(7.0, &[(2.0, 1.0)]) - 4.0).abs() < 1e-9);
        // Small ones until the first large one.
        assert!((until(4.0, &[(1.0, 0.5), (32.0, 0.5)]) - 1.875).abs() < 1e-9);
        assert_eq!(commands_until(100.0, [(1.0, 1.0)].into_iter()), None);
    }
}
