//! A ring of the kernel's, with entries of the length that its commands take.

use std::io;
use std::time::{Duration, Instant};

use io_uring::{EnterFlags, IoUring, Submitter, cqueue, squeue};

/// NVMe commands need entries of 128 bytes, and completions of 32.
type Long = IoUring<squeue::Entry128, cqueue::Entry32>;

/// An entry for the submission queue.
pub(crate) enum Entry {
    /// A request of a file or block device.
    Short(squeue::Entry),
    /// An NVMe command.
    Long(squeue::Entry128),
}

impl Entry {
    pub fn user_data(self, user_data: u64) -> Self {
        match self {
            Self::Short(entry) => Self::Short(entry.user_data(user_data)),
            Self::Long(entry) => Self::Long(entry.user_data(user_data)),
        }
    }
}

pub(crate) enum KernelRing {
    Short(IoUring),
    Long(Long),
}

macro_rules! on_either {
    ($ring:expr, $it:ident => $does:expr) => {
        match $ring {
            Self::Short($it) => $does,
            Self::Long($it) => $does,
        }
    };
}

/// Entries that are handed to the kernel at a time: it counts a ring's memory against the user's locked memory. More
/// take another turn.
const BATCH: u32 = 128;

/// How long the kernel may take to give back what rings had that were closed (of a daemon before this one): it does so
/// when it finds time.
const MEMORY_PATIENCE: Duration = Duration::from_secs(1);
const MEMORY_PAUSE: Duration = Duration::from_millis(10);

macro_rules! build {
    ($ring:ty, $depth:expr) => {
        <$ring>::builder()
            .setup_clamp()
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            // The ring belongs to the thread that enables it: the poller, which may not be the one that opens it.
            .setup_r_disabled()
            .setup_cqsize($depth.next_power_of_two())
            .build($depth.min(BATCH))
    };
}

fn is_no_memory(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOMEM)
}

impl KernelRing {
    pub fn new(depth: u32, is_long: bool) -> io::Result<Self> {
        let build =
            || Ok(if is_long { Self::Long(build!(Long, depth)?) } else { Self::Short(build!(IoUring, depth)?) });
        let start = Instant::now();
        loop {
            match build() {
                Err(error) if is_no_memory(&error) && start.elapsed() < MEMORY_PATIENCE => {
                    std::thread::sleep(MEMORY_PAUSE);
                }
                built => return built,
            }
        }
    }

    pub fn submitter(&self) -> Submitter<'_> {
        on_either!(self, ring => ring.submitter())
    }

    /// Whether there was room, and the entry is of the ring's length or shorter.
    ///
    /// # Safety
    /// What the entry points to stays where it is, and unchanged, until it completes.
    pub unsafe fn push(&mut self, entry: &Entry) -> bool {
        // SAFETY: the caller's.
        unsafe {
            match (self, entry) {
                (Self::Short(ring), Entry::Short(entry)) => ring.submission().push(entry).is_ok(),
                (Self::Long(ring), Entry::Short(entry)) => ring.submission().push(&entry.clone().into()).is_ok(),
                (Self::Long(ring), Entry::Long(entry)) => ring.submission().push(entry).is_ok(),
                (Self::Short(_), Entry::Long(_)) => false,
            }
        }
    }

    /// Hands what was pushed to the kernel.
    pub fn submit(&self) -> io::Result<usize> {
        on_either!(self, ring => ring.submit())
    }

    /// Whether the kernel has completions to post.
    pub fn taskrun(&mut self) -> bool {
        on_either!(self, ring => ring.submission().taskrun())
    }

    /// A completion: whose, and its result.
    pub fn next(&mut self) -> Option<(u64, i32)> {
        match self {
            Self::Short(ring) => ring.completion().next().map(|entry| (entry.user_data(), entry.result())),
            Self::Long(ring) => ring.completion().next().map(|entry| (entry.user_data(), entry.result())),
        }
    }

    /// Lets the kernel post completions, and waits for `at_least` of them. Submits nothing.
    pub fn enter_completions(&self, at_least: u32) -> io::Result<usize> {
        // SAFETY: no signal mask is passed, nothing is submitted.
        unsafe { self.submitter().enter::<libc::sigset_t>(0, at_least, EnterFlags::GETEVENTS.bits(), None) }
    }
}
