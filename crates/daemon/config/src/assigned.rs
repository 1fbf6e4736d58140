//! NVMe drives that a VM has as a whole: the host's own record of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nvme_driver::PciAddress;
use serde::{Deserialize, Serialize};

const HEAD: &str = "\
# A VM had this drive, or has it. Nothing else may use it before `evenkeel drive return` has wiped it, which removes
# this file. It stays over a restart of the host.

";

/// Beside the daemon's state: everybody may see which drives are in it.
const DIRECTORY: &str = "var/lib/evenkeel-assigned";

/// What is kept of an assigned drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Where it was.
    pub address: String,
    /// Its serial number; empty: not known yet.
    pub serial: String,
    /// It is a virtual function: others have the same serial number.
    pub is_function: bool,
}

/// A drive, as far as it is known without asking it.
struct Seen {
    address: PciAddress,
    /// The kernel's driver tells it.
    serial: Option<String>,
    is_function: bool,
}

/// Which drives of a host are assigned: a file for each. They are the host's, whatever daemons run there.
#[derive(Debug, Clone)]
pub struct Assignments {
    root: PathBuf,
}

/// What to do before an assigned drive can be used.
pub(crate) fn remedy(address: PciAddress) -> String {
    format!("take it back, which wipes it: evenkeel drive return {address}")
}

impl Seen {
    /// The drive at an address of a host whose files are below `root`.
    fn below(root: &Path, address: PciAddress) -> Self {
        let function = root.join("sys/bus/pci/devices").join(address.to_string());
        let controllers = std::fs::read_dir(function.join("nvme")).into_iter().flatten().flatten();
        let serials = controllers.filter_map(|entry| std::fs::read_to_string(entry.path().join("serial")).ok());
        let serial = serials.map(|serial| serial.trim().to_owned()).find(|serial| !serial.is_empty());
        Self { address, serial, is_function: function.join("physfn").exists() }
    }
}

impl Assignment {
    /// Whether it is of the drive with that serial number; `None`: one of the two is not known.
    pub fn is_of(&self, serial: Option<&str>) -> Option<bool> {
        let serial = serial.filter(|_| !self.serial.is_empty())?;
        Some(plain(self.serial.as_bytes()) == plain(serial.as_bytes()))
    }

    /// A drive counts as assigned at its place unless it is known to be another one, and elsewhere if it is known to be
    /// the same. A physical function is none of its virtual ones: what a VM has is attached to that one alone.
    fn covers(&self, drive: &Seen) -> bool {
        let is_same = self.is_of(drive.serial.as_deref());
        let is_here = self.address == drive.address.to_string();
        if is_here { is_same != Some(false) } else { is_same == Some(true) && !self.is_function && !drive.is_function }
    }
}

impl Assignments {
    /// Of this host.
    pub fn of_this_host() -> Self {
        Self::below(Path::new("/"))
    }

    /// Of a host whose files are below `root`.
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn path(&self, address: &str) -> PathBuf {
        self.root.join(DIRECTORY).join(format!("{address}.toml"))
    }

    /// All of them. One that can't be read is of whichever drive is at its address.
    pub fn all(&self) -> Vec<Assignment> {
        let entries = std::fs::read_dir(self.root.join(DIRECTORY)).into_iter().flatten().flatten();
        let read = |entry: std::fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let address: PciAddress = name.strip_suffix(".toml")?.parse().ok()?;
            // Opening a pipe would wait for a writer.
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            let text = if is_file { std::fs::read_to_string(entry.path()).unwrap_or_default() } else { String::new() };
            let unknown = Assignment { address: address.to_string(), serial: String::new(), is_function: false };
            Some(toml::from_str(&text).unwrap_or(unknown))
        };
        entries.filter_map(read).collect()
    }

    /// The one that a drive has; `None`: it is not assigned.
    fn find(&self, drive: &Seen) -> Option<Assignment> {
        self.all().into_iter().find(|assignment| assignment.covers(drive))
    }

    /// The one of the drive at an address, as far as the kernel shows which that is; `None`: it is not assigned.
    pub fn find_at(&self, address: PciAddress) -> Option<Assignment> {
        self.find(&Seen::below(&self.root, address))
    }

    /// Why nothing but a VM may use the drive at an address, and what to do; `None`: it is not assigned.
    pub fn refusal(&self, address: PciAddress) -> Option<(String, String)> {
        let found = self.find_at(address)?;
        let was = if found.address == address.to_string() { String::new() } else { format!(" (as {})", found.address) };
        Some((format!("{address} is assigned to a VM{was}"), remedy(address)))
    }

    /// Keeps other processes from changing the assignment of drives, until the returned file is dropped.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process holds the lock, or the system's.
    pub fn lock(&self) -> io::Result<File> {
        let directory = self.root.join(DIRECTORY);
        std::fs::create_dir_all(&directory)?;
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755))?;
        let file = File::options().create(true).truncate(false).write(true).open(directory.join("lock"))?;
        file.try_lock().map_err(io::Error::from)?;
        Ok(file)
    }

    /// Keeps that a drive is assigned, durably.
    ///
    /// # Errors
    /// The system's.
    pub fn record(&self, assignment: &Assignment) -> io::Result<()> {
        let text = toml::to_string(assignment).map_err(io::Error::other)?;
        layout::replace_file(&self.path(&assignment.address), &format!("{HEAD}{text}"))
    }

    /// Forgets an assigned drive.
    ///
    /// # Errors
    /// The system's; it is assigned still.
    pub fn forget(&self, assignment: &Assignment) -> io::Result<()> {
        std::fs::remove_file(self.path(&assignment.address))
    }
}

/// A serial number as drives are called after it.
pub(crate) fn plain(serial: &[u8]) -> String {
    let plain = |byte: &u8| if byte.is_ascii_alphanumeric() { char::from(*byte) } else { '_' };
    let serial: String = serial.iter().take_while(|byte| **byte != 0).map(plain).collect();
    serial.trim_matches('_').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment(address: &str, serial: &str) -> Assignment {
        Assignment { address: address.into(), serial: serial.into(), is_function: false }
    }

    fn seen(address: &str, serial: Option<&str>) -> Seen {
        Seen { address: address.parse().expect("an address"), serial: serial.map(str::to_owned), is_function: false }
    }

    const ONE: &str = "0000:03:00.0";
    const OTHER: &str = "0000:04:00.0";

    #[test]
    fn what_is_recorded_is_found_until_it_is_forgotten() {
        let root = tempfile::tempdir().expect("a folder");
        let all = Assignments::below(root.path());
        let locked = all.lock().expect("locked");
        assert_eq!(all.lock().expect_err("it is").kind(), io::ErrorKind::WouldBlock);
        drop(locked);
        assert_eq!(all.find(&seen(ONE, None)), None);
        let recorded = assignment(ONE, "S1 \"x\"");
        all.record(&recorded).expect("recorded");
        assert_eq!((all.find(&seen(ONE, None)), all.find(&seen(OTHER, None))), (Some(recorded.clone()), None));
        std::fs::write(all.path(ONE), "not TOML").expect("written");
        assert_eq!(all.find(&seen(ONE, Some("any"))), Some(assignment(ONE, "")), "still assigned");
        all.forget(&recorded).expect("forgotten");
        assert_eq!(all.find(&seen(ONE, None)), None);
        std::fs::create_dir(all.path(ONE)).expect("made");
        assert!(all.find(&seen(ONE, None)).is_some(), "whatever lies there");
    }

    #[test]
    fn a_drive_is_known_by_its_serial_number_wherever_it_is() {
        let recorded = assignment(ONE, "S1");
        for (address, serial, is_assigned) in [
            (ONE, Some("S1 "), true),
            (ONE, None, true),
            (ONE, Some("S2"), false),
            (OTHER, Some("S1"), true),
            (OTHER, None, false),
            (OTHER, Some("S2"), false),
        ] {
            assert_eq!(recorded.covers(&seen(address, serial)), is_assigned, "{address} {serial:?}");
        }
        let function = |drive| Seen { is_function: true, ..drive };
        assert!(!recorded.covers(&function(seen(OTHER, Some("S1")))), "a function of another drive of that number");
        let of_function = Assignment { is_function: true, ..recorded };
        assert!(!of_function.covers(&seen(OTHER, Some("S1"))), "the physical function goes on");
        assert!(of_function.covers(&function(seen(ONE, None))));
    }
}
