//! The table: what is seen, how it is staged, the right culprit, and a part of the evidence.

use io_model::Nanos;
use planner::{Load, Size};
use policy::{Class, Floor, Percentile};

use super::{Staged, did, neighbour, promised};
use crate::ceilings::Ceiling;
use crate::verdict::{Lateness, Measured, Party};

pub(super) type Row = (&'static str, fn(&mut Staged), &'static str, &'static str);

fn limit_of(group: Option<&str>) -> Ceiling {
    Ceiling { limits: "1k IOPS".to_owned(), group: group.map(str::to_owned) }
}

/// What is seen, how it is staged, the right culprit, and a part of the evidence.
pub(super) const SITUATIONS: &[Row] = &[
    ("nothing else changed", |_| (), "drive", "it took 180 µs for a command, usually 50.0 µs, and no tenant did more"),
    // The drive does not answer.
    ("the drive hangs", |s| s.overdue = 3, "drive", "it has had 3 commands for more than 10 s"),
    (
        "the drive hangs, and batch grew",
        |s| {
            s.overdue = 3;
            s.batch_grows();
        },
        "drive",
        "it has had 3 commands",
    ),
    // Own limits and demand.
    (
        "own limits hold it",
        |s| {
            s.own.held_to = Some(limit_of(None));
            s.own.now.served = Nanos(50_000);
        },
        "own",
        "its commands wait 150 µs in its queue, because it is limited to 1k IOPS",
    ),
    (
        "own limits hold it, and batch grew",
        |s| {
            s.own.held_to = Some(limit_of(None));
            s.own.now.served = Nanos(50_000);
            s.batch_grows();
        },
        "own",
        "limited to 1k IOPS",
    ),
    (
        "the limits of its group hold it, and batch grew",
        |s| {
            s.own.held_to = Some(limit_of(Some("vm7")));
            s.own.now.served = Nanos(50_000);
            s.batch_grows();
        },
        "own",
        "because its group \"vm7\" is limited to 1k IOPS",
    ),
    ("limits are reached, and it does not wait", |s| s.own.held_to = Some(limit_of(None)), "drive", "it took"),
    (
        "more outstanding than declared",
        |s| {
            s.declares(Load::Closed { depth: 1 });
            s.own.now.iops = 100_000.0;
        },
        "own",
        "it keeps 20 commands outstanding, 1 are declared",
    ),
    (
        "a higher rate than declared",
        |s| {
            s.declares(Load::Open { rate_iops: 500.0 });
            s.batch_grows();
        },
        "own",
        "it asks 1000 times a second, 500 are declared",
    ),
    (
        "larger commands than declared",
        |s| {
            s.declares(Load::Open { rate_iops: 1e3 });
            s.own.now.mean_len_bytes = 65_536.0;
        },
        "own",
        "its commands have 64.0 KiB in the mean, 4.0 are declared",
    ),
    ("excess within the tolerance", |s| s.declares(Load::Open { rate_iops: 950.0 }), "drive", "it took"),
    (
        "more than declared, and the poller stood still",
        |s| {
            s.declares(Load::Open { rate_iops: 500.0 });
            s.own.now.lateness = Lateness { late: 0.5, stalled: 0.47 };
        },
        "own",
        "500 are declared; of its late commands, 50.0 % of all, 94 % were late only because",
    ),
    // The host.
    ("a restart", |s| s.host.restart = Some("for 15 ms no daemon served it".into()), "host", "restart: "),
    (
        "a restart, and batch grew",
        |s| {
            s.host.restart = Some("…".into());
            s.batch_grows();
        },
        "neighbour batch",
        "it did",
    ),
    (
        "94 % of the late commands stalled",
        |s| s.own.now.lateness = Lateness { late: 0.627, stalled: 0.59 },
        "host",
        "of all, 94 % were late only because its poller stood still, 6 % for another reason",
    ),
    (
        "94 % of the late commands stalled, and batch grew",
        |s| {
            s.own.now.lateness = Lateness { late: 0.627, stalled: 0.59 };
            s.batch_grows();
        },
        "host",
        "94 %",
    ),
    (
        "34 late in a thousand, 32 of them stalled, and batch grew",
        |s| {
            s.own.now.lateness = Lateness { late: 0.034, stalled: 0.032 };
            s.batch_grows();
        },
        "host",
        "94 %",
    ),
    (
        "kept without the stalled ones, which are the smaller part",
        |s| {
            s.own.now.lateness = Lateness { late: 0.012, stalled: 0.003 };
            s.batch_grows();
        },
        "host",
        "25 %",
    ),
    (
        "broken without the stalled ones too",
        |s| {
            s.own.now.lateness = Lateness { late: 0.012, stalled: 0.001 };
            s.batch_grows();
        },
        "neighbour batch",
        "8 %",
    ),
    (
        "few of many late commands stalled",
        |s| {
            s.own.now.lateness = Lateness { late: 0.3, stalled: 0.015 };
            s.batch_grows();
        },
        "neighbour batch",
        "5 %",
    ),
    (
        "a promise for 999 of 1000 allows less",
        |s| {
            let percentile = Percentile::new(99.9).expect("in the range");
            s.own.asks.class = Class::Guaranteed { latency_target: Some(Nanos(100_000)), percentile };
            s.own.now.lateness = Lateness { late: 0.012, stalled: 0.003 };
            s.batch_grows();
        },
        "neighbour batch",
        "25 %",
    ),
    (
        "no target, pollers waited for a third of the time, and batch grew",
        |s| {
            s.without_target();
            s.host.cpu_waited = 0.3;
            s.batch_grows();
        },
        "host",
        "pollers waited 30.0 % of the time",
    ),
    (
        "no target, pollers waited for a fifth of the time, batch grew, and a busy tenant became seven times slower",
        |s| {
            s.without_target();
            s.host.cpu_waited = 0.186;
            s.host.cpu_waited_usually = Some(0.092);
            s.own.now = did(2_000.0, 4.0, 400, 390);
            s.batch_grows();
        },
        "neighbour batch",
        "; and pollers waited 18.6 % of the time for a CPU, usually 9.2 %",
    ),
    (
        "no target, pollers waited for half of the time, batch grew, and a busy tenant became twice as slow",
        |s| {
            s.without_target();
            s.host.cpu_waited = 0.5;
            s.own.now = did(5_000.0, 4.0, 120, 110);
            s.batch_grows();
        },
        "host",
        "pollers waited 50.0 %",
    ),
    (
        "no target, pollers waited a little, and batch grew",
        |s| {
            s.without_target();
            s.host.cpu_waited = 0.02;
            s.batch_grows();
        },
        "neighbour batch",
        "; and pollers waited 2.0 %",
    ),
    (
        "no target, pollers waited as always, and batch grew",
        |s| {
            s.without_target();
            s.host.cpu_waited = 0.3;
            s.host.cpu_waited_usually = Some(0.25);
            s.batch_grows();
        },
        "neighbour batch",
        "it did",
    ),
    (
        "pollers waited a little, and nobody grew",
        |s| {
            s.without_target();
            s.host.cpu_waited = 0.02;
        },
        "host",
        "pollers waited 2.0 % of the time for a CPU, usually 0.0 %, and no tenant did more than usual",
    ),
    // Load.
    (
        "batch grew",
        Staged::batch_grows,
        "neighbour batch",
        "it did 10000 commands a second of 64KiB (655.4 MB/s), usually 1000",
    ),
    (
        "two grew, scan more",
        |s| {
            let usual = did(100.0, 64.0, 300, 250);
            s.batch_grows();
            s.neighbours.push(neighbour("scan", did(20_000.0, 64.0, 300, 250), usual));
        },
        "neighbour scan",
        "it did 20000",
    ),
    (
        "a new neighbour",
        |s| {
            let new = Party { usual: None, ..neighbour("new", did(9_000.0, 64.0, 300, 250), Measured::default()) };
            s.neighbours.push(new);
        },
        "neighbour new",
        "it did 9000",
    ),
    ("it grew itself", |s| s.own.now.iops = 90_000.0, "own", "it did itself 90000 commands a second of 4KiB"),
    (
        "it begins, beside a steady neighbour",
        |s| s.own.usual = Some(Measured::default()),
        "neighbour batch",
        "times its share",
    ),
    (
        "it grew more than batch",
        |s| {
            s.batch_grows();
            s.own.now.iops = 400_000.0;
        },
        "own",
        "it did itself 400000",
    ),
    (
        "batch grew more than it",
        |s| {
            s.batch_grows();
            s.own.now.iops = 50_000.0;
        },
        "neighbour batch",
        "it did 10000",
    ),
    (
        "a tiny neighbour doubled",
        |s| {
            s.neighbours.push(neighbour("cron", did(20.0, 4.0, 300, 250), did(1.0, 4.0, 300, 250)));
        },
        "drive",
        "it took",
    ),
    ("batch does less, the drive is slower", |s| s.neighbours[0].now.iops = 100.0, "drive", "it took"),
    // No history: shares and declared demand.
    ("nothing is usual yet", Staged::no_history, "neighbour batch", "times its share"),
    (
        "nothing is usual yet, scan exceeds what it declared",
        |s| {
            let mut scan = neighbour("scan", did(500.0, 4.0, 300, 250), Measured::default());
            (scan.asks.load, scan.is_assumed) = (Load::Open { rate_iops: 100.0 }, false);
            s.neighbours.push(scan);
            s.no_history();
            (s.neighbours[0].asks.load, s.neighbours[0].is_assumed) = (Load::Open { rate_iops: 1_000.0 }, false);
            s.neighbours[0].asks.sizes = vec![Size { len_bytes: 65_536, part: 1.0 }];
        },
        "neighbour scan",
        "it asks 500 times a second, 100 are declared",
    ),
    (
        "it is alone",
        |s| {
            s.neighbours.clear();
            s.no_history();
        },
        "drive",
        "it takes 180 µs for a command, and no other tenant",
    ),
    (
        "it is alone, and waits for its poller",
        |s| {
            s.neighbours.clear();
            s.no_history();
            s.own.now.served = Nanos(20_000);
        },
        "host",
        "its commands wait 180 µs for a poller before the drive has them for 20.0 µs",
    ),
    (
        "it is alone, and pollers waited for a fifth of the time",
        |s| {
            s.neighbours.clear();
            s.no_history();
            s.host.cpu_waited = 0.2;
        },
        "host",
        "its pollers waited 20 % of the time for a CPU, and no other tenant",
    ),
    (
        "it is alone, pollers waited, and commands took seconds",
        |s| {
            s.neighbours.clear();
            s.no_history();
            s.host.cpu_waited = 0.2;
            s.own.now = Measured { lateness: s.own.now.lateness, ..did(0.5, 4.0, 2_000_000, 2_000_000) };
        },
        "drive",
        "it takes 2.0 s",
    ),
    // Minimums.
    (
        "short of its minimum beside a promise",
        |s| {
            s.no_history();
            s.without_target();
            s.own.asks.floor = Floor { ios_per_sec: 5_000, mbytes_per_sec: 0 };
            s.neighbours[0].asks.class = promised();
        },
        "neighbour batch",
        "it got 1000 commands a second and 4.1 MB/s of 5k IOPS, beside 66 MB/s",
    ),
    (
        "short of its minimum beside best effort",
        |s| {
            s.no_history();
            s.without_target();
            s.own.asks.floor = Floor { ios_per_sec: 5_000, mbytes_per_sec: 0 };
        },
        "drive",
        "and the drive takes 180 µs for a command",
    ),
    (
        "short of its minimum, pollers waited",
        |s| {
            s.no_history();
            s.without_target();
            s.own.asks.floor = Floor { ios_per_sec: 5_000, mbytes_per_sec: 0 };
            s.host.cpu_waited = 0.3;
        },
        "host",
        "pollers waited 30.0 %",
    ),
    // No promise.
    (
        "slow without a target, in its own queue",
        |s| {
            s.without_target();
            s.own.now.served = Nanos(50_000);
        },
        "",
        "",
    ),
    ("slow without a target, in the drive", Staged::without_target, "drive", "it took 180 µs"),
    // With a model. The target is 100 µs.
    (
        "more than the target bears even alone",
        |s| {
            s.model = Some((150, 300));
            s.batch_grows();
        },
        "own",
        "with 200 of its commands outstanding, 99 of 100 would take up to 150 µs even alone, and the target is 100 µs",
    ),
    (
        "load explains less than the target",
        |s| {
            s.model = Some((60, 90));
            s.no_history();
        },
        "drive",
        "it takes 180 µs for a command, and its profile says 45.0 µs at this load",
    ),
    (
        "the drive is far slower than its profile at this load, and batch grew",
        |s| {
            s.model = Some((60, 90));
            s.batch_grows();
        },
        "drive",
        "its profile says 45.0 µs at this load",
    ),
    (
        "load explains the latency, and batch grew",
        |s| {
            s.model = Some((60, 300));
            s.batch_grows();
        },
        "neighbour batch",
        "it did",
    ),
    (
        "load explains the latency, and nothing is usual yet",
        |s| {
            s.model = Some((60, 300));
            s.no_history();
        },
        "neighbour batch",
        "times its share",
    ),
    (
        "load explains nothing, and commands wait",
        |s| {
            s.model = Some((60, 90));
            s.no_history();
            s.own.now.served = Nanos(40_000);
        },
        "host",
        "its commands wait 160 µs for a poller before the drive has them for 40.0 µs, and the load that there is",
    ),
];
