//! A disk of the daemon, attached as its client.

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use load::disk::{Buffers, Disk, DiskQueue, QueueShape, Request};
use load::{AnyDisk, AnyQueue, Direction, Frontend};
use rustix::fs::{FallocateFlags, fallocate};

use super::stop::Stop;

/// Commands in flight: enough to hide the copies.
const DEPTH: u16 = 8;

/// Bytes of a command at most.
const MOST_BYTES: u64 = 128 << 10;

/// How long the device may keep silent before it is asked whether it is still there.
const SILENCE: Duration = Duration::from_secs(1);

/// How long to wait between two looks in vain.
const NAP: Duration = Duration::from_micros(20);

/// A disk, over a socket or as a block device of this host.
pub(super) enum Attached {
    Socket(Box<Client>),
    Device(File),
}

/// A client of a socket, with one queue.
pub(super) struct Client {
    disk: AnyDisk,
    queue: AnyQueue,
    buffers: Buffers,
    most_bytes: u64,
    /// Of one trim; 0: there is none.
    trim_bytes: u64,
    failure: Option<String>,
    stop: Stop,
}

impl Attached {
    /// Attaches to the socket or block device at `path`.
    pub fn open(path: &Path, stop: &Stop) -> Result<Self> {
        if std::fs::metadata(path)?.file_type().is_block_device() {
            return Ok(Self::Device(File::options().read(true).write(true).open(path)?));
        }
        let mut disk = AnyDisk::attach(path, Frontend::Auto)?;
        let geometry = disk.geometry();
        let most_bytes = MOST_BYTES.min(geometry.max_transfer_bytes);
        let shape = QueueShape { depth: DEPTH.min(geometry.max_depth), buffer_bytes: most_bytes, priority: None };
        let Some(queue) = disk.open_queues(&[shape])?.pop() else { bail!("it has no queue") };
        let buffers = queue.buffers();
        let trim_bytes = geometry.max_trim_bytes;
        Ok(Self::Socket(Box::new(Client {
            disk,
            queue,
            buffers,
            most_bytes,
            trim_bytes,
            failure: None,
            stop: stop.clone(),
        })))
    }

    /// Has all of a disk of `size_bytes` read as zeros: by trims, or by writes where it can't be trimmed.
    pub fn zero(&mut self, size_bytes: u64) -> Result<()> {
        match self {
            Self::Device(file) => {
                fallocate(file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 0, size_bytes)?
            }
            Self::Socket(client) if client.trim_bytes > 0 => {
                for at in (0..size_bytes).step_by(client.trim_bytes as usize) {
                    client.free_tag()?;
                    client.send(Direction::Trim, at, client.trim_bytes.min(size_bytes - at))?;
                }
                client.wait(|client| client.queue.in_flight() == 0)?;
            }
            Self::Socket(_) => {
                let zeros = vec![0; MOST_BYTES as usize];
                for at in (0..size_bytes).step_by(zeros.len()) {
                    self.write(at, &zeros[..MOST_BYTES.min(size_bytes - at) as usize])?;
                }
            }
        }
        Ok(())
    }

    /// Writes, or has a write on its way: [`close`](Self::close) tells of failures.
    pub fn write(&mut self, offset_bytes: u64, data: &[u8]) -> Result<()> {
        match self {
            Self::Device(file) => file.write_all_at(data, offset_bytes)?,
            Self::Socket(client) => {
                let most = client.most_bytes as usize;
                for (at, part) in (offset_bytes..).step_by(most).zip(data.chunks(most)) {
                    let tag = client.free_tag()?;
                    ensure!(client.buffers.write(tag, part).is_some(), "a buffer is too small");
                    client.send(Direction::Write, at, part.len() as u64)?;
                }
            }
        }
        Ok(())
    }

    /// Reads `data`, all of it.
    pub fn read(&mut self, offset_bytes: u64, data: &mut [u8]) -> Result<()> {
        match self {
            Self::Device(file) => file.read_exact_at(data, offset_bytes)?,
            Self::Socket(client) => client.read(offset_bytes, data)?,
        }
        Ok(())
    }

    /// Waits for all writes, and detaches.
    pub fn close(self) -> Result<()> {
        match self {
            Self::Device(file) => file.sync_all()?,
            Self::Socket(mut client) => {
                client.wait(|client| client.queue.in_flight() == 0)?;
                let Client { mut disk, queue, .. } = *client;
                disk.close_queue(queue)?;
            }
        }
        Ok(())
    }
}

impl Client {
    fn free_tag(&mut self) -> Result<u16> {
        self.wait(|client| client.queue.next_tag().is_some())?;
        match self.queue.next_tag() {
            Some(tag) => Ok(tag),
            None => bail!("its queue is full"),
        }
    }

    fn send(&mut self, direction: Direction, offset_bytes: u64, len_bytes: u64) -> Result<()> {
        self.queue.send(Request { direction, offset_bytes, len_bytes, durable: false })?;
        self.queue.ring()?;
        Ok(())
    }

    /// As many reads at once as there are buffers.
    fn read(&mut self, offset_bytes: u64, data: &mut [u8]) -> Result<()> {
        let (most, depth) = (self.most_bytes as usize, usize::from(self.queue.depth()));
        for (at, batch) in (offset_bytes..).step_by(most * depth).zip(data.chunks_mut(most * depth)) {
            let mut tags = Vec::with_capacity(depth);
            for (at, part) in (at..).step_by(most).zip(batch.chunks(most)) {
                tags.push(self.free_tag()?);
                self.send(Direction::Read, at, part.len() as u64)?;
            }
            self.wait(|client| client.queue.in_flight() == 0)?;
            for (tag, part) in tags.into_iter().zip(batch.chunks_mut(most)) {
                ensure!(self.buffers.read(tag, part).is_some(), "a buffer is too small");
            }
        }
        Ok(())
    }

    fn wait(&mut self, is_over: impl Fn(&Self) -> bool) -> Result<()> {
        let mut heard = Instant::now();
        while !is_over(self) {
            self.stop.check()?;
            let failure = &mut self.failure;
            let done = self.queue.poll(&mut |done| {
                if let Err(why) = done.outcome {
                    failure.get_or_insert_with(|| why.to_string());
                }
            })?;
            if done > 0 {
                heard = Instant::now();
            } else if heard.elapsed() > SILENCE {
                self.disk.check()?;
                heard = Instant::now();
            } else {
                std::thread::sleep(NAP);
            }
        }
        match &self.failure {
            Some(why) => bail!("the disk failed a command: {why}"),
            None => Ok(()),
        }
    }
}
