//! The service manager's socket (sd_notify(3)).

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// A manager that does not read by then misses a message.
const PATIENCE: Duration = Duration::from_secs(1);

/// The socket of the service manager that started this process, by its environment; `None`: none did that wants to be
/// told.
///
/// # Errors
/// It can't be reached.
pub fn notify_socket() -> io::Result<Option<UnixDatagram>> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(Some(socket))
}
