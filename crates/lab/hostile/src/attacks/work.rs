//! Work without end.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use bytemuck::bytes_of;
use nvme_spec::Sqe;
use nvme_spec::data::{SglDescriptor, sgl_type};
use nvme_spec::opcode::{admin, nvm};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_clients::nvme::{ENTRIES, FREE_AT, Nvme, QUEUES_IOVA, transfer};
use test_clients::rings::{Desc, INDIRECT, NEXT, WRITE};
use test_clients::socket::{memory, send};
use test_clients::vfio::{dma_map, dma_unmap, region_read, version};
use test_clients::vhost::{GET_FEATURES, VERSION, message};
use test_clients::virtio::{FREE_AT as VIRTIO_FREE_AT, IN, RING, Virtio};

use super::{Field, Outcome};

/// Keeps queue `queue` full of `command`.
fn flood(field: &Field, mut nvme: Nvme, queue: usize, command: Sqe) -> io::Result<Outcome> {
    let mut free = usize::from(ENTRIES - 1);
    while field.goes_on() {
        for _ in 0..free {
            nvme.submit(queue, command)?;
        }
        nvme.ring(queue)?;
        free = nvme.poll(queue)?.len();
    }
    Ok(Outcome::Done(Vec::new()))
}

/// Get Log Page, 1 MiB each, all of it to the same page.
pub fn log_pages(field: &Field) -> io::Result<Outcome> {
    const SMART: u32 = 2;
    const DWORDS: u32 = (1 << 20) / 4 - 1;
    let nvme = Nvme::start(&field.bad(), true)?;
    let page = QUEUES_IOVA + FREE_AT;
    let list = [page + 4096; 512].map(u64::to_le_bytes).concat();
    nvme.memory.write_all_at(&list, FREE_AT)?;
    let command = Sqe {
        opc: admin::GET_LOG_PAGE,
        nsid: u32::MAX,
        dptr: [page + 4096, page],
        cdw10: SMART | (DWORDS & 0xffff) << 16,
        cdw11: DWORDS >> 16,
        ..Sqe::default()
    };
    flood(field, nvme, 0, command)
}

/// Reads of one block whose scatter list is 512 segments with an empty data block in each.
pub fn empty_scatter_lists(field: &Field) -> io::Result<Outcome> {
    const SEGMENTS: u64 = 512;
    let nvme = Nvme::start(&field.bad(), true)?;
    let segment = |n: u64| QUEUES_IOVA + FREE_AT + n * 32;
    for n in 0..SEGMENTS {
        let empty = SglDescriptor::new(sgl_type::DATA_BLOCK, QUEUES_IOVA + FREE_AT, 0);
        let next = match n + 2 {
            SEGMENTS => SglDescriptor::new(sgl_type::LAST_SEGMENT, segment(n + 1), 32),
            rest if rest < SEGMENTS => SglDescriptor::new(sgl_type::SEGMENT, segment(n + 1), 32),
            _ => SglDescriptor::new(sgl_type::DATA_BLOCK, QUEUES_IOVA + FREE_AT + 0x8000, 512),
        };
        nvme.memory.write_all_at(bytes_of(&[empty, next]), FREE_AT + n * 32)?;
    }
    let first = SglDescriptor::new(sgl_type::SEGMENT, segment(0), 32);
    flood(field, nvme, 1, transfer(nvm::READ, 0, 0, 512, first))
}

/// Reads in 1022 pieces of a sector each.
pub fn indirect_chains(field: &Field) -> io::Result<Outcome> {
    const PIECES: u16 = 1022;
    const IN_FLIGHT: u16 = 64;
    let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let mut virtio = Virtio::start(&field.evil(), &[], call.as_fd())?;
    let (header, status) = virtio.header(0, IN, 0)?;
    virtio.descriptor(VIRTIO_FREE_AT, 0, Desc { address: header, len_bytes: 16, flags: NEXT, next: 1 })?;
    for piece in 1..=PIECES {
        let address = RING + VIRTIO_FREE_AT + 0x8000 + u64::from(piece % 64) * 512;
        let data = Desc { address, len_bytes: 512, flags: NEXT | WRITE, next: piece + 1 };
        virtio.descriptor(VIRTIO_FREE_AT, piece, data)?;
    }
    virtio.descriptor(VIRTIO_FREE_AT, PIECES + 1, Desc { address: status, len_bytes: 1, flags: WRITE, next: 0 })?;
    for head in 0..IN_FLIGHT {
        let len_bytes = (u32::from(PIECES) + 2) * 16;
        virtio.descriptor(0, head, Desc { address: RING + VIRTIO_FREE_AT, len_bytes, flags: INDIRECT, next: 0 })?;
    }
    let (mut free, mut head) = (IN_FLIGHT, 0);
    while field.goes_on() {
        for _ in 0..free {
            virtio.publish(head)?;
            head = (head + 1) % IN_FLIGHT;
        }
        virtio.kick()?;
        free = virtio.poll()?;
    }
    Ok(Outcome::Done(Vec::new()))
}

/// Register reads whose replies nobody reads.
pub fn unread_replies(field: &Field) -> io::Result<Outcome> {
    let nvme = Nvme::greet_patiently(&field.bad())?;
    let question = region_read(1, 0, 0, 8).repeat(64);
    while field.goes_on() {
        nvme.client.send(&question, &[])?;
    }
    Ok(Outcome::Done(Vec::new()))
}

/// DMA maps and unmaps, as fast as they are answered.
pub fn maps_and_unmaps(field: &Field) -> io::Result<Outcome> {
    const BATCH: u64 = 32;
    let nvme = Nvme::start(&field.bad(), true)?;
    let file = memory(1 << 20)?;
    while field.goes_on() {
        for n in 0..BATCH {
            nvme.client.send(&dma_map(1, 3, 0, (1 << 40) + (n << 20), 1 << 20), &[file.as_fd()])?;
        }
        for n in 0..BATCH {
            nvme.client.send(&dma_unmap(1, 0, (1 << 40) + (n << 20), 1 << 20), &[])?;
        }
        for _ in 0..2 * BATCH {
            // Refused or not: it was work.
            let _ = nvme.client.answer()?;
        }
    }
    Ok(Outcome::Done(Vec::new()))
}

/// Open files of a process with an attack in it, at most.
const OPEN_FILES: u64 = 2000;

/// Makes room for as many open files as an attack has. The table grows in steps, at each
/// of which the kernel waits for all CPUs, and everybody of the process who opens a file with it: a process whose other
/// threads are victims has it grow before.
///
/// # Errors
/// The system's.
pub fn make_room_for_files() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(u64::MAX).min(OPEN_FILES);
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum })?;
    let any = eventfd(0, EventfdFlags::CLOEXEC)?;
    fcntl_dupfd_cloexec(&any, i32::try_from(wanted - 1).unwrap_or(i32::MAX))?;
    Ok(())
}

/// Clients of both protocols that are gone before they are served.
pub fn come_and_go(field: &Field) -> io::Result<Outcome> {
    let greetings = [
        (field.bad().join("cntrl"), version("{}")),
        (field.evil().join("vhost.sock"), message(GET_FEATURES, VERSION, &[])),
    ];
    while field.goes_on() {
        for (socket, greeting) in &greetings {
            if let Ok(stream) = UnixStream::connect(socket) {
                // Refused or gone: nobody wants the answer.
                let _ = send(&stream, greeting, &[]);
            }
        }
    }
    Ok(Outcome::Done(Vec::new()))
}
