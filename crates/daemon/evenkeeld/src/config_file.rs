//! The daemon's own configuration file, which it reads again on SIGHUP.
//!
//! The directory stays open from before the daemon is confined, since editors replace a file rather than write to it.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use confine::ThreadKind;
use rustix::fs::{Mode, OFlags, openat};

use runtime::command::{Command, Handle};
use runtime::threads;

/// Where the file is.
#[derive(Debug)]
pub struct OwnFile {
    directory: OwnedFd,
    /// For Landlock.
    path: PathBuf,
    name: OsString,
}

impl OwnFile {
    /// Opens the directory of a file. `None`: there is none, as in tests.
    pub fn find(file: &Path) -> Option<Self> {
        let name = file.file_name()?.to_owned();
        let path = match file.parent()? {
            parent if parent.as_os_str().is_empty() => Path::new("."),
            parent => parent,
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        Some(Self { directory, path: path.to_owned(), name })
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.path
    }

    /// Reads it on a thread of its own, since a file system may make that one wait, and has the owner apply it.
    pub fn read_again(&self, daemon: Handle) {
        let opened = self.directory.try_clone();
        let name = self.name.clone();
        let read = move || {
            let text = opened.map_err(|error| error.to_string()).and_then(|directory| read(&directory, &name));
            daemon.tell(Command::OwnFile(text));
        };
        // The sender of the signal may send another.
        let _ = threads::spawn("own-file", ThreadKind::OwnFile, read);
    }
}

fn read(directory: &OwnedFd, name: &OsString) -> Result<String, String> {
    // Opening a pipe without this flag would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::empty()).map(File::from);
    let remedy = "let the daemon's user read it, or use `evenkeel apply`, which reads it with its caller's rights";
    let file = file.map_err(|errno| format!("it can't be opened: {errno}; {remedy}"))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err("it is no regular file; write one in its place".to_owned());
    }
    config::read_opened(Ok(file), Path::new(name), "a configuration file").map_err(|errors| {
        let problem = errors.problems.first().map(|problem| format!("it {}; {}", problem.what, problem.remedy));
        problem.unwrap_or_default()
    })
}
