//! The listening socket of one device, and sending and receiving with file descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    recvmsg, sendmsg, socket_with,
};

use crate::wire::MAX_MSG_FDS;

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

/// A listening socket in the file system; removed when dropped.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket file, so that we never remove someone else's.
    identity: Option<(u64, u64)>,
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
        let mut listener = Self { fd, path: path.to_owned(), identity: None };
        listener.identity = identity(path);
        // Nobody can connect before `listen`, so the mode is right from the first moment that counts.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(os("set the mode of"))?;
        listen(&listener.fd, 8).map_err(|errno| os("listen on")(errno.into()))?;
        Ok(listener)
    }

    /// The next client's socket, if one waits.
    pub fn accept(&self) -> Result<OwnedFd, Errno> {
        accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // Nothing to be done about a failure: the next start replaces a stale socket.
            let _ = fs::remove_file(&self.path);
        }
    }
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

/// What [`receive`] got.
pub enum Received {
    /// So many bytes, with these descriptors.
    Bytes(usize, Vec<OwnedFd>),
    /// Nothing now.
    Nothing,
    /// The peer closed its side.
    End,
    /// More descriptors came than a message may carry, or than we can open; all are closed.
    TooManyFds,
}

/// Receives into `buffer` without waiting.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MSG_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
        Ok(got) => got,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
        Err(errno) => return Err(errno),
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(match got.bytes {
        _ if got.flags.contains(ReturnFlags::CTRUNC) => Received::TooManyFds,
        0 => Received::End,
        bytes => Received::Bytes(bytes, fds),
    })
}

/// Sends without waiting; returns how many bytes went, 0 if none can go now.
pub fn send(socket: impl AsFd, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        other => other,
    }
}
