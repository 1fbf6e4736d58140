//! The settings of policies that promises depend on, and which of their values to try.

use policy::{ArbitratedConfig, PolicyConfig};

use crate::{Planner, Tenant};

/// A key under `[policy]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Setting {
    /// R of `lpns`: what the drive is taken to sustain, from which best effort's share follows.
    RateIops,
    /// What all tenants together may have with the drive under `wrr` and `drr`.
    MaxInFlight,
    /// The weight of the class high under `wrr` and `drr`.
    HighWeight,
    /// The weight of the class medium.
    MediumWeight,
    /// The weight of the class low.
    LowWeight,
}

/// Steps between neighbouring values that are tried, beyond the first twenty: nobody wants advice to the last digit.
const STEP: f64 = 1.1;

impl Setting {
    /// Those that a policy has.
    pub fn of(policy: &PolicyConfig) -> &'static [Self] {
        match policy {
            PolicyConfig::Lpns(_) => &[Self::RateIops],
            PolicyConfig::Wrr(_) | PolicyConfig::Drr(_) => {
                &[Self::MaxInFlight, Self::HighWeight, Self::MediumWeight, Self::LowWeight]
            }
            _ => &[],
        }
    }

    /// As a configuration spells it.
    pub fn key(self) -> &'static str {
        match self {
            Self::RateIops => "rate_iops",
            Self::MaxInFlight => "max_in_flight",
            Self::HighWeight => "high_weight",
            Self::MediumWeight => "medium_weight",
            Self::LowWeight => "low_weight",
        }
    }

    /// Its value; `None` where the policy has no such setting.
    pub fn get(self, policy: &PolicyConfig) -> Option<u32> {
        match (self, policy) {
            (Self::RateIops, PolicyConfig::Lpns(lpns)) => Some(lpns.r_iops.round() as u32),
            (_, PolicyConfig::Wrr(config) | PolicyConfig::Drr(config)) => match self {
                Self::MaxInFlight => Some(config.max_in_flight),
                Self::HighWeight => Some(config.high_weight.into()),
                Self::MediumWeight => Some(config.medium_weight.into()),
                Self::LowWeight => Some(config.low_weight.into()),
                Self::RateIops => None,
            },
            _ => None,
        }
    }

    /// The policy with another value, held to the setting's range; itself where it has no such setting.
    #[must_use]
    pub fn with(self, policy: &PolicyConfig, value: u32) -> PolicyConfig {
        let mut policy = policy.clone();
        let (low, high) = self.range(&policy);
        let value = value.clamp(low, high);
        let weight = u16::try_from(value).unwrap_or(u16::MAX);
        let set = |config: &mut ArbitratedConfig| match self {
            Self::MaxInFlight => config.max_in_flight = value,
            Self::HighWeight => config.high_weight = weight,
            Self::MediumWeight => config.medium_weight = weight,
            Self::LowWeight => config.low_weight = weight,
            Self::RateIops => {}
        };
        match (&mut policy, self) {
            (PolicyConfig::Lpns(lpns), Self::RateIops) => lpns.r_iops = f64::from(value),
            (PolicyConfig::Wrr(config) | PolicyConfig::Drr(config), _) => set(config),
            _ => {}
        }
        policy
    }

    /// What a configuration accepts.
    fn range(self, policy: &PolicyConfig) -> (u32, u32) {
        match self {
            Self::RateIops => (1_000, 100_000_000),
            Self::MaxInFlight => (1, 65_536),
            _ if matches!(policy, PolicyConfig::Wrr(_)) => (1, 256),
            _ => (1, 1024),
        }
    }

    /// The value nearest to the present one at which every promise seems to hold that can, by short plays. `None`: no
    /// value helps, or none of those that were tried.
    ///
    /// A promise may depend on a setting in either direction, and fail at both ends (a drive held too short serves
    /// nobody), so a few values far apart are tried first, then those between the nearest that helps and its
    /// neighbour that does not.
    pub(crate) fn nearest_kept(self, planner: &Planner<'_>, policy: &PolicyConfig, tenants: &[Tenant]) -> Option<u32> {
        let present = self.get(policy)?;
        let kept = |value: u32| planner.seems_kept(&self.with(policy, value), tenants);
        let (low, high) = self.range(policy);
        let sides = [steps(present, low), steps(present, high)];
        let found = sides.iter().filter_map(|values| first_kept(values, &kept));
        let distance = |value: u32| (f64::from(value.max(1)) / f64::from(present.max(1))).ln().abs();
        found.min_by(|a, b| distance(*a).total_cmp(&distance(*b)))
    }
}

/// Round values from `from`, itself not among them, to `to`.
fn steps(from: u32, to: u32) -> Vec<u32> {
    let mut values = vec![];
    let mut value = from;
    while value != to {
        let next = if to > value {
            round(((f64::from(value) * STEP) as u32).max(value.saturating_add(1)), true).min(to)
        } else {
            round(((f64::from(value) / STEP) as u32).min(value - 1), false).max(to)
        };
        values.push(next);
        value = next;
    }
    values
}

/// To two digits.
fn round(value: u32, up: bool) -> u32 {
    let unit = 10u32.pow(value.max(1).ilog10().saturating_sub(1));
    let down = value / unit * unit;
    if up && down < value { down.saturating_add(unit) } else { down.max(1) }
}

/// How many values far apart are tried on each side.
const PROBES: usize = 3;

/// The first of these values that helps, as far as probing finds it.
fn first_kept(values: &[u32], kept: &impl Fn(u32) -> bool) -> Option<u32> {
    let last = values.len().checked_sub(1)?;
    let mut probes: Vec<usize> = (1..=PROBES).map(|probe| last * probe / PROBES).collect();
    probes.dedup();
    let best = probes.iter().position(|at| kept(values[*at]))?;
    // Between a value that does not help and one that does.
    let low = if best == 0 { 0 } else { probes[best - 1] + 1 };
    let between = &values[low..probes[best]];
    Some(values[low + between.partition_point(|value| !kept(*value))])
}

#[cfg(test)]
mod tests {
    use policy::LpnsConfig;

    use super::*;
    use crate::fake;

    #[test]
    fn steps_are_round_and_reach_the_end() {
        assert_eq!(steps(16, 8), [14, 12, 10, 9, 8]);
        assert_eq!(steps(8, 12), [9, 10, 11, 12]);
        assert_eq!(steps(5, 5), []);
        assert_eq!(steps(190, 1_000_000).last(), Some(&1_000_000));
        assert!(steps(100_000_000, 1_000).len() < 140);
        assert!(steps(190, 1).windows(2).all(|pair| pair[1] < pair[0]));
    }

    #[test]
    fn a_setting_that_is_written_reads_back_within_its_range() {
        let policies = [
            PolicyConfig::Lpns(LpnsConfig::p5800x()),
            PolicyConfig::Wrr(ArbitratedConfig::wrr()),
            PolicyConfig::Drr(ArbitratedConfig::drr()),
        ];
        for policy in &policies {
            for setting in Setting::of(policy) {
                let (low, high) = setting.range(policy);
                for (written, read) in [(0, low), (low, low), (high, high), (u32::MAX, high)] {
                    assert_eq!(setting.get(&setting.with(policy, written)), Some(read), "{}", setting.key());
                }
            }
        }
        assert_eq!(Setting::of(&PolicyConfig::Passthrough), []);
        assert_eq!(Setting::RateIops.get(&PolicyConfig::Passthrough), None);
    }

    /// Wherever the window of good values lies, the nearest of them is found, and the model is not asked often.
    #[test]
    fn the_nearest_value_that_helps_is_found() {
        let site = fake::site();
        let tenants = [fake::guaranteed("db", 100)];
        for (present, good, expected) in
            [(64, 1..=16, 16), (64, 200..=65_536, 200), (64, 1..=65_536, 71), (4, 8..=100, 8)]
        {
            let planner = Planner::with_model(&site, |policy: &PolicyConfig, _: &[Tenant]| {
                let value = Setting::MaxInFlight.get(policy).expect("wrr has one");
                Ok(fake::one(if good.contains(&value) { 50 } else { 500 }))
            });
            let config = ArbitratedConfig { max_in_flight: present, ..ArbitratedConfig::wrr() };
            let found = Setting::MaxInFlight.nearest_kept(&planner, &PolicyConfig::Wrr(config), &tenants);
            let found = found.expect("there is one");
            let near = f64::from(found) / f64::from(expected);
            assert!((1.0 / STEP..=STEP).contains(&near) && good.contains(&found), "{present} {good:?}: {found}");
            assert!(planner.questions() <= 24, "{} questions", planner.questions());
        }
    }
}
