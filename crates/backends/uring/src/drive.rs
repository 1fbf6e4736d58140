//! Opening a drive and finding out what it is.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use io_model::Command;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, SeekFrom, Statx, StatxFlags, fcntl_getfl, fcntl_setfl, ftruncate,
    ioctl_blkpbszget, ioctl_blksszget, open, seek, statx,
};
use rustix::io::Errno;

use crate::files::{Files, WINDOW_BYTES};
use crate::flushes::Flushes;
use crate::kernel_ring::KernelRing;
use crate::nvme::Namespace;
use crate::uring::Uring;

/// How often, and after which pause, a drive that is in use is tried again: five seconds in all.
const IN_USE_TRIES: u32 = 250;
const IN_USE_PAUSE: Duration = Duration::from_millis(20);

/// The smallest block of guests.
const SECTOR_BYTES: u64 = 512;

/// What a path should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A block device. It must not be in use, by a mounted file system say.
    Block,
}

/// Why a drive or its queues can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Os {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's reason.
        source: Errno,
    },
    /// It is something else than what it should be.
    #[error("{} is not a {wanted}", path.display())]
    WrongKind {
        /// What.
        path: PathBuf,
        /// What it should be.
        wanted: &'static str,
    },
    /// Another process or the kernel itself has the drive.
    #[error(
        "{} is in use: mounted, held by another process, or still written to for a daemon that was killed; \
         try again once that is over",
        path.display()
    )]
    InUse {
        /// What.
        path: PathBuf,
    },
    /// There is less than was asked for; it was left as it is.
    #[error("{} holds {found_bytes} bytes, {wanted_bytes} are wanted: enlarge it, or ask for less", path.display())]
    TooSmall {
        /// What.
        path: PathBuf,
        /// What it holds, in whole blocks.
        found_bytes: u64,
        /// What was asked for.
        wanted_bytes: u64,
    },
    /// The kernel passes no NVMe commands on to it.
    #[error("{} takes no NVMe commands: {why}; remove `nvme_commands` to have block requests", path.display())]
    NoNvme {
        /// The character device.
        path: PathBuf,
        /// What is in the way.
        why: String,
    },
    /// The kernel gives no io_uring.
    #[error(transparent)]
    NoRing(#[from] NoRing),
    /// The bounce buffers can't be had.
    #[error("no memory for bounce buffers: {0}")]
    NoMemory(#[from] guest_memory::MapError),
}

/// The kernel gives no io_uring.
#[derive(Debug, thiserror::Error)]
#[error("can't set up io_uring: {0}; {remedy}", remedy = remedy(.0))]
pub struct NoRing(
    /// The system's reason.
    pub std::io::Error,
);

const FORBIDDEN: &str = "it is forbidden: set sysctl kernel.io_uring_disabled=0; in a container, give it a seccomp \
                         profile that allows io_uring";
const HIDDEN: &str = "this kernel was built without it, or a container's seccomp profile hides it: give it one that \
                      allows io_uring";

fn remedy(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
            let limit = limit.map_or_else(|| "no limit of".to_owned(), |bytes| format!("{} KiB of", bytes >> 10));
            format!(
                "this user may have {limit} locked memory: raise that (LimitMEMLOCK= of a unit, `ulimit -l`, \
                 --ulimit memlock= of a container), or let tenants share pollers"
            )
        }
        Some(libc::EPERM | libc::EACCES) => FORBIDDEN.to_owned(),
        Some(libc::ENOSYS) => HIDDEN.to_owned(),
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (LimitNOFILE= of a unit)".to_owned(),
        _ => "Linux 6.1 or later is needed".to_owned(),
    }
}

/// Whether these numbers of rings can be had at a time, each for `depth` commands, without NVMe commands or (`true`)
/// with.
///
/// # Errors
/// Why not.
pub fn try_rings(rings: &[(usize, bool)], depth: u32) -> Result<(), NoRing> {
    let each = rings.iter().flat_map(|(count, with_commands)| std::iter::repeat_n(*with_commands, *count));
    let all = each.map(|with_commands| KernelRing::new(depth, with_commands)).collect::<Result<Vec<_>, _>>();
    all.map(drop).map_err(NoRing)
}

/// A file or block device that is open for reading and writing, shared by all pollers.
#[derive(Debug, Clone)]
pub struct UringDrive {
    pub(crate) opened: Arc<Opened>,
}

/// What all queues of a drive share. The two abilities are learnt: they change at most once.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) files: Files,
    path: PathBuf,
    pub(crate) size_bytes: u64,
    /// Ranges are multiples of this. A power of two.
    pub(crate) block_bytes: u64,
    physical_block_bytes: u64,
    /// Memory addresses are multiples of this, or the data is bounced. A power of two.
    pub(crate) memory_align: u64,
    direct: bool,
    /// Of a tmpfs: io_uring would have a thread of the kernel's do each read and write.
    pub(crate) in_memory: bool,
    is_loop: bool,
    /// Where its commands go, if not through the block layer.
    pub(crate) namespace: Option<Namespace>,
    can_discard: AtomicBool,
    can_zero: AtomicBool,
    /// Shared by the pollers: a command that is counted here was copied, which costs far more.
    bounced_bytes: AtomicU64,
}

impl UringDrive {
    /// Opens `path`. A missing file is created with `create_size_bytes`, sparse, if that is given; a file or
    /// device that is there must have at least that size, and is not changed.
    ///
    /// `O_DIRECT` is used where the file system has it; [`UringDrive::is_direct`] tells.
    ///
    /// A drive that is in use is waited for, five seconds at most: until the last command that another `UringDrive`
    /// started is over, even if the process behind it is gone. See `claim`.
    pub fn open(path: &Path, kind: Kind, create_size_bytes: Option<u64>) -> Result<Self, OpenError> {
        let os = |action| move |source| OpenError::Os { action, path: path.to_owned(), source };
        let (file, created) = open_or_create(path, kind, create_size_bytes)?;
        let opened = Self::examine(path, kind, file, create_size_bytes);
        if opened.is_err() && created {
            // Nothing may stay behind of a drive that could not be made.
            rustix::fs::unlink(path).map_err(os("remove"))?;
        }
        Ok(Self { opened: Arc::new(opened?) })
    }

    /// As [`UringDrive::open`], for a file that is open for reading and writing. `path` is its name in messages. A
    /// block device must have been opened with `O_EXCL`.
    ///
    /// # Errors
    /// As there; [`OpenError::InUse`] at once.
    pub fn over(file: File, path: &Path, kind: Kind) -> Result<Self, OpenError> {
        // Where it stays set, io_uring fails what would have to wait (`REQ_F_NOWAIT`).
        let blocking = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags - OFlags::NONBLOCK));
        match blocking.and_then(|()| claim(&file)) {
            Ok(()) => {}
            Err(Errno::BUSY) => return Err(OpenError::InUse { path: path.to_owned() }),
            Err(source) => return Err(OpenError::Os { action: "lock", path: path.to_owned(), source }),
        }
        Ok(Self { opened: Arc::new(Self::examine(path, kind, file, None)?) })
    }

    /// Files that are open for reading, and maybe for writing, each in a [window](WINDOW_BYTES) of the drive's
    /// addresses: the first one, and the following ones. `None`: the window is empty. Commands may be multiples of 512
    /// bytes: data goes through the page cache where it could bypass that in larger blocks only.
    ///
    /// # Errors
    /// The system's.
    pub fn in_windows(first: (File, PathBuf), more: Vec<Option<(File, PathBuf)>>) -> Result<Self, OpenError> {
        let size_bytes = WINDOW_BYTES * (more.len() as u64 + 1);
        let examine = |(file, path): (File, PathBuf)| Self::examine(&path, Kind::File, file, None)?.in_sectors();
        let mut all = examine(first)?;
        let mut files = Vec::with_capacity(more.len());
        for one in more {
            let Some(its) = one.map(examine).transpose()? else {
                files.push(None);
                continue;
            };
            all.block_bytes = all.block_bytes.max(its.block_bytes);
            all.physical_block_bytes = all.physical_block_bytes.max(its.physical_block_bytes);
            all.memory_align = all.memory_align.max(its.memory_align);
            all.direct &= its.direct;
            all.in_memory &= its.in_memory;
            files.push(Some(its.files));
        }
        let files = all.files.with_windows(files);
        Ok(Self { opened: Arc::new(Opened { size_bytes, files, ..all }) })
    }

    /// As [`UringDrive::open`], of a block device that is an NVMe drive's namespace, with its character device: it gets
    /// NVMe commands, past the block layer. The block device stays open, so that nobody else has it.
    ///
    /// # Errors
    /// As there; and [`OpenError::NoNvme`].
    pub fn open_nvme(path: &Path, character_device: &Path) -> Result<Self, OpenError> {
        let os = |action| move |source| OpenError::Os { action, path: path.to_owned(), source };
        let (file, _) = open_or_create(path, Kind::Block, None)?;
        let mut opened = Self::examine(path, Kind::Block, file, None)?;
        let stat =
            statx(opened.files.first(), c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).map_err(os("examine"))?;
        let queue = device_attribute(&stat, "queue").ok_or_else(|| os("find the limits of")(Errno::NOENT))?;
        let namespace = Namespace::open(character_device, opened.files.first(), &queue)?;
        opened.can_discard = AtomicBool::new(namespace.can_discard());
        opened.can_zero = AtomicBool::new(namespace.can_zero());
        opened.namespace = Some(namespace);
        Ok(Self { opened: Arc::new(opened) })
    }

    fn examine(path: &Path, kind: Kind, file: File, wanted_bytes: Option<u64>) -> Result<Opened, OpenError> {
        let os = |action| move |source| OpenError::Os { action, path: path.to_owned(), source };
        let stat = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN)
            .map_err(os("examine"))?;
        let (block_bytes, physical_block_bytes) = match kind {
            Kind::File => (1, 1),
            Kind::Block => {
                let logical = ioctl_blksszget(&file).map_err(os("ask for the block size of"))?;
                let physical = ioctl_blkpbszget(&file).map_err(os("ask for the block size of"))?;
                (u64::from(logical), u64::from(physical))
            }
        };
        let direct = direct_alignment(&stat, &file).map_err(os("examine"))?;
        let (memory_align, offset_align) = direct.unwrap_or((1, 1));
        let block_bytes = block_bytes.max(offset_align).next_power_of_two();
        let all_bytes = match kind {
            Kind::File => stat.stx_size,
            Kind::Block => seek(&file, SeekFrom::End(0)).map_err(os("ask for the size of"))?,
        };
        let size_bytes = all_bytes - all_bytes % block_bytes;
        if size_bytes < wanted_bytes.unwrap_or(1) {
            let wanted_bytes = wanted_bytes.unwrap_or(block_bytes);
            return Err(OpenError::TooSmall { path: path.to_owned(), found_bytes: size_bytes, wanted_bytes });
        }
        let in_memory = kind == Kind::File && is_in_memory(&file).map_err(os("examine"))?;
        Ok(Opened {
            files: Files::one(file),
            path: path.to_owned(),
            size_bytes,
            block_bytes,
            physical_block_bytes: physical_block_bytes.max(block_bytes),
            memory_align: memory_align.next_power_of_two(),
            direct: direct.is_some(),
            in_memory,
            is_loop: kind == Kind::Block && device_attribute(&stat, "loop").is_some(),
            namespace: None,
            can_discard: AtomicBool::new(kind == Kind::File || device_discards(&stat)),
            can_zero: AtomicBool::new(true),
            bounced_bytes: AtomicU64::new(0),
        })
    }

    /// `hwqs` queues of `depth` commands each, for one poller.
    pub fn open_queues(&self, hwqs: u16, depth: u32) -> Result<Uring, OpenError> {
        self.opened.namespace.iter().try_for_each(Namespace::try_io)?;
        Uring::new(&self.opened, hwqs, depth)
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        &self.opened.path
    }

    /// Its size, in whole blocks.
    pub fn size_bytes(&self) -> u64 {
        self.opened.size_bytes
    }

    /// Commands must be multiples of this, in offset and length; others are refused as
    /// [`Unsupported`](io_model::DeviceError::Unsupported). So a guest's logical block may not be smaller.
    pub fn block_bytes(&self) -> u64 {
        self.opened.block_bytes
    }

    /// Writes smaller than this may cost the drive a read. At least [`UringDrive::block_bytes`].
    pub fn physical_block_bytes(&self) -> u64 {
        self.opened.physical_block_bytes
    }

    /// Guest memory that is not aligned to this is bounced.
    pub fn memory_align_bytes(&self) -> u64 {
        self.opened.memory_align
    }

    /// Whether data bypasses the page cache. Where it does not (some tmpfs), timing is the cache's.
    pub fn is_direct(&self) -> bool {
        self.opened.direct
    }

    /// Whether threads of the kernel's do what is in flight, on CPUs of this host: of a loop device, and of a file in
    /// memory for what is longer than a poller moves itself. Who waits for it by looking may be in their way.
    pub fn is_on_cpus(&self) -> bool {
        self.opened.in_memory || self.opened.is_loop
    }

    /// Whether discards reach the drive, as far as known: a file system may refuse the first one, after
    /// which this is `false`. Discards succeed all the same, without effect.
    pub fn can_discard(&self) -> bool {
        self.opened.can_discard()
    }

    /// Bytes copied because guest memory was not aligned, since the drive was opened.
    pub fn bounced_bytes(&self) -> u64 {
        self.opened.bounced_bytes()
    }
}

impl Opened {
    /// A drive of 1 MiB with blocks of 512 bytes, for the tests of what needs no file behind it.
    #[cfg(test)]
    pub(crate) fn pretended() -> Self {
        Self::pretended_over(File::open("/dev/null").expect("/dev/null"))
    }

    /// A drive for tests, over a file that the test chooses.
    #[cfg(test)]
    pub(crate) fn pretended_over(file: File) -> Self {
        Self {
            files: Files::one(file),
            path: PathBuf::new(),
            size_bytes: 1 << 20,
            block_bytes: 512,
            physical_block_bytes: 512,
            memory_align: 4,
            direct: true,
            in_memory: false,
            is_loop: false,
            namespace: None,
            can_discard: AtomicBool::new(true),
            can_zero: AtomicBool::new(true),
            bounced_bytes: AtomicU64::new(0),
        }
    }

    /// The file takes commands of any number of 512 bytes.
    fn in_sectors(self) -> Result<Self, OpenError> {
        if self.block_bytes <= SECTOR_BYTES {
            return Ok(self);
        }
        let file = self.files.first();
        let cached = fcntl_getfl(file).and_then(|flags| fcntl_setfl(file, flags - OFlags::DIRECT));
        let os = |source| OpenError::Os { action: "open", path: self.path.clone(), source };
        cached.map_err(os)?;
        Ok(Self { block_bytes: 1, physical_block_bytes: 1, memory_align: 1, direct: false, ..self })
    }

    /// Failed flushes of the file that a command is for.
    pub(crate) fn flushes(&self, command: &Command) -> &Flushes {
        self.files.flushes(command.offset_bytes)
    }

    pub(crate) fn can_discard(&self) -> bool {
        self.can_discard.load(Ordering::Relaxed)
    }

    pub(crate) fn never_discard_again(&self) {
        self.can_discard.store(false, Ordering::Relaxed);
    }

    pub(crate) fn can_zero(&self) -> bool {
        self.can_zero.load(Ordering::Relaxed)
    }

    pub(crate) fn never_zero_again(&self) {
        self.can_zero.store(false, Ordering::Relaxed);
    }

    pub(crate) fn bounced_bytes(&self) -> u64 {
        self.bounced_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn count_bounced(&self, bytes: u64) {
        self.bounced_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The file, of the right kind, and whether it is new.
fn open_or_create(path: &Path, kind: Kind, create_size_bytes: Option<u64>) -> Result<(File, bool), OpenError> {
    let os = |action| move |source| OpenError::Os { action, path: path.to_owned(), source };
    let (wanted, wanted_type) = match kind {
        Kind::File => ("regular file", FileType::RegularFile),
        Kind::Block => ("block device", FileType::BlockDevice),
    };
    let found = match rustix::fs::stat(path) {
        Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
        Err(Errno::NOENT) if kind == Kind::File && create_size_bytes.is_some() => None,
        Err(source) => return Err(os("open")(source)),
    };
    if found.is_some_and(|found| found != wanted_type) {
        return Err(OpenError::WrongKind { path: path.to_owned(), wanted });
    }
    // On a block device O_EXCL means: refuse if the kernel itself uses it.
    let exclusive = if kind == Kind::Block || found.is_none() { OFlags::EXCL } else { OFlags::empty() };
    let create = if found.is_none() { OFlags::CREATE } else { OFlags::empty() };
    let flags = OFlags::RDWR | OFlags::CLOEXEC | exclusive | create;
    let claimed = patiently(IN_USE_TRIES, || open(path, flags, Mode::RUSR | Mode::WUSR).map(File::from))
        .and_then(|file| patiently(IN_USE_TRIES, || claim(&file)).map(|()| file));
    let file = match claimed {
        Ok(file) => file,
        Err(Errno::BUSY) => return Err(OpenError::InUse { path: path.to_owned() }),
        Err(source) => return Err(os(if found.is_none() { "create" } else { "open" })(source)),
    };
    if let (None, Some(size_bytes)) = (found, create_size_bytes)
        && let Err(source) = ftruncate(&file, size_bytes)
    {
        let _ = rustix::fs::unlink(path);
        return Err(os("size")(source));
    }
    Ok((file, found.is_none()))
}

/// Repeats an attempt that fails because the drive is in use. The kernel takes a killed process's rings apart, and so
/// releases its drives, a little after the process is gone. A daemon that is restarted at once must not fail because of
/// that.
fn patiently<T>(mut tries_left: u32, mut attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        let outcome = attempt();
        if tries_left == 0 || !matches!(outcome, Err(Errno::BUSY)) {
            return outcome;
        }
        tries_left -= 1;
        thread::sleep(IN_USE_PAUSE);
    }
}

/// Keeps a file for this open file description, the one that all I/O goes through. `BUSY`: another one has it.
///
/// A write that a killed daemon started may reach the file after the daemon is gone. The kernel holds the description
/// for it until then, and the lock lives as long as the description; a lock of the daemon's on a description of
/// its own would be gone at once. For block devices `O_EXCL` does the same. The lock is of the kind that belongs to
/// descriptions (`F_OFD_SETLK`, fcntl(2)), so that the caller's `flock` does not stand in the way.
fn claim(file: &File) -> Result<(), Errno> {
    let is_file = FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) == FileType::RegularFile;
    // NFS makes a lock of this kind out of the caller's flock.
    if !is_file || rustix::fs::fstatfs(file)?.f_type == rustix::fs::NFS_SUPER_MAGIC {
        return Ok(());
    }
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: `whole` is a valid `struct flock`, which the call only reads; the descriptor is open.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole) } == 0 {
        return Ok(());
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::AGAIN | Errno::ACCESS) => Err(Errno::BUSY),
        // A file system without locks has none to take.
        _ => Ok(()),
    }
}

fn is_in_memory(file: &File) -> Result<bool, Errno> {
    Ok(rustix::fs::fstatfs(file)?.f_type == libc::TMPFS_MAGIC)
}

/// Turns `O_DIRECT` on if the file has it; then the alignment of memory and of offsets that it wants.
fn direct_alignment(stat: &Statx, file: &File) -> Result<Option<(u64, u64)>, Errno> {
    let reported = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
    let (memory, offset) = (u64::from(stat.stx_dio_mem_align), u64::from(stat.stx_dio_offset_align));
    if reported && (memory == 0 || offset == 0) {
        return Ok(None);
    }
    match fcntl_setfl(file, fcntl_getfl(file)? | OFlags::DIRECT) {
        Ok(()) if reported => Ok(Some((memory, offset))),
        // File systems that do not report it are content with pages.
        Ok(()) => Ok(Some((4096, 4096))),
        Err(Errno::INVAL) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// A directory of a block device in sysfs, or of the disk that it is a partition of.
fn device_attribute(stat: &Statx, name: &str) -> Option<PathBuf> {
    let device = format!("/sys/dev/block/{}:{}", stat.stx_rdev_major, stat.stx_rdev_minor);
    ["", "../"].iter().map(|up| PathBuf::from(format!("{device}/{up}{name}"))).find(|path| path.is_dir())
}

/// What sysfs says about a block device; `true` where it says nothing, and the first discard will tell.
fn device_discards(stat: &Statx) -> bool {
    let limit = device_attribute(stat, "queue").and_then(|queue| {
        let text = fs::read_to_string(queue.join("discard_max_bytes")).ok()?;
        text.trim().parse::<u64>().ok()
    });
    limit.is_none_or(|limit| limit > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_free_when_the_description_that_io_goes_through_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("drive");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let open = || open(&path, OFlags::RDWR, Mode::empty()).map(File::from).unwrap();
        let first = open();
        claim(&first).unwrap();
        // What the kernel holds while a request is under way, after the process closed its own.
        let under_way = first.try_clone().unwrap();
        drop(first);
        let second = open();
        assert_eq!(claim(&second), Err(Errno::BUSY));
        drop(under_way);
        assert_eq!(claim(&second), Ok(()));
        second.try_lock().expect("the caller's own lock is of another kind");
    }
}
