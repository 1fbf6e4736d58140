//! Virtio clients whose sockets a keeper has: they go on with the next daemon, though they don't connect again.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use test_clients::virtio::{FREE_AT, IN, OUT, RING, Virtio};

use crate::guest::pattern;
use crate::harness::{Load, wait_for};
use crate::keeper::kept_with;

const VIRTIO: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\ncreate = true\nsize = \"64MiB\"\n\
                      [policy]\nname = \"passthrough\"\n\
                      [[tenant]]\nname = \"web\"\nsize = \"8MiB\"\nfrontend = \"vhost-user-blk\"\nqueues = 2\n\
                      [[tenant]]\nname = \"log\"\nsize = \"8MiB\"\nfrontend = \"vhost-user-blk\"\nqueues = 4\n\
                      threads = \"per-queue\"\nmode = \"event\"\n";

#[test]
fn virtio_clients_that_do_not_connect_again_go_on_after_kills_under_load() {
    let (home, _keeper) = kept_with(VIRTIO);
    let mut daemon = home.serve();
    // They have no log of requests in flight either.
    let job = "--rw randrw --bs 4k --iodepth 32 --numjobs 2 --verify --runtime 120";
    let loads = ["web", "log"].map(|tenant| home.load(tenant, job));
    daemon.wait_log("a client attached", 2);
    let mut taken_over = 0;
    for kill in 0..12 {
        sleep(Duration::from_millis(20 + 31 * kill));
        if kill % 4 == 3 {
            daemon.stop()
        } else {
            drop(daemon)
        }
        daemon = home.serve();
        daemon.wait_log("requests taken over", 4);
        taken_over += usize::from(daemon.log().lines().any(|line| line.contains("index") && !line.contains(", 0 re")));
    }
    assert!(taken_over > 0, "no request was in flight when it died");
    loads.into_iter().for_each(Load::stop_verified);
    daemon.wait_log("the client went away", 2);
    daemon.stop();
}

#[test]
fn a_virtio_client_with_a_log_of_its_own_goes_on_where_it_was() {
    const REQUESTS: u16 = 16;
    const BYTES: usize = 4096;
    let (home, _keeper) = kept_with(VIRTIO);
    let mut daemon = home.serve();
    let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let mut guest = Virtio::start_logged(&home.runtime_dir().join("web"), call.as_fd()).unwrap();
    let (ours, theirs) = (FREE_AT, FREE_AT + u64::from(REQUESTS) * BYTES as u64);
    for round in 0..12 {
        let content = pattern(round + 1, usize::from(REQUESTS) * BYTES);
        guest.memory.write_all_at(&content, ours).unwrap();
        for (kind, at) in [(OUT, ours), (IN, theirs)] {
            for slot in 0..REQUESTS {
                let offset = u64::from(slot) * BYTES as u64;
                guest.request(slot, kind, offset / 512, RING + at + offset, BYTES as u32).unwrap();
            }
            guest.kick().unwrap();
            // In the middle of them, or of nothing, or before any.
            sleep(Duration::from_micros(150 * round));
            if round % 3 == 2 {
                daemon.stop()
            } else {
                drop(daemon)
            }
            let _ = rustix::io::read(&call, &mut [0; 8]);
            daemon = home.serve();
            daemon.wait_log("web: a client goes on", 1);
            let mut done = 0;
            wait_for("all requests", || {
                done += guest.poll().unwrap();
                (done >= REQUESTS).then_some(())
            });
            assert_eq!(done, REQUESTS);
            assert!((0..REQUESTS).all(|slot| guest.status(slot).unwrap() == 0));
            wait_for("an interrupt", || rustix::io::read(&call, &mut [0; 8]).ok());
        }
        let mut found = vec![0; content.len()];
        guest.memory.read_exact_at(&mut found, theirs).unwrap();
        assert!(found == content, "round {round}");
    }
    drop(guest);
    daemon.wait_log("web: the client went away", 1);
    daemon.stop();
}

#[test]
fn a_virtio_client_whose_rings_are_not_there_any_more_is_sent_away() {
    let (home, _keeper) = kept_with(VIRTIO);
    let daemon = home.serve();
    let load = home.load("web", "--rw randread --bs 4k --iodepth 4 --numjobs 2 --runtime 120");
    daemon.wait_log("web: queue 1 resumes", 1);
    drop(daemon);
    home.configure(&VIRTIO.replace("queues = 2", "queues = 1"));
    let daemon = home.serve();
    daemon.wait_log("web: client disconnected: its messages to an earlier process can't be taken over", 1);
    let (code, report) = load.end();
    assert_ne!(code, Some(0), "{report:#}");
    // The next client is served, and finds nothing of the one before.
    home.load("web", "--rw write --bs 16k --iodepth 8 --verify").expect_clean();
    daemon.stop();
}

#[test]
fn without_the_keeper_a_virtio_client_connects_again() {
    let (home, keeper) = kept_with(VIRTIO);
    let daemon = home.serve();
    let directory = home.runtime_dir().join("web");
    let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let mut guest = Virtio::start_logged(&directory, call.as_fd()).unwrap();
    drop(keeper);
    daemon.wait_log("web: client disconnected: the process that keeps it is gone", 1);
    guest.request(0, OUT, 0, RING + FREE_AT, 4096).unwrap();
    guest.reconnect(&directory, call.as_fd()).unwrap();
    wait_for("the request", || (guest.poll().unwrap() == 1).then_some(()));
    assert_eq!(guest.status(0).unwrap(), 0);
    daemon.stop();
}
