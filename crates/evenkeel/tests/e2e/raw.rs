//! A vfio-user client that sends what it likes.

#[path = "../../../frontends/vfio-user/tests/server/common/message.rs"]
pub mod message;

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nvme_spec::regs::{Aqa, Cc, Csts, Reg};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use self::message::{dma_map, region_read, region_write, version};
use crate::harness::{HANG, wait_for};

/// Most descriptors that one message can carry (the kernel's limit is 253).
const FDS_MAX: usize = 128;

pub struct Raw(UnixStream);

impl Raw {
    pub fn connect(directory: &Path) -> Self {
        let stream = UnixStream::connect(directory.join("cntrl")).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        Self(stream)
    }

    /// A client that agreed on a version.
    pub fn ready(directory: &Path) -> Self {
        wait_for("a place at the tenant's socket", || {
            let mut raw = Self::connect(directory);
            raw.send(&version("{}"), &[]);
            // Refused: as with `Guest::attach`.
            let mut header = [0; 16];
            raw.0.read_exact(&mut header).ok()?;
            let rest = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]) as usize - header.len();
            raw.0.read_exact(&mut vec![0; rest]).ok()?;
            Some(raw)
        })
    }

    /// Sends; the server may have closed the connection by now.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        let _ = sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    /// Sends a message and reads the payload of its reply.
    pub fn ask(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Vec<u8>, Errno> {
        self.send(bytes, fds);
        self.answer()
    }

    /// Says hello and, if asked to, takes whatever comes: being refused is an answer too. (A process that another
    /// test is just starting may hold the client before this one open for an instant.)
    pub fn knock(mut self, wait: bool) {
        let _ = self.0.write(&version("{}"));
        if wait {
            let _ = self.0.read(&mut [0; 64]);
        }
    }

    /// Reads the payload of the next reply.
    pub fn answer(&mut self) -> Result<Vec<u8>, Errno> {
        let mut header = [0; 16];
        self.0.read_exact(&mut header).unwrap();
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        let mut payload = vec![0; word(4) as usize - 16];
        self.0.read_exact(&mut payload).unwrap();
        if word(8) & 0x20 == 0 { Ok(payload) } else { Err(Errno::from_raw_os_error(word(12) as i32)) }
    }

    /// Waits until the server closed the connection.
    pub fn expect_end(mut self) {
        let mut rest = [0; 4096];
        loop {
            match self.0.read(&mut rest) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                    return;
                }
            }
        }
    }

    pub fn write_register(&mut self, reg: Reg, value: &[u8]) {
        self.ask(&region_write(1, 0, 0, reg.offset(), value), &[]).unwrap();
    }

    /// Maps `memory` at `iova` and enables the controller with admin queues in its first two pages.
    pub fn enable(&mut self, memory: BorrowedFd<'_>, iova: u64, len_bytes: u64) {
        self.ask(&dma_map(1, 3, 0, iova, len_bytes), &[memory]).unwrap();
        // Memory space and bus mastering.
        self.ask(&region_write(1, 0, 7, 4, &6_u16.to_le_bytes()), &[]).unwrap();
        self.write_register(Reg::Aqa, &Aqa::new(31, 31).0.to_le_bytes());
        self.write_register(Reg::Asq, &iova.to_le_bytes());
        self.write_register(Reg::Acq, &(iova + 4096).to_le_bytes());
        self.write_register(Reg::Cc, &Cc::enable_nvm().0.to_le_bytes());
        wait_for("CSTS.RDY", || {
            let reply = self.ask(&region_read(1, 0, Reg::Csts.offset(), 4), &[]).unwrap();
            Csts(u32::from_le_bytes(reply[16..20].try_into().unwrap())).rdy().then_some(())
        });
    }

    /// Rings the admin submission queue's doorbell.
    pub fn ring(&mut self, tail: u32) {
        self.send(&region_write(1, 0, 0, 0x1000, &tail.to_le_bytes()), &[]);
    }
}

/// Guest memory that may shrink.
pub fn memory(len_bytes: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(fd.as_fd(), len_bytes).unwrap();
    fd
}
