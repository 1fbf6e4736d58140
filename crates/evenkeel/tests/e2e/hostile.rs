//! Hostile clients of one tenant while its neighbour works: their connections end, a log line says why, the
//! neighbour's data is right, and the tenant can be attached again.

use std::os::fd::AsFd;

use nvme_driver::PciDevice;
use rustix::fs::ftruncate;
use rustix::io::Errno;
use test_clients::nvme::{Nvme, QUEUES_BYTES, QUEUES_IOVA};
use test_clients::seeds;
use test_clients::socket::{await_end, memory, receive};
use test_clients::vfio::*;

use crate::guest::pattern;
use crate::harness::{Daemon, HANG, Home, Load};
use crate::raw;

const CONFIG: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"16MiB\"\ncreate = true\n\
                      [policy]\nname = \"lpns\"\n\
                      [[tenant]]\nname = \"good\"\nsize = \"4MiB\"\nclass = \"guaranteed\"\nlatency_target = \"10ms\"\n\
                      threads = \"shared\"\n\
                      [[tenant]]\nname = \"bad\"\nsize = \"4MiB\"\n";
const LIFE: &str = "--rw randrw --bs 8k --iodepth 8 --verify --runtime 10m";

/// A daemon with a neighbour at work.
struct Siege {
    neighbour: Load,
    daemon: Daemon,
    // Last: it takes the directory away.
    home: Home,
}

impl Siege {
    fn begin() -> Self {
        let home = Home::new();
        home.configure(CONFIG);
        let daemon = home.serve();
        home.load("good", "--rw write --bs 8k --iodepth 8 --verify").expect_clean();
        let neighbour = home.load("good", LIFE);
        // Attached twice: for filling, and now.
        daemon.wait_log("good: a client attached", 2);
        Self { neighbour, daemon, home }
    }

    fn connect(&self) -> Client {
        raw::connect(&self.home.runtime_dir().join("bad"))
    }

    fn ready(&self) -> Client {
        raw::ready(&self.home.runtime_dir().join("bad"))
    }

    /// The tenant takes a well-behaved guest.
    fn attach_again(&self) {
        let mut guest = self.home.attach("bad");
        guest.write(0, &pattern(7, 65536)).unwrap();
        assert_eq!(guest.read(0, 128).unwrap(), pattern(7, 65536));
    }

    /// The neighbour never noticed.
    fn end(mut self) {
        self.attach_again();
        assert!(self.daemon.is_alive());
        self.neighbour.stop();
        let report = self.home.load("good", "--rw read --bs 8k --iodepth 8 --verify").expect_clean();
        let verify = &report["jobs"][0]["verify"];
        assert_eq!((&verify["checked_blocks"], &verify["bad_blocks"]), (&512.into(), &0.into()));
        self.daemon.stop();
    }
}

#[test]
fn messages_that_end_the_connection() {
    let siege = Siege::begin();
    let fd = memory(4096).unwrap();
    let hundred = vec![fd.as_fd(); 100];
    let lost = header(1, REGION_WRITE, 40, 0);
    let attacks: [(bool, Vec<u8>, bool, &str); 7] = [
        (false, b"GET / HTTP/1.1\r\nHost: drive\r\n\r\n".to_vec(), false, "a message of"),
        (false, version("{\"capabilities\":"), false, "no version could be agreed on"),
        (false, region_read(1, 0, 0, 8), false, "before the version was agreed on"),
        (true, header(1, REGION_WRITE, u32::MAX, 0), false, "a message of 4294967295 bytes"),
        (true, header(1, REGION_WRITE, 3, 0), false, "a message of 3 bytes"),
        (true, message(1, GET_INFO, 0, &words(&[16, 0, 0, 0])), true, "file descriptors with one message"),
        // Half a message, and silence.
        (true, lost[..10].to_vec(), false, "left a message unfinished"),
    ];
    for (greeted, bytes, with_fds, why) in attacks {
        let raw = if greeted { siege.ready() } else { siege.connect() };
        // The server may have closed the connection by now.
        let _ = raw.send(&bytes, if with_fds { &hundred } else { &[] });
        await_end(&raw.stream, HANG).unwrap();
        siege.daemon.wait_log(why, 1);
    }
    siege.end();
}

#[test]
fn memory_that_can_not_be_mapped() {
    let siege = Siege::begin();
    let fd = memory(1 << 20).unwrap();
    let raw = siege.ready();
    let map = |offset, iova, len| dma_map(1, 3, offset, iova, len);
    for (bytes, with_fd, expected) in [
        (map(0, 0, 0), true, Errno::INVAL),
        (map(0, 17, 4096), true, Errno::INVAL),
        (map(0, u64::MAX - 4095, 4096), true, Errno::INVAL),
        (map(1 << 20, 0, 4096), true, Errno::INVAL),
        (map(u64::MAX - 4095, 0, 4096), true, Errno::INVAL),
        (dma_map(1, 0xff, 0, 0, 4096), true, Errno::INVAL),
        (dma_unmap(1, 4, 0, 4096), false, Errno::INVAL),
    ] {
        let fds = [fd.as_fd()];
        assert_eq!(raw.expect_reply(&bytes, if with_fd { &fds } else { &[] }), Err(expected), "{bytes:?}");
    }
    // As many as there may be (max_maps), and some more; sent ahead, as VMMs do.
    let mut answers = Vec::new();
    for batch in 0_u64..17 {
        (0..8).for_each(|n| raw.send(&map(0, (1 << 40) + (batch * 8 + n) * 4096, 4096), &[fd.as_fd()]).unwrap());
        answers.extend((0..8).map(|_| raw.answer().unwrap()));
    }
    let taken = answers.iter().take_while(|answer| answer.is_ok()).count();
    assert_eq!(taken, 128);
    assert!(answers[taken..].iter().all(|answer| *answer == Err(Errno::NOSPC)));
    raw.expect_reply(&dma_unmap(1, 2, 0, 0), &[]).unwrap();
    raw.expect_reply(&map(0, 1 << 20, 0x10000), &[fd.as_fd()]).unwrap();
    // Over the middle of it.
    assert_eq!(raw.expect_reply(&map(0, (1 << 20) + 4096, 4096), &[fd.as_fd()]), Err(Errno::EXIST));
    // Refused alone: what was mapped stays.
    assert_eq!(raw.expect_reply(&dma_unmap(1, 0, 1 << 20, 4096), &[]), Err(Errno::INVAL));
    raw.expect_reply(&dma_unmap(1, 0, 0, 1 << 30), &[]).unwrap();
    raw.expect_reply(&map(0, (1 << 20) + 4096, 4096), &[fd.as_fd()]).unwrap();
    drop(raw);
    siege.end();
}

#[test]
fn accesses_out_of_range() {
    let siege = Siege::begin();
    let raw = siege.ready();
    for (region, offset, len) in [
        (0, 0x4000, 4),
        (0, 0x3fff, 2),
        (0, u64::MAX, 4),
        (1, 0, 4),
        (7, 0x1000, 1),
        (8, 0, 1),
        (u32::MAX, 0, 4),
        (0, 0, u32::MAX),
    ] {
        assert_eq!(
            raw.expect_reply(&region_read(1, region, offset, len), &[]),
            Err(Errno::INVAL),
            "{region} {offset:#x} {len}"
        );
        if len <= 4 {
            let write = region_write(1, 0, region, offset, &vec![0xff; len as usize]);
            assert_eq!(raw.expect_reply(&write, &[]), Err(Errno::INVAL), "{region} {offset:#x} {len}");
        }
    }
    // Every register, in every width, with all bits set: whatever it does, it does to this tenant.
    for offset in 0..0x40 {
        for len in [1, 2, 4, 8, 3] {
            raw.expect_reply(&region_write(1, 0, 0, offset, &vec![0xff; len]), &[]).unwrap();
        }
    }
    // Likewise the whole doorbell page, MSI-X, and configuration space.
    for (region, start) in [(0, 0x1000), (0, 0x2000), (0, 0x3000), (4, 0), (7, 0)] {
        raw.expect_reply(&region_write(1, 0, region, start, &[0xff; 0x1000]), &[]).unwrap();
    }
    drop(raw);
    siege.end();
}

#[test]
fn interrupts_that_make_no_sense() {
    const EVENTFD: u32 = 1 << 2;
    const MASK: u32 = 1 << 3;
    const TRIGGER: u32 = 1 << 5;
    let siege = Siege::begin();
    let raw = siege.ready();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let file = memory(4096).unwrap();
    for (flags, index, start, count) in [
        (EVENTFD | TRIGGER, 2, 65, 1),
        (EVENTFD | TRIGGER, 2, u32::MAX, 2),
        (EVENTFD | TRIGGER, 2, 0, u32::MAX),
        (EVENTFD | TRIGGER, 1, 0, 1),
        (EVENTFD | TRIGGER, u32::MAX, 0, 1),
        (EVENTFD | MASK | TRIGGER, 2, 0, 1),
        (0xff, 2, 0, 1),
        (0, 2, 0, 1),
        (TRIGGER | 1 << 1, 2, 0, 8),
    ] {
        let asked = raw.expect_reply(&set_irqs(1, flags, index, start, count, &[]), &[event.as_fd()]);
        assert_eq!(asked, Err(Errno::INVAL), "{flags:#x} {index} {start} {count}");
    }
    let assign = set_irqs(1, EVENTFD | TRIGGER, 2, 0, 1, &[]);
    assert_eq!(raw.expect_reply(&assign, &[file.as_fd()]), Err(Errno::INVAL));
    siege.daemon.wait_log("bad: refused: an interrupt on something that is not an eventfd", 1);
    // A counter that is full must not stop the poller.
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    raw.expect_reply(&assign, &[event.as_fd()]).unwrap();
    for _ in 0..3 {
        raw.expect_reply(&set_irqs(1, TRIGGER | 1, 2, 0, 1, &[]), &[]).unwrap();
    }
    drop(raw);
    siege.end();
}

#[test]
fn a_guest_that_rings_nonsense() {
    let siege = Siege::begin();
    for seed in seeds(20) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut guest = siege.home.attach("bad");
        for _ in 0..200 {
            let offset = 0x1000 + random.u64(..140) * 4;
            guest.controller.device().doorbell(offset).unwrap().write(random.u32(..)).unwrap();
        }
        // Whatever state it is in by now, a reset ends it.
        guest.controller.device().reset().unwrap();
    }
    siege.end();
}

#[test]
fn a_client_that_takes_its_memory_away() {
    let siege = Siege::begin();
    let nvme = Nvme::greet_patiently(&siege.home.runtime_dir().join("bad")).unwrap();
    nvme.map(QUEUES_IOVA, &nvme.memory, QUEUES_BYTES).unwrap().unwrap();
    assert!(nvme.comes_up().unwrap());
    ftruncate(&nvme.memory, 0).unwrap();
    nvme.doorbell(0, 8).unwrap();
    await_end(&nvme.client.stream, HANG).unwrap();
    siege.daemon.wait_log("bad: client disconnected: the client removed memory", 1);
    siege.end();
}

#[test]
fn a_second_client_is_told_to_go() {
    let siege = Siege::begin();
    for _ in 0..5 {
        await_end(&raw::connect(&siege.home.runtime_dir().join("good")).stream, HANG).unwrap();
    }
    siege.daemon.wait_log("good: client refused: another one is attached", 1);
    let (code, report) = siege.home.load("good", "--rw read --size 64k").end();
    assert_eq!(code, Some(1), "{report}");
    assert!(report.as_str().unwrap().contains("is another client attached"), "{report}");
    siege.end();
}

/// Says hello and, if asked to, takes whatever comes: being refused is an answer too. (A process that another test is
/// just starting may hold the client before this one open for an instant.)
fn knock(raw: &Client, waits: bool) {
    let _ = raw.send(&version("{}"), &[]);
    if waits {
        let _ = receive(&raw.stream, &mut [0; 16]);
    }
}

#[test]
fn clients_that_come_and_go() {
    let siege = Siege::begin();
    for round in 0..300 {
        match round % 3 {
            0 => drop(siege.connect()),
            1 => knock(&siege.connect(), true),
            _ => knock(&siege.connect(), false),
        }
    }
    // The last of them may not have been noticed: but then the next one is let in.
    let many: Vec<Client> = (0..8).map(|_| siege.connect()).collect();
    drop(many);
    siege.end();
}

#[test]
fn a_client_that_is_killed_at_work() {
    let siege = Siege::begin();
    for round in 1..=3 {
        let load = siege.home.load("bad", "--rw randrw --bssplit 512/50:64k/50 --iodepth 32 --numjobs 3 --runtime 10m");
        siege.daemon.wait_log("bad: a client attached", round);
        // At work, not just attached: its data on the drive changes.
        let before = image(&siege);
        crate::harness::wait_for("a write of the client", || (image(&siege) != before).then_some(()));
        load.kill();
    }
    siege.daemon.wait_log("bad: the client went away", 3);
    siege.end();
}

/// The bad tenant's part of the drive.
fn image(siege: &Siege) -> Vec<u8> {
    let image = std::fs::File::open(siege.home.path("drive.img")).unwrap();
    let mut found = vec![0; 4 << 20];
    std::os::unix::fs::FileExt::read_exact_at(&image, &mut found, 4 << 20).unwrap();
    found
}
