//! libblkio, an independent vhost-user-blk client, on the daemon's virtio-blk disks.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use blkio::{Blkio, Blkioq, Completion, Errno, MemoryRegion, ReqFlags, iovec};
use guest_memory::Mapping;

use crate::guest::pattern;
use crate::harness::{HANG, Home, wait_for};

const SIZE_BYTES: u64 = 8 << 20;
const MEMORY_BYTES: usize = 4 << 20;
const BLOCK: usize = 4096;
/// Under these addresses the device knows the client's memory; the driver only passes them on.
const MEMORY_AT: usize = 1 << 32;

struct Client {
    // Queues go before the connection does.
    queues: Vec<Blkioq>,
    device: Blkio,
    memory: Arc<Mapping>,
    /// Sent again when the memory is unmapped.
    _fd: OwnedFd,
}

impl Client {
    /// Attaches with `waiting` queues that sleep until an interrupt and `polling` ones that poll.
    fn attach(home: &Home, tenant: &str, waiting: i32, polling: i32) -> Self {
        let mut device = Self::connect(home, tenant, false);
        device.set_i32("num-queues", waiting).unwrap();
        device.set_i32("num-poll-queues", polling).unwrap();
        let mut started = device.start().unwrap();
        let queues = started.queues.drain(..).chain(started.poll_queues.drain(..)).collect();
        let (memory, fd) = Mapping::memfd("blkio", MEMORY_BYTES).unwrap();
        let region =
            MemoryRegion { addr: MEMORY_AT, iova: 0, len: MEMORY_BYTES, fd: fd.as_raw_fd(), fd_offset: 0, flags: 0 };
        device.map_mem_region(&region).unwrap();
        Self { queues, device, memory, _fd: fd }
    }

    /// A connection whose queues are not set up. The client before it may still be on its way out.
    fn connect(home: &Home, tenant: &str, read_only: bool) -> Blkio {
        let socket = home.runtime_dir().join(tenant).join("vhost.sock");
        wait_for("a place at the tenant's socket", || {
            let mut device = Blkio::new("virtio-blk-vhost-user").unwrap();
            device.set_str("path", socket.to_str().unwrap()).unwrap();
            device.set_bool("read-only", read_only).unwrap();
            device.connect().ok().map(|()| device)
        })
    }

    /// What libblkio calls a property of the disk.
    fn property(&self, name: &str) -> u64 {
        self.device.get_u64(name).or_else(|_| self.device.get_i32(name).map(|value| value as u64)).unwrap()
    }

    /// Waits for `count` completions; gives what they were sent with and how they ended (0 or a negative errno).
    fn complete(&mut self, queue: usize, count: usize) -> Vec<(usize, i32)> {
        let mut slots: Vec<MaybeUninit<Completion>> = (0..count).map(|_| MaybeUninit::uninit()).collect();
        let mut limit: Duration = HANG;
        let done = self.queues[queue].do_io(&mut slots, count, Some(&mut limit), None).unwrap();
        assert_eq!(done, count);
        let written = slots.into_iter().map(|slot| {
            // SAFETY: `do_io` wrote as many completions as it returned, and that is all of them.
            unsafe { slot.assume_init() }
        });
        written.map(|completion| (completion.user_data, completion.ret)).collect()
    }

    /// One request from its submission to its completion.
    fn run(&mut self, queue: usize, submit: impl FnOnce(&mut Blkioq)) -> Result<(), Errno> {
        submit(&mut self.queues[queue]);
        match self.complete(queue, 1)[0].1 {
            0 => Ok(()),
            failed => Err(Errno::from_raw_os_error(-failed)),
        }
    }

    fn write(&mut self, queue: usize, at: u64, content: &[u8], flags: ReqFlags) -> Result<(), Errno> {
        self.memory.write_at(0, content).unwrap();
        self.run(queue, |queue| queue.write(at, address(0), content.len(), 0, flags))
    }

    fn read(&mut self, queue: usize, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut content = vec![0; len];
        self.memory.write_at(0, &vec![0xee; len]).unwrap();
        self.run(queue, |queue| queue.read(at, address(0), len, 0, ReqFlags::empty()))?;
        self.memory.read_at(0, &mut content).unwrap();
        Ok(content)
    }
}

/// The device's address of a place in the client's memory, in the shape that libblkio wants.
fn address(offset: usize) -> *mut u8 {
    (MEMORY_AT + offset) as *mut u8
}

/// A virtio-blk tenant called web, with more lines of its own.
fn tenant(lines: &str) -> String {
    format!("[[tenant]]\nname = \"web\"\nsize = \"8MiB\"\nfrontend = \"vhost-user-blk\"\n{lines}\n")
}

fn on_memory(lines: &str) -> String {
    format!("[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n[policy]\nname = \"passthrough\"\n{}", tenant(lines))
}

#[test]
fn the_disk_says_what_it_is() {
    let home = Home::new();
    home.configure(&on_memory("queues = 3"));
    let daemon = home.serve();
    let client = Client::attach(&home, "web", 1, 0);
    assert_eq!(client.property("capacity"), SIZE_BYTES);
    assert_eq!(client.property("max-queues"), 3);
    assert_eq!(client.property("request-alignment"), 512);
    assert!(client.property("max-segments") >= 126, "what QEMU's own disks have");
    assert!(client.property("max-discard-len") > 0);
    assert!(client.property("max-write-zeroes-len") > 0);
    drop(client);
    daemon.stop();
}

#[test]
fn every_queue_reaches_the_same_disk_in_every_layout() {
    let file = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
                [policy]\nname = \"passthrough\"\n";
    for (threads, mode, drive) in [
        ("shared", "adaptive", ""),
        ("dedicated", "polling", ""),
        ("per-queue", "event", ""),
        ("shared", "adaptive", file),
        ("dedicated", "polling", file),
        ("per-queue", "event", file),
    ] {
        let home = Home::new();
        let lines = format!("queues = 4\nthreads = \"{threads}\"\nmode = \"{mode}\"");
        home.configure(&if drive.is_empty() { on_memory(&lines) } else { drive.to_owned() + &tenant(&lines) });
        let daemon = home.serve();
        let mut client = Client::attach(&home, "web", 2, 2);
        for queue in 0..4 {
            let (content, at) = (pattern(queue as u64 + 1, BLOCK), queue as u64 * BLOCK as u64);
            client.write(queue, at, &content, ReqFlags::empty()).unwrap();
            client.run(queue, |queue| queue.flush(0, ReqFlags::empty())).unwrap();
            for reader in 0..4 {
                assert_eq!(client.read(reader, at, BLOCK).unwrap(), content, "{threads}, {mode}: {queue} to {reader}");
            }
        }
        drop(client);
        daemon.stop();
    }
}

#[test]
fn full_queues_of_scattered_requests_keep_their_data() {
    const REQUESTS: usize = 32;
    let home = Home::new();
    home.configure(&on_memory("queues = 2"));
    let daemon = home.serve();
    let mut client = Client::attach(&home, "web", 1, 1);
    let content = pattern(7, 2 * REQUESTS * BLOCK);
    client.memory.write_at(0, &content).unwrap();
    // Each request's block lies in three pieces, of which the middle one crosses no page and the last is odd.
    let pieces = |offset: usize| {
        [(0, 512), (512, 3072), (3584, 512)]
            .map(|(start, len)| iovec { iov_base: address(offset + start).cast(), iov_len: len })
    };
    let half = MEMORY_BYTES / 2;
    let sent: Vec<_> = (0..2 * REQUESTS).map(|n| pieces(n * BLOCK)).collect();
    let wanted: Vec<_> = (0..2 * REQUESTS).map(|n| pieces(half + n * BLOCK)).collect();
    for (lists, is_write) in [(&sent, true), (&wanted, false)] {
        for (n, list) in lists.iter().enumerate() {
            let (queue, at) = (&mut client.queues[n % 2], (n * BLOCK) as u64);
            match is_write {
                true => queue.writev(at, list.as_ptr(), 3, n, ReqFlags::empty()),
                false => queue.readv(at, list.as_ptr(), 3, n, ReqFlags::empty()),
            }
        }
        for queue in 0..2 {
            let mut done = client.complete(queue, REQUESTS);
            done.sort_unstable();
            let expected: Vec<_> = (0..REQUESTS).map(|n| (2 * n + queue, 0)).collect();
            assert_eq!(done, expected);
        }
    }
    let mut found = vec![0; content.len()];
    client.memory.read_at(half as u64, &mut found).unwrap();
    assert!(found == content, "what came back differs");
    drop(client);
    daemon.stop();
}

#[test]
fn zeroes_and_discards_stay_inside_of_their_range() {
    let home = Home::new();
    home.configure(&on_memory("queues = 1"));
    let daemon = home.serve();
    let mut client = Client::attach(&home, "web", 1, 0);
    let content = pattern(3, 4 * BLOCK);
    let middle = BLOCK..3 * BLOCK;
    let (at, len) = (BLOCK as u64, middle.len() as u64);
    for flags in [ReqFlags::empty(), ReqFlags::NO_UNMAP] {
        client.write(0, 0, &content, ReqFlags::empty()).unwrap();
        client.run(0, |queue| queue.write_zeroes(at, len, 0, flags)).unwrap();
        let mut expected = content.clone();
        expected[middle.clone()].fill(0);
        assert!(client.read(0, 0, 4 * BLOCK).unwrap() == expected, "{flags:?}");
    }
    client.write(0, 0, &content, ReqFlags::empty()).unwrap();
    client.run(0, |queue| queue.discard(at, len, 0, ReqFlags::empty())).unwrap();
    let found = client.read(0, 0, 4 * BLOCK).unwrap();
    assert_eq!((&found[..BLOCK], &found[3 * BLOCK..]), (&content[..BLOCK], &content[3 * BLOCK..]));
    // A discarded block reads as what it held or as zeros, never as anything else.
    assert!(found[middle.clone()].iter().all(|&byte| byte == 0) || found[middle.clone()] == content[middle]);
    drop(client);
    daemon.stop();
}

#[test]
fn requests_beyond_the_end_fail_alone() {
    let home = Home::new();
    home.configure(&on_memory("queues = 1"));
    let daemon = home.serve();
    let mut client = Client::attach(&home, "web", 1, 0);
    let (last, block) = (SIZE_BYTES - BLOCK as u64, pattern(9, BLOCK));
    client.write(0, last, &block, ReqFlags::empty()).unwrap();
    for at in [last + 512, SIZE_BYTES, u64::MAX / 512 * 512 - BLOCK as u64 + 512] {
        assert_eq!(client.read(0, at, BLOCK), Err(Errno::IO), "{at}");
        assert_eq!(client.write(0, at, &block, ReqFlags::empty()), Err(Errno::IO), "{at}");
        let zeroes = |queue: &mut Blkioq| queue.write_zeroes(at, BLOCK as u64, 0, ReqFlags::empty());
        if at < u64::MAX / 2 {
            assert_eq!(client.run(0, zeroes), Err(Errno::IO), "{at}");
        }
    }
    assert_eq!(client.read(0, last, BLOCK).unwrap(), block);
    drop(client);
    daemon.stop();
}

#[test]
fn what_was_flushed_outlives_the_daemon() {
    let home = Home::new();
    let file = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
                [policy]\nname = \"passthrough\"\n";
    home.configure(&format!("{file}{}", tenant("queues = 1")));
    let daemon = home.serve();
    let mut client = Client::attach(&home, "web", 1, 0);
    let content = pattern(5, 64 << 10);
    // libblkio flushes after a write that is to be durable.
    client.write(0, 1 << 20, &content, ReqFlags::FUA).unwrap();
    drop(client);
    // Killed: its socket stays behind, and nobody listens on it.
    drop(daemon);
    let daemon = home.serve();
    let mut client = Client::attach(&home, "web", 0, 1);
    assert!(client.read(0, 1 << 20, content.len()).unwrap() == content);
    drop(client);
    // One client after another, on the same daemon.
    let mut client = Client::attach(&home, "web", 1, 0);
    assert!(client.read(0, 1 << 20, content.len()).unwrap() == content);
    drop(client);
    daemon.stop();
}

#[test]
fn a_read_only_disk_can_only_be_read() {
    let home = Home::new();
    home.configure(&on_memory("queues = 1\nread_only = true"));
    let daemon = home.serve();
    let refused = Client::connect(&home, "web", false).start().err().unwrap();
    assert_eq!(refused.errno(), Errno::ROFS);
    assert!(Client::connect(&home, "web", true).start().is_ok());
    // This client does not look before it writes: the disk itself refuses.
    let (code, report) = home.load("web", "--rw write --size 1m").end();
    assert_eq!(code, Some(1), "{report:#}");
    assert!(report["jobs"][0]["error_text"].as_str().unwrap().contains("VIRTIO_BLK_S_IOERR"), "{report:#}");
    daemon.stop();
}

#[test]
fn both_front_ends_carry_verified_load_on_one_drive() {
    let home = Home::new();
    home.configure(&format!(
        "{}[[tenant]]\nname = \"db\"\nsize = \"8MiB\"\n",
        on_memory("queues = 4\nmode = \"adaptive\"")
    ));
    let daemon = home.serve();
    let jobs = "--rw randrw --bssplit 4k/60:64k/40 --iodepth 16 --numjobs 2 --verify";
    let loads = ["web", "db"].map(|tenant| home.load(tenant, jobs));
    for load in loads {
        let report = load.expect_clean();
        for job in report["jobs"].as_array().unwrap() {
            assert!(job["verify"]["checked_blocks"].as_u64().unwrap() > 0, "{job:#}");
        }
    }
    home.load("web", "--rw write --bs 16k --iodepth 8 --fua --verify").expect_clean();
    home.load("web", "--rw read --bs 16k --iodepth 8 --verify").expect_clean();
    home.load("web", "--rw randtrim --bs 64k --iodepth 8").expect_clean();
    daemon.stop();
}
