//! Arbitration among a client's NVMe queues, as operators write it.

use io_model::{QueuePriority, WrrWeights};
use nvme_driver::Arbitration;
use nvme_spec::vendor::Quanta;

/// A priority by its name.
pub fn priority(text: &str) -> Result<QueuePriority, String> {
    let known = QueuePriority::ALL.into_iter().find(|known| known.name() == text.trim());
    known.ok_or_else(|| format!("`{text}` is not a queue priority: use urgent, high, medium or low"))
}

/// `rr`; `wrr`, or `wrr:32,16,8` with the commands in a round of high, medium and low queues; `drr`, or `drr:128,64,32`
/// with their KiB.
pub fn arbitration(text: &str) -> Result<Arbitration, String> {
    let (kind, weights) = match text.trim().split_once(':') {
        Some((kind, weights)) => (kind, Some(weights)),
        None => (text.trim(), None),
    };
    match (kind, weights) {
        ("rr", None) => Ok(Arbitration::RoundRobin),
        ("rr", Some(_)) => Err("round robin (rr) has no weights: use wrr or drr".into()),
        ("wrr", None) => Ok(Arbitration::Weighted(None)),
        ("drr", None) => Ok(Arbitration::Deficit(None)),
        ("wrr", Some(weights)) => {
            let [high, medium, low] = three(weights, 256, "commands")?;
            Ok(Arbitration::Weighted(Some(WrrWeights { high, medium, low })))
        }
        ("drr", Some(weights)) => {
            let [high_kib, medium_kib, low_kib] = three(weights, Quanta::MAX_KIB, "KiB")?;
            Ok(Arbitration::Deficit(Some(Quanta { high_kib, medium_kib, low_kib })))
        }
        _ => Err(format!("`{kind}` is not an arbitration: use rr, wrr or drr")),
    }
}

/// The weights of high, medium and low.
fn three(text: &str, most: u16, unit: &str) -> Result<[u16; 3], String> {
    let weight = |text: &str| text.trim().parse().ok().filter(|weight| (1..=most).contains(weight));
    let weights: Option<Vec<u16>> = text.split(',').map(weight).collect();
    let three = weights.and_then(|weights| <[u16; 3]>::try_from(weights).ok());
    three.ok_or_else(|| format!("`{text}` are not three weights (high,medium,low) of 1 to {most} {unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arbitrations_and_their_weights() {
        for (text, expected) in [
            ("rr", Arbitration::RoundRobin),
            ("wrr", Arbitration::Weighted(None)),
            ("drr", Arbitration::Deficit(None)),
            ("wrr:256,16,1", Arbitration::Weighted(Some(WrrWeights { high: 256, medium: 16, low: 1 }))),
            ("drr: 1024, 64, 1", Arbitration::Deficit(Some(Quanta { high_kib: 1024, medium_kib: 64, low_kib: 1 }))),
        ] {
            assert_eq!(arbitration(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "fair",
            "rr:1,1,1",
            "wrr:",
            "wrr:1,1",
            "wrr:1,1,1,1",
            "wrr:0,1,1",
            "wrr:257,1,1",
            "drr:1025,1,1",
            "drr:-1,1,1",
        ] {
            assert!(arbitration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn priorities_by_name() {
        for text in ["urgent", "high", "medium", "low"] {
            assert_eq!(priority(text).map(QueuePriority::name), Ok(text));
        }
        assert!(priority("highest").is_err());
    }
}
