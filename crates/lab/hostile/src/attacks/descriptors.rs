//! Descriptors that are not what they are handed over as.

use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::sockopt;
use test_clients::nvme::{FREE_AT, Nvme, QUEUES_BYTES, QUEUES_IOVA, read};
use test_clients::socket::send;
use test_clients::vfio::{GET_INFO, dma_map, message, set_irqs, words};
use test_clients::vhost::{self, GET_FEATURES, NEED_REPLY, SET_MEM_TABLE, SET_VRING_CALL, VERSION, longs, mem_table};
use test_clients::virtio::{self, RING, RING_BYTES, Virtio};

use super::{Field, Outcome};
use crate::fuse::Stuck;
use crate::host::NEWCOMER;

/// Hands over a file whose file system never answers, and sees to it that it goes on not answering.
fn with_stuck_file(field: &Field, deliver: impl FnOnce(&Field, &Stuck) -> io::Result<()>) -> io::Result<Outcome> {
    let stuck = match Stuck::mount(&field.scratch.join("fuse")) {
        Ok(stuck) => stuck,
        Err(error) => return Ok(Outcome::Skipped(format!("a FUSE file system can't be mounted here: {error}"))),
    };
    let delivered = deliver(field, &stuck);
    field.endured(delivered)?;
    field.hold();
    Ok(Outcome::Done(Vec::new()))
}

/// Sends it with a vfio-user message, and asks for a register then.
fn over_vfio_user(field: &Field, stuck: &Stuck, bytes: &[u8]) -> io::Result<()> {
    let nvme = Nvme::greet_patiently(&field.bad())?;
    stuck.hand_over(|fd| nvme.client.send(bytes, &[fd]))?;
    // A refusal is as good an answer as any.
    let _ = nvme.client.answer()?;
    nvme.status_register().map(drop)
}

/// Sends it with a vhost-user request, behind a file that is right, and asks for features then.
fn over_vhost_user(field: &Field, stuck: &Stuck, request: u32, payload: &[u8], first: bool) -> io::Result<()> {
    let virtio = Virtio::greet_patiently(&field.evil())?;
    stuck.hand_over(|fd| {
        let fds = [virtio.memory.as_fd(), fd];
        virtio.client.send(&vhost::message(request, VERSION | NEED_REPLY, payload), &fds[usize::from(first)..])
    })?;
    // As above.
    let _ = virtio.number()?;
    virtio.get(GET_FEATURES).map(drop)
}

pub fn fuse_file_as_memory(field: &Field) -> io::Result<Outcome> {
    with_stuck_file(field, |field, stuck| over_vfio_user(field, stuck, &dma_map(1, 3, 0, 1 << 40, 4096)))
}

pub fn fuse_file_as_interrupt(field: &Field) -> io::Result<Outcome> {
    with_stuck_file(field, |field, stuck| over_vfio_user(field, stuck, &set_irqs(1, 1 << 2 | 1 << 5, 2, 0, 1, &[])))
}

pub fn fuse_file_unasked(field: &Field) -> io::Result<Outcome> {
    let unasked = message(1, GET_INFO, 0, &words(&[16, 0, 0, 0]));
    with_stuck_file(field, |field, stuck| over_vfio_user(field, stuck, &unasked))
}

pub fn fuse_file_as_memory_table(field: &Field) -> io::Result<Outcome> {
    let table = mem_table(&[(RING, RING_BYTES, RING, 0), (1 << 33, 4096, 1 << 33, 0)]);
    with_stuck_file(field, |field, stuck| over_vhost_user(field, stuck, SET_MEM_TABLE, &table, false))
}

pub fn fuse_file_as_call(field: &Field) -> io::Result<Outcome> {
    with_stuck_file(field, |field, stuck| over_vhost_user(field, stuck, SET_VRING_CALL, &longs(&[0]), true))
}

/// devtmpfs says that it is tmpfs.
pub fn device_as_memory(field: &Field) -> io::Result<Outcome> {
    let mut accepted = Vec::new();
    for device in ["/dev/zero", "/dev/null", "/dev/full"] {
        let nvme = Nvme::greet_patiently(&field.bad())?;
        let file = File::options().read(true).write(true).open(device)?;
        // It may be a hole of the guest's memory, where no queue can be.
        let answer =
            nvme.map(QUEUES_IOVA, &file, QUEUES_BYTES).and_then(|mapped| Ok(mapped.is_ok() && nvme.comes_up()?));
        match answer {
            Ok(true) => accepted.push(format!("{device} was taken for memory")),
            Ok(false) => {}
            Err(error) => field.endured(Err(error))?,
        }
    }
    Ok(Outcome::Done(accepted))
}

/// A completion that takes longer than this is being blocked.
const NOTICED: Duration = Duration::from_millis(8);

/// An eventfd that is full and empty by turns, whose writers wait while it is full; until it stays so.
struct Full {
    event: OwnedFd,
    stop: Arc<AtomicBool>,
    /// Nobody empties it.
    stays: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Full {
    fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        let mut this = Self { event, stop: Arc::default(), stays: Arc::default(), threads: Vec::new() };
        let (filled, stop) = (this.event.try_clone()?, Arc::clone(&this.stop));
        this.start("filling", move || {
            while !stop.load(Relaxed) {
                // A daemon that checks for room and then writes is too late.
                let _ = fcntl_setfl(&filled, OFlags::RDWR);
                let _ = rustix::io::write(&filled, &(u64::MAX - 1).to_ne_bytes());
            }
        })?;
        let (emptied, stop, stays) = (this.event.try_clone()?, Arc::clone(&this.stop), Arc::clone(&this.stays));
        this.start("emptying", move || {
            let mut reads = 0_u32;
            while !stop.load(Relaxed) {
                if stays.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                let _ = rustix::io::read(&emptied, &mut [0_u8; 8]);
                reads = reads.wrapping_add(1);
                // Long enough to be noticed by the thread that waits for the blocked writer.
                if reads.is_multiple_of(8) {
                    std::thread::sleep(2 * NOTICED);
                }
            }
        })?;
        Ok(this)
    }

    fn start(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(body)?);
        Ok(())
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        // Blocked writers go on.
        while !self.threads.iter().all(JoinHandle::is_finished) {
            let _ = fcntl_setfl(&self.event, OFlags::RDWR | OFlags::NONBLOCK);
            let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
    }
}

pub fn interrupt_that_blocks(field: &Field) -> io::Result<Outcome> {
    let full = Full::new()?;
    let result = interrupt_again_and_again(field, &full);
    field.endured(result)?;
    field.hold();
    Ok(Outcome::Done(Vec::new()))
}

fn interrupt_again_and_again(field: &Field, full: &Full) -> io::Result<()> {
    let mut nvme = Nvme::start(&field.bad(), true)?;
    nvme.set_interrupt(full.event.as_fd())?;
    while field.goes_on() {
        nvme.submit(1, read(0, 0, QUEUES_IOVA + FREE_AT, 4096))?;
        nvme.ring(1)?;
        if !until_done(full, || Ok(!nvme.poll(1)?.is_empty()))? {
            // Tells whether the connection is still there.
            nvme.status_register()?;
        }
    }
    Ok(())
}

pub fn call_that_blocks(field: &Field) -> io::Result<Outcome> {
    let full = Full::new()?;
    let result = call_again_and_again(field, &full);
    field.endured(result)?;
    field.hold();
    Ok(Outcome::Done(Vec::new()))
}

fn call_again_and_again(field: &Field, full: &Full) -> io::Result<()> {
    let mut virtio = Virtio::start(&field.evil(), &[], full.event.as_fd())?;
    while field.goes_on() {
        virtio.read(0, 0, virtio::RING + virtio::FREE_AT, 4096)?;
        virtio.kick()?;
        if !until_done(full, || Ok(virtio.poll()? > 0))? {
            virtio.get(GET_FEATURES)?;
        }
    }
    Ok(())
}

/// Waits until `is_done`. If that takes long, the signalling thread may be blocked: block it for good then. `false`: it
/// was blocked, and nothing came.
fn until_done(full: &Full, mut is_done: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    let start = Instant::now();
    while !is_done()? {
        full.stays.store(start.elapsed() > NOTICED, Relaxed);
        if start.elapsed() > Duration::from_millis(800) {
            return Ok(false);
        }
        std::thread::yield_now();
    }
    full.stays.store(false, Relaxed);
    Ok(true)
}

/// How long the close of a [`lingering`] socket blocks.
const LINGER: Duration = Duration::from_secs(30);

/// A socket with bytes that are never read. Its last close waits for them.
fn lingering() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    sockopt::set_socket_recv_buffer_size(&listener, 4096)?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    while stream.write(&[0; 65536]).is_ok() {}
    stream.set_nonblocking(false)?;
    sockopt::set_socket_linger(&stream, Some(LINGER))?;
    Ok((stream, peer))
}

/// Connections that the daemon refuses or closes unread, each with a socket in it whose close blocks.
pub fn lingering_sockets(field: &Field) -> io::Result<Outcome> {
    // More would have the attacker's own sockets run out.
    const CONNECTIONS: usize = 400;
    // As many as wait in a socket's queue.
    const BATCH: usize = 8;
    // Where nobody is attached they would be clients.
    let own = [field.bad(), field.evil(), field.apart(), field.lone(), field.runtime_dir.join(NEWCOMER)];
    let directories = std::fs::read_dir(&field.runtime_dir)?.flatten().map(|entry| entry.path());
    let directories = directories.filter(|path| !own.contains(path));
    let sockets: Vec<PathBuf> =
        directories.flat_map(|path| ["cntrl", "vhost.sock"].map(|name| path.join(name))).collect();
    let mut kept = Vec::new();
    let request = message(1, GET_INFO, 0, &words(&[16, 0, 0, 0]));
    for socket in sockets.iter().filter(|socket| socket.exists()).cycle() {
        if kept.len() >= CONNECTIONS || !field.goes_on() {
            break;
        }
        // It is a race: the daemon is to close them after us. It has more to do for many, and begins with the first.
        let mut lefts = Vec::new();
        for _ in 0..BATCH {
            let (left, peer) = lingering()?;
            lefts.push(left);
            kept.push(peer);
        }
        let streams: Vec<_> = lefts.iter().map(|_| UnixStream::connect(socket)).collect();
        for (stream, left) in streams.iter().zip(lefts).rev() {
            if let Ok(stream) = stream {
                // Too late where it is refused by now.
                let _ = send(stream, &request, &[left.as_fd()]);
            }
            // The last close blocks, so it happens on another thread.
            let _ = std::thread::Builder::new().spawn(move || drop(left));
        }
    }
    field.hold();
    Ok(Outcome::Done(Vec::new()))
}

/// A Unix stream socket whose last close blocks: a lingering socket was sent to it and is not received.
fn blocking_socket() -> io::Result<(UnixStream, TcpStream)> {
    let (sent_to, sent_from) = UnixStream::pair()?;
    let (left, peer) = lingering()?;
    send(&sent_from, b"x", &[left.as_fd()])?;
    Ok((sent_to, peer))
}

/// Sockets in place of interrupts. The daemon refuses them, and serves the next client all the same.
pub fn lingering_in_messages(field: &Field) -> io::Result<Outcome> {
    let (virtio, nvme) = (Virtio::greet_patiently(&field.evil())?, Nvme::greet_patiently(&field.bad())?);
    let ((call, _peer), (irq, _other_peer)) = (blocking_socket()?, blocking_socket()?);
    virtio.client.send(&vhost::message(SET_VRING_CALL, VERSION | NEED_REPLY, &longs(&[0])), &[call.as_fd()])?;
    nvme.client.send(&set_irqs(1, 1 << 2 | 1 << 5, 2, 0, 1, &[]), &[irq.as_fd()])?;
    // The daemon has the last ones.
    drop((call, irq, virtio, nvme));
    let virtio = Virtio::greet_patiently(&field.evil()).err().map(|error| ("virtio", error));
    let nvme = Nvme::greet_patiently(&field.bad()).err().map(|error| ("NVMe", error));
    let lost = virtio.into_iter().chain(nvme);
    Ok(Outcome::Done(lost.map(|(which, error)| format!("no next {which} client: {error}")).collect()))
}
