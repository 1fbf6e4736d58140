//! Guests whose root file systems are clones of one imported image.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::Rest;

use crate::guest::apt::quietly;
use crate::guest::daemon::{Daemon, evenkeel};
use crate::guest::lab::{Lab, complaints};
use crate::guest::prepare::Qemu;
use crate::guest::qemu::{Disk, Extras, Guest, VCPUS};
use crate::guest::system_image::System;
use crate::wait;

/// The clones, two over each protocol.
const CLONES: [(&str, &str); 4] =
    [("web-1", "vfio-user"), ("web-2", "vhost-user-blk"), ("web-3", "vfio-user"), ("web-4", "vhost-user-blk")];
/// Removed under a snapshot, and there again.
const TREE: &str = "/usr/share";
const MEMORY_MIB: u32 = 512;
/// A checksum of the tree, emulated, beside three other guests.
const LIMIT: Duration = Duration::from_secs(400);

/// Only here: a root file system that an import, a clone, a neighbour's writes or a rollback damages.
///
/// The image is a Debian with systemd as one ext4, made of packages; kernel and initramfs are the other guests'.
pub fn boot_debian(lab: &mut Lab) -> Result<()> {
    let Some(binary) = lab.binary() else { return Ok(()) };
    let dir = lab.dir().join("clones");
    fs::create_dir_all(&dir)?;
    // The pool has less room than two systems that share nothing.
    let configuration = format!(
        "runtime_dir = \"{0}/run\"\n[device]\nbackend = \"file\"\npath = \"{0}/drive.img\"\nsize = \"2GiB\"\n\
         create = true\npool = \"896MiB\"\npool_overcommit = 1000\n[policy]\nname = \"evenkeel\"\n",
        dir.display()
    );
    let daemon = Daemon::start_with(&binary, &dir, &configuration, &[dir.join("run/api.sock")])?;
    let rig = Rig { lab, binary, dir };
    rig.import()?;
    rig.boot_and_roll_back().with_context(|| daemon.log_text())?;
    rig.compare_template()?;
    daemon.stop().map(drop)
}

struct Rig<'a> {
    lab: &'a Lab,
    binary: PathBuf,
    dir: PathBuf,
}

impl Rig<'_> {
    fn disk(&self, command: &str) -> Result<String> {
        let arguments: Vec<&str> = ["disk"].into_iter().chain(command.split_whitespace()).collect();
        evenkeel(&self.binary, &self.dir, &arguments)
    }

    fn image(&self) -> PathBuf {
        self.dir.join("debian.qcow2")
    }

    fn import(&self) -> Result<()> {
        let images = self.lab.machine().images();
        let system = images.system(System::Plain)?;
        let mut convert = images.image_tool();
        convert.args(["convert", "-f", "raw", "-O", "qcow2", "-c"]).args([&system, &self.image()]);
        quietly(&mut convert)?;
        self.disk(&format!("create template --from {} --thin", self.image().display()))?;
        self.disk("snapshot template@v1")?;
        for (name, frontend) in CLONES {
            let queues = if frontend == "vhost-user-blk" { format!("--queues {VCPUS}") } else { String::new() };
            self.disk(&format!("create {name} --clone-of template@v1 --frontend {frontend} {queues}"))?;
        }
        Ok(())
    }

    /// A guest that is about to boot from a clone.
    fn spawn(&self, (name, frontend): (&'static str, &str)) -> Result<Guest> {
        let folder = self.dir.join("run").join(name);
        let disk = match frontend {
            "vfio-user" => Disk::VfioUser(folder.join("cntrl")),
            _ => Disk::VhostUser(folder.join("vhost.sock")),
        };
        let extras = Extras {
            kernel_arguments: vec!["evenkeel.system".to_owned(), format!("evenkeel.root={name}")],
            memory_mib: Some(MEMORY_MIB),
            ..Extras::default()
        };
        Guest::spawn_with(self.lab.machine(), self.lab.accel(), name, Qemu::Newest, &[disk], extras)
    }

    fn boot_and_roll_back(&self) -> Result<()> {
        let mut guests = CLONES.iter().map(|clone| self.spawn(*clone)).collect::<Result<Vec<_>>>()?;
        for ((name, _), guest) in CLONES.iter().zip(&mut guests) {
            let booted = guest.wait_ready().and_then(|()| mark(guest, name));
            booted.with_context(|| guest.logs())?;
        }
        for ((name, _), guest) in CLONES.iter().zip(&mut guests) {
            check(guest, name).with_context(|| guest.logs())?;
        }
        let mut guest = guests.remove(0);
        let before = sum_of_tree(&mut guest)?;
        self.disk("snapshot web-1@before")?;
        guest.run_within(&format!("rm -rf {TREE} && ! test -e {TREE} && sync"), LIMIT)?;
        guest.kill();
        let daemon = Rest::new(self.dir.join("run/api.sock"));
        wait::for_this("the end of the guest's connection", LIMIT, || {
            Ok((!daemon.disk("web-1")?.attached).then_some(()))
        })?;
        self.disk("rollback web-1@before --yes")?;
        let mut guest = self.spawn(CLONES[0])?;
        let again = guest.wait_ready().and_then(|()| {
            let after = sum_of_tree(&mut guest)?;
            ensure!(before == after, "{TREE} is not as it was: {before} and {after}");
            check(&mut guest, CLONES[0].0)
        });
        again.with_context(|| guest.logs())
    }

    /// What four systems wrote is not in what they came from.
    fn compare_template(&self) -> Result<()> {
        let exported = self.dir.join("exported.qcow2");
        self.disk(&format!("export template -o {}", exported.display()))?;
        let mut compare = self.lab.machine().images().image_tool();
        quietly(compare.arg("compare").args([&self.image(), &exported])).context("qemu-img compare")
    }
}

/// The guest runs from its disk, and writes its name there.
fn mark(guest: &mut Guest, name: &str) -> Result<()> {
    guest.run("grep -E '^/dev/(nvme0n1|vda) / ext4 rw' /proc/mounts")?;
    guest.run(&format!("! test -e /root/marker && echo {name} >/root/marker && sync")).map(drop)
}

/// Its own name is on its disk, and its kernel is content.
fn check(guest: &mut Guest, name: &str) -> Result<()> {
    guest.run(&format!("echo 3 >/proc/sys/vm/drop_caches && grep -x {name} /root/marker"))?;
    let log = guest.run("dmesg -r")?;
    let complaints = complaints(&log, true);
    ensure!(complaints.is_empty(), "the kernel of {name} complains:\n{}", complaints.join("\n"));
    Ok(())
}

fn sum_of_tree(guest: &mut Guest) -> Result<String> {
    let sums = format!(
        "sync; echo 3 >/proc/sys/vm/drop_caches; set -e; test $(find {TREE} -type f | wc -l) -gt 500; \
         find {TREE} -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"
    );
    guest.run_within(&sums, LIMIT)
}
