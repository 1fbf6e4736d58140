//! NVMe drives that a VM has as a whole: those that a file names so, and the host's own record of them.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nvme_driver::PciAddress;
use serde::{Deserialize, Serialize};

use crate::check::{self, pci_address};
use crate::problem::Sink;
use crate::section::{self, DRIVE, Section};

const HEAD: &str = "\
# A VM had this drive, or has it. Nothing else may use it before `evenkeel drive return` has wiped it, which removes
# this file. It stays over a restart of the host.

";

/// Beside the daemon's state: everybody may see which drives are in it.
const DIRECTORY: &str = "var/lib/evenkeel-assigned";

/// Keys that say something of a drive which is not served.
const KEYS: [&str; 4] = ["name", "backend", "address", "passthrough"];

/// Keys whose value no two drives have.
const UNIQUE: [&str; 2] = ["name", "address"];

/// A `[[drive]]` with `passthrough = "vm"`: the daemon leaves it alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AssignedDrive {
    /// What the file calls it.
    pub name: String,
    /// The PCI address, in the kernel's words.
    pub address: String,
}

/// What is kept of an assigned drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Its serial number, by which another drive at its address is known.
    pub serial: String,
}

/// Which drives of this host are assigned: a file for each. They are the host's, whatever daemons run there.
#[derive(Debug, Clone)]
pub struct Assignments {
    directory: PathBuf,
}

impl AssignedDrive {
    /// Whether a section is of such a drive.
    pub(crate) fn is_meant(drive: &Section<'_, '_>) -> bool {
        drive.is_drive() && drive.has("passthrough")
    }

    fn read(sink: &mut Sink<'_>, drive: &Section<'_, '_>) -> Option<Self> {
        drive.reject_unknown(sink);
        for key in DRIVE.iter().filter(|key| !KEYS.contains(key)) {
            drive.forbid(sink, key, "a VM has the whole drive, and the daemon does not serve it", "remove it");
        }
        drive.require(sink, "backend", "add backend = \"nvme\"", only("nvme"));
        drive.get(sink, "passthrough", only("vm"));
        let name = drive.require(sink, "name", "add name = \"fast\"", check::name);
        let remedy = "add address = \"0000:03:00.0\" (`lspci -D` has it)";
        let address = drive.require(sink, "address", remedy, pci_address);
        Some(Self { name: name?.into_inner(), address: address?.into_inner() })
    }

    /// For people: what it is, and what that means.
    pub fn describe(&self) -> String {
        let Self { name, address } = self;
        format!(
            "Drive {name:?}, {address}, is a VM's as a whole. Its commands do not pass through the daemon: nothing can be \
             promised, limited or shared there."
        )
    }

    /// What is to be done before a VM can have it, if anything is.
    pub fn remedy(&self) -> Option<String> {
        let address: PciAddress = self.address.parse().ok()?;
        let is_assigned = Assignments::of_this_host().find(address).is_some();
        (!is_assigned).then(|| format!("It is not assigned yet: evenkeel drive assign {address}"))
    }
}

/// The one word that a key may have.
fn only(word: &'static str) -> impl Fn(&toml::de::DeValue<'_>) -> Result<(), section::Wrong> {
    move |value| match section::text(value)? {
        found if found == word => Ok(()),
        found => Err(section::Wrong {
            what: format!("is {:?}", section::clip(&found)),
            remedy: format!("a drive with passthrough = \"vm\" has {word:?} here"),
        }),
    }
}

/// What to do before an assigned drive can be used.
pub(crate) fn remedy(address: PciAddress) -> String {
    format!("take it back, which wipes it: evenkeel drive return {address}")
}

/// Those of a file. Neither name nor address may be another drive's; `served` are the others.
pub(crate) fn read(sink: &mut Sink<'_>, of_vms: &[Section<'_, '_>], served: &[Section<'_, '_>]) -> Vec<AssignedDrive> {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (key, drive) in UNIQUE.iter().flat_map(|key| served.iter().map(move |drive| (key, drive))) {
        seen.extend(drive.peek(key).map(|(value, _)| value.to_owned()));
    }
    let mut assigned = Vec::new();
    for section in of_vms {
        assigned.extend(AssignedDrive::read(sink, section));
        for (value, span) in UNIQUE.iter().filter_map(|key| section.peek(key)) {
            if !seen.insert(value.to_owned()) {
                sink.at(&span, format!("{value:?} is another drive of this file too"), "remove one of the two");
            }
        }
    }
    assigned
}

impl Assignment {
    /// Whether it is of the drive with that serial number, as far as is known.
    pub fn is_of(&self, serial: &str) -> bool {
        self.serial.is_empty() || self.serial == serial
    }
}

impl Assignments {
    /// Of this host.
    pub fn of_this_host() -> Self {
        Self::below(Path::new("/"))
    }

    /// Of a host whose files are below `root`.
    pub fn below(root: &Path) -> Self {
        Self { directory: root.join(DIRECTORY) }
    }

    fn path(&self, address: PciAddress) -> PathBuf {
        self.directory.join(format!("{address}.toml"))
    }

    /// What is known of the assigned drive at an address; `None`: none is assigned there. A record that can't be read
    /// is one of no known drive.
    pub fn find(&self, address: PciAddress) -> Option<Assignment> {
        let path = self.path(address);
        if path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return None;
        }
        let text = std::fs::read_to_string(path).unwrap_or_default();
        Some(toml::from_str(&text).unwrap_or(Assignment { serial: String::new() }))
    }

    /// Why nothing but a VM may use the drive at an address, and what to do; `None`: it is not assigned.
    pub fn refusal(&self, address: PciAddress) -> Option<(String, String)> {
        self.find(address)?;
        Some((format!("{address} is assigned to a VM"), remedy(address)))
    }

    /// Keeps that a drive is assigned, durably.
    ///
    /// # Errors
    /// The system's.
    pub fn record(&self, address: PciAddress, assignment: &Assignment) -> io::Result<()> {
        std::fs::create_dir_all(&self.directory)?;
        std::fs::set_permissions(&self.directory, PermissionsExt::from_mode(0o755))?;
        let text = toml::to_string(assignment).map_err(io::Error::other)?;
        layout::replace_file(&self.path(address), &format!("{HEAD}{text}"))
    }

    /// Forgets an assigned drive.
    ///
    /// # Errors
    /// The system's; it is assigned still.
    pub fn forget(&self, address: PciAddress) -> io::Result<()> {
        match std::fs::remove_file(self.path(address)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_found_until_it_is_forgotten() {
        let root = tempfile::tempdir().expect("a folder");
        let all = Assignments::below(root.path());
        let (one, other) = ("0000:03:00.0".parse().expect("one"), "0000:04:00.0".parse().expect("one"));
        assert_eq!(all.find(one), None);
        let assignment = Assignment { serial: "S1 \"x\"".into() };
        all.record(one, &assignment).expect("recorded");
        assert_eq!((all.find(one), all.find(other)), (Some(assignment), None));
        std::fs::write(all.path(one), "not TOML").expect("written");
        assert_eq!(all.find(one), Some(Assignment { serial: String::new() }), "still assigned");
        assert!(all.refusal(one).is_some() && all.refusal(other).is_none());
        all.forget(one).expect("forgotten");
        all.forget(one).expect("forgotten once more");
        assert_eq!(all.find(one), None);
    }
}
