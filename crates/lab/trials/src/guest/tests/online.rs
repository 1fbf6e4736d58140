//! Disks of both kinds that are made, plugged into a running guest, grown, limited, unplugged, deleted and wiped, while
//! that guest and another one verify what they write to theirs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use serde_json::Value;

use crate::guest::daemon;
use crate::guest::lab::{Lab, Tenant};
use crate::guest::qemu::{Disk, Guest, PORTS};
use crate::wait;

const LIMIT: Duration = Duration::from_secs(300);
/// Guests with a disk each; the first gets the others too.
const NEIGHBOURS: [Tenant; 2] = [Tenant::Guaranteed, Tenant::Virtio];
const SIZE_MIB: u64 = 16;
const GROWN_MIB: u64 = 24;
/// Commands per second, and reads that are held to that.
const CEILING_IOPS: u64 = 50;
const READS: u64 = 150;
/// A line that fills blocks.
const LINE_BYTES: usize = 32;
const MIB: u64 = 1 << 20;

/// A disk that comes and goes.
struct Visitor {
    name: &'static str,
    frontend: &'static str,
    threads: &'static [&'static str],
    socket: &'static str,
    plug: fn(PathBuf) -> Disk,
    /// As the guest's kernel names it.
    drive: &'static str,
    port: &'static str,
}

const VISITORS: [Visitor; 2] = [
    Visitor {
        name: "visitor-nvme",
        frontend: "vfio-user",
        threads: &["--queues", "2", "--threads", "per-queue"],
        socket: "cntrl",
        plug: Disk::VfioUser,
        drive: "nvme1n1",
        port: PORTS[0],
    },
    Visitor {
        name: "visitor-virtio",
        frontend: "vhost-user-blk",
        threads: &[],
        socket: "vhost.sock",
        plug: Disk::VhostUser,
        drive: "vda",
        port: PORTS[1],
    },
];

/// `evenkeel`, asked of the lab's daemon.
struct Operator {
    binary: PathBuf,
    dir: PathBuf,
}

impl Operator {
    fn ask(&self, arguments: &[&str]) -> Result<String> {
        daemon::evenkeel(&self.binary, &self.dir, arguments)
    }

    fn show(&self, name: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.ask(&["disk", "show", name, "--json"])?)?)
    }

    fn wait_until(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> Result<()> {
        wait::for_this("what a disk is to become", LIMIT, || Ok(is_so(&self.show(name)?).then_some(())))
            .with_context(|| format!("{:?}", self.show(name)))
    }

    /// What happened after the event of a number.
    fn events(&self, since: u64) -> Result<Vec<Value>> {
        let text = self.ask(&["events", "--json", "--since", &since.to_string()])?;
        text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
    }
}

/// Each visitor's whole life. Afterwards nothing of it is on the drive, and the neighbours have noticed nothing.
pub fn come_and_go(lab: &mut Lab) -> Result<()> {
    // What stands in for Evenkeel makes no disks.
    let Some(binary) = lab.binary() else { return Ok(()) };
    let operator = Operator { binary, dir: lab.dir().to_path_buf() };
    for (guest, drive) in lab.guests(NEIGHBOURS)?.into_iter().zip(["nvme0n1", "vda"]) {
        guest.start_rounds(
            "verify",
            &format!(
                "fio --name=verify --filename=/dev/{drive} --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite \
                 --bs=4k --size=4m --time_based --runtime=3 --verify=crc32c --verify_fatal=1"
            ),
        )?;
        guest.wait_for_requests(drive, 1)?;
    }
    let before = operator.events(0)?.last().and_then(|event| event["number"].as_u64()).context("no event")?;

    let guest = lab.guest(NEIGHBOURS[0])?;
    VISITORS.iter().try_for_each(|visitor| come(&operator, guest, visitor).with_context(|| visitor.name))?;
    VISITORS.iter().try_for_each(|visitor| leave(&operator, guest, visitor).with_context(|| visitor.name))?;

    for (guest, tenant) in lab.guests(NEIGHBOURS)?.into_iter().zip(NEIGHBOURS) {
        let output = guest.finish_rounds("verify", LIMIT)?;
        ensure!(output.code == 0, "fio in {}:\n{}", tenant.name(), output.text);
    }
    for event in operator.events(before)? {
        let is_ours = VISITORS.iter().any(|visitor| event["tenant"] == visitor.name);
        let is_client = ["attached", "detached"].iter().any(|kind| event["kind"] == *kind);
        ensure!(is_ours || !is_client, "a neighbour's connection was not left alone: {event}");
    }
    lab.check_quiet()?;
    // Its QEMU has a controller without a daemon.
    lab.kill(NEIGHBOURS[0]);
    Ok(())
}

/// It is made, plugged in, filled, grown, filled again, and held to a ceiling.
fn come(operator: &Operator, guest: &mut Guest, visitor: &Visitor) -> Result<()> {
    let Visitor { name, frontend, threads, drive, port, .. } = visitor;
    let size = format!("{SIZE_MIB}MiB");
    operator.ask(&[&["disk", "create", name, "--size", &size, "--frontend", frontend], *threads].concat())?;
    // Until it is zeroed nobody is let in.
    operator.wait_until(name, |disk| disk["state"] == "served")?;
    guest.monitor()?.plug(&visitor.disk(operator), name, port)?;
    guest.wait_for(&format!("/dev/{drive}"), &format!(". /lib/wait-for.sh; opens /dev/{drive}"))?;
    guest.run(&format!("yes '{}' | head -c {MIB} >/tmp/{name}", visitor.line().trim_end_matches('\n')))?;
    fill(guest, visitor, 0..SIZE_MIB)?;

    operator.ask(&["disk", "grow", name, "--size", &format!("{GROWN_MIB}MiB")])?;
    let sectors = GROWN_MIB * MIB / 512;
    guest.wait_for("the new size", &format!("test $(cat /sys/block/{drive}/size) -eq {sectors}"))?;
    fill(guest, visitor, SIZE_MIB..GROWN_MIB)?;
    ensure!(line_in(&operator.dir, visitor)?.is_some(), "what was written is not on the drive");

    let ceiling = CEILING_IOPS.to_string();
    operator.ask(&["disk", "set", name, "--weight", "7", "--rw-iops", &ceiling])?;
    let shown = operator.show(name)?;
    ensure!(shown["weight"] == 7, "weight: {shown}");
    let start = Instant::now();
    guest.run(&format!("dd if=/dev/{drive} of=/dev/null bs=4k count={READS} iflag=direct"))?;
    // The quotas of the first and last slice and one command are beyond the ceiling.
    let least = Duration::from_secs(READS - 2).div_f64(CEILING_IOPS as f64);
    ensure!(start.elapsed() >= least, "{READS} reads took {:?}, not {least:?} or more", start.elapsed());
    Ok(())
}

/// It is taken from the guest, deleted and wiped.
fn leave(operator: &Operator, guest: &mut Guest, visitor: &Visitor) -> Result<()> {
    let Visitor { name, drive, .. } = visitor;
    let mut delete = vec!["disk", "delete", name, "--yes", "--wait"];
    match visitor.disk(operator) {
        disk @ Disk::VhostUser(_) => {
            guest.monitor()?.unplug(&disk, name)?;
            // QEMU closes the socket in its own time; a disk with a client is not deleted.
            operator.wait_until(name, |disk| disk["attached"] == false)?;
        }
        // QEMU 11.1 aborts where such a device is unplugged (`memory_region_del_subregion: Assertion
        // `subregion->container == mr' failed`), so the guest lets go of it alone.
        _ => {
            guest.run(&format!("echo 1 >/sys/block/{drive}/device/device/remove"))?;
            delete.push("--force");
        }
    }
    guest.wait_for(&format!("the end of {drive}"), &format!("test ! -e /sys/block/{drive}"))?;
    operator.ask(&delete)?;
    let found = line_in(&operator.dir, visitor)?;
    ensure!(found.is_none(), "a deleted disk's data are on the drive at {found:?}");
    Ok(())
}

/// Writes the visitor's line to a range of its disk, in MiB, and reads it back.
fn fill(guest: &mut Guest, visitor: &Visitor, range_mib: std::ops::Range<u64>) -> Result<()> {
    let Visitor { name, drive, .. } = visitor;
    let (first, last) = (range_mib.start, range_mib.end - 1);
    guest.run(&format!(
        "for at in $(seq {first} {last}); do \
         dd if=/tmp/{name} of=/dev/{drive} bs=1M count=1 seek=$at oflag=direct 2>/dev/null || exit; \
         dd if=/dev/{drive} bs=1M count=1 skip=$at iflag=direct 2>/dev/null | cmp - /tmp/{name} || exit; done"
    ))?;
    Ok(())
}

impl Visitor {
    fn disk(&self, operator: &Operator) -> Disk {
        (self.plug)(operator.dir.join("run").join(self.name).join(self.socket))
    }

    /// What fills its blocks, over and over.
    fn line(&self) -> String {
        format!("{:width$}\n", self.name, width = LINE_BYTES - 1)
    }
}

/// Where on the drive a visitor's line is, if anywhere: blocks are moved whole, so it lies at a multiple of its length.
fn line_in(dir: &Path, visitor: &Visitor) -> Result<Option<u64>> {
    let (image, line) = (File::open(daemon::image_of(dir))?, visitor.line());
    let mut chunk = vec![0; MIB as usize];
    let mut at = 0;
    loop {
        // Holes are passed over.
        at = match seek(&image, SeekFrom::Data(at)) {
            Ok(data) => data - data % LINE_BYTES as u64,
            Err(Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let count = image.read_at(&mut chunk, at)?;
        if let Some(index) = chunk[..count].chunks(LINE_BYTES).position(|part| part == line.as_bytes()) {
            return Ok(Some(at + (index * LINE_BYTES) as u64));
        }
        at += count as u64;
    }
}
