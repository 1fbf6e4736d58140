//! The CPUs that this process may use, and whether its pollers are too many for them.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use super::nodes::Node;
use crate::config::Config;
use crate::problem::{Problem, Sink};
use crate::values::Mode;

/// As the kernel lists them: `0-3,8`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedCpus(String);

impl fmt::Display for AllowedCpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AllowedCpus {
    /// Those of this process. `None`: the kernel does not tell.
    pub fn of_this_process() -> Option<Self> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(Self::from_list(list))
    }

    /// From the kernel's list of CPUs.
    fn from_list(list: &str) -> Self {
        Self(list.trim().to_owned())
    }

    /// Whether `cpu` is among them.
    pub fn has(&self, cpu: u32) -> bool {
        self.ranges().any(|range| range.contains(&cpu))
    }

    /// Those that are on a node.
    pub fn on(&self, node: &Node) -> Vec<u32> {
        let near = Self::from_list(&node.cpu_list);
        self.ranges().flatten().filter(|cpu| near.has(*cpu)).collect()
    }

    fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u32>> {
        self.0.split(',').filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse().ok()?..=last.parse().ok()?)
        })
    }

    fn count(&self) -> usize {
        self.ranges().map(Iterator::count).sum()
    }

    /// Of a CPU that is none of them: what is wrong, and what to do.
    pub fn refuse(&self, cpu: u32) -> Option<(String, String)> {
        let refused = || (format!("CPU {cpu} is not one that this process may use"), format!("choose from {self}"));
        (!self.has(cpu)).then(refused)
    }
}

impl Config {
    pub(super) fn check_cpus(&self, sink: &mut Sink<'_>, allowed: &AllowedCpus) {
        for (cpus, mark) in self.named_cpus() {
            for (what, remedy) in cpus.iter().filter_map(|cpu| allowed.refuse(*cpu)) {
                sink.maybe_at(mark, what, remedy);
            }
        }
    }

    /// Warns of CPUs that the configuration names and that are not on the drive's node.
    pub(super) fn warn_far_cpus(&self, warnings: &mut Sink<'_>, Node { number, cpu_list }: &Node) {
        let near = AllowedCpus::from_list(cpu_list);
        for (named, mark) in self.named_cpus() {
            let far: Vec<String> = named.iter().filter(|cpu| !near.has(**cpu)).map(u32::to_string).collect();
            if !far.is_empty() {
                let far = far.join(", ");
                let what =
                    format!("CPU {far} is not on the drive's NUMA node {number}: each command crosses between nodes");
                warnings.maybe_at(mark, what, format!("choose from the node's CPUs, {near}"));
            }
        }
    }

    /// All CPUs that the configuration names, with their places in the file.
    fn named_cpus(&self) -> impl Iterator<Item = (&[u32], Option<&Range<usize>>)> {
        let shared = (&self.pollers.cpus[..], self.marks.cpus.as_ref());
        let own = self.tenants.iter().map(|tenant| (tenant.frontend.cpus(), tenant.marks.frontend.cpus.as_ref()));
        std::iter::once(shared).chain(own)
    }
}

/// Of the pollers of all drives: whether they have fewer CPUs than they would keep busy.
pub fn warn_crowded<'c>(each: impl Iterator<Item = &'c Config> + Clone, allowed: &AllowedCpus) -> Option<Problem> {
    let cpus = allowed.count();
    let of_mode = |mode: Mode| {
        let plans = each.clone().flat_map(Config::poller_plan);
        plans.filter(|poller| poller.mode == mode).count()
    };
    let (polling, adaptive) = (of_mode(Mode::Polling), of_mode(Mode::Adaptive));
    let may_use = format!("and this process may use {cpus} CPU{}", if cpus == 1 { "" } else { "s" });
    let (what, remedy) = match () {
        () if polling > cpus => (
            format!("{polling} pollers never sleep (mode = \"polling\"), {may_use}"),
            "write mode = \"adaptive\", or let tenants share threads",
        ),
        () if polling + adaptive > cpus => (
            format!(
                "{} pollers keep a CPU busy while they have commands, {may_use}: waiting for a CPU breaks promises",
                polling + adaptive
            ),
            "let the daemon have more CPUs, let tenants share pollers (threads = \
             \"shared\" of those with a thread for each queue), or write mode = \"event\" where latency does not \
             matter",
        ),
        () => return None,
    };
    let mut tenants = each.clone().flat_map(|config| config.tenants.iter().map(move |tenant| (config, tenant)));
    let first = tenants.find(|(_, tenant)| polling > cpus && tenant.frontend.mode() == Mode::Polling);
    let place =
        first.and_then(|(config, tenant)| tenant.marks.frontend.mode.as_ref().and_then(|mark| config.text.find(mark)));
    Some(Problem { place, what, remedy: remedy.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn allowed(list: &str) -> AllowedCpus {
        AllowedCpus(list.to_owned())
    }

    #[test]
    fn cpu_lists_are_read() {
        let list = allowed("0,2-3,8");
        assert!([0, 2, 3, 8].iter().all(|cpu| list.refuse(*cpu).is_none()));
        assert!([1, 4, 9].iter().all(|cpu| list.refuse(*cpu).is_some()));
        assert!(allowed("").refuse(0).is_some());
        assert_eq!((list.count(), allowed("").count()), (4, 0));
        assert!(AllowedCpus::of_this_process().is_some_and(|cpus| cpus.count() > 0));
    }

    const TEXT: &str = "[device]\nbackend = \"memory\"\nsize = \"1GiB\"\n[policy]\nname = \"passthrough\"\n\
                        [pollers]\ncpus = [3]\n[[tenant]]\nname = \"a\"\nsize = \"4MiB\"\n\
                        [[tenant]]\nname = \"b\"\nsize = \"4MiB\"\nfrontend = \"vhost-user-blk\"\nqueues = 3\n\
                        threads = \"per-queue\"\nmode = \"polling\"\ncpus = [0, 1, 2]\n";

    fn config(text: &str) -> Config {
        Config::parse(Path::new("ek.toml"), text).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn threads_have_cpus_that_this_process_may_use() {
        let config = config(TEXT);
        let told = |list: &str| -> Vec<String> {
            let mut sink = Sink::new(&config.text);
            config.check_cpus(&mut sink, &allowed(list));
            let told = |it: Problem| format!("{}: {}; {}", it.place.map_or(0, |at| at.line), it.what, it.remedy);
            sink.into_problems().into_iter().map(told).collect()
        };
        assert_eq!(told("0-3"), [""; 0]);
        let missing = |line, cpu| format!("{line}: CPU {cpu} is not one that this process may use; choose from 0,2");
        assert_eq!(told("0,2"), [missing(7, 3), missing(18, 1)]);
    }

    #[test]
    fn pollers_that_are_more_than_cpus_are_warned_of() {
        let (one, sleeps) = (config(TEXT), config(&TEXT.replace("\"polling\"", "\"event\"")));
        let told = |each: &[&Config], list: &str| {
            let problem = warn_crowded(each.iter().copied(), &allowed(list))?;
            Some(format!("{}: {}", problem.place.map_or(0, |at| at.line), problem.what))
        };
        assert_eq!(told(&[&one], "0-3"), None);
        let busy = "4 pollers keep a CPU busy while they have commands, and this process may use 3 CPUs";
        assert!(told(&[&one], "0-2").is_some_and(|told| told.contains(busy)));
        let never = "17: 3 pollers never sleep (mode = \"polling\"), and this process may use 2 CPUs";
        assert_eq!(told(&[&one], "0,2").as_deref(), Some(never));
        assert_eq!(told(&[&sleeps], "0"), None, "one is adaptive");
        assert!(
            told(&[&sleeps, &sleeps], "0").is_some_and(|told| told.contains("2 pollers") && told.contains("1 CPU:"))
        );
    }

    #[test]
    fn named_cpus_of_other_nodes_are_warned_of() {
        let text = "[device]\nbackend = \"memory\"\nsize = \"1GiB\"\n[policy]\nname = \"passthrough\"\n\
                    [pollers]\ncpus = [8, 3, 4]\n[[tenant]]\nname = \"a\"\nsize = \"4MiB\"\n";
        let config = config(text);
        let mut warnings = Sink::new(&config.text);
        let node = Node { number: 1, cpu_list: "8-15".to_owned() };
        config.warn_far_cpus(&mut warnings, &node);
        let [told] = &warnings.into_problems()[..] else { panic!("one warning") };
        assert_eq!(told.place.as_ref().map(|place| place.line), Some(7));
        assert_eq!(told.what, "CPU 3, 4 is not on the drive's NUMA node 1: each command crosses between nodes");
        assert_eq!(told.remedy, "choose from the node's CPUs, 8-15");
    }
}
