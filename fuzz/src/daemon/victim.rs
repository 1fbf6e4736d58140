//! A client that does what it should, and knows what its disk holds.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvme_spec::Sqe;
use nvme_spec::opcode::admin;
use test_clients::{nvme, virtio};

use super::{Client, Protocol};

const BLOCK_BYTES: u64 = 4096;
/// Blocks that are in use.
const BLOCKS: u64 = 64;
/// Of one command.
const MAX_COUNT: u64 = 16;
/// Where its data are in its own memory.
const DATA_AT: u64 = virtio::FREE_AT;
/// Nothing that works takes this long.
const HANG: Duration = Duration::from_secs(5);

/// A client and a model of its disk.
pub struct Victim {
    protocol: Protocol,
    runtime_dir: PathBuf,
    /// None only while it comes back.
    client: Option<Client>,
    /// What was written last, by block; 0: zeros.
    generations: Vec<u32>,
    last_generation: u32,
}

impl Victim {
    /// Attached, with a disk that is clear.
    pub fn attach(protocol: Protocol, runtime_dir: &Path) -> Self {
        let runtime_dir = runtime_dir.to_owned();
        let generations = vec![0; BLOCKS as usize];
        let mut this = Self { protocol, runtime_dir, client: None, generations, last_generation: 0 };
        this.come_back();
        this.clear();
        this
    }

    /// Goes, and attaches again.
    pub fn come_back(&mut self) {
        self.client = None;
        self.client = Some(Client::attach(self.protocol, &self.runtime_dir));
    }

    /// A format, if there is one: the tenant's previous client may have chosen another block size.
    pub fn clear(&mut self) {
        if let Some(Client::Nvme(nvme)) = &mut self.client {
            let status = nvme.run(0, Sqe { opc: admin::FORMAT_NVM, nsid: 1, ..Sqe::default() }).expect("an answer");
            assert!(status.is_success(), "a format: {status}");
        } else {
            for block in (0..BLOCKS).step_by(MAX_COUNT as usize) {
                self.put(&vec![0; (MAX_COUNT * BLOCK_BYTES) as usize]);
                self.transfer(true, block, MAX_COUNT);
            }
        }
        self.generations.fill(0);
    }

    /// Writes new data.
    pub fn write(&mut self, block: u8, count: u8) {
        let (block, count) = place(block, count);
        self.last_generation += 1;
        for block in block..block + count {
            self.generations[block as usize] = self.last_generation;
        }
        let data: Vec<u8> = (block..block + count).flat_map(|block| self.content(block)).collect();
        self.put(&data);
        self.transfer(true, block, count);
    }

    /// Reads, and compares.
    pub fn read(&mut self, block: u8, count: u8) {
        let (block, count) = place(block, count);
        self.check(block, count);
    }

    /// Reads everything.
    pub fn read_all(&mut self) {
        (0..BLOCKS).step_by(MAX_COUNT as usize).for_each(|block| self.check(block, MAX_COUNT));
    }

    fn check(&mut self, block: u64, count: u64) {
        self.put(&vec![0xee; (count * BLOCK_BYTES) as usize]);
        self.transfer(false, block, count);
        let mut found = vec![0; BLOCK_BYTES as usize];
        for n in 0..count {
            self.memory().read_exact_at(&mut found, DATA_AT + n * BLOCK_BYTES).expect("memory");
            assert!(found == self.content(block + n), "block {} is not what was written", block + n);
        }
    }

    /// What a block should hold.
    fn content(&self, block: u64) -> Vec<u8> {
        let generation = u64::from(self.generations[block as usize]);
        let word =
            |n: u64| if generation == 0 { 0 } else { (generation << 40 | block << 20 | n) ^ 0x5a5a_5a5a_5a5a_5a5a };
        (0..BLOCK_BYTES / 8).flat_map(|n| word(n).to_le_bytes()).collect()
    }

    fn memory(&self) -> &File {
        self.client.as_ref().expect("attached").memory()
    }

    fn put(&self, data: &[u8]) {
        self.memory().write_all_at(data, DATA_AT).expect("memory");
    }

    fn transfer(&mut self, write: bool, block: u64, count: u64) {
        let (sector, len_bytes) = (block * BLOCK_BYTES / 512, count * BLOCK_BYTES);
        match self.client.as_mut().expect("attached") {
            Client::Nvme(client) => {
                let command = if write { nvme::write } else { nvme::read };
                let status = client.run(1, command(0, sector, nvme::QUEUES_IOVA + DATA_AT, len_bytes));
                let status = status.expect("it completes");
                assert!(status.is_success(), "a command: {status}");
            }
            Client::Virtio(client) => {
                let kind = if write { virtio::OUT } else { virtio::IN };
                client.request(0, kind, sector, virtio::RING + DATA_AT, len_bytes as u32).expect("memory");
                client.kick().expect("a kick");
                let start = Instant::now();
                while client.poll().expect("memory") == 0 {
                    assert!(start.elapsed() < HANG, "a request never completed");
                    std::thread::sleep(Duration::from_micros(50));
                }
                assert_eq!(client.status(0).expect("memory"), 0, "a request's status");
            }
        }
    }
}

fn place(block: u8, count: u8) -> (u64, u64) {
    let (block, count) = (u64::from(block) % BLOCKS, 1 + u64::from(count) % MAX_COUNT);
    (block, count.min(BLOCKS - block))
}
