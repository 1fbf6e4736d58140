//! A device behind a vfio-user socket.
//!
//! The published client blocks without a time limit and does not look at error replies (it waits for
//! the rest of a longer one). So it lives on a thread of its own, and every answer is waited for with a
//! deadline: a daemon that hangs costs its users an error, not their thread. Doorbells that are not
//! mapped are posted to that thread, as a PCI write is posted to the bus.

use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use guest_memory::{MappedU32, Mapping};
use nvme_spec::regs::DOORBELL_BASE;
use vfio_user::{Client, Error as ClientError};

use crate::device::{DmaMemory, Doorbell, PciDevice, Ring};
use crate::error::Error;
use crate::pieces::{Back, Pieces};

/// How long an answer may take. A daemon answers in microseconds; a busy two-core host in milliseconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// VFIO's fixed numbers for PCI functions (`linux/vfio.h`).
const BAR0_REGION: u32 = 0;
const CONFIG_REGION: u32 = 7;
const MSIX_IRQ_INDEX: u32 = 2;
const IRQ_DATA_EVENTFD: u32 = 1 << 2;
const IRQ_ACTION_TRIGGER: u32 = 1 << 5;
const REGION_CAN_MMAP: u32 = 1 << 2;

/// The PCI command register.
const PCI_COMMAND: u64 = 4;
/// Memory space, bus mastering, and no INTx: who hears of completions does so by MSI-X. A device may refuse to complete
/// what it can't interrupt for.
const PCI_COMMAND_ENABLE: u16 = 1 << 10 | 0b110;

/// The device's addresses start above 4 GiB, so that a truncated address is not a valid one.
const FIRST_IOVA: u64 = 1 << 32;
/// Ranges are whole huge pages: peers that register memory with a drive ask for that.
const DMA_ALIGN: usize = 2 << 20;
/// What is no longer shares such a page with others: a server allows few ranges.
const PIECE_MOST_BYTES: usize = 256 << 10;

type Call = Box<dyn FnOnce(&mut Client) + Send>;

enum Message {
    Call(Call),
    Doorbell(Arc<PostedWrite>),
    Close,
}

/// The thread that owns the connection, as its users see it.
#[derive(Clone)]
struct Link {
    peer: Arc<str>,
    messages: Sender<Message>,
    /// An answer was given up on: the thread may wait for it for ever, so nobody waits for the thread.
    stuck: Arc<AtomicBool>,
}

impl Link {
    fn gone(&self, reason: impl ToString) -> Error {
        Error::Gone { peer: self.peer.to_string(), reason: reason.to_string() }
    }

    fn send(&self, message: Message) -> Result<(), Error> {
        if self.stuck.load(Ordering::Relaxed) {
            return Err(self.gone("it hangs"));
        }
        self.messages.send(message).map_err(|_| self.gone("it was closed"))
    }

    /// Runs `call` on the connection's thread and waits for its answer.
    fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        call: impl FnOnce(&mut Client) -> Result<T, ClientError> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = sync_channel(1);
        self.send(Message::Call(Box::new(move |client| {
            // The caller may have given up waiting: nobody is left to tell.
            let _ = answer.send(call(client));
        })))?;
        match answered.recv_timeout(ANSWER_LIMIT) {
            Ok(result) => result.map_err(|error| self.gone(error)),
            Err(RecvTimeoutError::Timeout) => {
                self.stuck.store(true, Ordering::Relaxed);
                Err(Error::NoAnswer { peer: self.peer.to_string(), what, limit: ANSWER_LIMIT })
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.gone("the peer sent something that is not vfio-user")),
        }
    }
}

/// Serves `messages` until closed or until a doorbell can't be delivered.
fn serve(mut client: Client, messages: &Receiver<Message>) {
    for message in messages {
        match message {
            Message::Call(call) => call(&mut client),
            Message::Doorbell(posted) => {
                let value = posted.take();
                if client.region_write(BAR0_REGION, posted.offset, &value.to_le_bytes()).is_err() {
                    return;
                }
            }
            Message::Close => return,
        }
    }
}

/// A PCI device behind a vfio-user socket.
pub struct VfioUserDevice {
    link: Link,
    doorbells: Option<Arc<Mapping>>,
    next_iova: u64,
    pieces: Pieces,
    /// Disconnects when the connection's thread has ended.
    ended: Receiver<()>,
}

/// What the handshake brought.
struct Attached {
    doorbell_page: Option<(OwnedFd, u64, u64)>,
}

impl VfioUserDevice {
    /// Connects to a socket, or to the socket `cntrl` in a directory, and enables the function. Doorbells are mapped
    /// where the device lets them be.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let socket = if path.is_dir() { path.join("cntrl") } else { path.to_path_buf() };
        let (messages, received) = channel();
        let (attached, wait_attached) = sync_channel(1);
        let (ended, wait_ended) = channel::<()>();
        let link = Link { peer: socket.display().to_string().into(), messages, stuck: Arc::default() };
        let thread_socket = socket.clone();
        let body = move || {
            let _ended = ended;
            match attach(&thread_socket) {
                Ok((client, info)) => {
                    if attached.send(Ok(info)).is_ok() {
                        serve(client, &received);
                    }
                }
                Err(error) => {
                    // The caller may have given up waiting: nobody is left to tell.
                    let _ = attached.send(Err(error));
                }
            }
        };
        thread::Builder::new()
            .name("vfio-user".into())
            .spawn(body)
            .map_err(|error| Error::Memory(format!("no thread for the connection: {error}")))?;
        let info = match wait_attached.recv_timeout(ANSWER_LIMIT) {
            Ok(info) => info?,
            Err(RecvTimeoutError::Timeout) => {
                return Err(Error::NoAnswer {
                    peer: socket.display().to_string(),
                    what: "the vfio-user handshake",
                    limit: ANSWER_LIMIT,
                });
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Handshake { path: socket, reason: "malformed answer".into() });
            }
        };
        // What can't be mapped is written to by messages: a file that is no memory, say, which SPDK's doorbells are in
        // where its socket's directory is on a disk.
        let map = |(fd, offset, len): (OwnedFd, u64, u64)| Mapping::shared(fd.as_fd(), offset, len, true).ok();
        let doorbells = info.doorbell_page.and_then(map);
        Ok(Self { link, doorbells, next_iova: FIRST_IOVA, pieces: Pieces::default(), ended: wait_ended })
    }

    /// Gives up the mapped doorbells, so that every ring becomes a message (or, with shadow doorbells,
    /// a store in memory and sometimes a message).
    pub fn without_mapped_doorbells(mut self) -> Self {
        self.doorbells = None;
        self
    }

    /// Maps memory of whole huge pages.
    fn map(&mut self, len_bytes: usize) -> Result<DmaMemory, Error> {
        let len = len_bytes.max(1).checked_next_multiple_of(DMA_ALIGN);
        let len = len.ok_or_else(|| Error::Memory(format!("{len_bytes} bytes are too many")))?;
        let (mapping, fd) = Mapping::memfd("nvme-driver", len)?;
        let iova = self.next_iova;
        self.next_iova += len as u64;
        self.link.call("a DMA map", move |client| client.dma_map(0, iova, len as u64, fd.as_raw_fd()))?;
        Ok(DmaMemory::new(mapping, iova))
    }
}

/// Connects, finds the doorbell page and enables what a driver needs.
fn attach(socket: &Path) -> Result<(Client, Attached), Error> {
    let failed = |error| connect_error(socket, error);
    let mut client = Client::new(socket).map_err(failed)?;
    let doorbell_page = doorbell_page(&client)?;
    let mut command = [0; 2];
    client.region_read(CONFIG_REGION, PCI_COMMAND, &mut command).map_err(failed)?;
    let command = u16::from_le_bytes(command) | PCI_COMMAND_ENABLE;
    client.region_write(CONFIG_REGION, PCI_COMMAND, &command.to_le_bytes()).map_err(failed)?;
    Ok((client, Attached { doorbell_page }))
}

/// The file, offset and length of the doorbells' part of BAR0, if the device lets us map it.
fn doorbell_page(client: &Client) -> Result<Option<(OwnedFd, u64, u64)>, Error> {
    let bar0 = client.region(BAR0_REGION).ok_or(Error::Unsuitable("it has no BAR0"))?;
    if bar0.size <= DOORBELL_BASE {
        return Err(Error::Unsuitable("its BAR0 is too small for NVMe registers"));
    }
    let Some(file_offset) = bar0.file_offset.as_ref().filter(|_| bar0.flags & REGION_CAN_MMAP != 0) else {
        return Ok(None);
    };
    let areas: Vec<_> = bar0.sparse_areas.iter().map(|area| (area.offset, area.size)).collect();
    let Some(len) = mappable_doorbells(bar0.size, &areas) else { return Ok(None) };
    let offset = file_offset.start().checked_add(DOORBELL_BASE);
    let offset = offset.ok_or(Error::Protocol("the doorbell page lies beyond its file"))?;
    let fd = file_offset.file().as_fd().try_clone_to_owned();
    let fd = fd.map_err(|error| Error::Memory(error.to_string()))?;
    Ok(Some((fd, offset, len)))
}

/// How many bytes from the doorbells' start on can be mapped of a region that can be: those of the area that has that
/// place, or all where the device names no areas (`VFIO_REGION_INFO_CAP_SPARSE_MMAP`, linux/vfio.h).
fn mappable_doorbells(region_bytes: u64, areas: &[(u64, u64)]) -> Option<u64> {
    let whole = [(0, region_bytes)];
    let areas = if areas.is_empty() { &whole } else { areas };
    let ends = areas.iter().filter(|(offset, _)| *offset <= DOORBELL_BASE);
    ends.filter_map(|(offset, size)| offset.saturating_add(*size).min(region_bytes).checked_sub(DOORBELL_BASE))
        .find(|len| *len > 0)
}

fn connect_error(socket: &Path, error: ClientError) -> Error {
    let path = PathBuf::from(socket);
    match error {
        ClientError::Connect(error) => match error.kind() {
            ErrorKind::NotFound => Error::NoSocket { path },
            ErrorKind::ConnectionRefused => Error::NobodyListens { path },
            ErrorKind::PermissionDenied => Error::NoPermission { path },
            _ => Error::Handshake { path, reason: error.to_string() },
        },
        other => Error::Handshake { path, reason: other.to_string() },
    }
}

impl PciDevice for VfioUserDevice {
    fn read_u32(&mut self, offset: u64) -> Result<u32, Error> {
        self.link.call("a register read", move |client| {
            let mut value = [0; 4];
            client.region_read(BAR0_REGION, offset, &mut value)?;
            Ok(u32::from_le_bytes(value))
        })
    }

    fn read_u64(&mut self, offset: u64) -> Result<u64, Error> {
        self.link.call("a register read", move |client| {
            let mut value = [0; 8];
            client.region_read(BAR0_REGION, offset, &mut value)?;
            Ok(u64::from_le_bytes(value))
        })
    }

    fn write_u32(&mut self, offset: u64, value: u32) -> Result<(), Error> {
        self.link.call("a register write", move |client| client.region_write(BAR0_REGION, offset, &value.to_le_bytes()))
    }

    fn write_u64(&mut self, offset: u64, value: u64) -> Result<(), Error> {
        self.link.call("a register write", move |client| client.region_write(BAR0_REGION, offset, &value.to_le_bytes()))
    }

    fn doorbell(&mut self, offset: u64) -> Result<Doorbell, Error> {
        let in_page = offset.checked_sub(DOORBELL_BASE).ok_or(Error::Invalid("no doorbell below 0x1000"))?;
        let mapped = self.doorbells.as_ref().and_then(|page| MappedU32::new(page, in_page));
        Ok(match mapped {
            Some(cell) => Doorbell::Mapped(cell),
            None => {
                let posted = Arc::new(PostedWrite { offset, value: AtomicU64::new(0) });
                Doorbell::Sent(Box::new(SentDoorbell { link: self.link.clone(), posted }))
            }
        })
    }

    fn allocate_dma(&mut self, len_bytes: usize) -> Result<DmaMemory, Error> {
        if len_bytes > PIECE_MOST_BYTES {
            return self.map(len_bytes);
        }
        if let Some(piece) = self.pieces.take(len_bytes as u64) {
            return Ok(piece);
        }
        let whole = self.map(DMA_ALIGN)?;
        self.pieces.add(whole);
        self.pieces.take(len_bytes as u64).ok_or(Error::Invalid("too little DMA memory"))
    }

    fn release_dma(&mut self, memory: DmaMemory) -> Result<(), Error> {
        let Back::Whole(memory) = self.pieces.give_back(memory) else { return Ok(()) };
        let (iova, len_bytes) = (memory.iova(), memory.len_bytes());
        self.link.call("a DMA unmap", move |client| client.dma_unmap(iova, len_bytes))
    }

    fn set_interrupt(&mut self, vector: u16, event: BorrowedFd<'_>) -> Result<(), Error> {
        let event = event.try_clone_to_owned().map_err(|error| Error::Memory(error.to_string()))?;
        self.link.call("an interrupt set-up", move |client| {
            let flags = IRQ_DATA_EVENTFD | IRQ_ACTION_TRIGGER;
            client.set_irqs(MSIX_IRQ_INDEX, flags, vector.into(), 1, &[event.as_raw_fd()])
        })
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.link.call("a reset", |client| client.reset())
    }
}

impl Drop for VfioUserDevice {
    fn drop(&mut self) {
        if self.link.send(Message::Close).is_ok() {
            // The next client must find the socket free. Ends when the thread drops its sender; a thread that hangs in
            // an answer is left behind.
            let _ = self.ended.recv_timeout(Duration::from_secs(1));
        }
    }
}

/// A doorbell's newest value, on its way to the device.
struct PostedWrite {
    offset: u64,
    value: AtomicU64,
}

impl PostedWrite {
    /// Set while a message about this doorbell is under way.
    const POSTED: u64 = 1 << 32;

    /// Leaves `value`; returns whether a message must be sent. A newer value replaces an older one that
    /// was not delivered yet, so a slow peer never makes a queue of doorbells.
    fn put(&self, value: u32) -> bool {
        self.value.swap(u64::from(value) | Self::POSTED, Ordering::AcqRel) & Self::POSTED == 0
    }

    fn take(&self) -> u32 {
        self.value.swap(0, Ordering::AcqRel) as u32
    }
}

struct SentDoorbell {
    link: Link,
    posted: Arc<PostedWrite>,
}

impl Ring for SentDoorbell {
    fn ring(&mut self, value: u32) -> Result<(), Error> {
        if self.posted.put(value) { self.link.send(Message::Doorbell(Arc::clone(&self.posted))) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_are_mapped_wherever_their_area_begins() {
        let mappable = |areas: &[(u64, u64)]| mappable_doorbells(0x4000, areas);
        // Ours and SPDK's have a page of their own.
        assert_eq!(mappable(&[(0x1000, 0x1000)]), Some(0x1000));
        assert_eq!(mappable(&[(0x3000, 0x1000), (0, 0x2000)]), Some(0x1000));
        assert_eq!(mappable(&[]), Some(0x3000), "the whole region");
        assert_eq!(mappable(&[(0x1000, u64::MAX)]), Some(0x3000), "no more than there is");
        for none in [&[(0, 0x1000)][..], &[(0x2000, 0x1000)], &[(0x1000, 0)]] {
            assert_eq!(mappable(none), None, "{none:x?}");
        }
    }
}
