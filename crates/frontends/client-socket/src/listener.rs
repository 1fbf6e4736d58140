//! The listening socket of one device.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{fs, io};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, chmod, chownat, fstat, open};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, shutdown,
    socket_with,
};
use rustix::process::{getegid, geteuid};

use crate::gate::{Door, Gate};
use crate::keeping::wire::Framing;
use crate::keeping::{Channel, Held, Keeper, KeeperError, Kept};
use crate::waker::Waker;

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
    #[error(
        "can't give {path} to {to}: {error}; without root the daemon gives a socket only to a group that its own user \
         is in: add that user to it (usermod -aG), or start the daemon as root"
    )]
    NotOurs { path: PathBuf, to: String, error: io::Error },
    #[error("can't {what} {path}: {error}")]
    Os { what: &'static str, path: PathBuf, error: io::Error },
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    #[error("the device {name} can't be served: {why}")]
    BadDevice { name: String, why: String },
}

/// The users that may connect to a socket. The daemon itself and root always may.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// Owner of the socket in the file system. `None`: the daemon's user.
    pub user: Option<u32>,
    /// Group of the socket in the file system. `None`: the daemon's group.
    pub group: Option<u32>,
    /// Permission bits: who may connect needs write permission (unix(7)).
    pub mode: u32,
    /// A peer's supplementary groups.
    pub groups_of: fn(BorrowedFd<'_>) -> Vec<u32>,
}

impl Default for Access {
    /// The daemon's user alone.
    fn default() -> Self {
        Self { user: None, group: None, mode: 0o600, groups_of: |_| Vec::new() }
    }
}

/// A socket at its place in the file system; it is removed when this is dropped. Nobody can connect before
/// [`Listener::listen`].
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    access: Access,
    /// Device and inode of the socket file, so that we never remove someone else's.
    /// `None`: it was removed.
    identity: Mutex<Option<(u64, u64)>>,
    /// Given up for a moment to refuse a client when the daemon has no descriptor left.
    spare: Mutex<Option<Waker>>,
    /// Closes clients' sockets.
    door: OnceLock<Door>,
    /// Its clients are another process's too.
    kept: Option<Kept>,
}

/// Clients that may wait to be accepted: a disk has one, and some that try while it has.
const BACKLOG: i32 = 8;

/// A client's socket, which is non-blocking. Dropped, it ends the connection and waits for nobody: see
/// [`Gate`](crate::gate).
#[derive(Debug)]
pub struct Accepted {
    /// Always there, until it is dropped.
    fd: Option<OwnedFd>,
    door: Option<Door>,
}

impl AsFd for Accepted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => unreachable!("it goes when this is dropped"),
        }
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        // Another process may have the socket too, and the client must see that it is over.
        let _ = shutdown(&fd, Shutdown::Both);
        if let Some(door) = &self.door {
            door.dispose(fd);
        }
    }
}

impl Listener {
    /// Puts a socket at `path`. Its directory is created with mode 0700 if it is not there; a socket that nobody
    /// listens on is replaced.
    ///
    /// # Errors
    /// The path is taken or can't be had, or the daemon may not give it to that user or group.
    pub fn bind(path: &Path, access: Access) -> Result<Self, BindError> {
        Self::bind_of(path, access, SocketType::STREAM)
    }

    /// As [`Listener::bind`], a socket that keeps packets apart.
    ///
    /// # Errors
    /// The same.
    pub fn bind_for_packets(path: &Path, access: Access) -> Result<Self, BindError> {
        Self::bind_of(path, access, SocketType::SEQPACKET)
    }

    fn bind_of(path: &Path, access: Access, of: SocketType) -> Result<Self, BindError> {
        let os = |what| move |error: io::Error| BindError::Os { what, path: path.to_owned(), error };
        let address = address(path)?;
        if let Some(directory) = path.parent() {
            let create = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
            create.map_err(|error| BindError::Os { what: "create", path: directory.to_owned(), error })?;
        }
        remove_stale(path, &address, of)?;
        let fd = socket(of).map_err(os("create a socket for"))?;
        bind(&fd, &address).map_err(|errno| os("bind")(errno.into()))?;
        // Nobody can connect before `listen`, so it is right from the first moment that counts.
        Self::over(fd, path, access)
    }

    /// The socket that is at `path` already, and right.
    pub fn adopt_socket(fd: OwnedFd, path: &Path, access: Access) -> Self {
        let (identity, spare, door) = (Mutex::new(identity(path)), Mutex::new(spare()), OnceLock::new());
        Self { fd, path: path.to_owned(), access, identity, spare, door, kept: None }
    }

    /// The socket that is at `path` already.
    fn over(fd: OwnedFd, path: &Path, access: Access) -> Result<Self, BindError> {
        let listener = Self::adopt_socket(fd, path, access);
        listener.give(access)?;
        Ok(listener)
    }

    /// Gives the socket in the file system to whom `access` says, and to nobody else whatever is there by now.
    fn give(&self, access: Access) -> Result<(), BindError> {
        let path = &self.path;
        let os = |what| move |errno: Errno| BindError::Os { what, path: path.clone(), error: errno.into() };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = open(path, flags, Mode::empty()).map_err(os("open"))?;
        let stat = fstat(&socket).map_err(os("look at"))?;
        let bound = *self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        // One with another name may be anybody's.
        if Some((stat.st_dev, stat.st_ino)) != bound || stat.st_nlink > 1 {
            return Err(os("find the socket that it bound at")(Errno::STALE));
        }
        let (user, group) = (access.user.map(Uid::from_raw), access.group.map(Gid::from_raw));
        chownat(&socket, "", user, group, AtFlags::EMPTY_PATH).map_err(|errno| not_ours(path, access, errno.into()))?;
        // By the only name that leads to this one and is none of the directory's.
        let this_one = format!("/proc/self/fd/{}", socket.as_raw_fd());
        chmod(this_one, Mode::from_raw_mode(access.mode)).map_err(os("set, by /proc/self/fd, the mode of"))
    }

    /// Lets others in, which may take rights that [`Listener::bind`] is better called without.
    ///
    /// # Errors
    /// The daemon may not give the socket to that user or group.
    pub fn for_users(mut self, access: Access) -> Result<Self, BindError> {
        self.give(access)?;
        self.access = access;
        Ok(self)
    }

    /// As [`Listener::bind`], with a keeper that has clients from now on, and may have one that an earlier process
    /// left with it: [`Listener::held`].
    ///
    /// # Errors
    /// As there, or the keeper does not answer.
    pub fn bind_kept(path: &Path, access: Access, keeper: &Arc<Keeper>) -> Result<Self, BindError> {
        let name = path.display().to_string();
        let is_there = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        let held = match keeper.find(&name) {
            Err(error) if error.is_gone() => None,
            found => found?,
        };
        let (mut listener, has_client, memory) = match held {
            Some(Held { has_client, memory, socket }) if is_there => {
                (Self::over(socket, path, access)?, has_client, memory)
            }
            // The socket was removed from the file system, so no client can have connected to it since.
            Some(Held { has_client, memory, .. }) => (Self::bind(path, access)?, has_client, memory),
            None => (Self::bind(path, access)?, false, Vec::new()),
        };
        listener.kept = Some(Kept::new(Arc::clone(keeper), name, has_client, memory));
        Ok(listener)
    }

    /// Whether a client is held, and the memory that is kept with it; `None`: its clients are not kept.
    pub fn held(&self) -> Option<(bool, &[OwnedFd])> {
        self.kept.as_ref().map(|kept| (kept.has_client, kept.memory.as_slice()))
    }

    /// What is to be kept with its clients.
    pub fn keep_memory(&mut self, memory: Vec<OwnedFd>) {
        if let Some(kept) = &mut self.kept {
            kept.memory = memory;
        }
    }

    /// Whether its clients stay with the keeper, as this process ends.
    pub(crate) fn is_left(&self) -> bool {
        self.kept.as_ref().is_some_and(Kept::is_left)
    }

    /// Whether its clients are kept now, by a keeper that answers.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.as_ref().is_some_and(Kept::is_well_kept)
    }

    /// The keeper is gone with its data: from now on clients belong to this process alone.
    pub(crate) fn lost_keeper(&self) {
        self.kept.iter().for_each(Kept::lost);
    }

    /// The channel over which the keeper tells of clients, if they are to be kept and it is there.
    pub(crate) fn begin_to_keep(&self, framing: Framing) -> Result<Option<Channel>, BindError> {
        match self.kept.as_ref().map(|kept| kept.begin(self.fd.as_fd(), framing)).transpose() {
            Err(error) if error.is_gone() => Ok(None),
            begun => Ok(begun?),
        }
    }

    /// Closes a client's socket that another process has too.
    pub(crate) fn dispose(&self, socket: OwnedFd) {
        if let Some(door) = self.door.get() {
            door.dispose(socket);
        }
    }

    /// Its place at the gate.
    pub(crate) fn door(&self) -> Option<&Door> {
        self.door.get()
    }

    /// Lets clients connect. With a gate none of them can make us wait for the end of its connection.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn listen(&self, gate: Option<Arc<Gate>>) -> Result<(), BindError> {
        self.listen_for(gate, BACKLOG)
    }

    /// As [`Listener::listen`], where `backlog` clients at a time may wait to be accepted.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn listen_for(&self, gate: Option<Arc<Gate>>, backlog: i32) -> Result<(), BindError> {
        if let Some(gate) = gate {
            // The first time counts.
            let _ = self.door.set(Door::new(gate));
        }
        let os = |errno: Errno| BindError::Os { what: "listen on", path: self.path.clone(), error: errno.into() };
        listen(&self.fd, backlog).map_err(os)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a client may stay that was let in by the file system, whose modes anybody with the right to may have
    /// changed since. The text says who it is.
    ///
    /// # Errors
    /// It is neither root nor the daemon's own user, nor one whom the socket is for.
    pub fn admit(&self, client: impl AsFd) -> Result<(), String> {
        let Access { user, group, mode, groups_of } = self.access;
        let peer = socket_peercred(&client).map_err(|errno| format!("the client can't be identified: {errno}"))?;
        let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
        let for_group = group.unwrap_or_else(|| getegid().as_raw());
        let is_in_group = || gid == for_group || groups_of(client.as_fd()).contains(&for_group);
        let is_admitted = uid == 0
            || uid == geteuid().as_raw()
            || Some(uid) == user
            || mode & 0o002 != 0
            || mode & 0o020 != 0 && is_in_group();
        let process = peer.pid.as_raw_nonzero();
        if is_admitted { Ok(()) } else { Err(format!("process {process} of user {uid} may not use this socket")) }
    }

    /// The next client's socket, if one waits; it is non-blocking.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE`: the daemon has no descriptor left, and the client was sent away (else it would
    /// stay in the queue and wake us again and again). Other errors are the client's own.
    pub fn accept(&self) -> Result<Accepted, Errno> {
        let accepted = self.accept_one();
        if let Err(Errno::MFILE | Errno::NFILE) = accepted {
            let mut kept = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            *kept = None;
            drop(self.accept_one());
            *kept = spare();
        }
        accepted
    }

    fn accept_one(&self) -> Result<Accepted, Errno> {
        accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map(|fd| self.adopt(fd))
    }

    /// A client that was accepted by other means.
    pub fn adopt(&self, fd: OwnedFd) -> Accepted {
        Accepted { fd: Some(fd), door: self.door.get().cloned() }
    }

    /// Removes the socket from the file system and disconnects waiting clients, from any thread. No client can connect
    /// any more, and the path is free for another socket.
    pub fn close(&self) {
        if self.kept.as_ref().is_some_and(|kept| !kept.end()) {
            return;
        }
        // Once: the inode may be another socket's afterwards.
        let ours = self.identity.lock().unwrap_or_else(PoisonError::into_inner).take();
        if ours.is_some() && identity(&self.path) == ours {
            // Nothing to be done about a failure: the next start replaces a stale socket.
            let _ = fs::remove_file(&self.path);
        }
        let _ = shutdown(&self.fd, Shutdown::Both);
        while self.accept_one().is_ok() {}
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

fn not_ours(path: &Path, access: Access, error: io::Error) -> BindError {
    let one = |what, id: Option<u32>| id.map(|id| format!("{what} {id}"));
    let to: Vec<String> = [one("user", access.user), one("group", access.group)].into_iter().flatten().collect();
    BindError::NotOurs { path: path.to_owned(), to: to.join(" and "), error }
}

fn address(path: &Path) -> Result<SocketAddrUnix, BindError> {
    SocketAddrUnix::new(path)
        .map_err(|_| BindError::TooLong { path: path.to_owned(), len_bytes: path.as_os_str().len() })
}

fn spare() -> Option<Waker> {
    Waker::new().ok()
}

fn socket(of: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, of, flags, None)?)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Removes a socket that nobody listens on; anything else at `path` is an error.
fn remove_stale(path: &Path, address: &SocketAddrUnix, of: SocketType) -> Result<(), BindError> {
    let os = |what| move |error: io::Error| BindError::Os { what, path: path.to_owned(), error };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(os("look at")(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    let probe = socket(of).map_err(os("create a socket for"))?;
    match connect(&probe, address) {
        // It was given to another user, whom alone it lets in.
        Err(Errno::ACCESS) if has_no_listener(path) => fs::remove_file(path).map_err(os("remove the stale socket")),
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(os("remove the stale socket")),
        // A process listens. AGAIN: its queue of new clients is full. PROTOTYPE: it is a socket of another type.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(BindError::InUse { path: path.to_owned() }),
        Err(errno) => Err(os("connect to")(errno.into())),
    }
}

/// Whether the kernel says that no process listens at that path.
fn has_no_listener(path: &Path) -> bool {
    /// `SO_ACCEPTCON` (linux/net.h), as /proc/net/unix shows it.
    const LISTENS: &str = "00010000";
    let is_at_path = |line: &&str| line.split_once(" /").is_some_and(|(_, at)| path == Path::new("/").join(at));
    let listens = |line: &str| line.split_whitespace().nth(3) == Some(LISTENS);
    fs::read_to_string("/proc/net/unix").is_ok_and(|all| !all.lines().filter(is_at_path).any(listens))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn modes(path: &Path) -> (u32, u32, u32) {
        let found = fs::symlink_metadata(path).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o777)
    }

    #[test]
    fn a_socket_is_right_before_anybody_can_connect() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db/cntrl");
        let own = (geteuid().as_raw(), getegid().as_raw());
        let access = Access { user: Some(own.0), group: Some(own.1), mode: 0o660, ..Access::default() };
        // Twice: a socket that a killed daemon left is replaced, with the modes of now.
        std::mem::forget(Listener::bind(&path, Access::default()).unwrap());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let listener = Listener::bind(&path, access);
        let listener = listener.unwrap();
        assert_eq!(modes(&path), (own.0, own.1, 0o660));
        assert!(UnixStream::connect(&path).is_err(), "before it listens");
        listener.listen(None).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        listener.admit(listener.accept().unwrap()).unwrap();
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn what_came_into_the_place_of_a_socket_is_given_to_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("cntrl"), dir.path().join("other"));
        let open = Access { mode: 0o666, ..Access::default() };
        for is_linked in [false, true] {
            let listener = Listener::bind(&path, Access::default()).unwrap();
            let _other = UnixListener::bind(&other).unwrap();
            fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
            if is_linked {
                fs::hard_link(&path, dir.path().join("second")).unwrap();
            } else {
                fs::rename(&other, &path).unwrap();
            }
            let refused = listener.for_users(open).unwrap_err().to_string();
            assert!(refused.contains("can't find the socket that it bound at"), "{refused}");
            assert!([&path, &other].iter().all(|path| !path.exists() || modes(path).2 == 0o600));
            let _ = fs::remove_file(&path);
        }
    }

    #[test]
    fn a_socket_that_can_not_be_given_away_names_the_remedy() {
        if !geteuid().is_root() {
            let dir = tempfile::tempdir().unwrap();
            let access = Access { user: Some(0), mode: 0o600, ..Access::default() };
            let refused = Listener::bind(&dir.path().join("cntrl"), access).unwrap_err().to_string();
            assert!(refused.contains("to user 0: ") && refused.contains("usermod -aG"), "{refused}");
            return;
        }
        // As another user, on a thread of its own: credentials are a thread's.
        let dir = tempfile::tempdir().unwrap();
        let (path, nobody) = (dir.path().join("cntrl"), rustix::fs::Uid::from_raw(65_534));
        std::os::unix::fs::chown(dir.path(), Some(65_534), None).unwrap();
        let refused = std::thread::spawn(move || {
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let access = Access { group: Some(4242), mode: 0o660, ..Access::default() };
            (Listener::bind(&path, access).unwrap_err().to_string(), path.exists())
        });
        let (refused, is_left) = refused.join().unwrap();
        assert!(refused.contains("to group 4242: ") && refused.contains("usermod -aG"), "{refused}");
        assert!(!is_left);
    }
}
