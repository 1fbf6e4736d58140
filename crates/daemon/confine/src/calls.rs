//! Which system calls each kind of thread may make: the tables. Everything else ends the process.
//!
//! To allow one more, put it where it is needed and say what needs it; to add a kind, add it to [`ThreadKind`] and to
//! [`ThreadKind::tables`].

use libc::*;
use seccompiler::SeccompCmpOp::{self, Eq, MaskedEq};

/// What a thread of the daemon is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThreadKind {
    /// Waits for signals; ends the process.
    Main,
    /// Applies commands: opens queues, makes sockets, writes the layout; starts pollers and clients' threads.
    Owner,
    /// Moves commands.
    Poller,
    /// Serves one tenant's socket.
    Client,
    /// Answers who asks over HTTP.
    Api,
    /// Reads the probes for metrics requests, and judges how tenants fare.
    Metrics,
    /// Plays what will come of promises.
    Forecasts,
    /// Looks at mapped doorbells.
    Doorbells,
    /// Writes the log.
    Log,
    /// Prints what is served.
    Announce,
    /// Tells the service manager.
    Manager,
    /// Waits for a client's thread to end.
    Closing,
    /// Interrupts writes that last too long.
    Watchdog,
    /// Has an NVMe drive's controller.
    Drive,
    /// Zeroes ranges of the drive, or finds what of them is to be wiped.
    Zeroing,
    /// Changes the tables of an image that is a disk.
    Image,
    /// Reads the configuration file again, or what a new drive holds.
    OwnFile,
    /// Keeps summaries of what tenants got, in files.
    History,
    /// Reads them, for who asks why.
    Why,
    /// Makes text of the commands of a tenant.
    Trace,
    /// Any thread of the process that takes clients' descriptors.
    Gate,
    /// Any thread of the process that makes block devices.
    Ublk,
    /// Serves daemons, in the process that keeps their clients; executes that process's program again.
    Keeper,
    /// Keeps one device's clients there.
    Kept,
    /// Waits for the daemon's end, in the process that shares its memory.
    Survivor,
}

/// A system call, and what its arguments must be: the number of one, and how it compares to a value (32 bits).
pub(crate) type Call = (c_long, &'static [(u8, SeccompCmpOp, u64)]);

const fn any(call: c_long) -> Call {
    (call, &[])
}

/// No page becomes one that can be executed.
const NO_EXEC: &[(u8, SeccompCmpOp, u64)] = &[(2, MaskedEq(PROT_EXEC as u64), 0)];

/// What the standard library and the allocator do in any thread; signal handlers; a panic's last words.
const RUNTIME: &[Call] = &[
    (SYS_mmap, NO_EXEC),
    (SYS_mprotect, NO_EXEC),
    any(SYS_munmap),
    any(SYS_mremap),
    any(SYS_madvise),
    any(SYS_brk),
    any(SYS_futex),
    any(SYS_sched_yield),
    any(SYS_clock_gettime),
    any(SYS_clock_nanosleep),
    any(SYS_nanosleep),
    any(SYS_restart_syscall),
    any(SYS_getrandom),
    any(SYS_close),
    // Before each close, in debug builds.
    (SYS_fcntl, &[(1, Eq, F_GETFD as u64)]),
    any(SYS_write),
    any(SYS_ppoll),
    #[cfg(target_arch = "x86_64")]
    any(SYS_poll),
    any(SYS_rt_sigreturn),
    any(SYS_rt_sigprocmask),
    any(SYS_sigaltstack),
    any(SYS_getpid),
    any(SYS_gettid),
    any(SYS_tgkill),
    // Of a thread that begins: its name, its stack's bounds. And what a poller sets.
    any(SYS_rseq),
    any(SYS_set_robust_list),
    any(SYS_sched_getaffinity),
    (SYS_prctl, &[(0, Eq, PR_SET_NAME as u64)]),
    (SYS_prctl, &[(0, Eq, PR_SET_VMA as u64)]),
    any(SYS_exit),
    any(SYS_exit_group),
    // The handler of SIGTERM may run in any thread, and tells the main one through a socket that is connected.
    (SYS_sendto, &[(4, Eq, 0)]),
];

/// Starting a thread that confines itself.
const SPAWN: &[Call] = &[
    any(SYS_clone3),
    (SYS_clone, &[(0, MaskedEq(CLONE_THREAD as u64), CLONE_THREAD as u64)]),
    (SYS_prctl, &[(0, Eq, PR_SET_NO_NEW_PRIVS as u64)]),
    any(SYS_seccomp),
];

/// Waking, and waiting for descriptors.
const EVENTS: &[Call] = &[
    any(SYS_read),
    any(SYS_eventfd2),
    any(SYS_epoll_create1),
    any(SYS_epoll_ctl),
    any(SYS_epoll_pwait),
    any(SYS_epoll_pwait2),
    #[cfg(target_arch = "x86_64")]
    any(SYS_epoll_wait),
    any(SYS_fcntl),
];

const RINGS: &[Call] = &[any(SYS_io_uring_enter), any(SYS_io_uring_register)];

/// Taking a socket off its place.
const UNLISTEN: &[Call] = &[
    any(SYS_shutdown),
    any(SYS_accept4),
    any(SYS_sendmsg),
    // The keeper's answers.
    any(SYS_recvmsg),
    any(SYS_statx),
    any(SYS_newfstatat),
    any(SYS_unlinkat),
    #[cfg(target_arch = "x86_64")]
    any(SYS_unlink),
];

/// Of a Unix socket's clients, their messages and descriptors.
const CLIENTS: &[Call] = &[
    any(SYS_accept4),
    any(SYS_getsockopt),
    any(SYS_geteuid),
    any(SYS_getegid),
    any(SYS_recvmsg),
    any(SYS_sendmsg),
    any(SYS_fstat),
    any(SYS_fstatfs),
    any(SYS_memfd_create),
    any(SYS_ftruncate),
    // Of a client, for the process that takes its descriptors.
    any(SYS_socketpair),
    any(SYS_readlinkat),
    #[cfg(target_arch = "x86_64")]
    any(SYS_readlink),
];

/// Reading files; which ones, Landlock says.
const FILES: &[Call] = &[
    any(SYS_openat),
    #[cfg(target_arch = "x86_64")]
    any(SYS_open),
    any(SYS_read),
    any(SYS_lseek),
    any(SYS_fstat),
    any(SYS_newfstatat),
    any(SYS_statx),
    any(SYS_getdents64),
];

/// Making and replacing them: the layout, sockets.
const CHANGES: &[Call] = &[
    // Keys of disks stay out of the swap.
    any(SYS_mlock),
    any(SYS_fcntl),
    any(SYS_fsync),
    any(SYS_fdatasync),
    any(SYS_ftruncate),
    any(SYS_mkdirat),
    any(SYS_renameat2),
    any(SYS_renameat),
    any(SYS_unlinkat),
    any(SYS_fchmodat),
    any(SYS_fchownat),
    any(SYS_geteuid),
    any(SYS_getegid),
    (SYS_socket, &[(0, Eq, AF_UNIX as u64)]),
    any(SYS_bind),
    any(SYS_listen),
    any(SYS_connect),
    #[cfg(target_arch = "x86_64")]
    any(SYS_mkdir),
    #[cfg(target_arch = "x86_64")]
    any(SYS_rename),
    #[cfg(target_arch = "x86_64")]
    any(SYS_unlink),
    #[cfg(target_arch = "x86_64")]
    any(SYS_chmod),
    #[cfg(target_arch = "x86_64")]
    any(SYS_lchown),
];

const POLLER: &[Call] = &[
    any(SYS_sched_setaffinity),
    (SYS_prctl, &[(0, Eq, PR_SET_TIMERSLACK as u64)]),
    // Of a drive that is a file in memory.
    any(SYS_preadv2),
    any(SYS_pwritev2),
];

/// `_IOWR('N', 0x43, struct nvme_passthru_cmd)` (linux/nvme_ioctl.h), which the C library does not name.
const NVME_IOCTL_IO_CMD: u64 = 0xc048_4e43;

/// Queues are opened, with their rings and memory, and devices made.
const OWNER: &[Call] = &[
    any(SYS_io_uring_setup),
    any(SYS_memfd_create),
    any(SYS_fstatfs),
    // Of a drive that was handed over: its lock, its blocks, its mark.
    any(SYS_flock),
    any(SYS_fgetxattr),
    (SYS_ioctl, &[(1, Eq, BLKSSZGET)]),
    (SYS_ioctl, &[(1, Eq, BLKPBSZGET)]),
    // Of one that gets NVMe commands: whether it takes them from us.
    (SYS_ioctl, &[(1, Eq, NVME_IOCTL_IO_CMD)]),
];

/// Of clients that are waited for together.
const API: &[Call] = &[
    any(SYS_accept4),
    any(SYS_getsockopt),
    (SYS_setsockopt, &[(1, Eq, IPPROTO_TCP as u64), (2, Eq, TCP_USER_TIMEOUT as u64)]),
    any(SYS_geteuid),
    any(SYS_getegid),
    any(SYS_recvfrom),
    any(SYS_recvmsg),
    any(SYS_sendmsg),
    any(SYS_sendto),
    any(SYS_writev),
    any(SYS_ioctl),
    any(SYS_shutdown),
];

/// How full the daemon's file systems are, and the record of what was counted.
const METRICS: &[Call] = &[
    any(SYS_statfs),
    any(SYS_fstatfs),
    any(SYS_renameat2),
    any(SYS_renameat),
    #[cfg(target_arch = "x86_64")]
    any(SYS_rename),
];

/// On the drive, which is open: whole ranges, or by hand where it can't; and where a file's data is.
const ZEROING: &[Call] = &[any(SYS_fallocate), any(SYS_pwrite64), any(SYS_fdatasync), any(SYS_lseek)];

/// On an image, which is open: tables are read and written, clusters copied.
const IMAGES: &[Call] = &[any(SYS_pread64), any(SYS_preadv), any(SYS_pwritev), any(SYS_ftruncate), any(SYS_fstat)];

/// Requests of VFIO (linux/vfio.h): `_IO(';', 100 + n)`, none of which the C library names.
const VFIO_DEVICE_GET_INFO: u64 = 0x3b6b;
const VFIO_DEVICE_GET_REGION_INFO: u64 = 0x3b6c;
const VFIO_DEVICE_GET_IRQ_INFO: u64 = 0x3b6d;
const VFIO_DEVICE_SET_IRQS: u64 = 0x3b6e;
const VFIO_DEVICE_RESET: u64 = 0x3b6f;
const VFIO_IOMMU_GET_INFO: u64 = 0x3b70;
const VFIO_IOMMU_MAP_DMA: u64 = 0x3b71;
const VFIO_IOMMU_UNMAP_DMA: u64 = 0x3b72;

/// Having memory pinned for a drive, and let go.
const PINS: &[Call] = &[(SYS_ioctl, &[(1, Eq, VFIO_IOMMU_MAP_DMA)]), (SYS_ioctl, &[(1, Eq, VFIO_IOMMU_UNMAP_DMA)])];

/// A drive's registers, interrupts and resets.
const DRIVE: &[Call] = &[
    any(SYS_pread64),
    any(SYS_pwrite64),
    any(SYS_read),
    any(SYS_eventfd2),
    (SYS_fcntl, &[(1, Eq, F_DUPFD_CLOEXEC as u64)]),
    (SYS_ioctl, &[(1, Eq, VFIO_DEVICE_SET_IRQS)]),
    (SYS_ioctl, &[(1, Eq, VFIO_DEVICE_RESET)]),
    // Of one that was handed over: what there is.
    (SYS_ioctl, &[(1, Eq, VFIO_DEVICE_GET_INFO)]),
    (SYS_ioctl, &[(1, Eq, VFIO_DEVICE_GET_REGION_INFO)]),
    (SYS_ioctl, &[(1, Eq, VFIO_DEVICE_GET_IRQ_INFO)]),
    (SYS_ioctl, &[(1, Eq, VFIO_IOMMU_GET_INFO)]),
];

/// Looking at descriptors, and passing them on.
const GATE: &[Call] = &[
    any(SYS_recvmsg),
    any(SYS_sendmsg),
    any(SYS_getsockopt),
    any(SYS_fcntl),
    any(SYS_memfd_create),
    any(SYS_readlinkat),
    #[cfg(target_arch = "x86_64")]
    any(SYS_readlink),
    any(SYS_shutdown),
    any(SYS_prlimit64),
];

/// Block devices: commands to their driver, and their names.
const UBLK: &[Call] = &[
    any(SYS_io_uring_setup),
    any(SYS_recvmsg),
    any(SYS_sendmsg),
    any(SYS_fcntl),
    any(SYS_readlinkat),
    any(SYS_mkdirat),
    any(SYS_symlinkat),
    any(SYS_renameat),
    any(SYS_renameat2),
    any(SYS_unlinkat),
    #[cfg(target_arch = "x86_64")]
    any(SYS_readlink),
    #[cfg(target_arch = "x86_64")]
    any(SYS_mkdir),
    #[cfg(target_arch = "x86_64")]
    any(SYS_symlink),
    #[cfg(target_arch = "x86_64")]
    any(SYS_rename),
    #[cfg(target_arch = "x86_64")]
    any(SYS_unlink),
];

/// A ring of files: their directory, a lock, and making room.
const HISTORY: &[Call] = &[
    any(SYS_mkdirat),
    any(SYS_flock),
    any(SYS_ftruncate),
    any(SYS_unlinkat),
    #[cfg(target_arch = "x86_64")]
    any(SYS_mkdir),
    #[cfg(target_arch = "x86_64")]
    any(SYS_unlink),
];

/// The address of the kernel's own functions, which tell the time: asked for once, by the first thread.
const PR_GET_AUXV: u64 = 0x4155_5856;

/// A client's socket, beside its descriptors.
const KEPT: &[Call] = &[
    any(SYS_read),
    any(SYS_accept4),
    (SYS_prctl, &[(0, Eq, PR_GET_AUXV)]),
    // What the service manager has for another process: which descriptors are copies, and how things stand.
    any(SYS_kcmp),
    any(SYS_pwrite64),
    // Of a client, for the process that takes its descriptors.
    any(SYS_socketpair),
];

/// A daemon's sockets, and what there is when the program begins again.
const KEEPER: &[Call] = &[
    any(SYS_accept4),
    any(SYS_socketpair),
    any(SYS_geteuid),
    (SYS_prctl, &[(0, Eq, PR_GET_AUXV)]),
    (SYS_ioctl, &[(1, Eq, FIONBIO)]),
    any(SYS_eventfd2),
    any(SYS_signalfd4),
    any(SYS_memfd_create),
    any(SYS_pwrite64),
    any(SYS_pread64),
    any(SYS_kcmp),
    (SYS_socket, &[(0, Eq, AF_UNIX as u64)]),
    any(SYS_connect),
    (SYS_setsockopt, &[(1, Eq, SOL_SOCKET as u64), (2, Eq, SO_SNDTIMEO as u64)]),
];

/// Trying a program out in a process of its own, and executing it; what it does until it has walls of its own.
const PROGRAM: &[Call] = &[
    any(SYS_execve),
    any(SYS_clone),
    any(SYS_clone3),
    any(SYS_wait4),
    any(SYS_waitid),
    any(SYS_pidfd_open),
    any(SYS_pidfd_send_signal),
    any(SYS_pipe2),
    any(SYS_dup3),
    any(SYS_mmap),
    any(SYS_set_tid_address),
    any(SYS_prlimit64),
    any(SYS_rt_sigaction),
    any(SYS_readlinkat),
    any(SYS_faccessat),
    (SYS_prctl, &[(0, Eq, PR_SET_DUMPABLE as u64), (1, Eq, 0)]),
    // Of a process that ends with its parent.
    (SYS_prctl, &[(0, Eq, PR_SET_PDEATHSIG as u64)]),
    any(SYS_getppid),
    (SYS_prctl, &[(0, Eq, PR_SET_NO_NEW_PRIVS as u64)]),
    (SYS_prctl, &[(0, Eq, PR_CAP_AMBIENT as u64)]),
    any(SYS_capset),
    any(SYS_capget),
    any(SYS_getcwd),
    #[cfg(target_arch = "x86_64")]
    any(SYS_arch_prctl),
    #[cfg(target_arch = "x86_64")]
    any(SYS_access),
    #[cfg(target_arch = "x86_64")]
    any(SYS_dup2),
    #[cfg(target_arch = "x86_64")]
    any(SYS_vfork),
];

/// Waiting, and the end.
const SURVIVOR: &[Call] = &[any(SYS_read), any(SYS_exit), any(SYS_exit_group)];

const MAIN: &[Call] = &[any(SYS_read), any(SYS_recvfrom)];

impl ThreadKind {
    pub(crate) const ALL: [Self; 25] = [
        Self::Main,
        Self::Owner,
        Self::Poller,
        Self::Client,
        Self::Api,
        Self::Metrics,
        Self::Forecasts,
        Self::Doorbells,
        Self::Log,
        Self::Announce,
        Self::Manager,
        Self::Closing,
        Self::Watchdog,
        Self::Drive,
        Self::Zeroing,
        Self::Image,
        Self::OwnFile,
        Self::History,
        Self::Why,
        Self::Trace,
        Self::Gate,
        Self::Ublk,
        Self::Keeper,
        Self::Kept,
        Self::Survivor,
    ];

    /// What it may do. A filter stays with the threads that its thread starts: who starts others has their tables too.
    pub(crate) fn tables(self) -> &'static [&'static [Call]] {
        match self {
            Self::Main => &[RUNTIME, MAIN, UNLISTEN],
            Self::Owner => &[
                RUNTIME, SPAWN, EVENTS, RINGS, UNLISTEN, CLIENTS, FILES, CHANGES, POLLER, OWNER, ZEROING, IMAGES, PINS,
                DRIVE,
            ],
            Self::Poller => &[RUNTIME, EVENTS, RINGS, POLLER, PINS],
            Self::Client => &[RUNTIME, EVENTS, CLIENTS, UNLISTEN, PINS],
            Self::Drive => &[RUNTIME, PINS, DRIVE],
            Self::Api => &[RUNTIME, EVENTS, API, UNLISTEN],
            Self::Metrics => &[RUNTIME, FILES, METRICS],
            Self::Forecasts | Self::Doorbells | Self::Log | Self::Announce | Self::Manager => &[RUNTIME],
            Self::Watchdog | Self::Trace => &[RUNTIME],
            Self::Zeroing => &[RUNTIME, ZEROING],
            Self::Image => &[RUNTIME, ZEROING, IMAGES],
            Self::OwnFile | Self::Why => &[RUNTIME, FILES],
            Self::History => &[RUNTIME, FILES, HISTORY],
            Self::Gate => &[RUNTIME, SPAWN, GATE],
            Self::Ublk => &[RUNTIME, SPAWN, RINGS, FILES, UBLK],
            Self::Closing => &[RUNTIME, UNLISTEN],
            Self::Keeper => &[RUNTIME, SPAWN, GATE, KEEPER, PROGRAM, FILES, UNLISTEN],
            Self::Kept => &[RUNTIME, GATE, KEPT],
            Self::Survivor => &[SURVIVOR],
        }
    }

    /// As messages call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Owner => "owner",
            Self::Poller => "poller",
            Self::Client => "client",
            Self::Api => "api",
            Self::Metrics => "metrics",
            Self::Forecasts => "forecasts",
            Self::Doorbells => "doorbells",
            Self::Log => "log",
            Self::Announce => "announce",
            Self::Manager => "manager",
            Self::Closing => "closing",
            Self::Watchdog => "watchdog",
            Self::Drive => "drive",
            Self::Zeroing => "zeroing",
            Self::Image => "image",
            Self::OwnFile => "own-file",
            Self::History => "history",
            Self::Why => "why",
            Self::Trace => "trace",
            Self::Gate => "gate",
            Self::Ublk => "ublk",
            Self::Keeper => "keeper",
            Self::Kept => "kept",
            Self::Survivor => "survivor",
        }
    }

    /// The program whose thread it is.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Keeper | Self::Kept => "evenkeel-keeper",
            _ => "evenkeeld",
        }
    }
}
