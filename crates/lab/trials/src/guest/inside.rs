//! Guests that run Evenkeel's programs themselves: on drives of QEMU's, behind an IOMMU where that is wanted.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::agent::Output;
use super::daemon::make_image;
use super::initramfs::{LIBRARIES, libraries_of};
use super::lab::Lab;
use super::load::ENDLESS;
use super::prepare::Qemu;
use super::qemu::{Accel, Extras, Guest};

/// What a user-space driver of PCI devices needs, in the order of loading.
pub const VFIO_MODULES: [&str; 5] = ["irqbypass", "vfio", "vfio_iommu_type1", "vfio-pci-core", "vfio-pci"];
/// What block devices that a process serves need.
pub const UBLK_MODULES: [&str; 1] = ["ublk_drv"];

/// Where the daemon in the guest answers.
pub const API_SOCKET: &str = "/run/ek/api.sock";
const CONFIG: &str = "/run/evenkeel.toml";
/// How long one of the programs may take, emulated.
pub const PROGRAM_LIMIT: Duration = Duration::from_secs(400);

/// What such a guest is to be like. Its name is its own in a run.
pub struct Inside {
    name: &'static str,
    modules: Vec<&'static str>,
    iommu: bool,
    kernel_arguments: Vec<&'static str>,
    qemu_arguments: Vec<String>,
    images: Vec<(String, u64)>,
    programs: Vec<(String, PathBuf)>,
}

impl Inside {
    /// A guest without drives, modules or IOMMU.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            modules: Vec::new(),
            iommu: false,
            kernel_arguments: Vec::new(),
            qemu_arguments: Vec::new(),
            images: Vec::new(),
            programs: Vec::new(),
        }
    }

    /// Has an IOMMU in front of all devices, which Linux uses.
    pub fn iommu(mut self) -> Self {
        self.iommu = true;
        self
    }

    /// Loads kernel modules of `initramfs`, in this order.
    pub fn modules(mut self, names: &[&'static str]) -> Self {
        self.modules.extend(names);
        self
    }

    /// More words for the kernel's command line.
    pub fn kernel(mut self, words: &[&'static str]) -> Self {
        self.kernel_arguments.extend(words);
        self
    }

    /// More arguments for QEMU, before its other devices; in them `{dir}` is the folder of the run's files.
    pub fn qemu(mut self, arguments: &[&str]) -> Self {
        self.qemu_arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// A drive's content: an image of zeros, for arguments of [`Inside::qemu`] as QEMU's drive `id`.
    pub fn image(mut self, id: &str, size_mib: u64) -> Self {
        self.images.push((id.to_owned(), size_mib));
        self
    }

    /// An NVMe controller of QEMU's with a namespace of `size_mib`, at `slot` of the root bus: its address is
    /// `0000:00:SLOT.0`, in hexadecimal. Its serial number and QEMU's name for it are `id`; its drive is `drive-id`.
    pub fn nvme(self, id: &str, slot: u8, size_mib: u64) -> Self {
        let device = format!("nvme,id={id},serial={id},drive=drive-{id},addr={slot:#x}");
        self.image(&format!("drive-{id}"), size_mib).qemu(&["-device", &device])
    }

    /// Has one more program, at a place in its file system; it must do with the guest's libraries.
    pub fn program(mut self, place: &str, program: PathBuf) -> Self {
        self.programs.push((place.to_owned(), program));
        self
    }

    /// Boots it, with the programs in `/usr/bin`. None where the lab has no programs, in a self-check.
    ///
    /// # Errors
    /// When the guest does not boot or lacks a module; the error holds its console.
    pub fn boot(mut self, lab: &Lab) -> Result<Option<Guest>> {
        let Some(binary) = lab.binary() else { return Ok(None) };
        self.programs.extend(programs(&binary)?);
        self.boot_without_programs(lab).map(Some)
    }

    /// Boots it as it is.
    ///
    /// # Errors
    /// As [`Inside::boot`].
    pub fn boot_without_programs(self, lab: &Lab) -> Result<Guest> {
        let machine = lab.machine().with_programs(self.name, &self.programs)?;
        let mut extras = Extras::default();
        extras.kernel_arguments.extend(self.kernel_arguments.iter().map(|&word| word.to_owned()));
        if self.iommu {
            // Before the devices that it translates for.
            extras.qemu_arguments.extend(["-device", "intel-iommu,intremap=on"].map(str::to_owned));
            extras.kernel_arguments.extend(["intel_iommu=on", "iommu=pt"].map(str::to_owned));
            if lab.accel() == Accel::Kvm {
                // Interrupt remapping takes an interrupt controller outside of the kernel.
                extras.qemu_arguments.extend(["-machine", "kernel-irqchip=split"].map(str::to_owned));
            }
        }
        let dir = lab.dir().display().to_string();
        for (id, size_mib) in &self.images {
            let image = lab.dir().join(format!("{}-{id}.img", self.name));
            make_image(&image, *size_mib)?;
            let drive = format!("file={},format=raw,if=none,id={id},discard=unmap", image.display());
            extras.qemu_arguments.extend(["-drive".to_owned(), drive]);
        }
        extras.qemu_arguments.extend(self.qemu_arguments.iter().map(|argument| argument.replace("{dir}", &dir)));
        let mut guest = Guest::spawn_with(&machine, lab.accel(), self.name, Qemu::Newest, &[], extras)?;
        let ready = guest.wait_ready().and_then(|()| match self.modules[..] {
            [] => Ok(()),
            _ => guest.run(&format!("load-modules {}", self.modules.join(" "))).map(drop),
        });
        ready.with_context(|| guest.logs())?;
        Ok(guest)
    }
}

/// The programs, and the library that they need beside the guest's own.
fn programs(binary: &Path) -> Result<Vec<(String, PathBuf)>> {
    let daemon = binary.with_file_name("evenkeeld");
    let own = |(name, _): &(String, PathBuf)| name.starts_with("libgcc_s.");
    let libraries = libraries_of(Path::new("/"), &binary.display().to_string())?.into_iter().filter(own);
    let libraries = libraries.map(|(name, path)| (format!("{LIBRARIES}/{name}"), path));
    let programs = [("usr/bin/evenkeel", binary.to_owned()), ("usr/bin/evenkeeld", daemon)];
    Ok(programs.map(|(place, path)| (place.to_owned(), path)).into_iter().chain(libraries).collect())
}

/// Evenkeel in a guest.
impl Guest {
    /// Starts the daemon with a configuration and waits until it answers. Where its files go is said here;
    /// `configuration` starts with the drive.
    ///
    /// # Errors
    /// When the daemon does not answer; the error holds what it said.
    pub fn serve(&mut self, configuration: &str) -> Result<()> {
        let folders = "runtime_dir = \"/run/ek\"\nstate_dir = \"/run/state\"\n";
        self.write_file(CONFIG, &format!("{folders}{configuration}"))?;
        self.serve_again()
    }

    /// Starts the daemon with the last configuration, after its end.
    ///
    /// # Errors
    /// As [`Guest::serve`].
    pub fn serve_again(&mut self) -> Result<()> {
        self.start_job("daemon", &format!("evenkeel serve {CONFIG}"), ENDLESS)?;
        let answers = format!("test -e /run/daemon.code || evenkeel drive list --socket {API_SOCKET}");
        let answered = self.wait_for("the daemon", &answers);
        answered.and_then(|()| self.run("! test -e /run/daemon.code").map(drop)).with_context(|| self.daemon_log())
    }

    /// Ends the daemon by a signal and waits for its end; returns its exit code and all that it said.
    ///
    /// # Errors
    /// When it does not end.
    pub fn end_daemon(&mut self, signal: &str) -> Result<Output> {
        self.run(&format!("kill -{signal} $(pidof evenkeeld | tr ' ' '\\n' | sort -n | head -n 1)"))?;
        self.finish_job("daemon", PROGRAM_LIMIT)
    }

    /// What the daemon said so far.
    pub fn daemon_log(&mut self) -> String {
        let log = self.run("cat /run/daemon.out").unwrap_or_default();
        format!("--- daemon in the guest ---\n{log}")
    }

    /// Runs `evenkeel COMMAND`, which must succeed, and returns its output.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn evenkeel(&mut self, command: &str) -> Result<String> {
        self.run_within(&format!("evenkeel {command}"), PROGRAM_LIMIT)
    }

    /// Runs `evenkeel COMMAND`, whatever its exit code.
    ///
    /// # Errors
    /// As [`Guest::attempt`].
    pub fn attempt_evenkeel(&mut self, command: &str) -> Result<Output> {
        self.attempt(&format!("evenkeel {command}"), PROGRAM_LIMIT)
    }

    /// Runs `evenkeel COMMAND`, which must succeed, with the daemon in the guest, and returns its output.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn ask_daemon(&mut self, command: &str) -> Result<String> {
        self.evenkeel(&format!("{command} --socket {API_SOCKET}"))
    }

    /// Has a tenant's disk written and read back, 4 MiB at random.
    ///
    /// # Errors
    /// When anything of it is wrong, or as [`Guest::run`].
    pub fn verify_tenant(&mut self, name: &str) -> Result<()> {
        let load = format!("load /run/ek/{name} --rw randwrite --bs 4k --iodepth 8 --size 4m --verify --json");
        let told = self.evenkeel(&load)?;
        ensure!(told.contains("\"total_ios\":1024") && told.contains("\"bad_blocks\":0"), "{name}: {told}");
        Ok(())
    }

    /// Writes a small text file.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn write_file(&mut self, path: &str, text: &str) -> Result<()> {
        self.run(&write_command(path, text)).map(drop)
    }
}

/// The command that writes a small text file.
pub fn write_command(path: &str, text: &str) -> String {
    // A command is one line; printf makes lines of the rest.
    let escaped = text.replace('\\', "\\\\").replace('%', "%%").replace('\'', "'\\''").replace('\n', "\\n");
    format!("printf '{escaped}' >{path}")
}
