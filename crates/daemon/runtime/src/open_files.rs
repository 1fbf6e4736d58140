//! Room for the daemon's open files.

use std::sync::OnceLock;

use client_socket::gate::raise_open_files;
use config::MORE_OPEN_FILES;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::fcntl_dupfd_cloexec;

/// What a thousand tenants need, about.
const AT_ONCE: u64 = 1 << 14;

/// How many files the process may have open, once that is known: threads may not ask.
static MOST: OnceLock<Option<u64>> = OnceLock::new();

/// Raises the limit as far as it may be: service managers start everybody with 1024, for the sake of select(2). And
/// makes the table of open files large, of 8 bytes each: it grows for nothing while there is one thread; later all who
/// open a file would wait until the kernel has heard of each CPU, tens of milliseconds on a busy host.
///
/// Without it there are fewer files, or waits: nothing to stop for.
pub fn make_room() {
    let may_be = raise_open_files();
    MOST.get_or_init(|| may_be);
    let last = may_be.unwrap_or(AT_ONCE).min(AT_ONCE).saturating_sub(1);
    if let (Ok(any), Ok(last)) = (eventfd(0, EventfdFlags::CLOEXEC), i32::try_from(last)) {
        // Closed at once; the table stays.
        let _ = fcntl_dupfd_cloexec(&any, last);
    }
}

/// How Linux says that a process has too many open files; some errors have it as words alone.
const TOO_MANY: &str = "(os error 24)";

/// What to do where that is what went wrong.
pub fn remedy(error: &anyhow::Error) -> Option<String> {
    let words = || match MOST.get() {
        Some(Some(most)) => format!("the daemon may have {most} files open: {MORE_OPEN_FILES}"),
        _ => MORE_OPEN_FILES.to_owned(),
    };
    format!("{error:#}").contains(TOO_MANY).then(words)
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn too_many_open_files_have_a_remedy_however_deep() {
        let error = std::io::Error::from(rustix::io::Errno::MFILE);
        let words = anyhow!("can't make a pipe: {error}");
        let deep = Err::<(), _>(error).context("can't start a poller").expect_err("it is one");
        for error in [words, deep] {
            let remedy = remedy(&error).expect("a remedy");
            assert!(remedy.contains("LimitNOFILE=") && remedy.contains("ulimit -Hn"), "{remedy}");
        }
        assert_eq!(remedy(&anyhow!("{}", std::io::Error::from(rustix::io::Errno::NOENT))), None);
    }
}
