//! A drive in the host's huge pages.

use std::fs;

use nvme_spec::opcode::nvm;

use crate::guest::{DATA_BYTES, Guest, pattern};
use crate::harness::{Home, errors, run};

const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";
const BLOCKS: u64 = DATA_BYTES as u64 / 512;
const TENANT_MIB: u64 = 24;
/// With a part of a huge page at its end.
const DRIVE_BYTES: u64 = (TENANT_MIB + 1) << 20;

fn configuration(size_bytes: u64) -> String {
    format!(
        "[device]\nbackend = \"memory\"\nsize = {size_bytes}\nhuge_pages = true\n[policy]\nname = \"passthrough\"\n\
         [[tenant]]\nname = \"a\"\nsize = \"{TENANT_MIB}MiB\"\n"
    )
}

/// The number in a line of a file of the kernel's; `None`: there is no such line.
fn figure(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How large a huge page is. `None`: this kernel has none, which was printed.
fn page_bytes() -> Option<u64> {
    let size_kib = figure("/proc/meminfo", "Hugepagesize");
    if size_kib.is_none() {
        eprintln!("SKIPPED: this kernel has no huge pages");
    }
    Some(size_kib? << 10)
}

/// Huge pages that the host has beside those that it had, until this is dropped.
struct Reserved {
    before: u64,
}

impl Reserved {
    /// `None`: the host does not give them, and the reason was printed.
    fn more(pages: u64) -> Option<Self> {
        let read = || fs::read_to_string(NR_HUGEPAGES).unwrap().trim().parse::<u64>().unwrap();
        let before = read();
        if let Err(error) = fs::write(NR_HUGEPAGES, (before + pages).to_string()) {
            eprintln!("SKIPPED: can't reserve huge pages in {NR_HUGEPAGES}: {error}");
            return None;
        }
        let reserved = Self { before };
        let got = read().saturating_sub(before);
        if got < pages {
            eprintln!("SKIPPED: this host has {got} huge pages to give, not {pages}");
            return None;
        }
        Some(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        fs::write(NR_HUGEPAGES, self.before.to_string()).unwrap();
    }
}

#[test]
fn more_huge_pages_than_the_host_has_are_foreseen() {
    let Some(page_bytes) = page_bytes() else { return };
    let home = Home::new();
    let config = home.configure(&configuration(1 << 50));
    for command in ["check", "serve"] {
        let output = run(&[command, config.to_str().unwrap()]);
        let told = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        let needed = format!("ek.toml:6:14: [device] needs {} huge pages of ", (1_u64 << 50) / page_bytes);
        assert!(told.contains(&needed) && told.contains("reserve them: sysctl vm.nr_hugepages="), "{told}");
    }
    assert!(home.listing().is_empty());
}

#[test]
fn a_drive_has_its_huge_pages_from_the_start_to_the_end() {
    let Some(page_bytes) = page_bytes() else { return };
    let pages = DRIVE_BYTES.div_ceil(page_bytes);
    let Some(reserved) = Reserved::more(pages) else { return };
    let home = Home::new();
    home.configure(&configuration(DRIVE_BYTES));
    let daemon = home.serve();
    assert_eq!(daemon.ready["drives"][0]["device"]["size_bytes"], DRIVE_BYTES);
    let status = format!("/proc/{}/status", daemon.ready["pid"]);
    assert_eq!(figure(&status, "HugetlbPages"), Some((pages * page_bytes) >> 10), "all, before anybody used one");

    // All that the host has, of which this daemon has some.
    let all = reserved.before + pages;
    let text = format!("runtime_dir = \"HOST/other\"\nstate_dir = \"HOST/state\"\n{}", configuration(all * page_bytes));
    let other = home.write_config("other.toml", &text);
    let output = run(&["check", other.to_str().unwrap()]);
    let told = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success() && told.contains("perhaps a daemon that serves this file"), "{output:?}");
    let output = run(&["serve", other.to_str().unwrap()]);
    let told = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    let needed = format!("other.toml:6:14: [device] needs {all} huge pages of ");
    assert!(told.contains(&needed) && told.contains("reserve them: sysctl vm.nr_hugepages="), "{told}");

    // Whatever becomes of the host's, the drive has its own.
    drop(reserved);
    holds_data_and_zeroes(&mut home.attach("a"));
    daemon.stop();
}

/// Writes all of the disk, and zeroes parts of it in each manner.
fn holds_data_and_zeroes(guest: &mut Guest) {
    for at in 0..TENANT_MIB {
        guest.write(at * BLOCKS, &pattern(at, DATA_BYTES)).unwrap();
    }
    // No edge of these is one of a page.
    let mut zeroed = vec![3..3 + 5 * BLOCKS, 8 * BLOCKS + 1..8 * BLOCKS + 2];
    guest.deallocate(zeroed[0].start, 5 * BLOCKS as u32).unwrap();
    guest.deallocate(zeroed[1].start, 1).unwrap();
    let blocks = 3 * BLOCKS - 2;
    zeroed.push(10 * BLOCKS + 1..10 * BLOCKS + 1 + blocks);
    guest.run(guest.command(nvm::WRITE_ZEROES, zeroed[2].start, blocks as u32), 0).unwrap();
    for at in 0..TENANT_MIB {
        let mut expected = pattern(at, DATA_BYTES);
        for (block, content) in (at * BLOCKS..).zip(expected.chunks_mut(512)) {
            if zeroed.iter().any(|range| range.contains(&block)) {
                content.fill(0);
            }
        }
        assert!(guest.read(at * BLOCKS, BLOCKS as u32).unwrap() == expected, "MiB {at}");
    }
    guest.format(0).unwrap();
    for at in 0..TENANT_MIB {
        assert!(guest.read(at * BLOCKS, BLOCKS as u32).unwrap().iter().all(|byte| *byte == 0), "MiB {at}");
    }
}
