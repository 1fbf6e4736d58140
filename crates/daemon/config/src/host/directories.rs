//! The daemon's own directories: created with the right modes, and refused if other users could change their content.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, chownat, fstat, open};
use rustix::io::Errno;

use super::accounts::{Identity, owners};
use super::links::only_root_leads_to;
use crate::config::{Backend, Config, Tenant};
use crate::problem::ConfigErrors;

/// Users of a tenant's socket may reach it, but can't list other tenants' names.
const RUNTIME_DIR_MODE: u32 = 0o711;
/// The socket's own mode says who.
const OTHERS_TENANT_MODE: u32 = 0o711;
const PRIVATE_MODE: u32 = 0o700;

/// What is wrong with a directory, and what to do.
pub(super) type Fault = (String, String);

/// Opens a directory if it is safe. `None`: it is not there.
pub(super) fn open_safe(path: &Path, owners: &[u32]) -> Result<Option<OwnedFd>, Fault> {
    let at = path.display();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match open(path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NOTDIR) if path.symlink_metadata().is_err() => return Ok(None),
        Err(_) if path.is_symlink() => {
            return Err((format!("{at} is a link, which may lead anywhere"), "give the path that it leads to".into()));
        }
        Err(Errno::NOTDIR) => return Err((format!("{at} is not a directory"), "choose another directory".into())),
        Err(errno) => return Err((format!("no access to {at}: {errno}"), "choose another directory".into())),
    };
    let stat = fstat(&fd).map_err(|errno| (format!("can't look at {at}: {errno}"), "check it".into()))?;
    if !owners.contains(&stat.st_uid) {
        let what = format!("{at} belongs to user {}, which could put its own sockets there", stat.st_uid);
        return Err((what, format!("give it to the daemon's user (chown {} {at}), or choose another", owners[1])));
    }
    if stat.st_mode & 0o022 != 0 {
        let what = format!("users other than its owner may write to {at} (mode {:04o})", stat.st_mode & 0o7777);
        return Err((what, format!("keep them out: chmod go-w {at}")));
    }
    Ok(Some(fd))
}

/// Makes a directory, or takes one that is safe, and gives it to who the daemon will be.
fn make(path: &Path, mode: u32, identity: Option<&Identity>) -> Result<(), Fault> {
    let failed = |what: &str, error: io::Error| {
        (format!("can't {what} {}: {error}", path.display()), "choose another directory, or create it".to_owned())
    };
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(|error| failed("create", error))?;
    let vanished = || failed("create", io::ErrorKind::NotFound.into());
    let fd = open_safe(path, &owners(identity))?.ok_or_else(vanished)?;
    let Some(identity) = identity else { return Ok(()) };
    give(&fd, identity).map_err(|errno| failed("give away", errno.into()))
}

fn give(fd: &OwnedFd, Identity { uid, gid, .. }: &Identity) -> Result<(), Errno> {
    chownat(fd, "", Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid)), AtFlags::EMPTY_PATH)
}

impl Config {
    /// Creates the directories of the sockets and, for a block device, of the layout, and gives them to the daemon's
    /// user.
    ///
    /// # Errors
    /// A directory can't be created, belongs to another user, is writable for others, or is a link.
    pub fn make_directories(&self, identity: Option<&Identity>) -> Result<(), ConfigErrors> {
        make(&self.runtime_dir, RUNTIME_DIR_MODE, identity).map_err(|fault| self.fault("runtime_dir", fault))?;
        if matches!(self.device.backend, Backend::Block { .. } | Backend::Nvme { .. }) {
            make(&self.state_dir, PRIVATE_MODE, identity).map_err(|fault| self.fault("state_dir", fault))?;
        }
        self.tenants.iter().try_for_each(|tenant| self.make_socket_directory(tenant, identity))
    }

    /// Makes the directory of the layouts of drives that are added, if the file names one.
    ///
    /// # Errors
    /// As [`Config::make_directories`].
    pub fn make_state_directory(&self, identity: Option<&Identity>) -> Result<(), ConfigErrors> {
        if self.marks.state_dir.is_none() {
            return Ok(());
        }
        make(&self.state_dir, PRIVATE_MODE, identity).map_err(|fault| self.fault("state_dir", fault))
    }

    /// Makes the directory of a tenant's socket, if it has one.
    ///
    /// # Errors
    /// As [`Config::make_directories`].
    pub fn make_socket_directory(&self, tenant: &Tenant, identity: Option<&Identity>) -> Result<(), ConfigErrors> {
        if tenant.frontend.socket_name().is_none() {
            return Ok(());
        }
        let mode = if tenant.socket.is_for_others() { OTHERS_TENANT_MODE } else { PRIVATE_MODE };
        let path = self.runtime_dir.join(&tenant.name);
        let made = match identity {
            // A new directory is made as the daemon's user, who owns its parent and could put a link there. An existing
            // directory may still be root's, from a daemon without a user.
            Some(user) if !path.exists() => user.act(|| make(&path, mode, identity)),
            _ => make(&path, mode, identity),
        };
        made.map_err(|fault| self.fault("runtime_dir", fault))
    }

    /// Gives a file of the daemon's to the account that it will have, unless that account [made](Identity::act_at) it.
    ///
    /// # Errors
    /// It is a link or not a file, or can't be given away.
    pub fn hand_over(&self, path: &Path, identity: &Identity) -> Result<(), ConfigErrors> {
        if !only_root_leads_to(path) {
            return Ok(());
        }
        let given = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).and_then(|file| {
            if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
                return Err(Errno::LOOP);
            }
            give(&file, identity)
        });
        let failed = |errno| format!("can't give {} to user {}: {errno}", path.display(), identity.uid);
        given.map_err(|errno| ConfigErrors::one(self.file(), failed(errno), "check what it is, and its directory"))
    }

    fn fault(&self, key: &str, (what, remedy): Fault) -> ConfigErrors {
        ConfigErrors::one(self.file(), format!("{key} can't be used: {what}"), remedy)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").mode() & 0o7777
    }

    #[test]
    fn a_directory_is_made_with_its_mode_and_taken_again() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("run/evenkeel");
        for _ in 0..2 {
            make(&path, RUNTIME_DIR_MODE, None).expect("made, and there");
            assert_eq!(mode_of(&path), RUNTIME_DIR_MODE);
        }
    }

    #[test]
    fn directories_that_others_can_get_at_are_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (real, link, file) = (dir.path().join("real"), dir.path().join("link"), dir.path().join("file"));
        make(&real, PRIVATE_MODE, None).expect("made");
        symlink(&real, &link).expect("link");
        fs::write(&file, "").expect("file");
        let refused = |path: &Path| make(path, PRIVATE_MODE, None).expect_err("refused").0;
        assert!(refused(&link).contains("is a link"), "{}", refused(&link));
        assert!(refused(&file).contains("can't create"), "{}", refused(&file));
        for mode in [0o770, 0o702, 0o777, 0o1777] {
            fs::set_permissions(&real, Permissions::from_mode(mode)).expect("changed");
            assert!(refused(&real).contains("may write"), "{mode:o}: {}", refused(&real));
        }
        fs::set_permissions(&real, Permissions::from_mode(0o755)).expect("changed");
        let nobody = [u32::MAX - 1, u32::MAX - 1];
        let told = open_safe(&real, &nobody).expect_err("somebody else's").0;
        assert!(told.contains("belongs to user"), "{told}");
    }
}
