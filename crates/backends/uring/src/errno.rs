//! What the kernel's errors mean for a device.

use io_model::DeviceError;
use rustix::io::Errno;

/// For a command that failed with `errno`.
pub(crate) fn device_error(errno: Errno) -> DeviceError {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => DeviceError::NoSpace,
        Errno::FAULT => DeviceError::Memory,
        Errno::NXIO | Errno::NODEV | Errno::SHUTDOWN | Errno::TIMEDOUT | Errno::BADF | Errno::CANCELED => {
            DeviceError::Gone
        }
        Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::ACCESS | Errno::ROFS => {
            DeviceError::Unsupported
        }
        // EIO, checksum errors and whatever else a driver makes up.
        _ => DeviceError::Medium,
    }
}

/// Whether the same request may succeed when it is made again.
pub(crate) fn is_transient(errno: Errno) -> bool {
    matches!(errno, Errno::INTR | Errno::AGAIN)
}

/// Whether the file or device lacks the operation altogether.
pub(crate) fn is_lacking(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NOTTY)
}
