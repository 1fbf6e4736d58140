//! SPDK as a peer, out of a build tree: its targets in our daemon's place, and its clients.
//!
//! All its programs take root, and all but a target with small pages take huge pages.

mod client;
mod target;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

pub use client::{MEMORY_MIB as CLIENT_MIB, Run, WARM_UP_S, bdevperf, nvme_perf, version};
pub use target::{Drive, Pages, Protocol, Shape, Target};

const HUGE_PAGE_MIB: u64 = 2;
/// How a host without a place for huge pages gets one.
const MOUNT: &str = "mkdir -p /dev/hugepages && mount -t hugetlbfs nodev /dev/hugepages";

/// What of it is measured beside ours, where there is any.
#[derive(Debug, Clone, clap::Args)]
pub struct Tree {
    /// An SPDK build tree, to measure its clients and its targets beside ours [default: SPDK_DIR of the environment]
    #[arg(long, value_name = "DIR")]
    spdk: Option<PathBuf>,
}

impl Tree {
    /// Where it is. `None`: nobody named one.
    pub fn dir(&self) -> Option<PathBuf> {
        self.spdk.clone().or_else(|| std::env::var_os("SPDK_DIR").map(PathBuf::from))
    }
}

/// Requires the rights, and as much memory in free huge pages, that SPDK's programs are about to take.
///
/// # Errors
/// With the remedy.
pub fn check_host(huge_mib: u64) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "SPDK's programs need root: run this as root");
    ensure!(!huge_page_places()?.is_empty(), "SPDK's programs need huge pages, and no hugetlbfs is mounted: {MOUNT}");
    let (total, free) = huge_pages(&std::fs::read_to_string("/proc/meminfo")?)?;
    let needed = huge_mib.div_ceil(HUGE_PAGE_MIB);
    ensure!(
        free >= needed,
        "SPDK's programs need {needed} free huge pages of {HUGE_PAGE_MIB} MiB and {free} are free: \
         echo {} > /proc/sys/vm/nr_hugepages",
        total - free + needed
    );
    Ok(())
}

/// Where files of huge pages are.
fn huge_page_places() -> Result<Vec<PathBuf>> {
    let mounts = std::fs::read_to_string("/proc/mounts")?;
    let fields = mounts.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    Ok(fields.filter(|fields| fields.get(2) == Some(&"hugetlbfs")).map(|fields| PathBuf::from(fields[1])).collect())
}

/// How many there are, and how many of them are free.
fn huge_pages(meminfo: &str) -> Result<(u64, u64)> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
            .with_context(|| format!("/proc/meminfo tells no {name}"))
    };
    ensure!(
        field("Hugepagesize")? == HUGE_PAGE_MIB << 10,
        "SPDK's programs are measured with huge pages of {HUGE_PAGE_MIB} MiB, and this kernel's have another size: \
         boot it with default_hugepagesz={HUGE_PAGE_MIB}M"
    );
    Ok((field("HugePages_Total")?, field("HugePages_Free")?))
}

#[cfg(test)]
mod tests {
    use super::huge_pages;

    #[test]
    fn huge_pages_are_counted_where_they_have_the_size() {
        let meminfo =
            |kib: u32| format!("MemFree: 7 kB\nHugePages_Total:  600\nHugePages_Free:   12\nHugepagesize:  {kib} kB\n");
        assert_eq!(huge_pages(&meminfo(2048)).expect("figures"), (600, 12));
        let error = huge_pages(&meminfo(1 << 20)).expect_err("gigabytes");
        assert!(error.to_string().contains("default_hugepagesz=2M"), "{error}");
    }
}
