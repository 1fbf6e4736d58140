//! A client that does what it likes. It waits for nothing but to be attached.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use arbitrary::Arbitrary;
use nvme_spec::Sqe;
use test_clients::nvme::{self, Nvme};
use test_clients::rings::Desc;
use test_clients::virtio::{self, Virtio};

use super::{Client, Protocol};
use crate::descriptors::{Descriptors, Fd};
use crate::{front_end, messages};

/// Something that it does. What belongs to the other protocol is sent to this one all the same.
#[derive(Debug, Arbitrary)]
pub enum Act {
    /// Attaches, up to a running controller or ring.
    Attach,
    /// Goes.
    Go,
    VfioMessage(messages::client::Message, Vec<Fd>),
    VhostMessage {
        message: front_end::client::Message,
        need_reply: bool,
        fds: Option<Vec<Fd>>,
    },
    Bytes(Vec<u8>),
    /// A command in the admin or I/O queue; rings if told to.
    Command {
        admin: bool,
        opc: u8,
        flags: u8,
        nsid: u8,
        data: [Address; 2],
        cdw: [u16; 4],
        ring: bool,
    },
    /// A command that moves data, mostly as it should.
    Transfer {
        write: bool,
        lba: u16,
        blocks: u8,
        data: Address,
    },
    /// A descriptor of the ring.
    Descriptor {
        index: u8,
        address: Address,
        len: u16,
        flags: u8,
        next: u8,
    },
    /// A chain becomes available.
    Publish {
        head: u8,
    },
    /// A request, mostly as it should be.
    Request {
        slot: u8,
        kind: u8,
        sector: u16,
        address: Address,
        sectors: u8,
    },
    Kick,
    /// Into its own memory, queues and rings included.
    Scribble {
        page: u8,
        offset: u16,
        value: u64,
    },
    Doorbell {
        offset: u8,
        value: u16,
    },
    /// Its memory file shrinks or grows.
    Resize {
        pages: u16,
    },
}

/// In its memory, or not.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Address {
    Inside(u16),
    Edge(u8),
    Any(u64),
}

impl Address {
    fn value(self) -> u64 {
        // Both protocols' memory begins at the same address and has the same length.
        match self {
            Self::Inside(offset) => virtio::RING + u64::from(offset) * 16 % virtio::RING_BYTES,
            Self::Edge(below) => virtio::RING + virtio::RING_BYTES - u64::from(below),
            Self::Any(address) => address,
        }
    }
}

/// It, and what it holds.
pub struct HostileClient {
    protocol: Protocol,
    runtime_dir: PathBuf,
    client: Option<Client>,
    descriptors: Descriptors,
}

impl HostileClient {
    /// Not attached yet.
    pub fn new(protocol: Protocol, runtime_dir: &Path) -> Self {
        Self { protocol, runtime_dir: runtime_dir.to_owned(), client: None, descriptors: Descriptors::new() }
    }

    /// Attaches, which must always be possible.
    pub fn attach(&mut self) {
        self.client = None;
        self.client = Some(Client::attach(self.protocol, &self.runtime_dir));
    }

    /// Does something. The daemon may have closed the connection: then nothing comes of it.
    pub fn act(&mut self, act: Act) {
        match act {
            Act::Attach => self.attach(),
            Act::Go => self.client = None,
            Act::VfioMessage(message, fds) => self.send(&message.encode(), &fds),
            Act::VhostMessage { message, need_reply, fds } => {
                self.send(&message.encode(need_reply), fds.as_deref().unwrap_or(message.fds()));
            }
            Act::Bytes(bytes) => self.send(&bytes, &[]),
            Act::Scribble { page, offset, value } => {
                let at = u64::from(page) << 12 | u64::from(offset) & 0xfff;
                if let Some(file) = self.memory() {
                    let _ = file.write_all_at(&value.to_le_bytes(), at);
                }
            }
            Act::Resize { pages } => {
                if let Some(file) = self.memory() {
                    let _ = file.set_len(u64::from(pages % 512) << 12);
                }
            }
            act => match &mut self.client {
                Some(Client::Nvme(client)) => drop(act_as_host(client, &act)),
                Some(Client::Virtio(client)) => drop(act_as_driver(client, &act)),
                None => {}
            },
        }
    }

    fn memory(&self) -> Option<&File> {
        self.client.as_ref().map(Client::memory)
    }

    /// Where the daemon takes no more, since nobody reads its answers, the client goes.
    fn send(&mut self, bytes: &[u8], fds: &[Fd]) {
        let fds = self.descriptors.open(&fds[..fds.len().min(8)]);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = match &self.client {
            Some(Client::Nvme(nvme)) => nvme.client.send(bytes, &fds),
            Some(Client::Virtio(virtio)) => virtio.client.send(bytes, &fds),
            None => Ok(()),
        };
        if sent.is_err() {
            self.client = None;
        }
    }
}

fn act_as_host(client: &mut Nvme, act: &Act) -> std::io::Result<()> {
    match *act {
        Act::Command { admin, opc, flags, nsid, data, cdw, ring } => {
            let [cdw10, cdw11, cdw12, cdw13] = cdw.map(u32::from);
            let dptr = data.map(Address::value);
            let (opc, nsid) = (opc, (nsid % 4).into());
            let sqe = Sqe { opc, flags, nsid, dptr, cdw10, cdw11, cdw12, cdw13, ..Sqe::default() };
            client.submit(usize::from(!admin), sqe)?;
            if ring { client.ring(usize::from(!admin)) } else { Ok(()) }
        }
        Act::Transfer { write, lba, blocks, data } => {
            let command = if write { nvme::write } else { nvme::read };
            client.submit(1, command(0, lba.into(), data.value(), (u64::from(blocks) + 1) * 512))?;
            client.ring(1)
        }
        Act::Doorbell { offset, value } => client.doorbell(u64::from(offset) * 4, value.into()),
        _ => Ok(()),
    }
}

fn act_as_driver(client: &mut Virtio, act: &Act) -> std::io::Result<()> {
    match *act {
        Act::Descriptor { index, address, len, flags, next } => {
            let (flags, next) = (flags.into(), u16::from(next) % virtio::ENTRIES);
            client.descriptor(0, index.into(), Desc { address: address.value(), len_bytes: len.into(), flags, next })
        }
        Act::Publish { head } => client.publish(head.into()),
        Act::Request { slot, kind, sector, address, sectors } => {
            let len = (u32::from(sectors) + 1) * 512;
            client.request(u16::from(slot) % 40, (kind % 16).into(), sector.into(), address.value(), len)?;
            client.kick()
        }
        Act::Kick => client.kick(),
        _ => Ok(()),
    }
}
