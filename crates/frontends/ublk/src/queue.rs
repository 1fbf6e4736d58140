//! One queue's requests, and whose each is at present: the kernel's, ours, or the drive's.

use std::collections::VecDeque;
use std::sync::Arc;

use guest_memory::Mapping;
use io_model::{DeviceError, Fetch, IoBuf, Op, Outcome, Place, Token};

use crate::request::{Rejected, translate};
use crate::shape::Shape;
use crate::spec::{IO_RES_OK, IoDesc};

/// The kernel's end of a queue, as far as it takes no memory of ours.
pub trait Kernel: Send {
    /// The descriptor of a request that is ours, read once.
    fn descriptor(&self, tag: u16) -> IoDesc;

    /// Wants a first request of a tag, its data at `addr`; goes with the next [`submit`](Self::submit).
    fn fetch(&mut self, tag: u16, addr: u64);

    /// Answers a request, and wants the tag's next one; goes with the next [`submit`](Self::submit).
    fn commit(&mut self, tag: u16, result: i32, addr: u64);

    /// Hands over what was wanted and answered since the last time: one system call, or none if there is nothing.
    fn submit(&mut self);

    /// A tag that is ours again, and why; `None`: none at present. No system call, unless the kernel asks for one.
    fn next(&mut self) -> Option<(u16, i32)>;
}

/// The holder of a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// The kernel has it, until there is a request.
    Kernel,
    /// A request waits for the policy.
    Waiting,
    /// Its command is with the drive.
    Drive,
    /// The kernel serves it no more.
    Gone,
}

/// A queue of one device.
pub struct Queue<K> {
    kernel: K,
    /// For the data of each tag, one after the other.
    memory: Arc<Mapping>,
    holders: Vec<Holder>,
    /// The backlog, in the order in which it came.
    waiting: VecDeque<u16>,
    in_flight: u32,
    gone: u32,
    /// Answers that were not handed over.
    unsent: bool,
    /// Nothing is fetched any more.
    is_stopped: bool,
    /// The kernel said something that can't be.
    fault: Option<String>,
}

/// Memory for the data of a queue's requests.
///
/// # Errors
/// There is none.
pub fn buffers(shape: &Shape) -> Result<Arc<Mapping>, guest_memory::MapError> {
    Mapping::anonymous(usize::from(shape.depth) * Shape::MAX_IO_BYTES as usize)
}

impl<K: Kernel> Queue<K> {
    /// A queue whose tags are all wanted from now on, once [`submit`](Self::submit) was called. `memory`: see
    /// [`buffers`].
    pub fn new(kernel: K, memory: Arc<Mapping>, shape: &Shape) -> Self {
        let depth = shape.depth;
        let mut queue = Self {
            kernel,
            memory,
            holders: vec![Holder::Kernel; usize::from(depth)],
            waiting: VecDeque::with_capacity(usize::from(depth)),
            in_flight: 0,
            gone: 0,
            unsent: true,
            is_stopped: false,
            fault: None,
        };
        for tag in 0..depth {
            let addr = queue.address(tag);
            queue.kernel.fetch(tag, addr);
        }
        queue
    }

    fn address(&self, tag: u16) -> u64 {
        self.memory.addresses().start as u64 + Self::offset(tag)
    }

    fn offset(tag: u16) -> u64 {
        u64::from(tag) * u64::from(Shape::MAX_IO_BYTES)
    }

    /// Where its data is.
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Takes in what the kernel has for us, and says how many requests wait.
    #[inline]
    pub fn look(&mut self) -> u32 {
        while let Some((tag, result)) = self.kernel.next() {
            self.came(tag, result);
        }
        if self.is_stopped { 0 } else { self.waiting.len() as u32 }
    }

    fn came(&mut self, tag: u16, result: i32) {
        let Some(holder) = self.holders.get_mut(usize::from(tag)).filter(|holder| **holder == Holder::Kernel) else {
            self.fault.get_or_insert_with(|| format!("the kernel gave back tag {tag}, which it did not have"));
            return;
        };
        if result == IO_RES_OK {
            *holder = Holder::Waiting;
            self.waiting.push_back(tag);
            return;
        }
        *holder = Holder::Gone;
        self.gone += 1;
        if result != -libc::ENODEV {
            let error = std::io::Error::from_raw_os_error(result.wrapping_neg());
            self.fault.get_or_insert_with(|| format!("the kernel refused a command for tag {tag}: {error}"));
        }
    }

    /// Takes the request that waits longest. The token's number is its tag.
    pub fn take(&mut self, vq: u16, shape: &Shape, place: &Place, size_bytes: u64) -> (Fetch, Option<Op>) {
        let Some(tag) = self.waiting.pop_front().filter(|_| !self.is_stopped) else { return (Fetch::Empty, None) };
        let desc = self.kernel.descriptor(tag);
        let mut buf = IoBuf::default();
        let command = translate(&desc, shape, place, size_bytes).and_then(|command| {
            let is_there = !command.op.has_data() || buf.push(&self.memory, Self::offset(tag), command.len_bytes);
            is_there.then_some(command).ok_or(Rejected(libc::EIO))
        });
        match command {
            Ok(command) => {
                self.holders[usize::from(tag)] = Holder::Drive;
                self.in_flight += 1;
                // How many sectors to answer with: up to 256, of what moves data.
                let sectors = if command.op.has_data() { command.len_bytes >> 9 } else { 0 };
                (Fetch::Command(command, buf, Token::new(vq, sectors as u16, u32::from(tag))), Some(command.op))
            }
            Err(Rejected(errno)) => {
                self.commit(tag, -errno);
                (Fetch::Handled, None)
            }
        }
    }

    /// Answers a request whose command is back.
    pub fn end(&mut self, tag: u16, sectors: u16, outcome: Outcome) {
        let tag_is_out = self.holders.get(usize::from(tag)) == Some(&Holder::Drive);
        if tag_is_out {
            self.in_flight -= 1;
            self.commit(tag, outcome.map_or_else(|error| -errno(error), |()| i32::from(sectors) << 9));
        }
    }

    fn commit(&mut self, tag: u16, result: i32) {
        let addr = self.address(tag);
        self.holders[usize::from(tag)] = Holder::Kernel;
        self.kernel.commit(tag, result, addr);
        self.unsent = true;
    }

    /// Hands over all answers at once: a system call for each batch.
    #[inline]
    pub fn submit(&mut self) {
        if std::mem::take(&mut self.unsent) {
            self.kernel.submit();
        }
    }

    /// Nothing is fetched any more. Waiting requests stay with the kernel, which gives them to the device's next
    /// server.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Whether requests may be fetched.
    #[inline]
    pub fn is_live(&self) -> bool {
        !self.is_stopped
    }

    /// Commands that are with the drive.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether the kernel has taken the whole queue away: the device was stopped.
    pub fn is_gone(&self) -> bool {
        self.gone as usize == self.holders.len()
    }

    /// What the kernel said that can't be; once.
    pub fn take_fault(&mut self) -> Option<String> {
        self.fault.take()
    }
}

/// As the block layer understands it.
fn errno(error: DeviceError) -> i32 {
    match error {
        DeviceError::Medium => libc::ENODATA,
        DeviceError::NoSpace => libc::ENOSPC,
        DeviceError::Unsupported => libc::EOPNOTSUPP,
        DeviceError::OutOfRange | DeviceError::Memory | DeviceError::Gone => libc::EIO,
    }
}
