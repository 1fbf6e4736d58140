//! The listening socket of one device.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, shutdown,
    socket_with,
};

/// Room in `sockaddr_un` for a path and its NUL.
const MAX_PATH_BYTES: usize = 107;

/// Why a device could not be put on its socket. The texts name the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum BindError {
    #[error(
        "the socket path {path} has {len_bytes} bytes, at most {MAX_PATH_BYTES} work; choose a shorter runtime_dir"
    )]
    TooLong { path: PathBuf, len_bytes: usize },
    #[error("{path} is in use: another daemon serves it; stop that one, or choose another runtime_dir")]
    InUse { path: PathBuf },
    #[error("{path} exists and is not a socket; remove it, or choose another runtime_dir")]
    NotASocket { path: PathBuf },
    #[error("can't {what} {path}: {error}")]
    Os { what: &'static str, path: PathBuf, error: io::Error },
    #[error("the device {name} can't be served: {why}")]
    BadDevice { name: String, why: String },
}

/// A listening socket in the file system; closed when dropped.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket file, so that we never remove someone else's.
    /// `None`: it was removed.
    identity: Mutex<Option<(u64, u64)>>,
    /// Given up for a moment to refuse a client when the daemon has no descriptor left.
    spare: Mutex<Option<fs::File>>,
}

impl Listener {
    /// Listens at `path`, mode 0600. Its directory is created with mode 0700 if it is not there; a
    /// socket that nobody listens on is replaced.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let os = |what| move |error: io::Error| BindError::Os { what, path: path.to_owned(), error };
        let address = SocketAddrUnix::new(path)
            .map_err(|_| BindError::TooLong { path: path.to_owned(), len_bytes: path.as_os_str().len() })?;
        if let Some(directory) = path.parent() {
            let create = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
            create.map_err(|error| BindError::Os { what: "create", path: directory.to_owned(), error })?;
        }
        remove_stale(path, &address)?;
        let fd = stream_socket().map_err(os("create a socket for"))?;
        bind(&fd, &address).map_err(|errno| os("bind")(errno.into()))?;
        let identity = Mutex::new(identity(path));
        let listener = Self { fd, path: path.to_owned(), identity, spare: Mutex::new(spare()) };
        // Nobody can connect before `listen`, so the mode is right from the first moment that counts.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(os("set the mode of"))?;
        listen(&listener.fd, 8).map_err(|errno| os("listen on")(errno.into()))?;
        Ok(listener)
    }

    /// The next client's socket, if one waits; it is non-blocking.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE`: the daemon has no descriptor left, and the client was sent away (else it would
    /// stay in the queue and wake us again and again). Other errors are the client's own.
    pub fn accept(&self) -> Result<OwnedFd, Errno> {
        let accepted = accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        if let Err(Errno::MFILE | Errno::NFILE) = accepted {
            let mut kept = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            *kept = None;
            drop(accept_with(&self.fd, SocketFlags::CLOEXEC));
            *kept = spare();
        }
        accepted
    }

    /// Removes the socket from the file system and sends away who waits there, from any thread; nobody can connect
    /// any more, and the path is free for another.
    pub fn close(&self) {
        // Once: the inode may be another socket's afterwards.
        let ours = self.identity.lock().unwrap_or_else(PoisonError::into_inner).take();
        if ours.is_some() && identity(&self.path) == ours {
            // Nothing to be done about a failure: the next start replaces a stale socket.
            let _ = fs::remove_file(&self.path);
        }
        let _ = shutdown(&self.fd, Shutdown::Both);
        while accept_with(&self.fd, SocketFlags::CLOEXEC).is_ok() {}
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

fn spare() -> Option<fs::File> {
    fs::File::open("/dev/null").ok()
}

fn stream_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Removes a socket that nobody listens on; anything else at `path` is an error.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), BindError> {
    let os = |what| move |error: io::Error| BindError::Os { what, path: path.to_owned(), error };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(os("look at")(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    let probe = stream_socket().map_err(os("create a socket for"))?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(os("remove the stale socket")),
        // Somebody listens; AGAIN says that their queue of new clients is full.
        Ok(()) | Err(Errno::AGAIN) => Err(BindError::InUse { path: path.to_owned() }),
        Err(errno) => Err(os("connect to")(errno.into())),
    }
}
