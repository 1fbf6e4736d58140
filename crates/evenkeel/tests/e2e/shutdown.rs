//! SIGTERM while guests write: what was acknowledged is there.

use std::time::Instant;

use nvme_driver::Data;

use crate::guest::{Guest, pattern};
use crate::harness::{Daemon, HANG, Home};

const CONFIG: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"16MiB\"\ncreate = true\n\
                      [policy]\nname = \"lpns\"\n\
                      [[tenant]]\nname = \"db\"\nsize = \"4MiB\"\nclass = \"guaranteed\"\nlatency_target = \"10ms\"\n\
                      [[tenant]]\nname = \"batch\"\nsize = \"4MiB\"\n";
const BLOCK_BYTES: usize = 4096;
const BLOCKS: usize = 1024;

/// Writes block after block, each time with the next generation, and knows what was acknowledged.
struct Writer {
    guest: Guest,
    /// By command identifier: the block and generation on its way.
    on_their_way: Vec<(usize, u64)>,
    acknowledged: Vec<u64>,
    sent: Vec<u64>,
    count: usize,
}

impl Writer {
    fn new(guest: Guest) -> Self {
        Self { guest, on_their_way: vec![(0, 0); 64], acknowledged: vec![0; BLOCKS], sent: vec![0; BLOCKS], count: 0 }
    }

    fn content(block: usize, generation: u64) -> Vec<u8> {
        pattern(block as u64 | generation << 16, BLOCK_BYTES)
    }

    fn fill_queue(&mut self) {
        while let Some(cid) = self.guest.queue.next_cid() {
            let (block, generation) = (self.count % BLOCKS, (self.count / BLOCKS + 1) as u64);
            let at = u64::from(cid) * BLOCK_BYTES as u64;
            self.guest.data.write(at, &Self::content(block, generation)).unwrap();
            let blocks = self.guest.blocks(block as u64 * 8, 8);
            let data = Data { iova: self.guest.data.iova() + at, len_bytes: BLOCK_BYTES as u64 };
            self.guest.queue.write(blocks, data, false).unwrap();
            self.on_their_way[usize::from(cid)] = (block, generation);
            self.sent[block] = generation;
            self.count += 1;
        }
        self.guest.queue.ring().unwrap();
    }

    fn reap(&mut self) {
        let (on_their_way, acknowledged) = (&self.on_their_way, &mut self.acknowledged);
        self.guest
            .queue
            .poll(&mut |done| {
                assert!(done.status.is_success(), "{}", done.status);
                let (block, generation) = on_their_way[usize::from(done.cid)];
                acknowledged[block] = acknowledged[block].max(generation);
            })
            .unwrap();
    }
}

fn write_until_the_end(home: &Home, daemon: &mut Daemon, writers: &mut [Writer]) {
    let start = Instant::now();
    let mut asked = false;
    while daemon.is_alive() {
        for writer in &mut *writers {
            writer.fill_queue();
            writer.reap();
        }
        // Twice over the range and a bit, so that overwriting is under way.
        if !asked && writers.iter().all(|writer| writer.count > 2 * BLOCKS + 100) {
            daemon.terminate();
            asked = true;
        }
        assert!(start.elapsed() < HANG, "{:?}", home.listing().keys());
        std::thread::yield_now();
    }
    // The last acknowledgements may have come just before the end.
    writers.iter_mut().for_each(Writer::reap);
    daemon.wait();
}

#[test]
fn what_was_acknowledged_is_on_the_drive() {
    let home = Home::new();
    home.configure(CONFIG);
    let mut daemon = home.serve();
    let mut writers = ["db", "batch"].map(|name| Writer::new(home.attach(name)));
    write_until_the_end(&home, &mut daemon, &mut writers);
    assert!(daemon.log().contains("SIGTERM: completing commands in flight"));
    assert!(!home.path("run/api.sock").exists() && !home.path("run/db/cntrl").exists(), "it leaves no sockets");

    let daemon = home.serve();
    for (name, writer) in ["db", "batch"].into_iter().zip(writers) {
        let mut guest = home.attach(name);
        for block in 0..BLOCKS {
            let found = guest.read(block as u64 * 8, 8).unwrap();
            let (least, most) = (writer.acknowledged[block], writer.sent[block]);
            let possible = (least..=most).any(|generation| found == Writer::content(block, generation));
            assert!(possible, "{name}: block {block} is neither of writes {least} to {most}");
        }
    }
    daemon.stop();
}

#[test]
fn a_daemon_that_was_killed_can_be_started_again() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let load = home.load("batch", "--rw write --bs 4k --iodepth 8 --verify");
    load.expect_clean();
    // Killed: its sockets stay behind, and nobody listens on them.
    drop(daemon);
    assert!(home.path("run/api.sock").exists() && home.path("run/db/cntrl").exists());
    let daemon = home.serve();
    home.load("batch", "--rw read --bs 4k --iodepth 8 --verify").expect_clean();
    daemon.stop();
}
