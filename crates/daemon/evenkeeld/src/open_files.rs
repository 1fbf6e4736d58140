//! Room for the daemon's open files.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a thousand tenants need, about.
const AT_ONCE: u64 = 1 << 14;

/// Raises the limit as far as it may be: service managers start everybody with 1024, for the sake of select(2). And
/// makes the table of open files large, of 8 bytes each: it grows for nothing while there is one thread; later all who
/// open a file would wait until the kernel has heard of each CPU, tens of milliseconds on a busy host.
///
/// Without it there are fewer files, or waits: nothing to stop for.
pub fn make_room() {
    let limit = getrlimit(Resource::Nofile);
    let may_be = match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let last = may_be.unwrap_or(AT_ONCE).min(AT_ONCE).saturating_sub(1);
    if let (Ok(any), Ok(last)) = (eventfd(0, EventfdFlags::CLOEXEC), i32::try_from(last)) {
        // Closed at once; the table stays.
        let _ = fcntl_dupfd_cloexec(&any, last);
    }
}
