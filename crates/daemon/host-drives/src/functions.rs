//! Virtual functions come and go.

use std::fs::File;
use std::path::Path;

use nvme_driver::PciAddress;

use crate::bind::write_number;
use crate::look::{Function, Functions, Host, NvmeDevice, text};
use crate::refused::Refused;
use crate::resources;

impl Host {
    /// Sets a drive's number of virtual functions, which are bound to no driver at first, and returns them. Repeating
    /// it changes nothing. `dry_run`: only checks whether it is possible.
    ///
    /// # Errors
    /// It can't have that many, one of its functions is in use, or the kernel failed. In the last case it has none
    /// then.
    pub fn set_functions(&self, address: PciAddress, count: u16, dry_run: bool) -> Result<Functions, Refused> {
        let _lock = self.lock_unless(dry_run)?;
        let drive = self.drive(address)?;
        let functions = functions_of(&drive)?.clone();
        if functions.addresses.len() == usize::from(count) {
            return Ok(functions);
        }
        if count > functions.max {
            let what = format!("{address} can have {} virtual functions, not {count}", functions.max);
            return Err(Refused::new("too-many", what, "ask for fewer"));
        }
        let Some(controller) = drive.controller.as_ref().filter(|_| drive.driver.as_deref() == Some("nvme")) else {
            let what = format!("{address} is not with the kernel's driver, which makes its functions");
            return Err(Refused::new(
                "not-the-kernels",
                what,
                format!("give it back first: evenkeel drive release {address}"),
            ));
        };
        // Their namespaces would go on with what the VMs left there, and nobody would know.
        functions.addresses.iter().try_for_each(|function| self.refuse_assigned(*function))?;
        // Nobody else opens one while they go.
        let held = self.unused(&functions.addresses)?;
        if dry_run {
            return Ok(functions);
        }
        drop(held);
        let directory = self.directory(address);
        if !functions.addresses.is_empty() {
            write_number(&directory.join("sriov_numvfs"), 0)?;
        }
        if count > 0 {
            self.make(&directory, count)?;
            if let Err(why) = resources::assign(&self.dev.join(controller), count) {
                // Half of them are of no use. If they can't go, the list shows them.
                let _ = write_number(&directory.join("sriov_numvfs"), 0);
                return Err(why);
            }
        }
        let made = functions_of(&self.drive(address)?)?.clone();
        if made.addresses.len() != usize::from(count) {
            let what = format!("{address} has {} virtual functions, not {count}", made.addresses.len());
            return Err(Refused::new("not-made", what, "look at `dmesg`"));
        }
        Ok(made)
    }

    /// Makes functions that no driver looks at: they have no queues yet, and the kernel's would wait for them.
    fn make(&self, directory: &Path, count: u16) -> Result<(), Refused> {
        let probing = directory.join("sriov_drivers_autoprobe");
        let before = text(&probing).and_then(|text| text.parse().ok()).unwrap_or(1);
        write_number(&probing, 0)?;
        let made = write_number(&directory.join("sriov_numvfs"), count);
        let restored = write_number(&probing, before);
        made.and(restored)
    }

    /// Whether nobody has any of these functions; what keeps it so.
    fn unused(&self, functions: &[PciAddress]) -> Result<Vec<File>, Refused> {
        let drives = functions.iter().map(|function| self.drive(*function)).collect::<Result<Vec<_>, _>>()?;
        // Several may be paths to one disk.
        let mut disks: Vec<_> = drives.iter().flat_map(|drive| &drive.disks).collect();
        disks.sort_by_key(|disk| &disk.path);
        disks.dedup_by_key(|disk| &disk.path);
        let mut held = self.hold(disks)?;
        for drive in &drives {
            held.extend(self.hold_group(drive)?);
        }
        Ok(held)
    }
}

fn functions_of(drive: &NvmeDevice) -> Result<&Functions, Refused> {
    let address = drive.address;
    match &drive.function {
        Function::Physical(functions) => Ok(functions),
        Function::Only => {
            let what = format!("{address} has no virtual functions (SR-IOV)");
            Err(Refused::new("no-functions", what, "let its namespaces or disks be shared by the daemon"))
        }
        Function::Virtual { of, .. } => {
            let what = format!("{address} is a virtual function itself");
            Err(Refused::new("no-functions", what, format!("name the physical one, {of}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::tests::{Made, address};

    const DRIVE: &str = "0000:03:00.0";

    #[test]
    fn what_can_not_have_functions_is_told_so() {
        let made = Made::new();
        made.drive(DRIVE);
        let told = made.host().set_functions(address(DRIVE), 2, false).expect_err("no SR-IOV").to_string();
        assert!(told.contains("no virtual functions"), "{told}");
        made.write(&format!("sys/bus/pci/devices/{DRIVE}/sriov_totalvfs"), "4\n");
        let told = made.host().set_functions(address(DRIVE), 5, false).expect_err("too many").to_string();
        assert!(told.contains("can have 4 virtual functions, not 5"), "{told}");
        let none = made.host().set_functions(address(DRIVE), 0, false).expect("it has none");
        assert_eq!(none, Functions { max: 4, addresses: Vec::new() });
    }

    #[test]
    fn functions_that_did_not_come_are_missed() {
        let made = Made::new();
        made.drive(DRIVE);
        for file in ["sriov_totalvfs", "sriov_numvfs", "sriov_drivers_autoprobe"] {
            made.write(&format!("sys/bus/pci/devices/{DRIVE}/{file}"), "1\n");
        }
        made.write("dev/nvme0", "");
        // These files are no controller: it can't be asked, and what was made goes again.
        let told = made.host().set_functions(address(DRIVE), 1, false).expect_err("no controller");
        assert_eq!(told.code, "not-assigned");
        assert_eq!(made.read(&format!("sys/bus/pci/devices/{DRIVE}/sriov_numvfs")), "0");
        assert_eq!(made.read(&format!("sys/bus/pci/devices/{DRIVE}/sriov_drivers_autoprobe")), "1");
    }

    #[test]
    fn functions_in_use_stay() {
        let made = Made::new();
        made.drive(DRIVE);
        made.virtual_function("0000:03:00.1", DRIVE);
        made.write("sys/bus/pci/devices/0000:03:00.1/nvme/nvme0/nvme0n1/size", "");
        let locked = config::in_use::lock(&made.host().dev.join("nvme0n1")).expect("locked");
        let told = made.host().set_functions(address(DRIVE), 0, false).expect_err("in use");
        assert_eq!(told.code, "in-use");
        drop(locked);
        assert!(made.host().set_functions(address(DRIVE), 0, true).is_ok());
    }
}
