//! Giving a whole drive to a VM, and taking it back.

use std::fs::File;

use config::Assignment;
use nvme_driver::{Controller, Error, PciAddress, VfioDevice};
use nvme_spec::namespace::nmic;

use crate::bind::Outcome;
use crate::look::{BlockDevice, Function, Host, NvmeDevice};
use crate::refused::Refused;

/// An assigned drive that nobody uses any more, still with what the VM left there. Until it is dropped nobody else gets
/// it, nor assigns or claims any drive.
pub struct TakenBack {
    /// The drive, claimed.
    pub drive: NvmeDevice,
    /// The drive itself, to be wiped.
    pub controller: Controller<VfioDevice>,
    assignment: Assignment,
    _held: Vec<File>,
    _lock: File,
}

impl Host {
    /// Claims a drive for a VM and records that, before the VM can have it. Done once more it does nothing. `dry_run`:
    /// only says what it would do, without asking the drive.
    ///
    /// # Errors
    /// As for [`Host::claim`]; or others have something on it, or the record can't be written. Then it is as it was.
    pub fn assign(&self, address: PciAddress, dry_run: bool) -> Result<Outcome, Refused> {
        let _lock = self.lock_unless(dry_run)?;
        let before = self.drive(address)?;
        let known = self.assignments.find_at(address);
        if let Some(moved) = known.as_ref().filter(|known| known.address != address.to_string()) {
            let what = format!("{address} was assigned as {}, and still holds a VM's data", moved.address);
            return Err(Refused::new("assigned", what, format!("wipe it first: evenkeel drive return {address}")));
        }
        if dry_run {
            return self.bind(before, true);
        }
        let is_function = matches!(before.function, Function::Virtual { .. });
        let serial = before.serial.clone().unwrap_or_default();
        let new = Assignment { address: address.to_string(), serial, is_function };
        if known.is_none() {
            self.record(&new)?;
        }
        match self.bind_for_vm(&before, known.as_ref().unwrap_or(&new)) {
            Ok(outcome) => Ok(outcome),
            Err(why) if known.is_some() => Err(why),
            Err(why) => {
                let mut why = self.undo(&before, why);
                if let Err(error) = self.assignments.forget(&new) {
                    why.what += &format!("; and its record could not be removed: {error}");
                }
                Err(why)
            }
        }
    }

    /// `assignment` is recorded, and is again with all that the drive says of itself.
    fn bind_for_vm(&self, before: &NvmeDevice, assignment: &Assignment) -> Result<Outcome, Refused> {
        let outcome = self.bind(before.clone(), false)?;
        // Nobody else opens it until it is recorded as it is.
        let mut claimed = Claimed::ask(before.address)?;
        if assignment.is_of(Some(&claimed.serial)) == Some(false) {
            return Err(another(before.address, &claimed.serial, assignment));
        }
        self.refuse_layouts(before.address, &claimed)?;
        self.refuse_shared(before, &mut claimed)?;
        self.record(&Assignment { serial: claimed.serial.clone(), ..assignment.clone() })?;
        Ok(outcome)
    }

    fn record(&self, assignment: &Assignment) -> Result<(), Refused> {
        let unwritten = |error| Refused::new("not-recorded", format!("can't record it: {error}"), "run this as root");
        self.assignments.record(assignment).map_err(unwritten)
    }

    /// Takes an assigned drive back from a VM that has ended, for wiping. It stays assigned until [`Host::forget`].
    ///
    /// # Errors
    /// It is not assigned, another drive is at its address, or it is in use.
    pub fn take_back(&self, address: PciAddress) -> Result<TakenBack, Refused> {
        let lock = self.lock()?;
        let Some(assignment) = self.assignments.find_at(address) else { return Err(not_assigned(address)) };
        let before = self.drive(address).map_err(|mut gone| {
            gone.remedy = format!("plug it in again; if it is lost: evenkeel drive return {address} --forget");
            gone
        })?;
        // Written anew, it can be removed once the drive is wiped.
        self.record(&assignment)?;
        self.hold_group(&before)?;
        // After a restart of the host the kernel's driver has it.
        self.bind(before, false)?;
        let mut drive = self.drive(address)?;
        let mut claimed = Claimed::ask(address)?;
        if assignment.is_of(Some(&claimed.serial)) == Some(false) {
            return Err(another(address, &claimed.serial, &assignment));
        }
        self.refuse_shared(&drive, &mut claimed)?;
        let held = self.hold(self.shared_disks(&drive, &claimed.namespaces)?.iter())?;
        drive.serial = Some(claimed.serial);
        Ok(TakenBack { drive, controller: claimed.controller, assignment, _held: held, _lock: lock })
    }

    /// An assigned drive was wiped. `taken` keeps the drive reserved until this returns.
    ///
    /// # Errors
    /// Its record can't be removed: it is assigned still.
    pub fn forget(&self, taken: &TakenBack) -> Result<(), Refused> {
        self.remove(&taken.assignment)
    }

    fn remove(&self, assignment: &Assignment) -> Result<(), Refused> {
        let kept =
            |error| Refused::new("not-recorded", format!("can't remove its record: {error}"), "run this as root");
        self.assignments.forget(assignment).map_err(kept)
    }

    /// Forgets an assigned drive that is gone, without wiping it.
    ///
    /// # Errors
    /// It is not assigned, or still there, at whichever address.
    pub fn forget_gone(&self, address: PciAddress) -> Result<(), Refused> {
        let _lock = self.lock()?;
        let is_its = |assignment: &Assignment| assignment.address == address.to_string();
        let Some(assignment) = self.assignments.all().into_iter().find(is_its) else {
            return Err(not_assigned(address));
        };
        for there in self.drives() {
            let serial = match &there.serial {
                Some(serial) => Some(serial.clone()),
                None if there.address == address && there.is_claimed() => Some(Claimed::ask(address)?.serial),
                None => None,
            };
            let is_at_its_place = there.address == address && assignment.is_of(serial.as_deref()) != Some(false);
            if is_at_its_place || assignment.is_of(serial.as_deref()) == Some(true) {
                let what = format!("{} is there, with the VM's data on it", there.address);
                let remedy = match assignment.is_function {
                    true => format!(
                        "make its virtual functions again (evenkeel drive vfs), then: evenkeel drive return {address}"
                    ),
                    false => format!("wipe it: evenkeel drive return {}", there.address),
                };
                return Err(Refused::new("still-there", what, remedy));
            }
        }
        self.remove(&assignment)
    }

    /// The daemon's disks would be the VM's to overwrite.
    fn refuse_layouts(&self, address: PciAddress, claimed: &Claimed) -> Result<(), Refused> {
        let Some(layout) = config::layout_of_nvme(&claimed.serial, &claimed.names) else { return Ok(()) };
        let what = format!("{address} has the daemon's disks, listed in {}", layout.display());
        let remedy = "delete them first (`evenkeel disk delete`), or remove that file if its data is not needed";
        Err(Refused::new("has-tenants", what, remedy))
    }

    /// What other controllers have too is not one VM's, and is not wiped as if it were.
    fn refuse_shared(&self, drive: &NvmeDevice, claimed: &mut Claimed) -> Result<(), Refused> {
        let own = claimed.controller.identity().cntlid;
        for nsid in claimed.namespaces.clone() {
            let others = match claimed.controller.admin().controllers_of(nsid) {
                Ok(all) => all.into_iter().filter(|id| *id != own).map(|id| format!("controller {id}")).collect(),
                Err(Error::Command { .. }) => self.who_may_share(drive, nsid, &mut claimed.controller)?,
                Err(error) => return Err(no_answer(drive.address, &error)),
            };
            if !others.is_empty() {
                let what = format!("namespace {nsid} of {} is also that of {}", drive.address, others.join(", "));
                let remedy = "detach it there (`nvme detach-ns`), or let the daemon share it";
                return Err(Refused::new("shared-namespace", what, remedy));
            }
        }
        Ok(())
    }

    /// Other functions of the drive that user space has, where the drive doesn't tell whose a namespace is.
    fn who_may_share(
        &self,
        drive: &NvmeDevice,
        nsid: u32,
        controller: &mut Controller<VfioDevice>,
    ) -> Result<Vec<String>, Refused> {
        let Function::Virtual { of, .. } = drive.function else { return Ok(Vec::new()) };
        let namespace = controller.admin().namespace(nsid).map_err(|error| no_answer(drive.address, &error))?;
        if namespace.nmic & nmic::SHARED == 0 {
            return Ok(Vec::new());
        }
        let others = self.drives().into_iter().filter(|other| other.address != drive.address && other.is_claimed());
        let is_sibling = |other: &NvmeDevice| matches!(other.function, Function::Virtual { of: its, .. } if its == of);
        Ok(others.filter(is_sibling).map(|other| other.address.to_string()).collect())
    }

    /// The physical function's disks that are namespaces of a virtual one too.
    fn shared_disks(&self, drive: &NvmeDevice, namespaces: &[u32]) -> Result<Vec<BlockDevice>, Refused> {
        let Function::Virtual { of, .. } = drive.function else { return Ok(Vec::new()) };
        let is_shared = |disk: &BlockDevice| disk.nsid.is_none_or(|nsid| namespaces.contains(&nsid));
        Ok(self.drive(of)?.disks.into_iter().filter(is_shared).collect())
    }
}

fn not_assigned(address: PciAddress) -> Refused {
    Refused::new("not-assigned", format!("{address} is assigned to no VM"), "there is nothing to do")
}

fn another(address: PciAddress, serial: &str, assignment: &Assignment) -> Refused {
    let what = format!("{address} is another drive ({serial}) than was assigned ({})", assignment.serial);
    let remedy = format!("plug the other in again; if it is lost: evenkeel drive return {address} --forget");
    Refused::new("another-drive", what, remedy)
}

fn no_answer(address: PciAddress, error: &Error) -> Refused {
    let what = format!("{address} does not say what is on it: {error}");
    Refused::new("no-answer", what, "see what it says, and try again")
}

/// A drive without the kernel's driver, up and nobody else's: it tells itself which it is.
struct Claimed {
    controller: Controller<VfioDevice>,
    serial: String,
    namespaces: Vec<u32>,
    /// What the kernel's driver would call these, each in all ways that it may.
    names: Vec<String>,
}

impl Claimed {
    fn ask(address: PciAddress) -> Result<Self, Refused> {
        let asked = || -> Result<Self, Error> {
            let mut controller = Controller::start(VfioDevice::open(address)?)?;
            let serial = words(&controller.identity().sn);
            let namespaces = controller.admin().active_namespaces()?;
            let mut names = Vec::new();
            for nsid in &namespaces {
                names.extend(names_of(&mut controller, *nsid)?);
            }
            Ok(Self { controller, serial, namespaces, names })
        };
        asked().map_err(|error| no_answer(address, &error))
    }
}

/// A namespace's `wwid` as Linux may write it: by its UUID, NGUID or EUI64, or by serial number and model.
fn names_of(controller: &mut Controller<VfioDevice>, nsid: u32) -> Result<Vec<String>, Error> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let is_set = |bytes: &[u8]| bytes.iter().any(|byte| *byte > 0);
    let identity = *controller.identity();
    let namespace = controller.admin().namespace(nsid)?;
    // Before NVMe 1.3 there are none.
    let uuid = controller.admin().namespace_uuid(nsid).unwrap_or_default();
    let uuid = uuid.filter(|uuid| is_set(uuid)).map(|uuid| {
        let digits = hex(&uuid);
        format!("uuid.{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
    });
    let ids = [&namespace.nguid[..], &namespace.eui64[..]].into_iter().filter(|id| is_set(id));
    let ids = ids.map(|id| format!("eui.{}", hex(id)));
    let (sn, mn) = (hex(words(&identity.sn).as_bytes()), hex(words(&identity.mn).as_bytes()));
    let by_number = format!("nvme.{:04x}-{sn}-{mn}-{nsid:08x}", identity.vid);
    Ok(uuid.into_iter().chain(ids).chain([by_number]).collect())
}

/// A text of Identify without what fills it up.
fn words(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_end_matches(['\0', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::tests::{Made, address};

    const DRIVE: &str = "0000:03:00.0";

    fn assignment(address: &str, serial: &str) -> Assignment {
        Assignment { address: address.into(), serial: serial.into(), is_function: false }
    }

    #[test]
    fn an_assigned_drive_is_neither_claimed_nor_released_nor_assigned_to_nobody() {
        let made = Made::new();
        made.drive(DRIVE);
        let host = made.host();
        let told = host.assign(address(DRIVE), true).expect("it could be");
        assert!(!told.steps.is_empty() && !host.drives()[0].is_assigned, "a dry run changes nothing");
        host.assignments.record(&assignment(DRIVE, "ek0")).expect("recorded");
        assert!(host.drives()[0].is_assigned);
        for refused in [host.claim(address(DRIVE), false), host.release(address(DRIVE), false)] {
            let told = refused.expect_err("it is a VM's");
            assert_eq!(told.code, "assigned");
            assert!(told.remedy.contains("evenkeel drive return 0000:03:00.0"), "{told}");
        }
        assert_eq!(host.forget_gone(address(DRIVE)).expect_err("it is there").code, "still-there");
        host.assignments.record(&assignment(DRIVE, "other")).expect("recorded");
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
        made.virtual_function("0000:03:00.1", DRIVE);
        made.host().assignments.record(&assignment("0000:03:00.1", "ek0")).expect("recorded");
        assert_eq!(made.host().set_functions(address(DRIVE), 0, false).expect_err("a VM's").code, "assigned");
    }
}
