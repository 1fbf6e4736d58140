//! Between the virtio driver and a vhost-user server that has less than the driver asks for.
//!
//! `virtio-driver` wants the protocol features REPLY_ACK and CONFIGURE_MEM_SLOTS. SPDK's server has what DPDK's vhost
//! library has, and that of DPDK 25.11 lacks the latter. Nothing here needs either: a table of all memory says what
//! memory slots do, and a message that isn't acknowledged is handled all the same. So a thread passes the driver's
//! messages on, and does what the server lacks. Only messages pass here; rings and data never do.
//!
//! The layouts are those of QEMU's `docs/interop/vhost-user.rst`.

use std::fs::DirBuilder;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

const HEADER_BYTES: usize = 12;
/// More than any message has: a configuration space and its header.
const MAX_PAYLOAD_BYTES: usize = 4096;

const FLAG_VERSION: u32 = 1;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;

const SET_MEM_TABLE: u32 = 5;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const GET_MAX_MEM_SLOTS: u32 = 36;
const ADD_MEM_REG: u32 = 37;
/// Requests with a reply of their own, of those that the driver makes: features, their protocol's, the number of
/// queues, the configuration space, the number of memory slots.
const REPLIED: [u32; 5] = [1, GET_PROTOCOL_FEATURES, 17, 24, GET_MAX_MEM_SLOTS];

const REPLY_ACK: u64 = 1 << 3;
const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

/// Regions that a table of memory has at most, each with its descriptor.
const MAX_REGIONS: usize = 8;
/// Before a region's fields there is padding, where a message is about one.
const REGION_PADDING_BYTES: usize = 8;

/// Connects the driver to the server at `path`, by giving it the path of a socket that stands for that.
pub fn connect<T>(path: &Path, connect: impl FnOnce(&str) -> io::Result<T>) -> io::Result<T> {
    let server = UnixStream::connect(path)?;
    let place = std::env::temp_dir().join(format!("evenkeel-load-{:016x}", fastrand::u64(..)));
    DirBuilder::new().mode(0o700).create(&place)?;
    let socket = place.join("socket");
    let connected = UnixListener::bind(&socket).and_then(|listener| {
        let pass = move || {
            // The driver hears of a server that is gone by the end of its own connection.
            let _ =
                listener.accept().and_then(|(driver, _)| Bridge { server, lacks: 0, table: Vec::new() }.run(driver));
        };
        thread::Builder::new().name("vhost-bridge".into()).spawn(pass)?;
        connect(socket.to_str().ok_or(ErrorKind::InvalidFilename)?)
    });
    // Neither is needed once the driver is connected. What stays behind is empty.
    let _ = std::fs::remove_file(&socket);
    let _ = std::fs::remove_dir(&place);
    connected
}

struct Bridge {
    server: UnixStream,
    /// Protocol features that the driver is told of and the server does not have.
    lacks: u64,
    /// Regions as the driver told them, and their memory.
    table: Vec<([u8; 32], OwnedFd)>,
}

impl Bridge {
    /// Until either side is gone.
    fn run(mut self, mut driver: UnixStream) -> io::Result<()> {
        while let Some(message) = Message::receive(&mut driver)? {
            let (request, wants_reply) = (message.request, message.flags & FLAG_NEED_REPLY != 0);
            let answer = self.pass(message)?;
            if REPLIED.contains(&request) || wants_reply {
                let payload = answer.unwrap_or_else(|| 0_u64.to_ne_bytes().to_vec());
                Message { request, flags: FLAG_VERSION | FLAG_REPLY, payload, fds: Vec::new() }.send(&mut driver)?;
            }
        }
        Ok(())
    }

    /// What the server answers to a message, in its place where it can't; `None`: nothing.
    fn pass(&mut self, message: Message) -> io::Result<Option<Vec<u8>>> {
        let number = |payload: &[u8]| payload.try_into().map(u64::from_ne_bytes).map_err(|_| ErrorKind::InvalidData);
        match message.request {
            GET_PROTOCOL_FEATURES => {
                let offered = number(&self.ask(message)?.unwrap_or_default())?;
                self.lacks = (REPLY_ACK | CONFIGURE_MEM_SLOTS) & !offered;
                Ok(Some((offered | self.lacks).to_ne_bytes().to_vec()))
            }
            SET_PROTOCOL_FEATURES => {
                let wanted = number(&message.payload)? & !self.lacks;
                self.ask(Message { payload: wanted.to_ne_bytes().to_vec(), ..message })
            }
            GET_MAX_MEM_SLOTS if self.lacks & CONFIGURE_MEM_SLOTS != 0 => {
                Ok(Some((MAX_REGIONS as u64).to_ne_bytes().to_vec()))
            }
            ADD_MEM_REG if self.lacks & CONFIGURE_MEM_SLOTS != 0 => {
                let region = message.payload.get(REGION_PADDING_BYTES..).and_then(|region| region.try_into().ok());
                let (Some(region), Some(fd)) = (region, message.fds.into_iter().next()) else {
                    return Err(ErrorKind::InvalidData.into());
                };
                self.table.push((region, fd));
                let table = self.table_message(message.flags)?;
                self.ask(table)
            }
            _ => self.ask(message),
        }
    }

    /// All memory at once.
    fn table_message(&self, flags: u32) -> io::Result<Message> {
        let mut payload = u64::to_ne_bytes(0).to_vec();
        payload[..4].copy_from_slice(&(self.table.len() as u32).to_ne_bytes());
        self.table.iter().for_each(|(region, _)| payload.extend(region));
        let fds = self.table.iter().map(|(_, fd)| fd.try_clone()).collect::<io::Result<_>>()?;
        Ok(Message { request: SET_MEM_TABLE, flags, payload, fds })
    }

    /// Sends a message, and takes the reply if there is one: its own, or that it was handled.
    fn ask(&mut self, mut message: Message) -> io::Result<Option<Vec<u8>>> {
        if self.lacks & REPLY_ACK != 0 {
            message.flags &= !FLAG_NEED_REPLY;
        }
        let is_answered = REPLIED.contains(&message.request) || message.flags & FLAG_NEED_REPLY != 0;
        message.send(&mut self.server)?;
        if !is_answered {
            return Ok(None);
        }
        let reply = Message::receive(&mut self.server)?.filter(|reply| reply.request == message.request);
        Ok(Some(reply.ok_or(ErrorKind::UnexpectedEof)?.payload))
    }
}

/// A message of either side.
#[derive(Debug)]
struct Message {
    request: u32,
    flags: u32,
    payload: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Message {
    /// `None`: the peer has closed its side.
    fn receive(stream: &mut UnixStream) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_REGIONS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&*stream, &mut [IoSliceMut::new(&mut header)], &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received == 0 {
            return Ok(None);
        }
        stream.read_exact(&mut header[received..])?;
        let [request, flags, len] = [0, 4, 8].map(|at| {
            let field = header.get(at..at + 4).and_then(|field| field.try_into().ok());
            field.map_or(0, u32::from_ne_bytes)
        });
        if len as usize > MAX_PAYLOAD_BYTES {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut payload = vec![0; len as usize];
        stream.read_exact(&mut payload)?;
        Ok(Some(Self { request, flags, payload, fds }))
    }

    fn send(&self, stream: &mut UnixStream) -> io::Result<()> {
        let fields = [self.request, self.flags, self.payload.len() as u32].map(u32::to_ne_bytes);
        let bytes = [fields.as_flattened(), &self.payload].concat();
        let fds: Vec<BorrowedFd<'_>> = self.fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_REGIONS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let sent = sendmsg(&*stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        stream.write_all(&bytes[sent..])
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::disk::{Disk, QueueShape};
    use crate::{Error, VhostDisk};

    const MQ: u64 = 1 << 0;
    const CONFIG: u64 = 1 << 9;
    const SECTORS: u64 = 2048;

    /// A server of vhost-user-blk that has these protocol features. It ends with what it was sent: requests and how
    /// many descriptors each had.
    fn serve(features: u64) -> (tempfile::TempDir, PathBuf, thread::JoinHandle<Vec<(u32, usize)>>) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("vhost.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let server = thread::spawn(move || {
            loop {
                let (mut client, _) = listener.accept().expect("a client");
                let mut seen = Vec::new();
                let mut acked = 0;
                while let Some(message) = Message::receive(&mut client).expect("a message") {
                    seen.push((message.request, message.fds.len()));
                    let config = |payload: &[u8]| {
                        let mut space = vec![0; payload.len() - 12];
                        space[..8].copy_from_slice(&SECTORS.to_le_bytes());
                        space[34..36].copy_from_slice(&4_u16.to_le_bytes());
                        [&payload[..12], &space].concat()
                    };
                    let number = |value: u64| value.to_ne_bytes().to_vec();
                    let payload = match message.request {
                        // VERSION_1, protocol features, several queues.
                        1 => number(1 << 32 | 1 << 30 | 1 << 12),
                        GET_PROTOCOL_FEATURES => number(features),
                        17 => number(4),
                        24 => config(&message.payload),
                        GET_MAX_MEM_SLOTS => number(32),
                        SET_PROTOCOL_FEATURES => {
                            acked = u64::from_ne_bytes(message.payload.try_into().expect("8 bytes"));
                            assert_eq!(acked & !features, 0, "what was not offered is not acknowledged");
                            continue;
                        }
                        _ if message.flags & FLAG_NEED_REPLY != 0 => {
                            assert_ne!(acked & REPLY_ACK, 0, "nobody answers that");
                            number(0)
                        }
                        _ => continue,
                    };
                    let flags = FLAG_VERSION | FLAG_REPLY;
                    let reply = Message { request: message.request, flags, payload, fds: Vec::new() };
                    // The driver may be gone.
                    let _ = reply.send(&mut client);
                }
                // The driver by itself, which found something lacking, sets no ring up.
                if seen.iter().any(|(request, _)| *request == 18) || features & CONFIG == 0 && seen.len() < 4 {
                    return seen;
                }
            }
        });
        (directory, path, server)
    }

    fn open(path: &Path, queues: usize) -> Result<(), Error> {
        let mut disk = VhostDisk::connect(path)?;
        assert_eq!(disk.geometry().size_bytes, SECTORS * 512);
        let shape = QueueShape { depth: 4, buffer_bytes: 4096, priority: None };
        disk.open_queues(&vec![shape; queues]).map(drop)
    }

    #[test]
    fn a_server_needs_neither_memory_slots_nor_acknowledgements() {
        for features in [MQ | CONFIG, MQ | CONFIG | REPLY_ACK, CONFIG] {
            let (_directory, path, server) = serve(features);
            open(&path, 2).expect("a disk");
            let seen = server.join().expect("the server");
            let tables: Vec<usize> =
                seen.iter().filter(|(request, _)| *request == SET_MEM_TABLE).map(|(_, fds)| *fds).collect();
            assert_eq!(tables, [1, 2, 3], "each time all memory: two queues' buffers, and the rings");
            let last_table = seen.iter().rposition(|(request, _)| *request == SET_MEM_TABLE);
            assert!(last_table < seen.iter().position(|(request, _)| *request == 12), "before any ring is there");
            assert!(!seen.iter().any(|(request, _)| [ADD_MEM_REG, GET_MAX_MEM_SLOTS].contains(request)), "{seen:?}");
        }
    }

    #[test]
    fn a_server_that_has_all_is_asked_by_the_driver_itself() {
        let (_directory, path, server) = serve(MQ | CONFIG | REPLY_ACK | CONFIGURE_MEM_SLOTS);
        open(&path, 2).expect("a disk");
        let seen = server.join().expect("the server");
        assert_eq!(seen.iter().filter(|(request, fds)| (*request, *fds) == (ADD_MEM_REG, 1)).count(), 3);
        assert!(!seen.iter().any(|(request, _)| *request == SET_MEM_TABLE));
    }

    #[test]
    fn a_server_that_does_not_tell_its_size_is_refused_with_why() {
        let (_directory, path, _server) = serve(MQ | REPLY_ACK);
        let error = open(&path, 1).expect_err("no size").to_string();
        assert!(error.contains("protocol feature CONFIG"), "{error}");
    }
}
