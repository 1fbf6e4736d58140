//! A virtio-blk driver over vhost-user that sends what it likes, and whose memory is a file that it may do anything
//! with.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::rings::{Desc, Memory, NEXT, Virtqueue, WRITE};
use crate::socket::{memory, patiently};
use crate::vhost::*;

/// The ring's memory in the guest's and, at the same place, in our addresses.
pub const RING: u64 = 1 << 32;
/// Its length: descriptors, both rings, headers, status bytes, and what else an attack keeps there.
pub const RING_BYTES: u64 = 1 << 20;
/// Free for attacks, behind the ring and its requests.
pub const FREE_AT: u64 = 0x8_0000;
/// Descriptors.
pub const ENTRIES: u16 = 128;

const AVAIL_AT: u64 = 0x1_0000;
const USED_AT: u64 = 0x2_0000;
/// A header of 16 bytes and a status byte for each head, 32 bytes apart.
const HEADERS_AT: u64 = 0x3_0000;

/// Protocol feature: the log of requests in flight.
const INFLIGHT_SHMFD: u64 = 1 << 12;
const VERSION_1: u64 = 1 << 32;
const INDIRECT: u64 = 1 << 28;

/// How long an answer is waited for.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// Memory: guest address, file, length.
pub type Region<'a> = (u64, BorrowedFd<'a>, u64);

/// Request types.
pub const IN: u32 = 0;
/// A write.
pub const OUT: u32 = 1;

/// A running virtqueue.
pub struct Virtio {
    /// The connection.
    pub client: Client,
    /// Ring, headers and status bytes.
    pub memory: File,
    kick: OwnedFd,
    /// What the daemon writes down of requests in flight, and how the log was described.
    log: Option<(OwnedFd, Vec<u8>)>,
    ring: Virtqueue,
}

fn connect(directory: &Path) -> io::Result<Client> {
    Client::connect(&directory.join("vhost.sock"), ANSWER_LIMIT)
}

impl Virtio {
    /// Negotiates, and nothing more.
    pub fn greet(directory: &Path) -> io::Result<Self> {
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ring = Virtqueue { size: ENTRIES, desc: 0, avail: AVAIL_AT, used: USED_AT, avail_idx: 0, used_idx: 0 };
        let this = Self { client: connect(directory)?, memory: memory(RING_BYTES)?, kick, log: None, ring };
        this.negotiate()?;
        Ok(this)
    }

    fn negotiate(&self) -> io::Result<()> {
        self.send(SET_OWNER, &[], &[])?;
        self.get(GET_FEATURES)?;
        self.get(GET_PROTOCOL_FEATURES)?;
        self.send(SET_PROTOCOL_FEATURES, &longs(&[REPLY_ACK | INFLIGHT_SHMFD]), &[])?;
        self.ask(SET_FEATURES, &longs(&[VERSION_1 | INDIRECT | F_PROTOCOL_FEATURES]), &[])
    }

    /// As [`Virtio::greet`], but the previous client may still be leaving.
    pub fn greet_patiently(directory: &Path) -> io::Result<Self> {
        patiently(ANSWER_LIMIT, || Self::greet(directory))
    }

    /// A ring that runs, beside other memory of the attack's.
    pub fn start(directory: &Path, more: &[Region<'_>], call: BorrowedFd<'_>) -> io::Result<Self> {
        let this = Self::greet_patiently(directory)?;
        this.set_memory(more)?;
        this.start_ring(call)?;
        Ok(this)
    }

    fn start_ring(&self, call: BorrowedFd<'_>) -> io::Result<()> {
        self.ask(SET_VRING_NUM, &words(&[0, ENTRIES.into()]), &[])?;
        // Where the device left off, as far as the driver can know.
        self.ask(SET_VRING_BASE, &words(&[0, self.ring.device_idx(&self.memory)?.into()]), &[])?;
        self.ask(SET_VRING_ADDR, &addresses(0, RING, RING + USED_AT, RING + AVAIL_AT), &[])?;
        self.ask(SET_VRING_CALL, &longs(&[0]), &[call])?;
        self.ask(SET_VRING_KICK, &longs(&[0]), &[self.kick.as_fd()])?;
        self.ask(SET_VRING_ENABLE, &words(&[0, 1]), &[])
    }

    /// As [`Virtio::start`], with a log of requests in flight, so that [`Virtio::reconnect`] can be called.
    pub fn start_logged(directory: &Path, call: BorrowedFd<'_>) -> io::Result<Self> {
        let mut this = Self::greet_patiently(directory)?;
        this.set_memory(&[])?;
        this.send(GET_INFLIGHT_FD, &inflight(0, 0, 1, ENTRIES), &[])?;
        let (description, log) = this.client.answer()?;
        this.log = Some((log.ok_or(io::ErrorKind::InvalidData)?, description));
        this.resume(call)?;
        Ok(this)
    }

    fn resume(&self, call: BorrowedFd<'_>) -> io::Result<()> {
        if let Some((log, description)) = &self.log {
            self.ask(SET_INFLIGHT_FD, description, &[log.as_fd()])?;
        }
        self.start_ring(call)
    }

    /// To the next daemon, with the same ring: what was in flight completes.
    pub fn reconnect(&mut self, directory: &Path, call: BorrowedFd<'_>) -> io::Result<()> {
        self.client = connect(directory)?;
        self.negotiate()?;
        self.set_memory(&[])?;
        self.resume(call)?;
        self.kick()
    }

    /// A table of the ring's memory and `more`: guest address, file, length.
    pub fn set_memory(&self, more: &[Region<'_>]) -> io::Result<()> {
        let mut regions = vec![(RING, RING_BYTES, RING, 0)];
        regions.extend(more.iter().map(|&(guest, _, len)| (guest, len, guest, 0)));
        let mut fds = vec![self.memory.as_fd()];
        fds.extend(more.iter().map(|&(_, file, _)| file));
        self.ask(SET_MEM_TABLE, &mem_table(&regions), &fds)
    }

    /// Sends a message that is not acknowledged.
    pub fn send(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.client.send(&message(request, VERSION, payload), fds)
    }

    /// Sends a message and waits for its acknowledgement.
    pub fn ask(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.client.send(&message(request, VERSION | NEED_REPLY, payload), fds)?;
        match self.number()? {
            0 => Ok(()),
            error => Err(io::Error::other(format!("request {request} was refused: {error}"))),
        }
    }

    /// Asks for a number.
    pub fn get(&self, request: u32) -> io::Result<u64> {
        self.send(request, &[], &[])?;
        self.number()
    }

    /// Reads the number, or the acknowledgement, that a message is answered with.
    pub fn number(&self) -> io::Result<u64> {
        let (payload, _) = self.client.answer()?;
        let number = payload.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(u64::from_ne_bytes(number))
    }

    /// Writes a descriptor into the table at `table` of the ring's memory.
    pub fn descriptor(&self, table: u64, index: u16, desc: Desc) -> io::Result<()> {
        self.memory.write(table + u64::from(index) * 16, &desc.bytes())
    }

    /// A request's header for chain `slot`; returns the addresses of header and status byte.
    pub fn header(&self, slot: u16, kind: u32, sector: u64) -> io::Result<(u64, u64)> {
        let at = HEADERS_AT + u64::from(slot) * 32;
        let bytes = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes(), &[0xee]].concat();
        self.memory.write_all_at(&bytes, at)?;
        Ok((RING + at, RING + at + 16))
    }

    /// Makes the chain that begins with descriptor `head` available.
    pub fn publish(&mut self, head: u16) -> io::Result<()> {
        self.ring.offer(&self.memory, head)
    }

    /// A read of whole sectors to `address`, in three descriptors, the `slot`th three.
    pub fn read(&mut self, slot: u16, sector: u64, address: u64, len_bytes: u32) -> io::Result<()> {
        self.request(slot, IN, sector, address, len_bytes)
    }

    /// A read ([`IN`]), or what the device reads, as [`Virtio::read`].
    pub fn request(&mut self, slot: u16, kind: u32, sector: u64, address: u64, len_bytes: u32) -> io::Result<()> {
        let (header, status) = self.header(slot, kind, sector)?;
        let (head, writes) = (slot * 3, if kind == IN { WRITE } else { 0 });
        let data = Desc { address, len_bytes, flags: NEXT | writes, next: head + 2 };
        self.descriptor(0, head, Desc { address: header, len_bytes: 16, flags: NEXT, next: head + 1 })?;
        self.descriptor(0, head + 1, data)?;
        self.descriptor(0, head + 2, Desc { address: status, len_bytes: 1, flags: WRITE, next: 0 })?;
        self.publish(head)
    }

    /// The status byte of the `slot`th request.
    pub fn status(&self, slot: u16) -> io::Result<u8> {
        let mut status = [0];
        self.memory.read_exact_at(&mut status, HEADERS_AT + u64::from(slot) * 32 + 16)?;
        Ok(status[0])
    }

    /// Kicks.
    pub fn kick(&self) -> io::Result<()> {
        match rustix::io::write(&self.kick, &1_u64.to_ne_bytes()) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// How many chains came back since the last time that this, or [`Virtio::take_used`], was asked.
    pub fn poll(&mut self) -> io::Result<u16> {
        let used_idx = self.ring.device_idx(&self.memory)?;
        Ok(used_idx.wrapping_sub(std::mem::replace(&mut self.ring.used_idx, used_idx)))
    }

    /// The head of a chain that came back, one after the other.
    pub fn take_used(&mut self) -> io::Result<Option<u16>> {
        Ok(self.ring.take_used(&self.memory)?.map(|(head, _)| head))
    }
}
