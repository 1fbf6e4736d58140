//! The service manager, which is told by the protocol of sd_notify(3).

use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use client_socket::send_whole;

/// A service manager that wants to be told.
#[derive(Debug)]
pub struct Manager(UnixDatagram);

impl Manager {
    /// The one that started this process, by its environment.
    ///
    /// # Errors
    /// It can't be reached.
    pub fn find() -> std::io::Result<Option<Self>> {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Ok(Some(Self(socket)))
    }

    /// Tells it something.
    pub fn tell(&self, what: &str, fds: &[BorrowedFd<'_>]) {
        // One that is gone needs not be told.
        let _ = send_whole(self.0.as_fd(), what.as_bytes(), fds);
    }
}
