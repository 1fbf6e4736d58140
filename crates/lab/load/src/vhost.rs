//! Jobs on a vhost-user-blk device, through `virtio-driver`, the driver inside libblkio.
//!
//! The driver's queues poll the used ring and ask for no interrupts. It knows a request's memory by its
//! address in this process: ours is a window that is never touched, under whose addresses the device maps
//! the memory that we copy from and to. Where a server has less than the driver asks for, a `bridge` stands between
//! them. A command above the device's largest segment becomes several requests.
//!
//! Not implemented: indirect descriptors, reconnecting, the log of requests in flight (the driver has none).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use guest_memory::Mapping;
use nvme_driver::{DmaMemory, SubmitError};
use virtio_driver::{
    QueueNotifier, VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags as Blk, VirtioBlkQueue, VirtioBlkTransport,
    VirtioFeatureFlags as Ring, virtio_blk_max_queues,
};

use crate::disk::{Buffers, Disk, DiskQueue, Done, Failure, Geometry, QueueShape, Request};
use crate::stats::Direction;
use crate::{Error, bridge};

/// How long an answer may take, as for vfio-user.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Descriptors of a request: its header, its data or range, its status byte.
const DESCRIPTORS: u16 = 3;
/// The largest ring that servers take: vhost-user has no message that asks for it, and 1024 is QEMU's limit.
const MAX_RING: u16 = 1024;
/// The peer maps our memory: pages.
const PAGE_BYTES: usize = 4096;
/// Virtio's sectors, whatever the block size (virtio 1.2, 5.2.4).
const SECTOR_BYTES: u64 = 512;
/// As large as NVMe's largest here, so that a device without a limit gets no absurd one.
const MAX_TRANSFER_BYTES: u64 = nvme_driver::MAX_TRANSFER_BYTES;
/// What the driver makes of the status bytes 1 and 2: negative errno values.
const EIO: i32 = -5;
const ENOTSUP: i32 = -95;

/// What is wrong with a vhost-user-blk socket or the device behind it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Problem {
    /// Nothing is there.
    #[error("no such socket: is the daemon running, and is this the tenant's directory or its `vhost.sock`?")]
    NoSocket,
    /// Nobody listens.
    #[error(
        "nobody listens: the daemon that made this socket is gone, so start it again; or the disk is locked, see \
         `evenkeel disk list`"
    )]
    NobodyListens,
    /// Not allowed.
    #[error("no permission to open it: run as the user that the daemon runs as")]
    NoPermission,
    /// The connection ended, or what came was not vhost-user-blk.
    #[error("{what} failed ({reason}): did the daemon stop, or is another client attached?")]
    Gone {
        /// What was asked.
        what: &'static str,
        /// What was seen.
        reason: String,
    },
    /// No answer in time.
    #[error("no answer to {what} within {ANSWER_LIMIT:?}: the daemon hangs, is stopped or serves another client")]
    NoAnswer {
        /// What was asked.
        what: &'static str,
    },
    /// The jobs' commands do not fit in a ring.
    #[error("iodepth and block size are too large: {wanted} descriptors, and a ring has at most {MAX_RING}")]
    RingTooSmall {
        /// Descriptors of all commands in flight on one queue.
        wanted: u64,
    },
    /// The device can't be driven.
    #[error("the device can't be driven: {0}")]
    Unsuitable(&'static str),
    /// The device offers fewer queues than there are jobs.
    #[error("{wanted} jobs need a queue each, the device offers {offered}")]
    TooFewQueues {
        /// Jobs.
        wanted: usize,
        /// Queues.
        offered: usize,
    },
    /// The device takes fewer pieces of memory than there are jobs.
    #[error("{wanted} jobs need {wanted} + 1 pieces of memory, the device takes {offered}")]
    TooFewSlots {
        /// Jobs.
        wanted: usize,
        /// Memory slots.
        offered: u64,
    },
}

impl Problem {
    /// Whether what was asked for is wrong, rather than what happened then.
    pub(crate) fn is_bad_input(&self) -> bool {
        !matches!(self, Self::Gone { .. } | Self::NoAnswer { .. } | Self::Unsuitable(_))
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::NoSocket,
            io::ErrorKind::ConnectionRefused => Self::NobodyListens,
            io::ErrorKind::PermissionDenied => Self::NoPermission,
            _ => Self::Gone { what: "the conversation", reason: error.to_string() },
        }
    }
}

/// What the driver says of a server without one of the protocol features that it asks for.
const LACKS_FEATURES: &str = "required protocol features";

/// Of them, only this one is needed: nothing else tells how large the disk is.
const NO_CONFIG: Problem = Problem::Unsuitable("it has no vhost-user protocol feature CONFIG, which tells its size");

fn lacks_features(error: &io::Error) -> bool {
    error.to_string().contains(LACKS_FEATURES)
}

/// The connection. It owns the rings' memory: every queue holds it.
struct Link {
    path: PathBuf,
    transport: Mutex<Box<VirtioBlkTransport>>,
}

impl Link {
    fn connect(path: &Path) -> Result<Self, Error> {
        let text = path.to_str().map(str::to_owned);
        let text = text.ok_or_else(|| Error::Spec(format!("{}: the path is not UTF-8", path.display())))?;
        let features = (Blk::SIZE_MAX | Blk::SEG_MAX | Blk::RO | Blk::BLK_SIZE | Blk::FLUSH | Blk::MQ | Blk::DISCARD)
            .bits()
            | (Ring::VERSION_1 | Ring::RING_EVENT_IDX).bits();
        let transport = answer(path, "the vhost-user handshake", move || match VhostUser::new(&text, features) {
            Err(error) if lacks_features(&error) => {
                let bridged = bridge::connect(Path::new(&text), |through| VhostUser::new(through, features));
                bridged.map_err(|error| if lacks_features(&error) { NO_CONFIG } else { error.into() })
            }
            connected => Ok(connected?),
        })?;
        Ok(Self { path: path.to_path_buf(), transport: Mutex::new(Box::new(transport)) })
    }

    fn call<T: Send + 'static>(
        self: &Arc<Self>,
        what: &'static str,
        ask: impl FnOnce(&mut VirtioBlkTransport) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Error> {
        let link = Arc::clone(self);
        answer(&self.path, what, move || ask(link.transport.lock().unwrap_or_else(PoisonError::into_inner).as_mut()))
    }
}

/// Runs `ask` on a thread of its own: the driver waits for answers without a limit, its users don't. A thread
/// whose answer never comes is left behind.
fn answer<T: Send + 'static>(
    path: &Path,
    what: &'static str,
    ask: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Error> {
    let failed = |problem| Error::Vhost { path: path.to_path_buf(), problem };
    let (send, receive) = sync_channel(1);
    let body = move || {
        // Fails when nobody waits any more.
        let _ = send.send(ask());
    };
    let spawned = thread::Builder::new().name("vhost-user".into()).spawn(body);
    spawned.map_err(|error| Error::System(format!("no thread for the connection: {error}")))?;
    match receive.recv_timeout(ANSWER_LIMIT) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(Problem::Gone { reason, .. })) => Err(failed(Problem::Gone { what, reason })),
        Ok(Err(problem)) => Err(failed(problem)),
        Err(RecvTimeoutError::Timeout) => Err(failed(Problem::NoAnswer { what })),
        Err(RecvTimeoutError::Disconnected) => {
            Err(failed(Problem::Gone { what, reason: "an answer that is not vhost-user".into() }))
        }
    }
}

/// A device behind a vhost-user-blk socket.
pub struct VhostDisk {
    link: Arc<Link>,
    geometry: Geometry,
    /// The most bytes of one request: its data is one descriptor.
    segment_bytes: u64,
    /// Without a cache that needs flushing, every write is durable.
    has_cache: bool,
}

impl VhostDisk {
    /// Connects to `socket` and asks the device what it is.
    pub fn connect(socket: &Path) -> Result<Self, Error> {
        let link = Arc::new(Link::connect(socket)?);
        let (features, config) = link.call("the configuration", |transport| {
            Ok((Blk::from_bits_truncate(transport.get_features()), transport.get_config()?))
        })?;
        let geometry = geometry(features, &config);
        let geometry = geometry.map_err(|problem| Error::Vhost { path: socket.to_path_buf(), problem })?;
        // QEMU's export offers the feature and leaves the field at 0.
        let limit =
            Some({ config.size_max }.to_native()).filter(|&bytes| bytes > 0 && features.contains(Blk::SIZE_MAX));
        let segment_bytes = limit.map_or(MAX_TRANSFER_BYTES, |bytes| MAX_TRANSFER_BYTES.min(bytes.into()));
        if segment_bytes % u64::from(geometry.block_bytes) != 0 {
            let problem = Problem::Unsuitable("its largest segment is not made of whole blocks");
            return Err(Error::Vhost { path: socket.to_path_buf(), problem });
        }
        Ok(Self { link, geometry, segment_bytes, has_cache: features.contains(Blk::FLUSH) })
    }
}

/// What the configuration space says, checked.
fn geometry(features: Blk, config: &VirtioBlkConfig) -> Result<Geometry, Problem> {
    let offered = |feature, value: u32| features.contains(feature).then_some(value);
    let block_bytes = offered(Blk::BLK_SIZE, { config.blk_size }.to_native());
    let block_bytes = block_bytes.unwrap_or(SECTOR_BYTES as u32);
    if !block_bytes.is_power_of_two() || u64::from(block_bytes) < SECTOR_BYTES {
        return Err(Problem::Unsuitable("its block size is not a power of two from 512 up"));
    }
    let size_bytes = { config.capacity }.to_native().checked_mul(SECTOR_BYTES);
    let trim_sectors = offered(Blk::DISCARD, { config.max_discard_sectors }.to_native());
    Ok(Geometry {
        block_bytes,
        size_bytes: size_bytes.ok_or(Problem::Unsuitable("its capacity is above 16 EiB"))?,
        max_transfer_bytes: MAX_TRANSFER_BYTES,
        max_trim_bytes: u64::from(trim_sectors.unwrap_or(0)) * SECTOR_BYTES,
        max_depth: MAX_RING / DESCRIPTORS,
    })
}

/// Memory of one queue's buffers.
struct Piece {
    /// Never touched: only its addresses count.
    window: Vec<u8>,
    /// Where its first page begins.
    start: usize,
    len: usize,
    memory: DmaMemory,
    fd: OwnedFd,
}

impl Piece {
    fn new(shape: &QueueShape) -> Result<Self, Error> {
        let len = usize::from(shape.depth) * shape.buffer_bytes as usize;
        let (mapping, fd) = Mapping::memfd("load", len).map_err(|error| Error::System(error.to_string()))?;
        let window = vec![0; len + PAGE_BYTES];
        let start = window.as_ptr().align_offset(PAGE_BYTES);
        let memory = DmaMemory::new(mapping, (window.as_ptr() as usize + start) as u64);
        Ok(Self { window, start, len, memory, fd })
    }
}

impl Disk for VhostDisk {
    type Queue = VhostQueue;

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn open_queues(&mut self, shapes: &[QueueShape]) -> Result<Vec<VhostQueue>, Error> {
        if shapes.iter().any(|shape| shape.priority.is_some()) {
            return Err(Error::Spec("virtio-blk queues have no priorities: leave --queue-priority out".into()));
        }
        let pieces = shapes.iter().map(Piece::new).collect::<Result<Vec<_>, _>>()?;
        let descriptors = |shape: &QueueShape| {
            u64::from(shape.depth) * u64::from(DESCRIPTORS) * shape.buffer_bytes.div_ceil(self.segment_bytes)
        };
        let wanted = shapes.iter().map(descriptors).max().unwrap_or(1);
        let entries = u16::try_from(wanted.next_power_of_two()).ok().filter(|&entries| entries <= MAX_RING);
        let too_small = || Error::Vhost { path: self.link.path.clone(), problem: Problem::RingTooSmall { wanted } };
        let entries = entries.ok_or_else(too_small)?;
        let opened = self.link.call("the set-up of queues", move |transport| set_up(transport, pieces, entries))?;
        let queues = opened.into_iter().zip(shapes).map(|((piece, ring, notifier), shape)| VhostQueue {
            ring,
            notifier,
            unannounced: false,
            buffers: Buffers::new(piece.memory, shape.buffer_bytes),
            buffer_bytes: shape.buffer_bytes as usize,
            segment_bytes: self.segment_bytes as usize,
            window: piece.window,
            start: piece.start,
            depth: shape.depth,
            free: (0..shape.depth).rev().collect(),
            has_cache: self.has_cache,
            slots: vec![Slot::default(); shape.depth.into()],
            to_flush: Vec::with_capacity(shape.depth.into()),
            link: Arc::clone(&self.link),
        });
        Ok(queues.collect())
    }

    fn close_queue(&mut self, _queue: VhostQueue) -> Result<(), Error> {
        // The device forgets its queues and memory when the connection ends.
        Ok(())
    }

    fn check(&mut self) -> Result<(), Error> {
        self.link.call("a question whether it is there", |transport| Ok(transport.get_config().map(drop)?))
    }
}

type Opened = (Piece, VirtioBlkQueue<'static, u16>, Box<dyn QueueNotifier>);

/// Makes a queue of `entries` for each piece of memory, and has the device map that.
fn set_up(transport: &mut VirtioBlkTransport, pieces: Vec<Piece>, entries: u16) -> Result<Vec<Opened>, Problem> {
    let wanted = pieces.len();
    let (offered, slots) = (virtio_blk_max_queues(transport)?, transport.max_mem_regions());
    if wanted > offered {
        return Err(Problem::TooFewQueues { wanted, offered });
    }
    // One more for the rings.
    if wanted as u64 >= slots {
        return Err(Problem::TooFewSlots { wanted, offered: slots });
    }
    // Before any ring is there: a server may stop its rings while its memory changes.
    for piece in &pieces {
        transport.map_mem_region(piece.memory.iova() as usize, piece.len, piece.fd.as_raw_fd(), 0)?;
    }
    let rings = VirtioBlkQueue::setup_queues(transport, wanted, entries)?;
    let mut opened = Vec::new();
    for (index, (piece, mut ring)) in pieces.into_iter().zip(rings).enumerate() {
        ring.set_used_notif_enabled(false);
        opened.push((piece, ring, transport.get_submission_notifier(index)));
    }
    Ok(opened)
}

/// A command in flight.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Its requests that are still to complete.
    requests: u16,
    /// A write that is to be flushed before it counts as complete, since virtio has no FUA.
    flush_after: bool,
    /// The first failure among its requests, as the driver tells it; 0: none.
    errno: i32,
}

/// A virtqueue with its buffers.
pub struct VhostQueue {
    ring: VirtioBlkQueue<'static, u16>,
    notifier: Box<dyn QueueNotifier>,
    /// Whether something was put into the ring since the last time that the device was told.
    unannounced: bool,
    buffers: Buffers,
    buffer_bytes: usize,
    segment_bytes: usize,
    window: Vec<u8>,
    start: usize,
    depth: u16,
    /// Tags that are free; the one used last is on top, its memory still in the cache.
    free: Vec<u16>,
    has_cache: bool,
    /// By tag.
    slots: Vec<Slot>,
    /// Tags of writes whose requests have just completed and that are now to be flushed.
    to_flush: Vec<u16>,
    /// The ring lies in memory that this owns.
    link: Arc<Link>,
}

impl VhostQueue {
    #[cold]
    fn failed(&self, error: io::Error) -> Error {
        let problem = Problem::Gone { what: "a request", reason: error.to_string() };
        Error::Vhost { path: self.link.path.clone(), problem }
    }

    /// Flushes for the writes that wait for that.
    #[cold]
    fn flush(&mut self) -> Result<(), Error> {
        while let Some(tag) = self.to_flush.pop() {
            self.ring.flush(tag).map_err(|error| self.failed(error))?;
            self.slots[usize::from(tag)].requests = 1;
            self.unannounced = true;
        }
        self.ring()
    }
}

impl DiskQueue for VhostQueue {
    fn depth(&self) -> u16 {
        self.depth
    }

    #[inline]
    fn in_flight(&self) -> u16 {
        self.depth - self.free.len() as u16
    }

    #[inline]
    fn next_tag(&self) -> Option<u16> {
        self.free.last().copied()
    }

    fn buffers(&self) -> Buffers {
        self.buffers.clone()
    }

    #[inline]
    fn send(&mut self, request: Request) -> Result<(), Error> {
        let tag = *self.free.last().ok_or(SubmitError::Full)?;
        let Request { direction, offset_bytes, len_bytes, durable } = request;
        let at = self.start + usize::from(tag) * self.buffer_bytes;
        let window = self.window[at..].get_mut(..len_bytes as usize).ok_or(SubmitError::BadLength);
        let flush_after = durable && direction == Direction::Write && self.has_cache;
        let mut slot = Slot { requests: 1, flush_after, errno: 0 };
        let sent = match direction {
            Direction::Trim => self.ring.discard(offset_bytes, len_bytes, tag),
            Direction::Read | Direction::Write => {
                let pieces = window?.chunks_mut(self.segment_bytes);
                slot.requests = pieces.len() as u16;
                let mut pieces = (offset_bytes..).step_by(self.segment_bytes).zip(pieces);
                pieces.try_for_each(|(offset_bytes, piece)| match direction {
                    Direction::Read => self.ring.read(offset_bytes, piece, tag),
                    _ => self.ring.write(offset_bytes, piece, tag),
                })
            }
        };
        sent.map_err(|error| self.failed(error))?;
        self.slots[usize::from(tag)] = slot;
        self.free.pop();
        self.unannounced = true;
        Ok(())
    }

    #[inline]
    fn ring(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.unannounced) && self.ring.avail_notif_needed() {
            self.notifier.notify().map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self, done: &mut impl FnMut(Done)) -> Result<u32, Error> {
        let mut reaped = 0;
        for completion in self.ring.completions() {
            let tag = completion.context;
            let slot = &mut self.slots[usize::from(tag)];
            slot.errno = if slot.errno == 0 { completion.ret } else { slot.errno };
            slot.requests -= 1;
            if slot.requests > 0 {
                continue;
            }
            if std::mem::take(&mut slot.flush_after) && slot.errno == 0 {
                self.to_flush.push(tag);
                continue;
            }
            self.free.push(tag);
            reaped += 1;
            done(Done { tag, outcome: outcome(slot.errno) });
        }
        if !self.to_flush.is_empty() {
            self.flush()?;
        }
        Ok(reaped)
    }
}

#[inline]
fn outcome(errno: i32) -> Result<(), Failure> {
    match errno {
        0 => Ok(()),
        EIO => Err(Failure::Virtio("VIRTIO_BLK_S_IOERR")),
        ENOTSUP => Err(Failure::Virtio("VIRTIO_BLK_S_UNSUPP")),
        _ => Err(Failure::Virtio("a status that virtio-blk does not have")),
    }
}
