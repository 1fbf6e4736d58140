//! `evenkeel drive claim`, `release` and `vfs`: the host's NVMe controllers, with the caller's rights.

use std::path::PathBuf;

use anyhow::Result;
use api::{Drive, Problem};
use host_drives::{Function, Host, NvmeDevice, Outcome, Refused};
use io_model::units::Size;
use nvme_driver::PciAddress;
use serde::Serialize;

use crate::output::say;
use crate::table;

/// The drive, and whether this is only a dry run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// PCI address of the drive, such as 0000:03:00.0 (see `evenkeel drive list`)
    pub(crate) address: PciAddress,

    /// Only show what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// The drive, and the number of its virtual functions.
#[derive(Debug, clap::Args)]
pub(crate) struct FunctionsArgs {
    #[command(flatten)]
    of: Args,

    /// Number of virtual functions; 0 removes all
    #[arg(long, value_name = "N")]
    count: u16,
}

/// A controller of the host, as `evenkeel drive list` shows it.
#[derive(Serialize)]
pub(crate) struct Listed {
    #[serde(flatten)]
    device: NvmeDevice,
    /// The daemon's drives on this controller.
    drives: Vec<String>,
}

/// All controllers of the host; `drives` are the daemon's.
pub(crate) fn listed(drives: &[Drive]) -> Vec<Listed> {
    let paths: Vec<(PathBuf, &Drive)> =
        drives.iter().filter_map(|drive| Some((real(drive.path.as_ref()?), drive))).collect();
    let list = |device: NvmeDevice| {
        let address = PathBuf::from(device.address.to_string());
        let is_it = |path: &PathBuf| *path == address || device.disks.iter().any(|disk| disk.has(path));
        let drives = paths.iter().filter(|(path, _)| is_it(path)).map(|(_, drive)| drive.name.clone()).collect();
        Listed { device, drives }
    };
    Host::this().drives().into_iter().map(list).collect()
}

fn real(path: &String) -> PathBuf {
    let path = PathBuf::from(path);
    path.canonicalize().unwrap_or(path)
}

/// A table for people. Empty if the host has no controller.
pub(crate) fn table(listed: &[Listed]) -> String {
    if listed.is_empty() {
        return "this host has no NVMe controller of its own\n".to_owned();
    }
    let row = |Listed { device, drives }: &Listed| {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let disks = device.disks.iter().map(|disk| format!("{} ({})", disk.path.display(), Size(disk.size_bytes)));
        let disks: Vec<String> = disks.collect();
        let model = device.model.clone().unwrap_or_else(|| device.pci_id.clone());
        vec![
            device.address.to_string(),
            model,
            or_none(&device.serial),
            or_none(&device.driver),
            or_none(&device.iommu_group),
            if disks.is_empty() { "-".to_owned() } else { disks.join(", ") },
            state(device, drives),
        ]
    };
    let heading = ["address", "model", "serial", "driver", "group", "disks", "use"];
    table::layout_with_words(&heading, &listed.iter().map(row).collect::<Vec<_>>(), &[0, 1, 2, 3, 5, 6])
}

/// What an operator must know before claiming it or making it a drive.
fn state(device: &NvmeDevice, drives: &[String]) -> String {
    let mut words: Vec<String> = drives.iter().map(|name| format!("drive {name}")).collect();
    match &device.held_by {
        Some(by) if drives.is_empty() => words.push(format!("in use by {} (process {})", by.name, by.pid)),
        _ => {}
    }
    words.extend(device.disks.iter().flat_map(|disk| disk.uses.iter().cloned()));
    if device.is_assigned {
        words.push("assigned to a VM".to_owned());
    } else if device.is_claimed() && words.is_empty() {
        words.push("claimed".to_owned());
    }
    match &device.function {
        Function::Only => {}
        Function::Physical(functions) => {
            words.push(format!("{} of {} virtual functions", functions.addresses.len(), functions.max));
        }
        Function::Virtual { of, number } => words.push(format!("virtual function {number} of {of}")),
    }
    let others: Vec<String> = device.neighbours.iter().map(|other| other.address.to_string()).collect();
    if !others.is_empty() {
        words.push(format!("shares its group with {}", others.join(", ")));
    }
    if words.is_empty() { "free".to_owned() } else { words.join("; ") }
}

/// Runs `evenkeel drive claim`.
///
/// # Errors
/// See [`Host::claim`].
pub(crate) fn claim(args: &Args) -> Result<()> {
    let outcome = Host::this().claim(args.address, args.dry_run).map_err(problem)?;
    let address = args.address;
    let mut told = steps(args, &outcome, &format!("{address} is claimed: vfio-pci has it"));
    for (path, content) in &outcome.contents {
        told += &format!(
            "{} holds {content}. `serve` and `drive add` refuse it without its layout file or --discard-content.\n",
            path.display()
        );
    }
    if let Function::Virtual { of, .. } = outcome.before.function {
        told += &format!("It may share namespaces with {of}: make sure that they are not in use there.\n");
    }
    if let Some(group) = outcome.before.iommu_group.as_ref().filter(|_| !args.dry_run) {
        told += &format!(
            "Users of /dev/vfio/{group} can drive it now; `evenkeel drive release {address}` gives it back.\n"
        );
    }
    say(&told)
}

/// Runs `evenkeel drive release`.
///
/// # Errors
/// See [`Host::release`].
pub(crate) fn release(args: &Args) -> Result<()> {
    let host = Host::this();
    let outcome = host.release(args.address, args.dry_run).map_err(problem)?;
    let mut told = steps(args, &outcome, &format!("{} is the kernel's again", args.address));
    let disks = host.drive(args.address).map_err(problem)?.disks;
    if !args.dry_run && !disks.is_empty() {
        let disks: Vec<String> = disks.iter().map(|disk| disk.path.display().to_string()).collect();
        told += &format!("Its disks: {}\n", disks.join(", "));
    }
    say(&told)
}

/// Runs `evenkeel drive vfs`.
///
/// # Errors
/// See [`Host::set_functions`].
pub(crate) fn functions(args: &FunctionsArgs) -> Result<()> {
    let Args { address, dry_run } = args.of;
    let functions = Host::this().set_functions(address, args.count, dry_run).map_err(problem)?;
    if dry_run {
        return say(&format!(
            "{address} can have {} virtual functions; it has {}\n",
            args.count,
            functions.addresses.len()
        ));
    }
    let addresses: Vec<String> = functions.addresses.iter().map(ToString::to_string).collect();
    say(&match &addresses[..] {
        [] => format!("{address} has no virtual functions\n"),
        some => format!("{address} has virtual functions: {}\n", some.join(", ")),
    })
}

pub(crate) fn steps(args: &Args, outcome: &Outcome, done: &str) -> String {
    if outcome.steps.is_empty() {
        return format!("{done}; there is nothing to do\n");
    }
    if args.dry_run {
        let steps = outcome.steps.iter().map(|step| format!("would {step}\n"));
        return steps.collect();
    }
    format!("{done}\n")
}

pub(crate) fn problem(refused: Refused) -> Problem {
    Problem::new(409, refused.code, refused.what, refused.remedy)
}
