//! Giving a whole drive to a VM, and taking it back.

use std::fs::File;

use config::Assignment;
use nvme_driver::{Controller, PciAddress, VfioDevice};

use crate::bind::Outcome;
use crate::look::{BlockDevice, Function, Host, NvmeDevice, VFIO};
use crate::refused::Refused;

/// An assigned drive that nobody uses any more, still with what the VM left there.
pub struct TakenBack {
    /// The drive, claimed.
    pub drive: NvmeDevice,
    /// What its record says.
    pub assignment: Assignment,
    /// Keeps everybody from other paths to its disks, until it is dropped.
    pub held: Vec<File>,
}

impl Host {
    /// Claims a drive for a VM and records that, before the VM can have it. Done once more it does nothing. `dry_run`:
    /// only says what it would do.
    ///
    /// # Errors
    /// As for [`Host::claim`]; or the daemon's disks lie there, or the record can't be written. Then it is as it was.
    pub fn assign(&self, address: PciAddress, dry_run: bool) -> Result<Outcome, Refused> {
        let before = self.drive(address)?;
        if self.assignments.find(address).is_some() {
            return self.bind(before, dry_run);
        }
        let serial = match (&before.serial, before.driver.as_deref()) {
            (Some(serial), _) => serial.clone(),
            (None, Some(VFIO)) => Claimed::ask(address)?.serial,
            (None, _) => String::new(),
        };
        self.refuse_layouts(&before, &serial)?;
        if dry_run {
            return self.bind(before, true);
        }
        self.record(address, &serial)?;
        let bound = self.bind(before, false).map_err(|mut why| {
            if let Err(error) = self.assignments.forget(address) {
                why.what += &format!("; and its record could not be removed: {error}");
            }
            why
        })?;
        if serial.is_empty() {
            // A virtual function that no driver had.
            self.record(address, &Claimed::ask(address)?.serial)?;
        }
        Ok(bound)
    }

    fn record(&self, address: PciAddress, serial: &str) -> Result<(), Refused> {
        let unwritten = |error| Refused::new("not-recorded", format!("can't record it: {error}"), "run this as root");
        self.assignments.record(address, &Assignment { serial: serial.to_owned() }).map_err(unwritten)
    }

    /// Takes an assigned drive back from a VM that has ended, for wiping. It stays assigned until [`Host::forget`].
    ///
    /// # Errors
    /// It is not assigned, another drive is at its address, or somebody uses it.
    pub fn take_back(&self, address: PciAddress) -> Result<TakenBack, Refused> {
        let Some(assignment) = self.assignments.find(address) else {
            return Err(Refused::new(
                "not-assigned",
                format!("{address} is assigned to no VM"),
                "nothing is to be done",
            ));
        };
        let before = self.drive(address).map_err(|mut gone| {
            gone.remedy = format!("put it in again; if it is gone for good: evenkeel drive return {address} --forget");
            gone
        })?;
        self.hold_group(&before)?;
        // After a restart of the host the kernel's driver has it.
        self.bind(before, false)?;
        let mut drive = self.drive(address)?;
        let Claimed { serial, namespaces } = Claimed::ask(address)?;
        if !assignment.is_of(&serial) {
            let what = format!("{address} is another drive ({serial}) than was assigned ({})", assignment.serial);
            let remedy =
                format!("put the other in again; if it is gone for good: evenkeel drive return {address} --forget");
            return Err(Refused::new("another-drive", what, remedy));
        }
        let held = self.hold(self.shared_disks(&drive, &namespaces)?.iter())?;
        drive.serial = Some(serial);
        Ok(TakenBack { drive, assignment, held })
    }

    /// An assigned drive was wiped.
    ///
    /// # Errors
    /// Its record can't be removed: it is assigned still.
    pub fn forget(&self, address: PciAddress) -> Result<(), Refused> {
        let unwritten =
            |error| Refused::new("not-recorded", format!("can't remove its record: {error}"), "run this as root");
        self.assignments.forget(address).map_err(unwritten)
    }

    /// Forgets an assigned drive that is gone, without wiping it.
    ///
    /// # Errors
    /// It is not assigned, or still there.
    pub fn forget_gone(&self, address: PciAddress) -> Result<(), Refused> {
        let Some(assignment) = self.assignments.find(address) else {
            return Err(Refused::new(
                "not-assigned",
                format!("{address} is assigned to no VM"),
                "nothing is to be done",
            ));
        };
        if let Ok(there) = self.drive(address) {
            let serial = match (there.serial, there.driver.as_deref()) {
                (Some(serial), _) => serial,
                (None, _) => Claimed::ask(address)?.serial,
            };
            if assignment.is_of(&serial) {
                let what = format!("{address} is there, with what the VM left on it");
                return Err(Refused::new("still-there", what, format!("wipe it: evenkeel drive return {address}")));
            }
        }
        self.forget(address)
    }

    /// The daemon's disks would be the VM's to overwrite.
    fn refuse_layouts(&self, drive: &NvmeDevice, serial: &str) -> Result<(), Refused> {
        let paths = drive.disks.iter().map(|disk| disk.path.as_path());
        let Some(layout) = config::layout_of_nvme(serial, paths) else { return Ok(()) };
        let what = format!("{} has the daemon's disks: {} says whose", drive.address, layout.display());
        let remedy = "delete them first (`evenkeel disk delete`), or remove that file if nobody needs what is there";
        Err(Refused::new("has-tenants", what, remedy))
    }

    /// The physical function's disks that are namespaces of a virtual one too.
    fn shared_disks(&self, drive: &NvmeDevice, namespaces: &[u32]) -> Result<Vec<BlockDevice>, Refused> {
        let Function::Virtual { of, .. } = drive.function else { return Ok(Vec::new()) };
        let is_shared = |disk: &BlockDevice| disk.nsid.is_none_or(|nsid| namespaces.contains(&nsid));
        Ok(self.drive(of)?.disks.into_iter().filter(is_shared).collect())
    }
}

/// What a drive without the kernel's driver says itself.
struct Claimed {
    serial: String,
    namespaces: Vec<u32>,
}

impl Claimed {
    fn ask(address: PciAddress) -> Result<Self, Refused> {
        let asked = || -> Result<Self, nvme_driver::Error> {
            let mut controller = Controller::start(VfioDevice::open(address)?)?;
            let sn = String::from_utf8_lossy(&controller.identity().sn).into_owned();
            let serial = sn.trim_matches(|c: char| c == '\0' || c.is_whitespace()).to_owned();
            Ok(Self { serial, namespaces: controller.admin().active_namespaces()? })
        };
        asked().map_err(|error| {
            let what = format!("{address} does not say which drive it is: {error}");
            Refused::new("no-answer", what, "see what it says, and try again")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::tests::{Made, address};

    const DRIVE: &str = "0000:03:00.0";

    #[test]
    fn an_assigned_drive_is_neither_claimed_nor_released_nor_assigned_to_nobody() {
        let made = Made::new();
        made.drive(DRIVE);
        let host = made.host();
        let told = host.assign(address(DRIVE), true).expect("it could be");
        assert!(!told.steps.is_empty() && !host.drives()[0].is_assigned, "a dry run changes nothing");
        host.assignments.record(address(DRIVE), &Assignment { serial: "ek0".into() }).expect("recorded");
        assert!(host.drives()[0].is_assigned);
        for refused in [host.claim(address(DRIVE), false), host.release(address(DRIVE), false)] {
            let told = refused.expect_err("it is a VM's");
            assert_eq!(told.code, "assigned");
            assert!(told.remedy.contains("evenkeel drive return 0000:03:00.0"), "{told}");
        }
        assert_eq!(host.forget_gone(address(DRIVE)).expect_err("it is there").code, "still-there");
        host.assignments.record(address(DRIVE), &Assignment { serial: "other".into() }).expect("recorded");
        host.forget_gone(address(DRIVE)).expect("that one is gone");
        assert_eq!(host.take_back(address(DRIVE)).err().expect("nobody's").code, "not-assigned");
    }

    #[test]
    fn what_can_not_be_bound_is_not_recorded() {
        let made = Made::new();
        made.drive(DRIVE);
        // These files are no kernel: the drive stays with its driver.
        assert_eq!(made.host().assign(address(DRIVE), false).expect_err("not bound").code, "not-bound");
        assert!(!made.host().drives()[0].is_assigned);
    }

    #[test]
    fn functions_that_vms_have_stay() {
        let made = Made::new();
        made.drive(DRIVE);
        let directory = "sys/bus/pci/devices";
        made.write(&format!("{directory}/{DRIVE}/sriov_totalvfs"), "4\n");
        made.function("0000:03:00.1", "0x010802", None, Some("8"));
        made.link(&format!("{directory}/{DRIVE}/virtfn0"), &format!("{directory}/0000:03:00.1"));
        made.host()
            .assignments
            .record(address("0000:03:00.1"), &Assignment { serial: "ek0".into() })
            .expect("recorded");
        assert_eq!(made.host().set_functions(address(DRIVE), 0, false).expect_err("a VM's").code, "assigned");
    }
}
