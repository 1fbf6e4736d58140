//! The host's huge pages, of which a drive in memory may be made.

use io_model::units::Size;

use crate::config::{Backend, Config};
use crate::drives::Found;
use crate::problem::{ConfigErrors, Sink};

/// The host's huge pages of the default size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HugePages {
    page_bytes: u64,
    /// Reserved by the operator, in use or not.
    reserved: u64,
    /// Nobody has or was promised them.
    free: u64,
    /// How many the kernel may make beside those that are reserved, and has not made.
    to_make: u64,
}

impl HugePages {
    /// `None`: they can't be looked at, or the kernel has none.
    fn of_host() -> Option<Self> {
        let overcommit = std::fs::read_to_string("/proc/sys/vm/nr_overcommit_hugepages").unwrap_or_default();
        Self::parse(&std::fs::read_to_string("/proc/meminfo").ok()?, &overcommit)
    }

    fn parse(meminfo: &str, overcommit: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let surplus = field("HugePages_Surp")?;
        Some(Self {
            page_bytes: field("Hugepagesize").filter(|kib| *kib > 0)?.checked_mul(1 << 10)?,
            reserved: field("HugePages_Total")?.saturating_sub(surplus),
            free: field("HugePages_Free")?.saturating_sub(field("HugePages_Rsvd")?),
            to_make: overcommit.trim().parse::<u64>().unwrap_or(0).saturating_sub(surplus),
        })
    }

    /// How many hold so much.
    fn holding(&self, size: Size) -> u64 {
        size.0.div_ceil(self.page_bytes)
    }

    /// Whether the host could have this many, if none were in use.
    fn can_have(&self, pages: u64) -> bool {
        pages <= self.reserved + self.to_make
    }

    /// Whether this many can be allocated now.
    fn has(&self, pages: u64) -> bool {
        pages <= self.free + self.to_make
    }

    /// The error that a drive named `label` needs `needed` pages, after others that need `before` and do not have them
    /// yet.
    fn short_of(&self, label: &str, needed: u64, before: u64) -> (String, String) {
        let Self { reserved, free, .. } = *self;
        let others = if before > 0 { format!(" beside {before} for other drives") } else { String::new() };
        let size = Size(self.page_bytes);
        let what = format!("{label} needs {needed} huge pages of {size}{others}: {free} of {reserved} are free");
        let to_reserve = reserved.saturating_sub(free) + before + needed;
        (what, format!("reserve them: sysctl vm.nr_hugepages={to_reserve}"))
    }
}

impl Config {
    /// The error for a drive in huge pages that the kernel did not give.
    pub fn no_huge_pages(&self, why: impl std::fmt::Display) -> ConfigErrors {
        let (mut sink, label) = (Sink::new(&self.text), self.device.section());
        let short = HugePages::of_host().filter(|host| !host.has(self.huge_pages(host)));
        let (what, remedy) = match short {
            Some(host) => host.short_of(&label, self.huge_pages(&host), 0),
            None => (
                format!("{label} can't be had in huge pages: {why}"),
                "see how many are free (`grep Huge /proc/meminfo`), and what else limits this process: \
                 `hugetlb.*.max` of its cgroup, its NUMA nodes; `sysctl vm.nr_hugepages=…` reserves more"
                    .to_owned(),
            ),
        };
        sink.maybe_at(self.marks.huge_pages.as_ref(), what, remedy + OR_SMALL);
        ConfigErrors { file: self.file().to_owned(), problems: sink.into_problems() }
    }

    /// How many its drive is made of.
    fn huge_pages(&self, host: &HugePages) -> u64 {
        match self.device.backend {
            Backend::Memory { huge_pages: true } => host.holding(self.device.size.unwrap_or_default()),
            _ => 0,
        }
    }
}

const OR_SMALL: &str = "; or lower size, or remove huge_pages";

impl Found {
    /// Whether the host has the huge pages for it, and for those that are found already. A daemon that runs may have
    /// them: so it is refused only where the host has too few, and else told.
    pub(crate) fn check_huge_pages<'c>(&mut self, found: impl Iterator<Item = &'c Config>) -> Result<(), ConfigErrors> {
        match HugePages::of_host() {
            Some(host) => self.check_huge_pages_of(&host, found),
            None => Ok(()),
        }
    }

    fn check_huge_pages_of<'c>(
        &mut self,
        host: &HugePages,
        found: impl Iterator<Item = &'c Config>,
    ) -> Result<(), ConfigErrors> {
        let config = &self.config;
        let needed = config.huge_pages(host);
        let before: u64 = found.map(|other| other.huge_pages(host)).sum();
        if needed == 0 || host.has(before + needed) {
            return Ok(());
        }
        let (what, remedy) = host.short_of(&config.device.section(), needed, before);
        let (mut sink, mark) = (Sink::new(&config.text), config.marks.huge_pages.as_ref());
        if host.can_have(before + needed) {
            let remedy =
                format!("stop the program that has the others, perhaps a daemon that serves this file, or {remedy}");
            sink.maybe_at(mark, what, remedy);
            self.host.warnings.extend(sink.into_problems());
            return Ok(());
        }
        sink.maybe_at(mark, what, remedy + OR_SMALL);
        sink.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use layout::LayoutFile;

    use super::*;

    fn host(total: u32, free: u32, promised: u32, surplus: u32, overcommit: &str) -> HugePages {
        let meminfo = format!(
            "MemFree: 7 kB\nHugePages_Total:  {total}\nHugePages_Free:   {free}\nHugePages_Rsvd:  {promised}\n\
             HugePages_Surp:   {surplus}\nHugepagesize:   2048 kB\n"
        );
        HugePages::parse(&meminfo, overcommit).expect("figures")
    }

    fn drive(name: &str, size: &str) -> Found {
        let text = format!(
            "[[drive]]\nname = \"{name}\"\nbackend = \"memory\"\nsize = \"{size}\"\nhuge_pages = true\n\
             [policy]\nname = \"passthrough\"\n"
        );
        let config = Config::parse(Path::new("ek.toml"), &text).unwrap_or_else(|e| panic!("{e}"));
        let host = config.of_no_file();
        Found { config, host, file: LayoutFile::open(None).expect("no layout") }
    }

    /// What is said of the drive, as a warning or not at all (`Ok`), or as an error.
    fn told(drive: &mut Found, host: &HugePages, before: &[&Found]) -> Result<String, String> {
        let before = before.iter().map(|found| &found.config);
        drive.check_huge_pages_of(host, before).map_err(|errors| errors.to_string())?;
        Ok(drive.host.warnings.iter().map(|warning| warning.in_file(Path::new("ek.toml"))).collect())
    }

    #[test]
    fn what_the_host_has_is_read() {
        let all = HugePages { page_bytes: 2 << 20, reserved: 10, free: 6, to_make: 0 };
        assert_eq!(host(10, 8, 2, 0, "0\n"), all);
        assert_eq!(host(12, 8, 2, 2, "5\n"), HugePages { to_make: 3, ..all }, "two of the five are made");
        assert_eq!(HugePages::parse("MemFree: 7 kB\n", "0\n"), None);
    }

    #[test]
    fn a_drive_takes_whole_pages_and_keeps_its_size() {
        let host = host(4, 4, 0, 0, "");
        for (size, pages) in [("1MiB", 1), ("2MiB", 1), ("3MiB", 2), ("8MiB", 4)] {
            let drive = drive("fast", size);
            assert_eq!(drive.config.huge_pages(&host), pages, "{size}");
            assert_eq!(drive.host.device.size_bytes, size.parse::<Size>().expect("a size").0);
        }
    }

    #[test]
    fn too_few_are_refused_with_the_number_that_is_to_be_reserved() {
        let refused = told(&mut drive("fast", "1025MiB"), &host(100, 30, 10, 0, "0"), &[]).expect_err("too few");
        let says = "ek.toml:5:14: drive \"fast\" needs 513 huge pages of 2MiB: 20 of 100 are free; \
                    reserve them: sysctl vm.nr_hugepages=593; or lower size, or remove huge_pages\n";
        assert!(refused.starts_with(says), "{refused}");
    }

    #[test]
    fn pages_that_somebody_has_are_a_warning() {
        let held = told(&mut drive("fast", "8MiB"), &host(5, 3, 0, 0, "0"), &[]).expect("a warning");
        let says = "drive \"fast\" needs 4 huge pages of 2MiB: 3 of 5 are free; stop the program that has the others, \
                    perhaps a daemon that serves this file, or reserve them: sysctl vm.nr_hugepages=6";
        assert!(held.contains(says), "{held}");
        assert_eq!(told(&mut drive("fast", "8MiB"), &host(5, 4, 0, 0, "0"), &[]), Ok(String::new()));
        assert_eq!(told(&mut drive("fast", "8MiB"), &host(0, 0, 0, 0, "4"), &[]), Ok(String::new()), "they are made");
    }

    #[test]
    fn several_drives_need_theirs_together() {
        let (first, enough) = (drive("first", "6MiB"), host(5, 5, 0, 0, "0"));
        assert_eq!(told(&mut drive("second", "4MiB"), &enough, &[&first]), Ok(String::new()));
        let refused = told(&mut drive("second", "5MiB"), &enough, &[&first]).expect_err("one too few");
        let says = "drive \"second\" needs 3 huge pages of 2MiB beside 3 for other drives: 5 of 5 are free; \
                    reserve them: sysctl vm.nr_hugepages=6";
        assert!(refused.contains(says), "{refused}");
    }
}
