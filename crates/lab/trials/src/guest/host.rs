//! A host as operators have it, for the pages of docs/recipes: a Debian with QEMU, libvirt and Evenkeel, where commands
//! are typed as root. Its kernel and devices are this machine's; what it mounts, writes and starts ends with it.
//! No systemd runs there.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::debian;
use super::lab::Lab;
use super::prepare::{BACKPORTS, RELEASE};
use super::qemu::{Accel, COMMAND_LIMIT};

/// Names the cached folder; raise it when what is in the root changes.
const RECIPE: u32 = 1;

/// With all that they depend on; `socat` is what a page carries QEMU's monitor commands by.
const PACKAGES: [&str; 7] = [
    "?essential",
    "passwd",
    "libvirt-daemon",
    "libvirt-daemon-driver-qemu",
    "libvirt-clients",
    "qemu-system-x86",
    "socat",
];

/// What Evenkeel's package brings, beside its programs.
const PACKAGED: [(&str, &str); 3] = [
    ("etc/evenkeel/config.toml", include_str!("../../../../../packaging/config.toml")),
    ("usr/lib/sysusers.d/evenkeel.conf", include_str!("../../../../../packaging/sysusers.conf")),
    ("usr/lib/tmpfiles.d/evenkeel.conf", include_str!("../../../../../packaging/tmpfiles.conf")),
];
/// What its package does as it is installed, and what starts the daemon.
const SETUP: &str =
    "systemd-sysusers evenkeel.conf\nsystemd-tmpfiles --create evenkeel.conf\nsystemctl start evenkeeld";

/// Where a host has what a VM boots, and its VM's command channel and console.
pub const VM: &str = "/srv/vm";
/// See [`VM`].
pub const CHANNEL: &str = "/run/vm/agent";
/// See [`VM`].
pub const CONSOLE: &str = "/run/vm/console";

/// A running host. Dropping it ends all that runs there.
pub struct Host {
    namespaces: Child,
    dir: PathBuf,
}

impl Host {
    /// Starts a host, and the daemon there as the package does. `name` is its own in a run.
    ///
    /// # Errors
    /// When its root can't be made or the daemon does not start; the error says why.
    pub fn start(lab: &Lab, programs: &Path, name: &str) -> Result<Self> {
        let lower = lab.machine().images().host()?;
        let dir = lab.dir().join(name);
        for folder in ["root", "work", "written/srv/vm", "run/lock", "run/vm"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        fs::copy(lab.machine().images().kernel(), dir.join("written/srv/vm/vmlinuz"))?;
        fs::copy(lab.machine().initrd(), dir.join("written/srv/vm/initrd"))?;

        // libvirt asks each QEMU anew, again and again, where there is a `kvm` that VMs can't have.
        let devices = if lab.accel() == Accel::Kvm { "kvm" } else { "" };
        let mut namespaces = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", include_str!("../../guest/host.sh"), "sh"])
            .args([&lower, &dir, programs])
            .arg(devices)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(dir.join("namespaces"))?)
            .spawn()
            .context("unshare is util-linux'")?;
        let told = namespaces.stdout.take().context("it has an output")?;
        let host = Self { namespaces, dir };
        let mut line = String::new();
        BufReader::new(told).read_line(&mut line)?;
        let why = || fs::read_to_string(host.dir.join("namespaces")).unwrap_or_default();
        ensure!(line == "ready\n", "a host's namespaces can't be made: {}", why().trim());

        for (path, text) in PACKAGED {
            host.write(&format!("/{path}"), text)?;
        }
        host.write("/usr/local/bin/systemctl", include_str!("../../guest/host-systemctl.sh"))?;
        host.run("chmod +x /usr/local/bin/systemctl")?;
        host.run(SETUP).context("starting evenkeeld")?;
        Ok(host)
    }

    /// Types commands as root, in root's home, and returns what they print.
    ///
    /// # Errors
    /// When one fails, or they take longer than [`COMMAND_LIMIT`].
    pub fn run(&self, commands: &str) -> Result<String> {
        // Not a pipe: what they leave running may hold it.
        let printed = self.dir.join("printed");
        let output = fs::File::create(&printed)?;
        let limit = COMMAND_LIMIT.as_secs().to_string();
        let status = self
            .enter()
            .args(["timeout", "--signal=KILL", &limit, "sh", "-ec", commands])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .status()?;
        let text = String::from_utf8_lossy(&fs::read(&printed)?).into_owned();
        ensure!(status.success(), "{status}:\n{commands}{text}");
        Ok(text)
    }

    /// Writes a file, in root's home unless `path` starts at the root.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn write(&self, path: &str, text: &str) -> Result<()> {
        let commands = "mkdir -p \"$(dirname \"$1\")\" && exec cat >\"$1\"";
        let mut writer = self.enter().args(["sh", "-c", commands, "sh", path]).stdin(Stdio::piped()).spawn()?;
        writer.stdin.take().context("it has an input")?.write_all(text.as_bytes())?;
        ensure!(writer.wait()?.success(), "{path} can't be written");
        Ok(())
    }

    /// A file of its `/run`, as this machine sees it.
    pub fn in_run(&self, path: &str) -> PathBuf {
        self.dir.join(path.trim_start_matches('/'))
    }

    /// The ends of the logs, for a failure's report.
    pub fn logs(&self) -> String {
        let logs = format!("{CONSOLE} /var/log/evenkeeld.log /var/log/libvirt/*.log /var/log/libvirt/qemu/*.log");
        self.run(&format!(
            "for log in {logs}; do test ! -e $log || {{ echo \"--- $log ---\"; tail -n 40 $log; }}; done"
        ))
        .unwrap_or_else(|error| format!("{error:#}"))
    }

    /// A command in the host, without its name and arguments yet.
    fn enter(&self) -> Command {
        let namespaces = format!("/proc/{}/ns", self.namespaces.id());
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount={namespaces}/mnt"))
            .arg(format!("--pid={namespaces}/pid_for_children"))
            .arg("chroot")
            .arg(self.dir.join("root"))
            .args(["env", "--chdir=/root"])
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .envs([("HOME", "/root"), ("LC_ALL", "C.UTF-8")]);
        command
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Its first process ends with its input, and all others with that one.
        drop(self.namespaces.stdin.take());
        let _ = self.namespaces.wait();
    }
}

/// The root of such hosts, made before or now.
///
/// # Errors
/// When this machine cannot make it; the message says why.
pub fn find_or_make(cache: &Path) -> Result<PathBuf> {
    let dir = debian::once(cache, "host", RECIPE, |dir| {
        let start = Instant::now();
        let step = |text: &str| println!("guest-prepare [{:5.1} s] {text}", start.elapsed().as_secs_f64());
        step(&format!("Debian {RELEASE} with libvirt, and QEMU of {BACKPORTS}"));
        debian::install(dir, &[RELEASE, BACKPORTS], &PACKAGES).context("preparing a host")?;
        step("done");
        Ok(())
    })?;
    Ok(dir.join("root"))
}
