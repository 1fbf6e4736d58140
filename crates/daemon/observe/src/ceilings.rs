//! Whether tenants do all that their limits, or those of their group, let them do.

use std::collections::BTreeMap;

use policy::Limits;

/// A tenant that uses this fraction of its limits waits for them, of the time in which its poller has a CPU.
const HELD: f64 = 0.9;

/// A ceiling that is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ceiling {
    /// In words.
    pub limits: String,
    /// The group whose ceiling it is. `None`: the tenant's own.
    pub group: Option<String>,
}

impl Ceiling {
    /// `limits`, if `load` reaches them.
    pub(crate) fn reached(limits: &Limits, load: Load, group: Option<&str>) -> Option<Self> {
        let limits = limits.in_words().filter(|_| load.reaches(limits))?;
        Some(Self { limits, group: group.map(str::to_owned) })
    }

    /// Why the tenant does no more, in words.
    pub fn in_words(&self) -> String {
        match &self.group {
            Some(group) => format!("its group {group:?} is limited to {}", self.limits),
            None => format!("it is limited to {}", self.limits),
        }
    }
}

/// What a tenant does per second, or several together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Load {
    /// All commands, reads, and the others.
    ios: [f64; 3],
    /// Bytes of these.
    bytes: [f64; 3],
    /// The part of the time, 0 to 1, in which its poller waited for a CPU: limits let nothing through meanwhile.
    starved: f64,
}

impl Load {
    /// `iops` commands and `bytes_s` bytes per second, of which `read_share`, 0 to 1, are reads.
    pub fn new(iops: f64, bytes_s: f64, read_share: f64) -> Self {
        let parts = [1.0, read_share, 1.0 - read_share];
        Self { ios: parts.map(|part| iops * part), bytes: parts.map(|part| bytes_s * part), starved: 0.0 }
    }

    /// Its poller waited this part of the time for a CPU.
    pub fn starved(self, part: f64) -> Self {
        Self { starved: part.clamp(0.0, 1.0), ..self }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        let add = |one: [f64; 3], two: [f64; 3]| std::array::from_fn(|at| one[at] + two[at]);
        let starved = self.starved.max(other.starved);
        Self { ios: add(self.ios, other.ios), bytes: add(self.bytes, other.bytes), starved }
    }

    fn reaches(&self, to: &Limits) -> bool {
        let ios = [to.rw_ios_per_sec, to.r_ios_per_sec, to.w_ios_per_sec].map(|limit| limit as f64);
        let mbytes = [to.rw_mbytes_per_sec, to.r_mbytes_per_sec, to.w_mbytes_per_sec];
        let bytes = mbytes.map(|limit| limit as f64 * f64::from(1 << 20));
        let reached = |does: [f64; 3], limits: [f64; 3]| {
            let held = HELD * (1.0 - self.starved);
            does.iter().zip(limits).any(|(does, limit)| limit > 0.0 && *does > 0.0 && *does >= held * limit)
        };
        reached(self.ios, ios) || reached(self.bytes, bytes)
    }
}

/// The loads of a drive's tenants, by name.
#[derive(Debug, Default)]
pub struct Loads<'a>(BTreeMap<&'a str, Load>);

impl Loads<'_> {
    /// The load of a tenant. None is known: 0.
    pub(crate) fn of(&self, tenant: &str) -> Load {
        self.0.get(tenant).copied().unwrap_or_default()
    }
}

impl<'a> FromIterator<(&'a str, Load)> for Loads<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a str, Load)>>(loads: I) -> Self {
        Self(loads.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foresight::Foresight;

    const FILE: &str = "[device]\nbackend = \"model\"\nprofile = \"p5800x\"\nsize = \"64MiB\"\n\
        [[group]]\nname = \"vm7\"\nrw_iops = \"10k\"\n\
        [[tenant]]\nname = \"root\"\nsize = \"8MiB\"\ngroup = \"vm7\"\n\
        [[tenant]]\nname = \"data\"\nsize = \"8MiB\"\ngroup = \"vm7\"\nr_iops = \"3k\"\n\
        [[tenant]]\nname = \"other\"\nsize = \"8MiB\"\n";

    /// A member would be told that the drive is slow.
    #[test]
    fn a_group_that_reaches_its_ceiling_together_holds_each_member() {
        let foresight = Foresight::of_file(FILE);
        let loads = |root: f64, data: f64, reads: f64| -> Loads<'_> {
            let load = |iops| Load::new(iops, iops * 4_096.0, reads);
            [("root", load(root)), ("data", load(data)), ("other", load(9_000.0))].into_iter().collect()
        };
        let words = |tenant: &str, loads: &Loads<'_>| foresight.ceiling_named(tenant, loads).map(|it| it.in_words());
        let together = loads(7_000.0, 2_500.0, 0.5);
        let group = Some("its group \"vm7\" is limited to 10k IOPS".to_owned());
        assert_eq!((words("root", &together), words("data", &together)), (group.clone(), group));
        assert_eq!(words("other", &together), None);
        // A third of the time no poller ran, and the group let nothing through.
        let less = |starved: f64| -> Loads<'_> {
            [("root", Load::new(7_000.0, 0.0, 0.5).starved(starved))].into_iter().collect()
        };
        assert_eq!((words("root", &less(0.0)), words("root", &less(0.33)).is_some()), (None, true));
        let apart = loads(4_000.0, 2_900.0, 1.0);
        assert_eq!(
            (words("root", &apart), words("data", &apart)),
            (None, Some("it is limited to reads 3k IOPS".into()))
        );
    }
}
