//! What Cloud Hypervisor does with its client (its `pci/src/vfio_user.rs` and `pci/src/vfio.rs`), in that order.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use guest_memory::{MappedU32, Mapping};
use nvme_spec::pci::{capability, header, msix};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use test_clients::socket;
use vfio_user::{Client, Error};

/// The client waits for ever. This is longer than a restart takes on a busy host.
const LIMIT: Duration = Duration::from_secs(30);

/// VFIO's fixed numbers for PCI functions (`linux/vfio.h`).
pub const BAR0: u32 = 0;
pub const CONFIG: u32 = 7;
const CAN_MMAP: u32 = 1 << 2;
const INTX: u32 = 0;
const MSIX: u32 = 2;
const NONE: u32 = 1;
const EVENTFD: u32 = 1 << 2;
const UNMASK: u32 = 1 << 4;
const TRIGGER: u32 = 1 << 5;
/// Eventfds in one message.
const BATCH: usize = 16;
const BARS: u64 = 6;

const DOORBELLS: u64 = 0x1000;

/// Guest memory: two regions of one file, as below and above the hole for PCI.
pub const LOW_BYTES: u64 = 1 << 20;
pub const HIGH_BYTES: u64 = 1 << 20;
pub const HIGH_GPA: u64 = 1 << 32;
/// Where memory is plugged in.
pub const PLUGGED_GPA: u64 = 2 << 32;

type Call = Box<dyn FnOnce(&mut Client) + Send>;

/// A VMM with a guest's memory and interrupts.
pub struct Vmm {
    /// To the thread that has the client.
    calls: Sender<Call>,
    /// How long an answer may take.
    pub limit: Duration,
    pub memory: File,
    doorbells: Option<Arc<Mapping>>,
    /// The MSI-X capability.
    msix_at: u64,
    pin: OwnedFd,
    vectors: Vec<OwnedFd>,
}

impl Vmm {
    pub fn attach(socket: &Path) -> Result<Self> {
        let socket = socket.to_owned();
        let (calls, received) = channel::<Call>();
        let (attached, answer) = sync_channel(1);
        thread::spawn(move || match Client::new(&socket) {
            Ok(mut client) => {
                // Nobody listens any more once the limit is over.
                let _ = attached.send(map_doorbells(&client));
                received.iter().for_each(|call| call(&mut client));
                // Where that fails it is closed already.
                let _ = client.shutdown();
            }
            Err(error) => _ = attached.send(Err(error.into())),
        });
        let doorbells = within(LIMIT, "connect", &answer)??;
        let memory = socket::memory(LOW_BYTES + HIGH_BYTES)?;
        let mut this =
            Self { calls, limit: LIMIT, memory, doorbells, msix_at: 0, pin: counter()?, vectors: Vec::new() };
        this.begin()?;
        Ok(this)
    }

    /// What the client does on its thread; the watchdog over its waits without an end.
    pub fn call<T: Send + 'static>(
        &self,
        what: &str,
        call: impl FnOnce(&mut Client) -> Result<T, Error> + Send + 'static,
    ) -> Result<T> {
        let (done, answer) = sync_channel(1);
        // As above.
        let call: Call = Box::new(move |client| _ = done.send(call(client)));
        self.calls.send(call).ok().context("the client is gone")?;
        within(self.limit, what, &answer)?.with_context(|| what.to_owned())
    }

    pub fn read<const N: usize>(&self, region: u32, offset: u64) -> Result<[u8; N]> {
        self.call("region read", move |client| {
            let mut data = [0; N];
            client.region_read(region, offset, &mut data).map(|()| data)
        })
    }

    pub fn write<const N: usize>(&self, region: u32, offset: u64, data: [u8; N]) -> Result<()> {
        self.call("region write", move |client| client.region_write(region, offset, &data))
    }

    fn begin(&mut self) -> Result<()> {
        // The crate inverts the device's flag, so that no device that can be reset is.
        if self.call("resettable", |client| Ok(client.resettable()))? {
            self.call("reset", Client::reset)?;
        }
        self.msix_at = self.find_msix()?;
        let [low, high] = self.read(CONFIG, self.msix_at + msix::CONTROL as u64)?;
        let entries = (u16::from_le_bytes([low, high]) & 0x7ff) + 1;
        self.vectors = (0..entries).map(|_| counter()).collect::<Result<_>>()?;
        for index in [MSIX, INTX] {
            let count = self.call("interrupts", move |client| Ok(client.get_irq_info(index)?.count))?;
            ensure!(count > 0, "type {index} has no interrupts");
        }
        self.set_pin()?;
        self.size_bars()?;
        let fd = self.memory.as_raw_fd();
        self.call("DMA map", move |client| client.dma_map(0, 0, LOW_BYTES, fd))?;
        self.call("DMA map", move |client| client.dma_map(LOW_BYTES, HIGH_GPA, HIGH_BYTES, fd))
    }

    fn find_msix(&self) -> Result<u64> {
        let mut at = self.read::<1>(CONFIG, header::CAPABILITIES as u64)?[0];
        while at != 0 {
            let [id, next] = self.read(CONFIG, at.into())?;
            if id == capability::MSIX {
                return Ok(at.into());
            }
            at = next;
        }
        bail!("no MSI-X")
    }

    fn size_bars(&self) -> Result<()> {
        let mut sizes = Vec::new();
        for bar in 0..BARS {
            let at = header::BAR0 as u64 + 4 * bar;
            self.write(CONFIG, at, u32::MAX.to_le_bytes())?;
            sizes.push(u32::from_le_bytes(self.read(CONFIG, at)?));
        }
        let region_bytes = self.call("region", |client| Ok(client.region(BAR0).map(|region| region.size)))?;
        ensure!(region_bytes == Some(u64::from(!(sizes[0] & !0xf)) + 1), "BAR 0 has another size than its region");
        Ok(())
    }

    /// The pin, until the guest enables MSI-X.
    fn set_pin(&self) -> Result<()> {
        self.set_irqs(INTX, 0, &[self.pin.as_raw_fd()])?;
        self.call("unmask", |client| client.set_irqs(INTX, NONE | UNMASK, 0, 1, &[]))
    }

    fn set_irqs(&self, index: u32, start: usize, fds: &[RawFd]) -> Result<()> {
        let fds = fds.to_vec();
        self.call("interrupts", move |client| {
            client.set_irqs(index, EVENTFD | TRIGGER, start as u32, fds.len() as u32, &fds)
        })
    }

    fn disable(&self, index: u32) -> Result<()> {
        self.call("interrupts", move |client| client.set_irqs(index, NONE | TRIGGER, 0, 0, &[]))
    }

    /// The guest disables MSI-X.
    pub fn disable_msix(&self) -> Result<()> {
        self.disable(MSIX)?;
        self.set_pin()?;
        self.write(CONFIG, self.msix_at + msix::CONTROL as u64, 0u16.to_le_bytes())
    }

    /// The guest enables MSI-X: eventfds for the whole table.
    pub fn enable_msix(&self) -> Result<()> {
        self.disable(INTX)?;
        let fds: Vec<_> = self.vectors.iter().map(AsRawFd::as_raw_fd).collect();
        for (batch, fds) in fds.chunks(BATCH).enumerate() {
            self.set_irqs(MSIX, batch * BATCH, fds)?;
        }
        self.write(CONFIG, self.msix_at + msix::CONTROL as u64, msix::ENABLE.to_le_bytes())
    }

    /// Whether the vector's interrupt came since the last time that this was asked.
    pub fn was_interrupted(&self, vector: usize) -> bool {
        rustix::io::read(&self.vectors[vector], &mut [0; 8]).is_ok()
    }

    /// Waits for the vector's interrupt.
    pub fn wait(&self, vector: usize) -> Result<()> {
        let start = Instant::now();
        while !self.was_interrupted(vector) {
            let left = LIMIT.checked_sub(start.elapsed()).context("an interrupt did not come")?;
            poll(&mut [PollFd::new(&self.vectors[vector], PollFlags::IN)], Some(&Timespec::try_from(left)?))?;
        }
        Ok(())
    }

    /// Rings a doorbell, by its offset among them.
    pub fn ring(&self, offset: u64, value: u16) -> Result<()> {
        match &self.doorbells {
            Some(page) => {
                MappedU32::new(page, offset).context("a doorbell beyond its page")?.store(value.into());
                Ok(())
            }
            None => self.write(BAR0, DOORBELLS + offset, u32::from(value).to_le_bytes()),
        }
    }
}

/// The part of BAR 0 that is offered, if that has the doorbells.
fn map_doorbells(client: &Client) -> Result<Option<Arc<Mapping>>> {
    let bar = client.region(BAR0).context("no BAR 0")?;
    let Some(file) = bar.file_offset.as_ref().filter(|_| bar.flags & CAN_MMAP != 0) else { return Ok(None) };
    let area = bar.sparse_areas.first().context("BAR 0 may be mapped, and no area is named")?;
    ensure!(area.offset == DOORBELLS, "the area begins at {:#x}", area.offset);
    Ok(Some(Mapping::shared(file.file().as_fd(), file.start() + area.offset, area.size, true)?))
}

fn counter() -> Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn within<T>(limit: Duration, what: &str, answer: &Receiver<T>) -> Result<T> {
    answer.recv_timeout(limit).map_err(|error| match error {
        RecvTimeoutError::Timeout => anyhow!("{what}: the client stalls: no answer within {limit:?}"),
        RecvTimeoutError::Disconnected => anyhow!("{what}: the client panicked"),
    })
}
