//! Every key of the daemon's file, section by section: its values, its default, and when a change of it counts.
//!
//! What can be said of a key follows from its row: the keys of a section and their order in an export, how the key is
//! read, which changes of a file are none, and the [reference](reference::sections).

mod kinds;
mod reference;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use io_model::units::{Bandwidth, Size};
use io_model::{Nanos, QueuePriority};
use policy::{ArbitratedConfig, Limits, Percentile, PolicyKind, TenantPriority};
use toml::Spanned;

use Changes::{AtOnce, AtOnceBut, AtStart, Detached, Never};
use Default::{Absent, By, Is, Needed, Usually, Written};
pub(crate) use kinds::{
    Apart, Changes, Default, Flag, Iops, Key, Others, Percent, Row, Shaped, Span, Values, Whole, Word,
};
pub use reference::{SettingLine, sections};

use crate::first_writes::FirstWrites;
use crate::profile::BuiltIn;
use crate::section::{Schema, Section, THE_TOP, bandwidth, integers, size};
use crate::values::{
    Account, BACKENDS, BackendWord, DOORBELLS, Doorbells, ENCRYPTED_LBA_BYTES, ENCRYPTIONS, Encryption, LBA_BYTES,
    MODES, Mode, THREADS, Threads, WIPES, WipeBy, absolute, account, file_name, file_names, labels, lba_size, loopback,
    name, names, pci_address, piece, program, quoted, size_or_zero, socket_mode,
};

/// The state directory where the file names none.
pub const STATE_DIR: &str = "/var/lib/evenkeel";

/// One section: a constant for each key, all rows, and their names.
macro_rules! section {
    ($about:literal $section:ident $($id:ident: $values:ty = $name:literal, $value:expr, $default:expr, $changes:expr,
     $doc:literal;)*) => {
        #[doc = $about]
        pub(crate) mod $section {
            use crate::keys::*;

            $(pub const $id: Key<$values> =
                Key { name: $name, values: $value, default: $default, changes: $changes, doc: $doc };)*
            pub const ROWS: &[&dyn Row] = &[$(&$id),*];
            pub const NAMES: &[&str] = &[$($name),*];
        }
    };
}

section! { "What stands above all headings." top
    RUNTIME_DIR: Shaped<PathBuf> = "runtime_dir", PATH, Written("/run/evenkeel"), AtStart,
        "Directory of the tenants' sockets and of the API's.";
    STATE_DIR: Shaped<PathBuf> = "state_dir", PATH, Written(super::STATE_DIR), AtStart,
        "Directory of block devices' layouts and of the history.";
    DAEMON: Apart = "daemon", SECTION, NONE, AtStart, "Section: the daemon's user.";
    API: Apart = "api", SECTION, NONE, AtStart, "Section: the users of the API.";
    KEYS: Apart = "keys", SECTION, NONE, AtStart, "Section: the keys of encrypted disks.";
    DEVICE: Apart = "device", SECTION, Absent("needed without a `[[drive]]`"), AtStart, "Section: the drive.";
    DRIVE: Apart = "drive", SECTIONS, NONE, AtStart, "Sections: several drives.";
    POLICY: Apart = "policy", SECTION, NONE, AtOnce, "Section: the order of commands.";
    POLLERS: Apart = "pollers", SECTION, NONE, AtStart, "Section: the threads that move commands.";
    GROUP: Apart = "group", SECTIONS, NONE, AtOnce, "Sections: ceilings that several disks share.";
    TENANT: Apart = "tenant", SECTIONS, NONE, AtOnce, "Sections: virtual disks.";
    NAMESPACE: Apart = "namespace", SECTIONS, NONE, AtOnce, "Sections: disks without a socket.";
}

section! { "`[daemon]`." daemon
    USER: Shaped<Account> = "user", ACCOUNT, Absent("the user that starts it"), AtStart,
        "The user that a daemon started as root switches to.";
}

section! { "`[api]`." api
    OPERATORS: Shaped<Account> = "operators", ACCOUNT, Absent("none"), AtStart, "A group that may do everything.";
    VIEWERS: Shaped<Account> = "viewers", ACCOUNT, Absent("none"), AtStart, "A group that may look at everything.";
    TENANTS: Flag = "tenants", Flag, Is(false), AtStart,
        "Whether each tenant's `socket_user` may look at that disk and its events.";
    LISTEN: Shaped<SocketAddr> = "listen", Shaped("an address of this host with a port", loopback, ToString::to_string),
        Absent("no port"), AtStart, "TCP address of metrics and of the page, for clients with the token.";
}

section! { "`[keys]`." host_keys
    HOST_KEY: Shaped<PathBuf> = "host_key", PATH, Absent("the systemd credential `evenkeel-host-key`"), AtStart,
        "The file of the key that wraps the keys of disks: 32 bytes or 64 hexadecimal digits, readable by root only.";
    KEY_COMMAND: Shaped<Vec<String>> = "key_command", Shaped("a program from / and its arguments", program, quoted),
        Absent("none"), AtStart,
        "Instead of `host_key`: prints what that file would hold. Runs once at the start, before rights are dropped.";
}

section! { "`[device]`, and what a `[[drive]]` has of it." device
    BACKEND: Word<BackendWord> = "backend", Word(BACKENDS), Needed, AtStart,
        "A file, a block device, an NVMe drive without the kernel, a directory of images, memory, nothing, or a drive \
         model.";
    PATH: Shaped<PathBuf> = "path", super::PATH, Absent("needed by `file`, `block` and `directory`"), AtStart,
        "The file, block device or directory.";
    SIZE: Shaped<Size> = "size", super::SIZE, Absent("all of it; needed by other back ends, and to create a file"),
        AtStart, "How much of the drive is used.";
    CREATE: Flag = "create", Flag, Is(false), AtStart, "Whether a missing image is created, sparse.";
    PROFILE: Apart = "profile", Apart("a built-in drive's name, or a path from the file's directory"),
        Written(BuiltIn::DEFAULT.name()), AtStart,
        "The drive's performance: policies' defaults; promises are checked only where this is written.";
    QUEUES: Whole<u16> = "queues", Whole(1, 1024), Absent("as many as the pollers want"), AtStart,
        "Hardware queues in all.";
    LAYOUT_FILE: Shaped<PathBuf> = "layout_file", super::PATH, Absent("beside an image, else in `state_dir`"), AtStart,
        "Where the drive's layout is kept.";
    WIPE: Word<WipeBy> = "wipe", Word(WIPES), Is(WipeBy::Overwrite), AtStart,
        "How deleted disks are zeroed: by writes, or by the drive's own command.";
    ENCRYPTION: Word<Encryption> = "encryption", Word(ENCRYPTIONS), Is(Encryption::None), AtStart,
        "Whether new disks of the drive are encrypted, and with whose key, unless they say so themselves.";
    POOL: Shaped<Size> = "pool", super::SIZE, Absent("no thin disks"), AtOnce,
        "The part of the drive that thin disks share; it can grow, and not shrink.";
    POOL_PIECE: Shaped<Size> = "pool_piece", PIECE, Is(Size(1 << 20)), AtOnce,
        "What a thin disk takes from a new pool at a time: a power of two.";
    POOL_OVERCOMMIT: Whole<u32> = "pool_overcommit", Whole(100, 100_000), Is(100), AtOnce,
        "How large all thin disks together may be, in percent of the pool.";
    MEMORY_BACKED: Flag = "memory_backed", Flag, Is(true), AtStart,
        "Whether the drive model keeps data; without, it reads as zeros.";
    NVME_COMMANDS: Flag = "nvme_commands", Flag, Is(false), AtStart,
        "Whether a block device gets NVMe commands past the kernel's block layer.";
    ADDRESS: Shaped<String> = "address", Shaped("a PCI function", pci_address, String::clone),
        Absent("needed by `nvme`"), AtStart, "The drive's PCI function; `lspci -D` lists them.";
    NSID: Whole<u16> = "nsid", Whole(1, u16::MAX), Is(1), AtStart, "The drive's namespace under `nvme`.";
    COMMAND_TIMEOUT: Span = "command_timeout", Span(Nanos::from_millis(1_000), Nanos::from_millis(3_600_000)),
        Is(Nanos::from_millis(30_000)), AtStart,
        "How long a command of `nvme` may take before the controller is reset.";
}

section! { "What a `[[drive]]` has beside." drive
    NAME: Shaped<String> = "name", NAME_OF_DISK, Needed, AtStart, "The drive's name.";
    NOFAIL: Flag = "nofail", Flag, Is(false), AtStart,
        "Whether the daemon starts without this drive if it is unavailable.";
    POLICY: Apart = "policy", SECTION, Absent("the `[policy]` at the top"), AtOnce, "Section: this drive's policy.";
    POLLERS: Apart = "pollers", SECTION, Absent("the `[pollers]` at the top"), AtStart,
        "Section: this drive's pollers.";
}

section! { "`[policy]`, whatever its name." any_policy
    NAME: Word<PolicyKind> = "name", Word(POLICIES), Is(PolicyKind::Evenkeel), AtOnce,
        "The policy; each has its own keys and refuses those of other policies.";
}

section! { "`[policy]` of `lpns`." lpns
    RATE_IOPS: Iops = "rate_iops", Iops(1_000, 100_000_000, "what the drive sustains, from", ""),
        Absent("the profile's"), AtOnce, "R: the rate of 4 KiB random writes that the drive sustains.";
    MIN_LATENCY: Span = "min_latency", Span(Nanos(100), Nanos::from_millis(100)), Absent("the profile's"), AtOnce,
        "L_h: the latency of a lone command.";
}

section! { "`[policy]` of `fair`." fair
    MIN_LATENCY: Span = "min_latency", Span(Nanos(1_000), Nanos::from_millis(10_000)), Absent("the profile's"), AtOnce,
        "The latency below which a tenant counts as idle; only together with `max_latency`.";
    MAX_LATENCY: Span = "max_latency", Span(Nanos(1_000), Nanos::from_millis(10_000)), Absent("the profile's"), AtOnce,
        "The latency above which a tenant counts as saturated.";
    EPOCH: Span = "epoch", Span(Nanos(1_000), Nanos::from_millis(1_000)), Absent("the policy's"), AtOnce,
        "How long a tenant's time budget lasts.";
}

section! { "`[policy]` of `wrr`: weights in commands." wrr
    MAX_IN_FLIGHT: Whole<u32> = "max_in_flight", Whole(1, 65_536), Absent("what keeps the drive nine tenths busy"),
        AtOnce, "Commands of 4 KiB that all tenants together may have in flight; larger ones count as several.";
    HIGH_WEIGHT: Whole<u16> = "high_weight", Whole(1, 256), Is(ArbitratedConfig::wrr().high_weight), AtOnce,
        "Commands of the class high in a round.";
    MEDIUM_WEIGHT: Whole<u16> = "medium_weight", Whole(1, 256), Is(ArbitratedConfig::wrr().medium_weight), AtOnce,
        "Commands of the class medium in a round.";
    LOW_WEIGHT: Whole<u16> = "low_weight", Whole(1, 256), Is(ArbitratedConfig::wrr().low_weight), AtOnce,
        "Commands of the class low in a round.";
    ARBITRATION_BURST: Whole<u16> = "arbitration_burst", Whole(1, 256), Is(ArbitratedConfig::wrr().arbitration_burst),
        AtOnce, "Commands of one tenant before the next of its class has its turn.";
}

section! { "`[policy]` of `drr`: weights in KiB." drr
    MAX_IN_FLIGHT: Whole<u32> = "max_in_flight", Whole(1, 65_536), Absent("what keeps the drive nine tenths busy"),
        AtOnce, "Commands of 4 KiB that all tenants together may have in flight; larger ones count as several.";
    HIGH_WEIGHT: Whole<u16> = "high_weight", Whole(1, 1024), Is(ArbitratedConfig::drr().high_weight), AtOnce,
        "KiB of each tenant of the class high in a round.";
    MEDIUM_WEIGHT: Whole<u16> = "medium_weight", Whole(1, 1024), Is(ArbitratedConfig::drr().medium_weight), AtOnce,
        "KiB of each tenant of the class medium in a round.";
    LOW_WEIGHT: Whole<u16> = "low_weight", Whole(1, 1024), Is(ArbitratedConfig::drr().low_weight), AtOnce,
        "KiB of each tenant of the class low in a round.";
}

section! { "`[pollers]`." pollers
    BEST_EFFORT: Whole<u16> = "best_effort", Whole(1, 64), Is(1), AtStart,
        "Threads shared by tenants without threads of their own.";
    CPUS: Shaped<Vec<u32>> = "cpus", CPUS_OF_HOST, Absent("not pinned"), AtStart,
        "CPUs of these pollers and of guaranteed tenants', in turn.";
    IDLE_AFTER: Span = "idle_after", Span(Nanos::from_millis(1), Nanos::from_millis(3_600_000)),
        Is(Nanos::from_millis(500)), AtStart, "A poller sleeps after this time without I/O.";
}

section! { "`[[tenant]]`." tenant
    NAME: Shaped<String> = "name", NAME_OF_DISK, Needed, Never("keep the name: a disk's data are found by it"),
        "Name of the disk and of its socket's directory; it identifies the disk's place on the drive.";
    LABELS: Shaped<BTreeMap<String, String>> = "labels",
        Shaped("at most 16 texts, such as `{ pvc = \"data-0\" }`", labels, |labels| format!("{labels:?}")),
        Absent("none"), AtOnce, "Labels for other tools, shown wherever the disk is.";
    DRIVE: Shaped<String> = "drive", NAME_OF_DISK, Absent("chosen when it is first served"),
        Never("write the drive that it is on, or remove the key: a disk is not moved"), "The drive that it is on.";
    SIZE: Shaped<Size> = "size", super::SIZE, Needed, AtOnce, "Size of the disk; it can grow, and not shrink.";
    OFFSET: Shaped<Size> = "offset", Shaped("a size, also `0`", size_or_zero, ToString::to_string),
        Absent("chosen when it is first served"),
        Never("write the offset that it has, or remove the key: a disk is not moved"), "Where it begins on the drive.";
    FRONTEND: Word<&str> = "frontend", Word(FRONTENDS), Is(VFIO_USER), Detached,
        "What the guest sees: an NVMe drive, a virtio-blk disk, or a block device of this host.";
    CLASS: Word<bool> = "class", Word(&[("guaranteed", true), ("best-effort", false)]), Is(false), AtOnce,
        "Whether a latency is promised, or a share by weight.";
    LATENCY_TARGET: Span = "latency_target", Span(Nanos(1), Nanos::from_millis(1_000)),
        Absent("needed where `class` is `guaranteed`"), AtOnce,
        "The promised latency, from the doorbell to the posted completion.";
    LATENCY_PERCENTILE: Percent = "latency_percentile", Percent(50.0, 99.9),
        By("`99` where `class` is `guaranteed`", |of| is_guaranteed(of).then_some(Percentile::P99)), AtOnce,
        "Percentage of commands that must meet the target.";
    MAX_MEMORY: Shaped<Size> = "max_memory", Shaped("a size, `1MiB` and more", size, ToString::to_string),
        Usually(USUAL_MEMORY, "less with hundreds of tenants"), Detached,
        "Memory that the client may have mapped.";
    MAX_MAPS: Whole<u32> = "max_maps", Whole(4, 4096), Usually(USUAL_MAPS, "less with hundreds of tenants"), Detached,
        "Pieces of memory that the client may have mapped.";
    OVERCOMMIT: Flag = "overcommit", Flag, Is(false), AtOnce,
        "Whether it is served although its promise can't be kept.";
    WEIGHT: Whole<u32> = "weight", Whole(1, 10_000),
        By("`1` where `class` is `best-effort`", |of| (!is_guaranteed(of)).then_some(1)), AtOnce,
        "A best-effort tenant's share of the drive, relative to others'.";
    PRIORITY: Word<TenantPriority> = "priority", Word(&PRIORITIES), Is(TenantPriority::Fixed(QueuePriority::Medium)),
        AtOnceBut(TenantPriority::OfQueue.name()), "Class under `wrr` and `drr`.";
    DEMAND: Apart = "demand", SECTION, Absent("assumed"), AtOnce, "Section: the load that is planned for.";
    MIN_IOPS: Iops = "min_iops", RATE, Absent("no floor"), AtOnce,
        "Commands per second that a best-effort tenant gets at least, under `evenkeel`.";
    MIN_BANDWIDTH: Shaped<Bandwidth> = "min_bandwidth", BANDWIDTH, Absent("no floor"), AtOnce,
        "Bytes per second that a best-effort tenant gets at least, under `evenkeel`.";
    RW_IOPS: Iops = "rw_iops", RATE, Absent("no limit"), AtOnce, "At most this many commands per second.";
    R_IOPS: Iops = "r_iops", RATE, Absent("no limit"), AtOnce, "At most this many reads per second.";
    W_IOPS: Iops = "w_iops", RATE, Absent("no limit"), AtOnce,
        "At most this many commands per second other than reads.";
    RW_BANDWIDTH: Shaped<Bandwidth> = "rw_bandwidth", BANDWIDTH, Absent("no limit"), AtOnce,
        "At most this many bytes read and written per second.";
    R_BANDWIDTH: Shaped<Bandwidth> = "r_bandwidth", BANDWIDTH, Absent("no limit"), AtOnce,
        "At most this many bytes read per second.";
    W_BANDWIDTH: Shaped<Bandwidth> = "w_bandwidth", BANDWIDTH, Absent("no limit"), AtOnce,
        "At most this many bytes written per second.";
    BURST: Span = "burst", Span(Nanos(0), Limits::LONGEST_BURST), Is(Nanos(0)), AtOnce,
        "For how long unused quota of these limits is kept.";
    GROUP: Shaped<String> = "group", NAME_OF_DISK, Absent("none"), AtOnce,
        "The group whose ceiling holds for this disk too.";
    LBA_SIZE: Shaped<u32> = "lba_size", BLOCKS, By("`512`; `4096` where the disk is encrypted", lba_bytes),
        Never("format it from inside its guest (`nvme format`): the key is for new tenants"),
        "Block size of a new disk; more where the drive's blocks are larger.";
    ENCRYPTION: Word<Encryption> = "encryption", Word(ENCRYPTIONS), Absent("the drive's"),
        Never("make another disk and copy the data: a disk keeps its encryption"),
        "Whether the disk is encrypted: with a key of the host's, with the tenant's own, or not at all.";
    THIN: Flag = "thin", Flag, Is(false), Never("make another disk and copy the data: a disk stays thin or not"),
        "Whether the disk takes room from the drive's pool as it is written, instead of a range of its own.";
    RESERVE: Shaped<Size> = "reserve", super::SIZE, Absent("nothing"), AtOnce,
        "How much of the pool is kept for a thin disk, wiped and ready.";
    IMAGE: Shaped<PathBuf> = "image", FILE_NAME, Absent("needed where the drive is a `directory`"), AtStart,
        "The qcow2 file that the disk is, from the drive's directory.";
    IMAGE_BACKING: Shaped<Vec<PathBuf>> = "image_backing",
        Shaped("a list of paths", file_names, |paths| format!("{paths:?}")), Is(Vec::new()), AtStart,
        "Files that the image may build on; from the drive's directory, or from /.";
    DOORBELLS: Word<Doorbells> = "doorbells", Word(super::DOORBELLS), Is(Doorbells::Mapped), Detached,
        "Doorbells of an NVMe controller: stored to a shared page, or a message that wakes the poller at once.";
    QUEUES: Whole<u16> = "queues", Whole(1, 64),
        By("`64`; `4` of `ublk`; `42` of a virtio-blk disk whose `priority` is `client`", queues), Detached,
        "I/O queues offered to the guest.";
    THREADS: Word<Threads> = "threads", Word(super::THREADS),
        By("`dedicated` of a guaranteed tenant where the policy gives it a poller, else `shared`",
            |of| (!is_guaranteed(of)).then_some(Threads::Shared)), Detached,
        "The threads that serve it: shared ones, one of its own, or one for each queue.";
    MODE: Word<Mode> = "mode", Word(MODES), Is(Mode::Adaptive), Detached,
        "When the threads of a virtio-blk disk or block device sleep: without I/O for a while, never, or always.";
    CPUS: Shaped<Vec<u32>> = "cpus", CPUS_OF_HOST, Absent("not pinned"), Detached,
        "CPUs of its own threads, queue by queue.";
    READ_ONLY: Flag = "read_only", Flag, Is(false), Detached,
        "Whether the guest of a virtio-blk disk or block device can only read.";
    SOCKET_USER: Shaped<Account> = "socket_user", ACCOUNT, Absent("the daemon's"), Detached, "Owner of its socket.";
    SOCKET_GROUP: Shaped<Account> = "socket_group", ACCOUNT, Absent("none"), Detached, "Group of its socket.";
    SOCKET_MODE: Shaped<u32> = "socket_mode", Shaped("`\"0600\"`, `\"0660\"`, `\"0666\"`", socket_mode, octal),
        Absent("`0660` with a `socket_group`, else `0600`"), Detached, "Permission bits of its socket.";
}

/// `[[group]]`: limits as a tenant's, for all of its disks together.
pub(crate) mod group {
    use super::{AtOnce, Key, NAME_OF_DISK, Needed, Row, Shaped, tenant};

    pub const NAME: Key<Shaped<String>> = Key {
        name: "name",
        values: NAME_OF_DISK,
        default: Needed,
        changes: AtOnce,
        doc: "The group's name; `group` of its disks has it.",
    };
    pub const ROWS: &[&dyn Row] = &[
        &NAME,
        &tenant::RW_IOPS,
        &tenant::R_IOPS,
        &tenant::W_IOPS,
        &tenant::RW_BANDWIDTH,
        &tenant::R_BANDWIDTH,
        &tenant::W_BANDWIDTH,
        &tenant::BURST,
    ];
    pub const NAMES: &[&str] = &[
        NAME.name,
        tenant::RW_IOPS.name,
        tenant::R_IOPS.name,
        tenant::W_IOPS.name,
        tenant::RW_BANDWIDTH.name,
        tenant::R_BANDWIDTH.name,
        tenant::W_BANDWIDTH.name,
        tenant::BURST.name,
    ];
}

section! { "`[tenant.demand]`, in fio's words." demand
    RW: Apart = "rw", Apart("`read`, `write`, `randread`, `randwrite`, `rw`, `randrw`"), Needed, AtOnce,
        "Operations, sequential or random.";
    RWMIXREAD: Whole<u32> = "rwmixread", Whole(0, 100), Is(50), AtOnce, "Reads in 100 of `rw` and `randrw`.";
    BS: Apart = "bs", Apart("a size up to `16m`, or several with shares such as `4k/60:64k/40`"), Written("4k"),
        AtOnce, "Block sizes.";
    NUMJOBS: Whole<u32> = "numjobs", Whole(1, 1024), Is(1), AtOnce, "Threads of the load.";
    IODEPTH: Whole<u32> = "iodepth", Whole(1, 65_536), Is(1), AtOnce, "Commands that each keeps outstanding.";
    RATE_IOPS: Iops = "rate_iops", Iops(1, 100_000_000, "arrivals per second, from", ""),
        Absent("as `numjobs` and `iodepth` say"), AtOnce,
        "Commands per second at random times, whatever is in flight; instead of `numjobs` and `iodepth`.";
    FIRST_WRITES: Shaped<FirstWrites> = "first_writes",
        Shaped("a percentage such as `2 %`, or `2 % shared`", FirstWrites::read, FirstWrites::to_string),
        Absent("as where the disk is written in turn: `bs` over the pool's piece"), AtOnce,
        "Of a thin disk's writes, those to pieces that it does not have yet, or shares with snapshots or clones.";
}

section! { "`[[namespace]]`." namespace
    NAME: Shaped<String> = "name", NAME_OF_DISK, Needed, Never("keep the name: a disk's data are found by it"),
        "Its name, unique among tenants and namespaces.";
    SIZE: Shaped<Size> = "size", super::SIZE, Needed, AtOnce, "Size of the disk; it can grow, and not shrink.";
    DRIVE: Shaped<String> = "drive", NAME_OF_DISK, Absent("the first"),
        Never("write the drive that it is on, or remove the key: a disk is not moved"),
        "The drive that it and its tenants are on.";
    NSID: Whole<u32> = "nsid", Whole(2, 32), Needed, AtStart, "Its identifier on each controller.";
    TENANTS: Shaped<Vec<Spanned<String>>> = "tenants", TENANT_NAMES, Is(Vec::new()), AtOnce,
        "Tenants of `vfio-user` whose controllers may read and write it.";
    READ_ONLY: Shaped<Vec<Spanned<String>>> = "read_only", TENANT_NAMES, Is(Vec::new()), AtOnce,
        "Tenants whose controllers may only read it.";
    SHARED: Flag = "shared", Flag, Is(false), AtOnce, "Whether several tenants may write to it.";
    LBA_SIZE: Shaped<u32> = "lba_size", BLOCKS, By("`512`; `4096` where the disk is encrypted", lba_bytes),
        Never("format it from inside its guest (`nvme format`): the key is for new tenants"),
        "Block size of a new one; more where the drive's blocks are larger.";
    ENCRYPTION: Word<Encryption> = "encryption", Word(ENCRYPTIONS), Absent("the drive's"),
        Never("make another disk and copy the data: a disk keeps its encryption"),
        "Whether the disk is encrypted: with a key of the host's, with its owner's, or not at all.";
}

const SECTION: Apart = Apart("a section");
const SECTIONS: Apart = Apart("sections");
const NONE: Default<String> = Absent("none");
const PATH: Shaped<PathBuf> = Shaped("a path from /", absolute, |path| path.display().to_string());
const FILE_NAME: Shaped<PathBuf> = Shaped("a path", file_name, |path| path.display().to_string());
const ACCOUNT: Shaped<Account> = Shaped("a name or number", account, |account| account.name.clone());
const NAME_OF_DISK: Shaped<String> = Shaped("1 to 63 of `a-z 0-9 _ -`", name, String::clone);
const SIZE: Shaped<Size> = Shaped("a size", size, ToString::to_string);
const PIECE: Shaped<Size> = Shaped("`64KiB` to `4MiB`, a power of two", piece, ToString::to_string);
const BLOCKS: Shaped<u32> = Shaped("`512`, `4096`", lba_size, ToString::to_string);
const RATE: Iops = Iops(1, Limits::MOST_IOS_PER_SEC, "commands per second,", ", or remove the line");
const BANDWIDTH: Shaped<Bandwidth> =
    Shaped("whole MiB per second, `1MiB/s` to `1000000MiB/s`", bandwidth, ToString::to_string);
const CPUS_OF_HOST: Shaped<Vec<u32>> =
    Shaped("a list of CPUs", |value| integers(0..=8191)(value), |cpus| format!("{cpus:?}"));
const TENANT_NAMES: Shaped<Vec<Spanned<String>>> = Shaped("a list of tenants", names, |names| sorted(names));

pub(crate) const VFIO_USER: &str = "vfio-user";
pub(crate) const VHOST_USER_BLK: &str = "vhost-user-blk";
pub(crate) const UBLK: &str = "ublk";
const FRONTENDS: &[(&str, &str)] = &[(VFIO_USER, VFIO_USER), (VHOST_USER_BLK, VHOST_USER_BLK), (UBLK, UBLK)];
const PRIORITIES: [(&str, TenantPriority); TenantPriority::ALL.len()] = {
    let mut words = [("", TenantPriority::OfQueue); TenantPriority::ALL.len()];
    let mut at = 0;
    while at < words.len() {
        words[at] = (TenantPriority::ALL[at].name(), TenantPriority::ALL[at]);
        at += 1;
    }
    words
};

/// More than the memory of most virtual machines, in many more pieces than they have.
pub(crate) const USUAL_MEMORY: Size = Size(256 << 30);
pub(crate) const USUAL_MAPS: u32 = 128;

/// The most queues of a virtio-blk disk whose requests go by priority.
pub const MAX_VIRTQUEUES_BY_PRIORITY: u16 = 42;

/// A block device has memory of its own for each request of each queue; guests' queues cost nothing.
fn queues(of: Others<'_>) -> Option<u16> {
    Some(match [of(tenant::FRONTEND.name), of(tenant::PRIORITY.name)] {
        [Some(UBLK), _] => 4,
        [Some(VHOST_USER_BLK), Some(priority)] if priority == TenantPriority::OfQueue.name() => {
            MAX_VIRTQUEUES_BY_PRIORITY
        }
        _ => tenant::QUEUES.values.1,
    })
}

/// Beside a drive's `encryption`, which is not seen here, the disk's own decides.
fn lba_bytes(of: Others<'_>) -> Option<u32> {
    let is_encrypted = of(tenant::ENCRYPTION.name).is_some_and(|word| word != Encryption::None.name());
    Some(if is_encrypted { ENCRYPTED_LBA_BYTES } else { LBA_BYTES })
}

fn is_guaranteed(of: Others<'_>) -> bool {
    of(tenant::CLASS.name) == Some("guaranteed")
}

fn octal(mode: &u32) -> String {
    format!("{mode:04o}")
}

/// The order in which tenants are named means nothing.
fn sorted(names: &[Spanned<String>]) -> String {
    let mut names: Vec<&str> = names.iter().map(|name| name.get_ref().as_str()).collect();
    names.sort_unstable();
    format!("{names:?}")
}

/// The daemon's file.
pub(crate) const SCHEMA: Schema = &[
    (THE_TOP, top::NAMES),
    ("[daemon]", daemon::NAMES),
    ("[api]", api::NAMES),
    ("[keys]", host_keys::NAMES),
    ("[device]", device::NAMES),
    ("[[drive]]", DRIVE),
    ("[policy]", POLICY),
    ("[pollers]", pollers::NAMES),
    ("[[group]]", group::NAMES),
    ("[[tenant]]", tenant::NAMES),
    ("[tenant.demand]", demand::NAMES),
    ("[[namespace]]", namespace::NAMES),
];
/// Those of a device, and what one of several has beside.
pub(crate) const DRIVE: &[&str] =
    &distinct::<{ device::NAMES.len() + drive::NAMES.len() }>(&[&[drive::NAMES[0]], device::NAMES, drive::NAMES]);
/// Those of all policies.
pub(crate) const POLICY: &[&str] =
    &distinct::<10>(&[any_policy::NAMES, lpns::NAMES, fair::NAMES, wrr::NAMES, drr::NAMES]);

/// Which of the section's keys each policy has.
pub const POLICY_KEYS: [(PolicyKind, &[&str]); 6] = [
    (PolicyKind::Evenkeel, &[]),
    (PolicyKind::Lpns, lpns::NAMES),
    (PolicyKind::Fair, fair::NAMES),
    (PolicyKind::Wrr, wrr::NAMES),
    (PolicyKind::Drr, drr::NAMES),
    (PolicyKind::Passthrough, &[]),
];
const POLICIES: &[(&str, PolicyKind)] = &{
    let mut words = [("", PolicyKind::Evenkeel); POLICY_KEYS.len()];
    let mut at = 0;
    while at < words.len() {
        words[at] = (POLICY_KEYS[at].0.name(), POLICY_KEYS[at].0);
        at += 1;
    }
    words
};

/// The keys of several lists, each once.
const fn distinct<const N: usize>(lists: &[&[&'static str]]) -> [&'static str; N] {
    let mut all = [""; N];
    let (mut len, mut list) = (0, 0);
    while list < lists.len() {
        let mut key = 0;
        while key < lists[list].len() {
            if !has(&all, lists[list][key]) {
                all[len] = lists[list][key];
                len += 1;
            }
            key += 1;
        }
        list += 1;
    }
    assert!(len == N, "the number of distinct keys");
    all
}

const fn has(all: &[&str], key: &str) -> bool {
    let mut at = 0;
    while at < all.len() {
        if is_same(all[at].as_bytes(), key.as_bytes()) {
            return true;
        }
        at += 1;
    }
    false
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// Whether a section is that of one of several drives.
pub(crate) fn is_drive(section: &Section<'_, '_>) -> bool {
    section.known == DRIVE
}

/// The row of a key of a file's head, `device.size` or `drive.fast.policy.name`.
pub(crate) fn of_head(path: &str) -> Option<&'static dyn Row> {
    let mut parts: Vec<&str> = path.split('.').collect();
    let key = parts.pop()?;
    let of_drives = parts.first() == Some(&"drive");
    let tables: &[&[&dyn Row]] = match parts.get(if of_drives { 2 } else { 0 }).copied() {
        None if of_drives => &[device::ROWS, drive::ROWS],
        None => &[top::ROWS],
        Some("daemon") => &[daemon::ROWS],
        Some("api") => &[api::ROWS],
        Some("device") => &[device::ROWS],
        Some("policy") => &[any_policy::ROWS, lpns::ROWS, fair::ROWS, wrr::ROWS, drr::ROWS],
        Some("pollers") => &[pollers::ROWS],
        Some("group") => &[group::ROWS],
        Some(_) => &[],
    };
    find(tables, key)
}

/// The row of a tenant's key, `size` or `demand.bs`.
pub(crate) fn of_tenant(path: &str) -> Option<&'static dyn Row> {
    match path.strip_prefix("demand.") {
        Some(key) => find(&[demand::ROWS], key),
        // A label's key is its own: `labels.pvc`.
        None => find(&[tenant::ROWS], path.split('.').next()?),
    }
}

/// The row of a namespace's key.
pub(crate) fn of_namespace(key: &str) -> Option<&'static dyn Row> {
    find(&[namespace::ROWS], key)
}

fn find(tables: &[&[&'static dyn Row]], key: &str) -> Option<&'static dyn Row> {
    tables.iter().copied().flatten().copied().find(|row| row.name() == key)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};
    use utoipa::PartialSchema;

    use super::*;

    /// What only the API has: of namespaces that it creates, and of clones.
    const OF_THE_API: [&str; 3] = ["attach", "nsid", "clone_of"];

    fn disk_keys() -> Vec<String> {
        let schema = serde_json::to_value(::api::DiskSpec::schema()).expect("JSON");
        let Some(Value::Object(properties)) = schema.get("properties") else { panic!("no properties: {schema}") };
        properties.keys().cloned().collect()
    }

    #[test]
    fn the_api_has_each_key_of_a_tenant() {
        let keys: BTreeSet<String> = disk_keys().into_iter().collect();
        // The API places disks itself, plans without a declared load, and opens no images.
        const OF_THE_FILE: [&str; 4] = ["offset", "demand", "image", "image_backing"];
        let tenant = tenant::NAMES.iter().filter(|key| !OF_THE_FILE.contains(key));
        assert_eq!(keys, tenant.chain(&OF_THE_API).map(|key| (*key).to_owned()).collect());
    }

    #[test]
    fn the_api_and_the_file_change_the_same_keys() {
        let disk = ::api::DiskSpec::default();
        for key in disk_keys() {
            let patch: ::api::DiskPatch = serde_json::from_value(json!({ &key: [[]] })).expect("a patch");
            let is_fixed = patch.apply(&disk).expect_err("no such value").ends_with("can't change");
            let changes = of_tenant(&key).map(Row::changes);
            assert_eq!(is_fixed, !changes.is_some_and(|it| !matches!(it, Never(_) | AtStart)), "{key}");
        }
    }
}
