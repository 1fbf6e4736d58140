//! What a guest reads of its own promise.

use api::{Rest, api_path};
use nvme_spec::vendor::{LID_PROMISE, PromiseLog};

use crate::guest::{Guest, pattern};
use crate::harness::wait_for;
use crate::keeper::kept_with;

const CONFIG: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\ncreate = true\nsize = \"64MiB\"\n\
                      [policy]\nname = \"evenkeel\"\n\
                      [[tenant]]\nname = \"db\"\nsize = \"8MiB\"\nclass = \"guaranteed\"\nlatency_target = \"1s\"\n\
                      queues = 2\nthreads = \"per-queue\"\n\
                      [[tenant]]\nname = \"web\"\nsize = \"8MiB\"\n";

fn page(guest: &mut Guest) -> Box<PromiseLog> {
    let log: Box<PromiseLog> = guest.controller.admin().log_page(LID_PROMISE).unwrap();
    assert_eq!((log.magic, log.version), (PromiseLog::MAGIC, PromiseLog::VERSION));
    assert_eq!(log.counts.iter().sum::<u64>(), log.completed);
    log
}

/// Writes and reads a block, as many commands as `count`.
fn work(guest: &mut Guest, count: u64) {
    for round in 0..count / 2 {
        guest.write(round % 64, &pattern(round, 512)).unwrap();
        assert_eq!(guest.read(round % 64, 1).unwrap(), pattern(round, 512));
    }
}

#[test]
fn a_guest_reads_its_own_promise_and_does_so_after_a_kill() {
    const SECOND_NS: u64 = 1_000_000_000;
    let (home, _keeper) = kept_with(CONFIG);
    let daemon = home.serve();
    let neighbour = home.load("web", "--rw randwrite --bs 4k --iodepth 8 --verify --runtime 120");
    let mut guest = home.attach("db");
    assert_eq!((page(&mut guest).completed, page(&mut guest).verdict), (0, 0));
    // A 99th percentile takes a hundred commands to judge.
    work(&mut guest, 120);
    let log = wait_for("a verdict", || Some(page(&mut guest)).filter(|log| log.verdict != 0));
    assert_eq!((log.target_ns, log.percentile_ppm), (SECOND_NS, 990_000));
    assert_eq!((log.completed, log.failed), (120, 0), "none of them is the neighbour's");
    // A host that stands still for a second breaks it.
    assert!(log.verdict == 1 || log.late > 1, "{log:?}");
    assert!(log.day_kept + log.day_broken > 0 && log.at_percentile_ns > 0 && log.judged_span_ns > 0, "{log:?}");
    let rest = Rest::new(api_path(&home.runtime_dir()));
    let disks = rest.disks().unwrap();
    let verdict = disks.iter().find(|disk| disk.name == "db").and_then(|disk| disk.verdict).expect("it was judged");
    assert!(verdict.day_kept + verdict.day_broken > 0, "{verdict:?}");

    drop(daemon);
    home.configure(&CONFIG.replace("\"1s", "\"500ms"));
    let daemon = home.serve();
    daemon.wait_log("db: a client goes on", 1);
    work(&mut guest, 4);
    let log = page(&mut guest);
    assert_eq!((log.target_ns, log.completed, log.day_kept), (SECOND_NS / 2, 4, 0), "it counts anew");
    assert_eq!(neighbour.stop()["jobs"][0]["verify"]["bad_blocks"], 0);
    drop(guest);
    daemon.stop();
}
