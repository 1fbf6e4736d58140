//! Disks made from images that QEMU made, and images made from disks that QEMU reads. No guest boots.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::guest::daemon::{Daemon, evenkeel};
use crate::guest::lab::Lab;

const MIB: u64 = 1 << 20;
const SIZE_BYTES: u64 = 256 * MIB;

/// Images that are imported: options of `qemu-img convert`, and a file that is named beside them.
const MADE: [(&str, &[&str], Option<&str>); 4] = [
    ("plain.qcow2", &["-O", "qcow2"], None),
    ("compressed.qcow2", &["-O", "qcow2", "-c", "-o", "cluster_size=16k"], None),
    ("old.qcow2", &["-O", "qcow2", "-o", "compat=0.10"], None),
    ("flat.vmdk", &["-O", "vmdk", "-o", "subformat=monolithicFlat"], Some("flat-flat.vmdk")),
];

/// Images that are refused, and why.
const REFUSED: [(&str, &[&str], &str); 3] = [
    ("zstd.qcow2", &["-O", "qcow2", "-c", "-o", "compression_type=zstd"], "its compression is not deflate"),
    ("subclusters.qcow2", &["-O", "qcow2", "-o", "extended_l2=on"], "it has subclusters"),
    ("sparse.vmdk", &["-O", "vmdk"], "it is a sparse VMDK"),
];

/// How long a QEMU may take to lock an image.
const LOCK_LIMIT: Duration = Duration::from_secs(60);

/// Imported, exported and compared by QEMU: misplaced clusters, wrong reference counts, a lost tail.
pub fn compared_by_qemu(lab: &mut Lab) -> Result<()> {
    let Some(binary) = lab.binary() else { return Ok(()) };
    let dir = lab.dir().join("images");
    fs::create_dir_all(&dir)?;
    let configuration = format!(
        "runtime_dir = \"{0}/run\"\n[device]\nbackend = \"file\"\npath = \"{0}/drive.img\"\nsize = \"2GiB\"\n\
         create = true\n[policy]\nname = \"passthrough\"\n",
        dir.display()
    );
    let daemon = Daemon::start_with(&binary, &dir, &configuration, &[dir.join("run/api.sock")])?;
    make_raw(&dir.join("raw.img"))?;
    let rig = Rig { lab, binary, dir };
    rig.come_and_go()?;
    rig.refused()?;
    rig.on_another()?;
    rig.in_use()?;
    daemon.stop().map(drop)
}

struct Rig<'a> {
    lab: &'a Lab,
    binary: PathBuf,
    dir: PathBuf,
}

impl Rig<'_> {
    fn at(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn tool(&self, arguments: &[&str]) -> Command {
        qemu_img(self.lab, &self.dir, arguments)
    }

    fn qemu(&self, arguments: &[&str]) -> Result<()> {
        run_qemu_img(self.lab, &self.dir, arguments)
    }

    fn convert(&self, name: &str, options: &[&str]) -> Result<()> {
        self.qemu(&[&["convert", "-f", "raw"], options, &["raw.img", name]].concat())
    }

    fn disk(&self, arguments: &[&str]) -> Result<()> {
        evenkeel(&self.binary, &self.dir, &[&["disk"], arguments].concat()).map(drop)
    }

    fn is_refused(&self, name: &str, why: &str) -> Result<()> {
        let done = self.disk(&["create", "other", "--from", &self.at(name)]);
        let told = done.map_or_else(|error| error.to_string(), |()| "it is taken".to_owned());
        ensure!(told.contains(why), "{name}: {told}");
        Ok(())
    }

    /// Exports the disk "made", and has QEMU compare it.
    fn is_as_raw(&self, format: &str) -> Result<()> {
        let _ = fs::remove_file(self.dir.join("out.img"));
        self.disk(&["export", "made", "--format", format, "-o", &self.at("out.img")])?;
        self.qemu(&["compare", "-f", "raw", "-F", format, "raw.img", "out.img"])
    }

    fn come_and_go(&self) -> Result<()> {
        for (name, options, beside) in MADE {
            self.convert(name, options)?;
            let (image, beside) = (self.at(name), beside.map(|beside| self.at(beside)));
            let mut create = vec!["create", "made", "--from", &image];
            create.extend(beside.iter().flat_map(|beside| ["--backing", beside]));
            self.disk(&create)?;
            for format in ["raw", "qcow2"] {
                self.is_as_raw(format).with_context(|| format!("{name}, {format}"))?;
            }
            self.qemu(&["check", "-f", "qcow2", "out.img"])?;
            self.disk(&["delete", "made", "--yes"])?;
        }
        Ok(())
    }

    fn refused(&self) -> Result<()> {
        for (name, options, why) in REFUSED {
            self.convert(name, options)?;
            self.is_refused(name, why)?;
        }
        Ok(())
    }

    fn on_another(&self) -> Result<()> {
        self.qemu(&["create", "-f", "qcow2", "-b", "plain.qcow2", "-F", "qcow2", "top.qcow2"])?;
        self.is_refused("top.qcow2", "plain.qcow2, which was not named by --backing")?;
        self.disk(&["create", "made", "--from", &self.at("top.qcow2"), "--backing", &self.at("plain.qcow2")])?;
        self.is_as_raw("qcow2")
    }

    /// A QEMU that writes locks its image.
    fn in_use(&self) -> Result<()> {
        let mut writer = self.tool(&["bench", "-w", "-d", "1", "-c", "1000000000", "old.qcow2"]);
        let mut writer = writer.stdout(Stdio::null()).spawn()?;
        let deadline = Instant::now() + LOCK_LIMIT;
        let refused = loop {
            let refused = self.is_refused("old.qcow2", "another process has it open for writing");
            if refused.is_ok() || Instant::now() > deadline {
                break refused;
            }
            // It was not locked yet.
            let _ = self.disk(&["delete", "other", "--yes"]);
        };
        writer.kill().and_then(|()| writer.wait())?;
        refused
    }
}

/// `qemu-img`, to be run in `dir`.
pub(super) fn qemu_img(lab: &Lab, dir: &Path, arguments: &[&str]) -> Command {
    let mut tool = lab.machine().images().image_tool();
    tool.current_dir(dir).args(arguments);
    tool
}

/// # Errors
/// What it says where it fails.
pub(super) fn run_qemu_img(lab: &Lab, dir: &Path, arguments: &[&str]) -> Result<()> {
    let output = qemu_img(lab, dir, arguments).output()?;
    let told = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "qemu-img {arguments:?}: {}", String::from_utf8_lossy(&told).trim());
    Ok(())
}

/// Data here and there, and at both ends.
pub(super) fn make_raw(path: &Path) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(SIZE_BYTES)?;
    let mut random = fastrand::Rng::with_seed(47);
    for at in [0, 5 * MIB + 512, 64 * MIB - 4096, 200 * MIB, SIZE_BYTES - MIB] {
        let data: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(MIB as usize).collect();
        file.write_all_at(&data, at)?;
    }
    Ok(())
}
