//! `evenkeel drive assign` and `return`: gives a whole drive to a VM, and takes it back and wipes it.

use anyhow::Result;
use api::Problem;
use host_drives::{Function, Host};
use nvme_driver::PciAddress;
use serde::Serialize;

use crate::disk::is_typed;
use crate::erase::Eraser;
use crate::host::{self, problem};
use crate::output::{print, say};
use crate::progress::Progress;

/// The drive to assign.
#[derive(Debug, clap::Args)]
pub(crate) struct AssignArgs {
    #[command(flatten)]
    of: host::Args,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The drive to take back, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct ReturnArgs {
    /// PCI address of the drive, such as 0000:03:00.0 (see `evenkeel drive list`)
    address: PciAddress,

    /// Don't ask
    #[arg(long)]
    yes: bool,

    /// Don't wipe the drive, only forget its assignment: for a drive that was removed from the host
    #[arg(long, conflicts_with = "yes")]
    forget: bool,
}

/// How to give the drive to a VM.
#[derive(Serialize)]
struct Assigned {
    address: String,
    iommu_group: Option<String>,
    /// QEMU's arguments.
    qemu: Vec<String>,
    /// The device for a libvirt domain.
    libvirt: String,
}

impl Assigned {
    fn new(address: PciAddress, iommu_group: Option<String>) -> Self {
        let text = address.to_string();
        // PCI domains of more than four digits exist, too (VMD).
        let mut parts = text.split([':', '.']);
        let mut next = || parts.next().unwrap_or_default();
        let (domain, bus, slot, function) = (next(), next(), next(), next());
        Self {
            qemu: vec!["-device".to_owned(), format!("vfio-pci,host={text}")],
            libvirt: format!(
                "<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0x{domain}' bus='0x{bus}' \
                 slot='0x{slot}' function='0x{function}'/></source></hostdev>"
            ),
            address: text,
            iommu_group,
        }
    }
}

/// Runs `evenkeel drive assign`.
///
/// # Errors
/// See [`Host::assign`].
pub(crate) fn assign(args: &AssignArgs) -> Result<()> {
    let address = args.of.address;
    let outcome = Host::this().assign(address, args.of.dry_run).map_err(problem)?;
    let assigned = Assigned::new(address, outcome.before.iommu_group.clone());
    print(args.json, &assigned, || {
        let mut told = host::steps(&args.of, &outcome, &format!("{address} is assigned to a VM: vfio-pci has it"));
        told += &format!("QEMU:    {}\nlibvirt: {}\n", assigned.qemu.join(" "), assigned.libvirt);
        if let Some(group) = &assigned.iommu_group {
            told += &format!(
                "QEMU must be allowed to open /dev/vfio/{group}, and to lock all memory of the guest (LimitMEMLOCK).\n"
            );
        }
        told += "No latency can be promised there. The VM can read and overwrite all of its data.\n";
        told + &format!("To take it back and wipe it: evenkeel drive return {address}\n")
    })
}

/// Runs `evenkeel drive return`.
///
/// # Errors
/// See [`Host::take_back`]. Or it was not confirmed, or the drive can't be erased. The drive is then still assigned.
pub(crate) fn take_back(args: &ReturnArgs) -> Result<()> {
    let ReturnArgs { address, yes, forget } = *args;
    let host = Host::this();
    if forget {
        host.forget_gone(address).map_err(problem)?;
        return say(&format!("{address} is no longer assigned; it was not wiped\n"));
    }
    let mut taken = host.take_back(address).map_err(problem)?;
    let serial = taken.drive.serial.as_deref().unwrap_or("unknown");
    let question = format!("Erase all of {address} (serial number {serial}) for ever? Type its address: ");
    if !yes && !is_typed(&address.to_string(), &question)? {
        let remedy = "--yes wipes it without a question; it stays assigned until then";
        return Err(Problem::new(400, "not-confirmed", "nothing is erased", remedy).into());
    }
    let is_function = matches!(taken.drive.function, Function::Virtual { .. });
    let mut progress = Progress::new();
    let erased = Eraser::new(&mut taken.controller, is_function).and_then(|eraser| eraser.run(&mut progress));
    progress.end();
    let how = erased.map_err(|error| {
        let title = format!("{address} is not wiped: {error}");
        let remedy = "it stays assigned; look at `dmesg` and run this again, or take the drive out";
        Problem::new(500, "not-wiped", title, remedy)
    })?;
    host.forget(&taken).map_err(problem)?;
    say(&format!(
        "{address} is wiped ({how}) and claimed: serve it (backend = \"nvme\"), or evenkeel drive release {address}\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_given_the_function_by_its_address() {
        let assigned = Assigned::new("0000:3b:1f.2".parse().expect("an address"), None);
        assert_eq!(assigned.qemu, ["-device", "vfio-pci,host=0000:3b:1f.2"]);
        let its = "domain='0x0000' bus='0x3b' slot='0x1f' function='0x2'";
        assert!(assigned.libvirt.contains(its), "{}", assigned.libvirt);
    }
}
