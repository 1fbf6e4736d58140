//! What can go wrong, and what the operator can do about it.

use std::path::PathBuf;
use std::time::Duration;

use guest_memory::MapError;

/// Why the driver could not go on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Nothing is at the socket path.
    #[error("no socket at {}: is the daemon running, and is this the tenant's directory or its `cntrl` \
             socket?", .path.display())]
    NoSocket {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The socket is there, nobody listens.
    #[error("nobody listens on {}: the daemon that made this socket is gone, so start it again; or the disk is \
             locked, see `evenkeel disk list`", .path.display())]
    NobodyListens {
        /// The socket.
        path: PathBuf,
    },
    /// The socket may not be opened.
    #[error("no permission to open {}: run as the user that the daemon runs as", .path.display())]
    NoPermission {
        /// The socket.
        path: PathBuf,
    },
    /// The peer ended the connection during the handshake, or spoke something else.
    #[error("{} refused the vfio-user handshake ({reason}): is another client attached to this \
             tenant?", .path.display())]
    Handshake {
        /// The socket.
        path: PathBuf,
        /// What was seen.
        reason: String,
    },
    /// The connection is gone.
    #[error("the connection to {peer} is gone ({reason}): did the daemon stop?")]
    Gone {
        /// The socket or device.
        peer: String,
        /// What was seen.
        reason: String,
    },
    /// No answer in time.
    #[error("{peer} did not answer {what} within {limit:?}: the daemon hangs or is stopped")]
    NoAnswer {
        /// The socket or device.
        peer: String,
        /// What was asked.
        what: &'static str,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The device lacks something that this driver needs.
    #[error("the device can't be driven: {0}")]
    Unsuitable(&'static str),
    /// The device did what the specification rules out.
    #[error("the device broke the protocol: {0}")]
    Protocol(&'static str),
    /// The controller reports a fatal status (CSTS.CFS).
    #[error("the controller reports a fatal status (CSTS.CFS): reset it, see the daemon's log")]
    Fatal,
    /// Registers read as ones.
    #[error("the drive is not there any more (its registers read as ones): was it pulled out, or unplugged?")]
    Removed,
    /// The controller left the ready state behind our back.
    #[error("the controller is not ready any more: it was reset, or the daemon restarted")]
    NotReady,
    /// An admin command failed.
    #[error("{command} failed: {status}")]
    Command {
        /// The command, by its name in the specification.
        command: &'static str,
        /// How it ended.
        status: crate::Status,
    },
    /// A request that the caller should not have made.
    #[error("{0}")]
    Invalid(&'static str),
    /// Memory for DMA could not be made.
    #[error("memory for DMA could not be allocated: {0}")]
    Memory(String),
    /// A device that VFIO has.
    #[error(transparent)]
    Vfio(#[from] crate::VfioError),
}

impl From<MapError> for Error {
    fn from(error: MapError) -> Self {
        Self::Memory(error.to_string())
    }
}
