//! Whether the daemon's sockets can be had.

use std::fs::symlink_metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::config::Config;
use crate::problem::{ConfigErrors, Sink};

/// What keeps a socket from being bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// A process listens there.
    Served,
    /// It is no socket.
    Other,
}

impl Config {
    /// Notes sockets that a daemon serves in `served` (one is enough to know), and paths where something else
    /// lies in `sink`.
    pub(crate) fn check_sockets(&self, sink: &mut Sink<'_>, served: &mut Sink<'_>) {
        // Where clients are kept, their sockets are served whether there is a daemon or not.
        let kept = matches!(look(&self.keeper_path()), Some(Taken::Served));
        let tenants = self.tenants.iter().filter(|_| !kept).filter_map(|tenant| self.socket_path(tenant));
        let mark = self.marks.runtime_dir.as_ref();
        // Another Evenkeel serves the first of them: its tenants' sockets are then left in peace.
        for path in std::iter::once(self.control_path()).chain(tenants) {
            match look(&path) {
                Some(Taken::Served) => {
                    let what = format!("{} is in use: a daemon serves it", path.display());
                    served.maybe_at(mark, what, "stop that daemon first, or choose another runtime_dir");
                    return;
                }
                Some(Taken::Other) => {
                    let what = format!("{} is in the way: it is not a socket", path.display());
                    sink.maybe_at(mark, what, "remove it, or choose another runtime_dir");
                }
                None => {}
            }
        }
    }

    /// Refuses to go on where another daemon serves one of the sockets. Changes nothing.
    ///
    /// # Errors
    /// One is in use. Binding may still fail: the answer is of this moment.
    pub fn refuse_served_sockets(&self) -> Result<(), ConfigErrors> {
        let (mut sink, mut served) = (Sink::new(&self.text), Sink::new(&self.text));
        self.check_sockets(&mut sink, &mut served);
        sink.finish()?;
        served.finish()
    }
}

/// `None`: nothing is there, or a socket that nobody listens on; and where we can't tell, binding will.
fn look(path: &Path) -> Option<Taken> {
    if !symlink_metadata(path).ok()?.file_type().is_socket() {
        return Some(Taken::Other);
    }
    // Without waiting: a daemon that hangs must not hang us.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    match connect(&probe, &SocketAddrUnix::new(path).ok()?) {
        // AGAIN: a process listens, and its queue of new clients is full. PROTOTYPE: it is a socket of another type.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Some(Taken::Served),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_a_socket_with_a_listener_is_in_use() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("cntrl");
        assert_eq!(look(&path), None);
        let listener = UnixListener::bind(&path).expect("bound");
        assert_eq!(look(&path), Some(Taken::Served));
        drop(listener);
        assert_eq!(look(&path), None, "a left-over");
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, "precious").expect("written");
        assert_eq!(look(&path), Some(Taken::Other));
    }
}
