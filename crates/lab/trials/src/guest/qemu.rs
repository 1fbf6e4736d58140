//! Guests: a QEMU process, its command channel and its console log.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::agent::{Agent, Output};
use super::initramfs::Archive;
use super::prepare::{Images, Qemu};
use super::qmp::Qmp;

/// Virtual CPUs of a guest, and so I/O queues of its drive.
pub const VCPUS: u32 = 4;
const MEMORY_MIB: u32 = 1024;
/// With what may be plugged.
const MAX_MEMORY_MIB: u32 = 4096;
/// Free PCI Express ports, for drives that come while a guest runs.
pub const PORTS: [&str; 2] = ["port0", "port1"];
/// A kernel that is broken says so at once, instead of answering no more. Where a CPU of the guest has to wait for one
/// of the host's, the kernel would take a timer that ticks late for one that is broken, and panic.
pub const KERNEL_ARGUMENTS: &str = "console=ttyS0 panic=0 oops=panic no_timer_check";
/// Four guests may boot at once, emulated, on a machine that does much else.
pub const BOOT_LIMIT: Duration = Duration::from_secs(600);
/// Boots of a guest whose kernel dies of QEMU's fault.
const BOOTS_MAX: u32 = 3;
const PROBE_LIMIT: Duration = Duration::from_secs(20);
/// How long a command may take that has no limit of its own.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(240);

/// The files that the host adds to the guest's userland at each run.
const GUEST_FILES: [(&str, &str); 13] = [
    ("init", include_str!("../../guest/init.sh")),
    ("usr/sbin/ext4-fill", include_str!("../../guest/ext4-fill.sh")),
    ("usr/sbin/numbered-files", include_str!("../../guest/numbered-files.sh")),
    ("usr/sbin/rebind", include_str!("../../guest/rebind.sh")),
    ("usr/sbin/load-modules", include_str!("../../guest/load-modules.sh")),
    ("usr/sbin/container", include_str!("../../guest/container.sh")),
    ("lib/wait-for.sh", include_str!("../../guest/wait-for.sh")),
    ("lib/agent.sh", include_str!("../../guest/agent.sh")),
    ("usr/sbin/boot-system", include_str!("../../guest/boot-system.sh")),
    ("usr/sbin/write-and-compare", include_str!("../../guest/write-and-compare.sh")),
    ("usr/sbin/kill-load", include_str!("../../guest/kill-load.sh")),
    ("etc/verify.fio", include_str!("../../guest/verify.fio")),
    ("etc/kill.fio", include_str!("../../guest/kill.fio")),
];

/// What executes a guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// The host's hardware virtualization.
    Kvm,
    /// QEMU's emulation.
    Tcg,
    /// QEMU's emulation, one CPU at a time, with a clock that counts instructions while any CPU works: the host's other
    /// work changes nothing that the guest measures of itself.
    Counted,
}

impl Accel {
    /// Finds out by running a guest: a `/dev/kvm` that opens may still run no ordinary kernel.
    pub fn probe(machine: &Machine) -> Self {
        let opens = fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
        if !opens {
            return Self::Tcg;
        }
        let booted = Guest::spawn(machine, Self::Kvm, "kvm-probe", Qemu::Newest, &[])
            .and_then(|mut guest| guest.wait_boot(PROBE_LIMIT));
        if booted.is_ok() { Self::Kvm } else { Self::Tcg }
    }

    /// The plain CPU model is a third faster to emulate than the fullest.
    ///
    /// Where QEMU 7.2 emulates several CPUs at a time, a boot now and then hangs for want of a lost timer, or dies of a
    /// CMPXCHG16B with wrong flags. So it emulates one at a time.
    pub fn arguments(self, qemu: Qemu) -> &'static [&'static str] {
        match (self, qemu) {
            (Self::Kvm, _) => &["-accel", "kvm", "-cpu", "host"],
            (Self::Tcg, Qemu::Newest) => &["-accel", "tcg,thread=multi", "-cpu", "qemu64,-cx16"],
            (Self::Tcg, Qemu::Bookworm) => &["-accel", "tcg,thread=single", "-cpu", "qemu64,-cx16"],
            // An instruction takes 2^2 ns.
            (Self::Counted, _) => &["-accel", "tcg,thread=single", "-icount", "shift=2", "-cpu", "qemu64,-cx16"],
        }
    }
}

/// What all guests of a run have in common.
#[derive(Debug, Clone)]
pub struct Machine {
    images: Images,
    initrd: PathBuf,
    dir: PathBuf,
}

impl Machine {
    /// Joins the cached userland and this checkout's guest files into one initramfs in `dir`.
    ///
    /// # Errors
    /// When `dir` cannot be written.
    pub fn new(images: Images, dir: &Path) -> Result<Self> {
        let initrd = dir.join("initrd.cpio");
        fs::copy(images.userland(), &initrd).context("copying the guest's userland")?;
        let mut archive = Archive::new(fs::File::options().append(true).open(&initrd)?);
        for (path, text) in GUEST_FILES {
            archive.file(path, text.as_bytes())?;
        }
        archive.finish()?;
        Ok(Self { images, initrd, dir: dir.to_path_buf() })
    }

    /// With more programs in the guests' file system, each with its place there. `name` is theirs alone.
    ///
    /// # Errors
    /// When one can't be read, or the run's folder not be written.
    pub fn with_programs(&self, name: &str, programs: &[(String, PathBuf)]) -> Result<Self> {
        let initrd = self.dir.join(format!("{name}.cpio"));
        fs::copy(&self.initrd, &initrd).context("copying the guest's file system")?;
        let mut archive = Archive::new(fs::File::options().append(true).open(&initrd)?);
        for (place, program) in programs {
            if let Some((folder, _)) = place.rsplit_once('/') {
                archive.folder(folder)?;
            }
            archive.file(place, &fs::read(program).with_context(|| program.display().to_string())?)?;
        }
        archive.finish()?;
        Ok(Self { initrd, ..self.clone() })
    }

    /// The guests' file system.
    pub fn initrd(&self) -> &Path {
        &self.initrd
    }

    /// What was prepared for the guests.
    pub fn images(&self) -> &Images {
        &self.images
    }
}

/// One of a guest's drives.
#[derive(Debug, Clone)]
pub enum Disk {
    /// An NVMe controller, by a tenant's vfio-user socket.
    VfioUser(PathBuf),
    /// A virtio disk, by a tenant's vhost-user socket, to which QEMU comes back when it is gone.
    VhostUser(PathBuf),
    /// QEMU's own NVMe controller over an image: checks the tests themselves.
    QemuNvme(PathBuf),
}

impl Disk {
    /// `index` tells the guest's drives apart; firmware starts from the one that `is_booted`.
    fn arguments(&self, qemu: Qemu, index: usize, is_booted: bool) -> Vec<String> {
        let (in_json, in_list) = if is_booted { (r#","bootindex":0"#, ",bootindex=0") } else { ("", "") };
        let pairs = match self {
            Self::VfioUser(socket) => vec![(
                "-device",
                format!(
                    r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{}"}}{in_json}}}"#,
                    socket.display()
                ),
            )],
            Self::VhostUser(socket) => {
                let reconnect = match qemu {
                    Qemu::Newest => "reconnect-ms=100",
                    // Whole seconds only.
                    Qemu::Bookworm => "reconnect=1",
                };
                vec![
                    ("-chardev", format!("socket,id=disk{index},path={},{reconnect}", socket.display())),
                    ("-device", format!("vhost-user-blk-pci,chardev=disk{index},num-queues={VCPUS}{in_list}")),
                ]
            }
            Self::QemuNvme(image) => vec![
                ("-drive", format!("file={},format=raw,if=none,id=disk{index},discard=unmap", image.display())),
                ("-device", format!("nvme,drive=disk{index},serial=self-check,max_ioqpairs={VCPUS}{in_list}")),
            ],
        };
        pairs.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
    }
}

/// What a guest has beyond what every guest has.
#[derive(Debug, Clone, Default)]
pub struct Extras {
    /// Arguments for QEMU, before those that make devices.
    pub qemu_arguments: Vec<String>,
    /// Words for the kernel's command line.
    pub kernel_arguments: Vec<String>,
    /// QEMU's object for the guest's memory, with its properties; a shared memfd if `None`.
    pub memory: Option<&'static str>,
    /// Its size, if it is another than every guest's; nothing can be plugged then.
    pub memory_mib: Option<u32>,
    /// Without a kernel of QEMU's: the firmware boots from the first disk.
    pub boots_from_disk: bool,
}

/// What a guest is started with.
struct Setup {
    machine: Machine,
    accel: Accel,
    name: String,
    qemu: Qemu,
    disks: Vec<Disk>,
    extras: Extras,
}

impl Setup {
    fn file(&self, suffix: &str) -> PathBuf {
        self.machine.dir.join(format!("{}.{suffix}", self.name))
    }

    fn start(&self) -> Result<(Process, Agent)> {
        let file = |suffix: &str| self.file(suffix);
        let (channel, console, log) = (file("agent"), file("console"), file("qemu"));
        let output = fs::File::create(&log)?;
        fs::write(&console, "")?;
        let mut qemu = self.machine.images.qemu(self.qemu);
        let child =
            qemu.args(["-nodefaults", "-no-user-config", "-display", "none"])
                .args(self.board())
                .args(self.accel.arguments(self.qemu))
                .args(self.kernel())
                .args(&self.extras.qemu_arguments)
                .arg("-serial")
                .arg(format!("file:{}", console.display()))
                .arg("-chardev")
                .arg(format!("socket,id=agent,path={},server=on,wait=off", channel.display()))
                .args(["-device", "virtio-serial-pci"])
                .args(["-device", "virtserialport,chardev=agent,name=evenkeel.agent"])
                .arg("-qmp")
                .arg(format!("unix:{},server=on,wait=off", file("qmp").display()))
                .args(PORTS.iter().enumerate().flat_map(|(slot, port)| {
                    ["-device".to_owned(), format!("pcie-root-port,id={port},chassis=1,slot={slot}")]
                }))
                .args(self.disks.iter().enumerate().flat_map(|(index, disk)| {
                    disk.arguments(self.qemu, index, self.extras.boots_from_disk && index == 0)
                }))
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output)
                .spawn()
                .context("starting QEMU")?;
        let mut process = Process { child, console, log, boot_start_bytes: 0 };
        let agent =
            Agent::connect(&channel, &mut || process.check()).with_context(|| format!("guest {}", self.name))?;
        Ok((process, agent))
    }

    /// The board, its memory and its CPUs.
    fn board(&self) -> Vec<String> {
        let memory = self.extras.memory.unwrap_or("memory-backend-memfd,share=on");
        let size_mib = self.extras.memory_mib.unwrap_or(MEMORY_MIB);
        let more = if size_mib == MEMORY_MIB { format!(",slots=1,maxmem={MAX_MEMORY_MIB}M") } else { String::new() };
        let object = format!("{memory},id=mem,size={size_mib}M");
        let size = format!("size={size_mib}M{more}");
        let words = ["-machine", "q35,memory-backend=mem", "-object", &object, "-m", &size, "-smp", &VCPUS.to_string()];
        words.map(str::to_owned).to_vec()
    }

    /// What QEMU itself boots.
    fn kernel(&self) -> Vec<OsString> {
        if self.extras.boots_from_disk {
            return Vec::new();
        }
        let words = [&[KERNEL_ARGUMENTS.to_owned()], &self.extras.kernel_arguments[..]].concat().join(" ");
        let (kernel, initrd) = (self.machine.images.kernel(), self.machine.initrd.clone());
        vec!["-kernel".into(), kernel.into(), "-initrd".into(), initrd.into(), "-append".into(), words.into()]
    }

    /// The drives' nodes in the guest.
    fn nodes(&self) -> Vec<String> {
        let (mut nvme, mut virtio) = (0.., 'a'..='z');
        let node = |disk: &Disk| match disk {
            Disk::VhostUser(_) => virtio.next().map(|letter| format!("/dev/vd{letter}")),
            Disk::VfioUser(_) | Disk::QemuNvme(_) => nvme.next().map(|number: u32| format!("/dev/nvme{number}n1")),
        };
        self.disks.iter().filter_map(node).collect()
    }
}

/// A running guest. Dropping it kills it.
pub struct Guest {
    setup: Setup,
    process: Process,
    agent: Agent,
}

impl Guest {
    /// Starts a guest without waiting for it to boot.
    ///
    /// # Errors
    /// When QEMU does not start; the error holds what it said.
    pub fn spawn(machine: &Machine, accel: Accel, name: &str, qemu: Qemu, disks: &[Disk]) -> Result<Self> {
        Self::spawn_with(machine, accel, name, qemu, disks, Extras::default())
    }

    /// As [`Guest::spawn`], with more than what every guest has.
    ///
    /// # Errors
    /// As [`Guest::spawn`].
    pub fn spawn_with(
        machine: &Machine,
        accel: Accel,
        name: &str,
        qemu: Qemu,
        disks: &[Disk],
        extras: Extras,
    ) -> Result<Self> {
        let (name, disks) = (name.to_owned(), disks.to_vec());
        let setup = Setup { machine: machine.clone(), accel, name, qemu, disks, extras };
        let (process, agent) = setup.start()?;
        Ok(Self { setup, process, agent })
    }

    /// Waits for a guest that was just started or told to reboot, and for its drives. Where its kernel died of
    /// [QEMU's fault](Process::ran_half_patched_code), another QEMU takes the place of the first.
    ///
    /// # Errors
    /// When the guest dies, panics or takes too long.
    pub fn wait_ready(&mut self) -> Result<()> {
        let mut boots_left = BOOTS_MAX;
        while let Err(error) = self.wait_boot(BOOT_LIMIT) {
            boots_left -= 1;
            if boots_left == 0 || !self.process.ran_half_patched_code() {
                return Err(error);
            }
            println!(
                "guest {}: QEMU's emulation ran kernel code while it was being patched; booting again",
                self.setup.name
            );
            // Before another takes its sockets.
            self.process.end();
            (self.process, self.agent) = self.setup.start()?;
        }
        self.setup.nodes().iter().try_for_each(|node| self.wait_for(node, &format!("opens {node}")))
    }

    fn wait_boot(&mut self, limit: Duration) -> Result<()> {
        let process = &mut self.process;
        self.agent.wait_boot(limit, &mut || process.check()).with_context(|| format!("guest {}", self.setup.name))
    }

    /// Runs a command and returns its output, whatever its exit code.
    ///
    /// # Errors
    /// When the guest dies, panics or does not answer.
    pub fn attempt(&mut self, command: &str, limit: Duration) -> Result<Output> {
        let process = &mut self.process;
        self.agent
            .run(command, limit, &mut || process.check())
            .with_context(|| format!("guest {}: `{command}`", self.setup.name))
    }

    /// Runs a command that must succeed within [`COMMAND_LIMIT`] and returns its output.
    ///
    /// # Errors
    /// As [`Guest::attempt`], and when the command fails.
    pub fn run(&mut self, command: &str) -> Result<String> {
        self.run_within(command, COMMAND_LIMIT)
    }

    /// Runs a command that must succeed within `limit` and returns its output.
    ///
    /// # Errors
    /// As [`Guest::attempt`], and when the command fails.
    pub fn run_within(&mut self, command: &str, limit: Duration) -> Result<String> {
        let Output { code, text } = self.attempt(command, limit)?;
        ensure!(code == 0, "guest {}: `{command}` exited {code}:\n{text}", self.setup.name);
        Ok(text)
    }

    /// Reboots the guest in the same QEMU and waits until it is back.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn reboot(&mut self) -> Result<()> {
        self.start_reboot()?;
        self.wait_ready()
    }

    /// Reboots the guest in the same QEMU without waiting for it.
    ///
    /// # Errors
    /// When the command channel is gone.
    pub fn start_reboot(&mut self) -> Result<()> {
        self.leave_boot("reboot -f")
    }

    /// Resets the guest at once, as its reset button would, without waiting for it: its memory is lost.
    ///
    /// # Errors
    /// When the command channel is gone.
    pub fn crash(&mut self) -> Result<()> {
        self.leave_boot("echo b >/proc/sysrq-trigger")
    }

    /// Has a guest with systemd shut down in order and boot again in the same QEMU, and waits until it is back.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn reboot_in_order(&mut self) -> Result<()> {
        self.leave_boot("systemctl reboot")?;
        self.wait_ready()
    }

    fn leave_boot(&mut self, command: &str) -> Result<()> {
        self.process.boot_start_bytes = fs::read(&self.process.console)?.len();
        self.agent.send(command, COMMAND_LIMIT)
    }

    /// QEMU's monitor, for one user at a time.
    ///
    /// # Errors
    /// When QEMU does not answer there.
    pub fn monitor(&self) -> Result<Qmp> {
        Qmp::connect(&self.setup.file("qmp")).with_context(|| format!("the monitor of guest {}", self.setup.name))
    }

    /// Ends QEMU with SIGKILL, as a crash of the host's process would.
    pub fn kill(self) {
        drop(self);
    }

    /// What QEMU has printed so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.process.log).unwrap_or_default()).into_owned()
    }

    /// The ends of the guest's console and of QEMU's own output, for a failure's report.
    pub fn logs(&self) -> String {
        let end_of = |path: &Path| {
            let text = fs::read(path).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(60)..].join("\n")
        };
        format!(
            "--- console of {0} ---\n{1}\n--- QEMU of {0} ---\n{2}",
            self.setup.name,
            end_of(&self.process.console),
            end_of(&self.process.log)
        )
    }
}

/// QEMU's process and what it writes.
struct Process {
    child: Child,
    console: PathBuf,
    log: PathBuf,
    /// Where in the console the present boot starts.
    boot_start_bytes: usize,
}

impl Process {
    /// Fails when the guest can no longer answer.
    fn check(&mut self) -> Result<()> {
        let log = String::from_utf8_lossy(&fs::read(&self.log)?).into_owned();
        if let Some(status) = self.child.try_wait()? {
            bail!("QEMU ended ({status}): {}", log.trim());
        }
        ensure!(!log.contains("KVM internal error"), "KVM cannot run this guest");
        let console = fs::read(&self.console)?;
        let console = String::from_utf8_lossy(&console);
        ensure!(!console.contains("Kernel panic"), "the guest's kernel panicked");
        // What OVMF starts at last.
        ensure!(!console.contains("EFI Internal Shell"), "the guest's firmware can boot from no disk");
        Ok(())
    }

    /// Whether the present boot [died half patched](died_half_patched): QEMU's emulation of several CPUs at a time lets
    /// that happen in one boot of hundreds (7.2 and 11.1 both do); no daemon can.
    fn ran_half_patched_code(&self) -> bool {
        let console = fs::read(&self.console).unwrap_or_default();
        died_half_patched(&String::from_utf8_lossy(console.get(self.boot_start_bytes..).unwrap_or_default()))
    }

    fn end(&mut self) {
        // Nothing is left to do where the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether a boot's console tells of a kernel that died, before it touched a disk, of a breakpoint that it had put into
/// its own code while it patched it.
fn died_half_patched(console: &str) -> bool {
    console.contains("Oops: int3") && !console.contains("Run /init")
}

#[cfg(test)]
mod tests {
    use super::died_half_patched;

    #[test]
    fn only_a_breakpoint_before_init_is_the_emulations_fault() {
        let patched = "[    0.4] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n";
        assert!(died_half_patched(patched));
        assert!(!died_half_patched(&format!("[    2.0] Run /init as init process\n{patched}")));
        assert!(!died_half_patched("[    0.4] Oops: general protection fault: 0000 [#1]\n"));
    }
}
