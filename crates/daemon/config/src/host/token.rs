//! The token of the API's port.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid, fchmod, fchown, open, rename, unlink};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::accounts::Identity;
use super::directories::Fault;
use crate::config::Config;
use crate::problem::ConfigErrors;

/// Of a token that is made: as many as nobody guesses.
const RANDOM_BYTES: usize = 32;

impl Config {
    /// Makes a token, in a file that the daemon's user and the group of viewers may read. One that is there from
    /// another start is replaced.
    ///
    /// # Errors
    /// The file can't be made.
    pub fn make_token(&self, identity: Option<&Identity>) -> Result<String, ConfigErrors> {
        let mut random = [0; RANDOM_BYTES];
        let path = self.token_path();
        let made = getrandom(&mut random, GetRandomFlags::empty()).and_then(|_| {
            let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
            let viewers = self.api.viewers.as_ref().and_then(|group| group.id);
            let group = viewers.or(identity.map(|identity| identity.gid));
            write(&path, &token, identity.map(|identity| identity.uid), group)?;
            Ok(token)
        });
        made.map_err(|errno| {
            let what = format!("can't write the token to {}: {errno}", path.display());
            self.token_fault((what, "see to that directory".into()))
        })
    }

    fn token_fault(&self, (what, remedy): Fault) -> ConfigErrors {
        let mut sink = crate::problem::Sink::new(&self.text);
        sink.maybe_at(self.marks.api.as_ref(), what, remedy);
        sink.finish().err().unwrap_or_else(|| ConfigErrors::one(self.file(), "no token", "see to runtime_dir"))
    }
}

/// Nobody sees a part of it, or a link in its place followed: the directory is the daemon's.
fn write(path: &Path, token: &str, owner: Option<u32>, group: Option<u32>) -> Result<(), Errno> {
    let new = path.with_extension("new");
    match unlink(&new) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(open(&new, flags, Mode::from_raw_mode(0o600))?);
    let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    file.write_all(format!("{token}\n").as_bytes()).map_err(failed)?;
    fchown(&file, owner.map(Uid::from_raw), group.map(Gid::from_raw))?;
    fchmod(&file, Mode::from_raw_mode(0o640))?;
    rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_token_that_is_made_replaces_what_was_there_and_is_for_its_group_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        let elsewhere = directory.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, &path).expect("a link");
        write(&path, "0123456789abcdef", None, None).expect("it is written");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "0123456789abcdef\n");
        assert!(!elsewhere.exists() && !path.is_symlink());
        assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o7777, 0o640);
    }
}
