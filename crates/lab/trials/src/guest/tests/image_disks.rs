//! Disks that are qcow2 files which QEMU made, and that QEMU checks afterwards. No guest boots.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::guest::daemon::Daemon;
use crate::guest::lab::Lab;
use crate::guest::tests::images::{make_raw, qemu_img, run_qemu_img};

/// The images: a name, and options of `qemu-img`. The last one is empty, and builds on the first one.
const MADE: [(&str, &[&str]); 4] = [
    ("plain", &["convert", "-f", "raw", "-O", "qcow2", "raw.img", "plain.qcow2"]),
    ("packed", &["convert", "-f", "raw", "-O", "qcow2", "-c", "raw.img", "packed.qcow2"]),
    ("large", &["convert", "-f", "raw", "-O", "qcow2", "-o", "cluster_size=2M", "raw.img", "large.qcow2"]),
    ("top", &["create", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", "top.qcow2"]),
];

const KILLS: u64 = 8;

/// Read, written and killed: clusters that are not where QEMU has them, tables that it takes for damaged.
pub fn checked_by_qemu(lab: &mut Lab) -> Result<()> {
    let Some(binary) = lab.binary() else { return Ok(()) };
    let dir = lab.dir().join("image-disks");
    fs::create_dir_all(&dir)?;
    make_raw(&dir.join("raw.img"))?;
    let rig = Rig { lab, binary, dir };
    rig.qemu(&["convert", "-f", "raw", "-O", "qcow2", "-c", "raw.img", "base.qcow2"])?;
    MADE.iter().try_for_each(|(_, arguments)| rig.qemu(arguments))?;

    // Every byte is read, compressed ones too.
    let daemon = rig.start()?;
    rig.each_load(&["--rw", "read", "--bs", "256k", "--iodepth", "8"])?.into_iter().try_for_each(ended_well)?;
    daemon.stop()?;
    for (name, _) in MADE {
        let image = format!("{name}.qcow2");
        rig.qemu(&["compare", "-f", "raw", "-F", "qcow2", "raw.img", &image])?;
        rig.qemu(&["check", &image])?;
    }

    for kill in 0..KILLS {
        let daemon = rig.start()?;
        let loads = rig.each_load(&["--rw", "randwrite", "--bs", "64k", "--iodepth", "4", "--runtime", "60s"])?;
        // Not to wait for anything: for changes to be under way at ever other instants.
        thread::sleep(Duration::from_millis(80 + 57 * kill));
        daemon.kill()?;
        loads.into_iter().try_for_each(|mut load| load.wait().map(drop))?;
        rig.each_image(|image| rig.is_sound_or_leaks(image))?;
    }
    // A start gives back what was left.
    rig.start()?.stop()?;
    rig.each_image(|image| rig.qemu(&["check", image]))
}

struct Rig<'a> {
    lab: &'a Lab,
    binary: PathBuf,
    dir: PathBuf,
}

impl Rig<'_> {
    fn qemu(&self, arguments: &[&str]) -> Result<()> {
        run_qemu_img(self.lab, &self.dir, arguments)
    }

    fn each_image(&self, check: impl Fn(&str) -> Result<()>) -> Result<()> {
        MADE.iter().try_for_each(|(name, _)| check(&format!("{name}.qcow2")))
    }

    /// `qemu-img check` ends with 3 where clusters are counted that nothing refers to.
    fn is_sound_or_leaks(&self, image: &str) -> Result<()> {
        let output = qemu_img(self.lab, &self.dir, &["check", image]).output()?;
        match output.status.code() {
            Some(0 | 3) => Ok(()),
            _ => bail!("{image} after a kill: {}", String::from_utf8_lossy(&output.stderr).trim()),
        }
    }

    fn start(&self) -> Result<Daemon> {
        let dir = self.dir.display();
        let mut text = format!(
            "runtime_dir = \"{dir}/run\"\nstate_dir = \"{dir}/state\"\n[policy]\nname = \"passthrough\"\n\
             [[drive]]\nname = \"images\"\nbackend = \"directory\"\npath = \"{dir}\"\n"
        );
        for (name, _) in MADE {
            text += &format!(
                "[[tenant]]\nname = \"{name}\"\nsize = \"256MiB\"\nimage = \"{name}.qcow2\"\n\
                 image_backing = [\"base.qcow2\"]\n"
            );
        }
        Daemon::start_with(&self.binary, &self.dir, &text, &MADE.map(|(name, _)| self.socket(name)))
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.join("run").join(name).join("cntrl")
    }

    /// A load on each disk.
    fn each_load(&self, arguments: &[&str]) -> Result<Vec<Child>> {
        MADE.iter().map(|(name, _)| start_load(&self.binary, arguments, &self.socket(name))).collect()
    }
}

fn start_load(binary: &Path, arguments: &[&str], socket: &Path) -> Result<Child> {
    let mut load = Command::new(binary);
    load.arg("load").args(arguments).arg(socket).stdout(Stdio::null()).stderr(Stdio::null());
    load.spawn().context("starting a load")
}

fn ended_well(mut load: Child) -> Result<()> {
    ensure!(load.wait()?.success(), "a load failed");
    Ok(())
}
