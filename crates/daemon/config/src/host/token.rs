//! The token of the API's port: read from the operator's file, or made.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, open, rename, unlink};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::accounts::Identity;
use super::directories::Fault;
use crate::config::Config;
use crate::problem::ConfigErrors;

/// Anybody may try as often as the port answers: a shorter one could be guessed.
const SHORTEST: usize = 16;

/// No token is longer.
const LONGEST: usize = 4096;

/// Of a token that is made: as many as nobody guesses.
const RANDOM_BYTES: usize = 32;

impl Config {
    /// The token in the operator's file, if the configuration names one. Without its line end.
    ///
    /// # Errors
    /// It is not there, everybody may read it, or what is in it is no token.
    pub fn read_token(&self) -> Result<Option<String>, ConfigErrors> {
        let Some(path) = &self.api.token_file else { return Ok(None) };
        read(path).map(Some).map_err(|fault| self.token_fault(fault))
    }

    /// Makes a token, in a file that the daemon's user and the group of viewers may read. One that is there from
    /// another start is replaced.
    ///
    /// # Errors
    /// The file can't be made.
    pub fn make_token(&self, identity: Option<&Identity>) -> Result<String, ConfigErrors> {
        let mut random = [0; RANDOM_BYTES];
        let path = self.made_token_path();
        let made = getrandom(&mut random, GetRandomFlags::empty()).and_then(|_| {
            let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
            let viewers = self.api.viewers.as_ref().and_then(|group| group.id);
            let group = viewers.or(identity.map(|identity| identity.gid));
            write(&path, &token, identity.map(|identity| identity.uid), group)?;
            Ok(token)
        });
        made.map_err(|errno| {
            let what = format!("can't write the token to {}: {errno}", path.display());
            self.token_fault((what, "see to that directory, or name a token_file".into()))
        })
    }

    fn token_fault(&self, (what, remedy): Fault) -> ConfigErrors {
        let mut sink = crate::problem::Sink::new(&self.text);
        sink.maybe_at(self.marks.api.as_ref(), what, remedy);
        sink.finish().err().unwrap_or_else(|| ConfigErrors::one(self.file(), "no token", "name a token_file"))
    }
}

fn read(path: &Path) -> Result<String, Fault> {
    let at = path.display();
    let remedy = || format!("write one: (umask 027; openssl rand -hex 32 > {at})");
    // It may be anything, a pipe that nobody writes to as well.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let failed = |errno: Errno| (format!("token_file {at} can't be read: {errno}"), remedy());
    let file = open(path, flags, Mode::empty()).map_err(failed)?;
    let stat = fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err((format!("token_file {at} is no regular file"), remedy()));
    }
    if stat.st_mode & 0o007 != 0 {
        let what = format!("everybody may use token_file {at} (mode {:04o})", stat.st_mode & 0o7777);
        return Err((what, format!("keep others out: chmod o= {at}")));
    }
    let mut text = Vec::new();
    let read = File::from(file).take(LONGEST as u64 + 1).read_to_end(&mut text);
    read.map_err(|error| (format!("token_file {at} can't be read: {error}"), remedy()))?;
    let token = text.trim_ascii_end();
    // What a header can carry (RFC 6750).
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
    match std::str::from_utf8(token) {
        Ok(token) if (SHORTEST..=LONGEST).contains(&token.len()) && token.bytes().all(|byte| allowed(&byte)) => {
            Ok(token.to_owned())
        }
        _ => {
            let what = format!("token_file {at} holds no line of {SHORTEST} to {LONGEST} letters, digits and -._~+/=");
            Err((what, remedy()))
        }
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
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn with(mode: u32, text: &[u8]) -> Result<String, Fault> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        fs::write(&path, text).expect("it is written");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
        read(&path)
    }

    #[test]
    fn a_token_is_read_without_its_line_end() {
        assert_eq!(with(0o640, b"0123456789abcdef\n"), Ok("0123456789abcdef".to_owned()));
        assert_eq!(with(0o400, b"0123456789abcdef-._~+/="), Ok("0123456789abcdef-._~+/=".to_owned()));
    }

    #[test]
    fn what_is_no_secret_is_refused_with_what_to_do() {
        let long = [b'a'; LONGEST + 1];
        let lines =
            [&b""[..], b"short\n", b"0123456789abcdef\n0123456789abcdef\n", b"0123456789 abcdef", &long, b"\xff"];
        for text in lines {
            let (what, remedy) = with(0o600, text).expect_err("it is no token");
            assert!(what.contains("holds no line") && remedy.contains("openssl rand"), "{what}; {remedy}");
        }
        let (what, remedy) = with(0o644, b"0123456789abcdef\n").expect_err("everybody reads it");
        assert!(what.contains("0644") && remedy.contains("chmod o= "), "{what}; {remedy}");
        let (what, _) = read(Path::new("/dev")).expect_err("a directory");
        assert!(what.contains("no regular file"), "{what}");
        let (what, _) = read(Path::new("/nowhere/token")).expect_err("there is nothing");
        assert!(what.contains("No such file"), "{what}");
    }

    #[test]
    fn a_token_that_is_made_replaces_what_was_there_and_is_for_its_group_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        let elsewhere = directory.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, &path).expect("a link");
        write(&path, "0123456789abcdef", None, None).expect("it is written");
        assert_eq!(read(&path), Ok("0123456789abcdef".to_owned()));
        assert!(!elsewhere.exists() && !path.is_symlink());
        assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o7777, 0o640);
    }
}
