//! The workloads against a drive of fixed latency.

use std::sync::Arc;

use io_model::{Nanos, Op};

use super::driver::{Run, drive};
use super::*;
use crate::Shape;

const DISK_BYTES: u64 = 1 << 30;
const SECOND: Nanos = Nanos(1_000_000_000);

fn run(workload: &Workload, seed: u64, until: Nanos) -> Run {
    workload.validate(DISK_BYTES).expect("valid");
    let mut jobs = workload.jobs(DISK_BYTES, seed);
    drive(&mut jobs, 10_000, until)
}

fn read_share(run: &Run) -> f64 {
    let reads = run.submitted.iter().filter(|io| io.shape.op == Op::Read).count();
    reads as f64 / run.submitted.len() as f64
}

#[test]
fn fio_keeps_its_depth_and_its_mix() {
    let run = run(&Workload::Fio(Fio::random_4k(3, 8, 70)), 1, Nanos(SECOND.0 / 5));
    assert_eq!(run.deepest, [8, 8, 8]);
    // 24 outstanding, 10 us each.
    assert_eq!(run.submitted.len(), 24 * 20_001);
    assert!((read_share(&run) - 0.7).abs() < 0.002, "{}", read_share(&run));
    let mut tenths = [0u32; 10];
    for io in &run.submitted {
        assert_eq!((io.shape.len_bytes, io.shape.offset_bytes % 4096), (4096, 0));
        assert!(io.shape.offset_bytes + 4096 <= DISK_BYTES);
        tenths[(io.shape.offset_bytes * 10 / DISK_BYTES) as usize] += 1;
    }
    for tenth in tenths {
        assert!((f64::from(tenth) / run.submitted.len() as f64 - 0.1).abs() < 0.002, "{tenths:?}");
    }
}

#[test]
fn fio_follows_its_block_sizes() {
    let block_sizes = vec![BlockSize { bytes: 4096, weight: 3 }, BlockSize { bytes: 65_536, weight: 1 }];
    let access = Access { block_sizes, working_set_bytes: Some(1 << 20), ..Access::random_4k(100) };
    let run = run(&Workload::Fio(Fio { jobs: 1, iodepth: 4, access }), 2, Nanos::from_millis(200));
    let large = run.submitted.iter().filter(|io| io.shape.len_bytes == 65_536).count();
    assert!((large as f64 / run.submitted.len() as f64 - 0.25).abs() < 0.01, "{large}");
    for io in &run.submitted {
        assert_eq!(io.shape.op, Op::Read);
        assert!(io.shape.offset_bytes + u64::from(io.shape.len_bytes) <= 1 << 20);
    }
    // Both ends of the working set are reached.
    assert!(run.submitted.iter().any(|io| io.shape.offset_bytes == 0));
    assert!(run.submitted.iter().any(|io| io.shape.offset_bytes == (1 << 20) - 4096));
}

/// Reads, writes, nothing: a millisecond each.
fn changing() -> Phases {
    let kinds = [Some(Access::random_4k(100)), Some(Access::random_4k(0)), None];
    let phases = kinds.map(|access| Phase { lasts: Nanos::from_millis(1), access });
    Phases { jobs: 2, iodepth: 4, phases: phases.to_vec() }
}

#[test]
fn phases_come_at_their_times_and_pauses_are_told_apart() {
    let run = run(&Workload::Phases(changing()), 1, Nanos::from_millis(5));
    assert_eq!(run.deepest, [4, 4]);
    for io in &run.submitted {
        let phase = io.at.0 / 1_000_000 % 3;
        assert!(phase < 2, "at {}", io.at.0);
        assert_eq!(io.shape.op, if phase == 0 { Op::Read } else { Op::Write }, "at {}", io.at.0);
    }
    // The first I/Os of both jobs, at the start and after the pause.
    let waking = run.operations.iter().filter(|operation| operation.kind == WAKING).count();
    assert_eq!(waking, 2 * 2 * 19);
    assert_eq!(run.operations.len(), run.operations.iter().filter(|it| it.kind == AWAKE).count() + waking);
}

#[test]
fn sequential_jobs_stay_in_their_parts_and_wrap() {
    let access = Access { pattern: Pattern::Sequential, working_set_bytes: Some(1 << 20), ..Access::random_4k(50) };
    let run = run(&Workload::Fio(Fio { jobs: 4, iodepth: 2, access }), 3, Nanos::from_millis(5));
    let part = (1 << 20) / 4;
    for job in 0..4 {
        let places: Vec<u64> =
            run.submitted.iter().filter(|io| io.job == job).map(|io| io.shape.offset_bytes).collect();
        assert!(places.len() as u64 > 2 * part / 4096);
        for (index, place) in (0u64..).zip(places) {
            assert_eq!(place, job as u64 * part + index * 4096 % part);
        }
    }
}

#[test]
fn poisson_arrivals_have_their_rate_and_spread() {
    let run = run(&Workload::Open(Open::random_4k(4, 50_000.0, 30)), 4, SECOND);
    // Within four standard deviations of 50,000.
    assert!((run.submitted.len() as f64 - 50_000.0).abs() < 900.0, "{}", run.submitted.len());
    let arrivals: Vec<u64> = run.submitted.iter().map(|io| io.since.expect("open loops say since when").0).collect();
    let mut per_ms = [0f64; 1000];
    for arrival in arrivals {
        per_ms[(arrival / 1_000_000).min(999) as usize] += 1.0;
    }
    let variance = per_ms.iter().map(|count| (count - 50.0).powi(2)).sum::<f64>() / 1000.0;
    assert!((40.0..60.0).contains(&variance), "a Poisson count's variance is its mean, 50: {variance}");
}

#[test]
fn constant_arrivals_are_evenly_spaced_over_the_jobs() {
    let open = Open { arrivals: Arrivals::Constant { iops: 1e5 }, ..Open::random_4k(4, 1.0, 50) };
    let run = run(&Workload::Open(open), 5, Nanos::from_millis(10));
    for (index, io) in (0u64..).zip(&run.submitted) {
        assert_eq!((io.at.0, io.since), (index * 10_000, Some(io.at)));
        assert_eq!(io.job as u64, index % 4);
    }
    assert_eq!(run.submitted.len(), 1001);
}

#[test]
fn bursts_stop_between() {
    let (on, off) = (Nanos::from_millis(2), Nanos::from_millis(8));
    let open = Open { arrivals: Arrivals::Bursts { iops: 1e5, on, off }, ..Open::random_4k(2, 1.0, 50) };
    let run = run(&Workload::Open(open), 6, SECOND);
    assert!(run.submitted.iter().all(|io| io.at.0 % 10_000_000 < 2_000_000));
    assert!((run.submitted.len() as f64 - 20_000.0).abs() < 600.0, "{}", run.submitted.len());
}

#[test]
fn an_arrival_beyond_the_limit_waits_and_is_timed_from_its_arrival() {
    let arrivals = Arrivals::Constant { iops: 1e6 };
    let open = Open { arrivals, max_outstanding: 2, ..Open::random_4k(1, 1.0, 50) };
    let run = run(&Workload::Open(open), 7, Nanos::from_millis(1));
    assert_eq!(run.deepest, [2]);
    for (index, io) in (0u64..).zip(&run.submitted) {
        assert_eq!(io.since, Some(Nanos(index * 1000)), "arrivals keep their own clock");
        assert!(io.at >= Nanos(index * 1000));
    }
    let last = run.submitted.last().expect("some");
    assert!(last.at.0 - last.since.expect("open").0 > 500_000, "the queue grew: {last:?}");
}

#[test]
fn webuser_wanders_around_its_mean() {
    let webuser = Webuser::default();
    let run = run(&Workload::Webuser(webuser.clone()), 8, Nanos(60 * SECOND.0));
    let mean = run.submitted.len() as f64 / 60.0;
    assert!((mean / webuser.mean_iops - 1.0).abs() < 0.15, "{mean}");
    assert!((read_share(&run) - 0.25).abs() < 0.01);
    let mut tenths = [0f64; 600];
    for io in &run.submitted {
        tenths[(io.at.0 / 100_000_000).min(599) as usize] += 10.0;
    }
    let (least, most) = tenths.iter().fold((f64::MAX, 0f64), |(least, most), rate| (least.min(*rate), most.max(*rate)));
    // The rate goes from nothing to twice the mean; half a slow period, a tenth of a second, sees nearly all of that.
    assert!(least < 2_000.0, "{least}");
    assert!((6_000.0..8_600.0).contains(&most), "{most}");
}

fn sample_trace() -> Arc<[Request]> {
    let request =
        |time_ns, op, offset_bytes, len_bytes| Request { time_ns, shape: Shape { op, offset_bytes, len_bytes } };
    let requests = [(0, Op::Read, 0, 4096), (1_000, Op::Write, 8192, 8192), (3_000, Op::Read, 4096, 512)];
    requests.map(|(time_ns, op, offset_bytes, len_bytes)| request(time_ns, op, offset_bytes, len_bytes)).into()
}

#[test]
fn replay_is_exact() {
    let run = run(&Workload::Replay(Replay::new(sample_trace())), 9, SECOND);
    let seen: Vec<_> = run.submitted.iter().map(|io| (io.at.0, io.shape.op, io.shape.offset_bytes)).collect();
    assert_eq!(seen, [(0, Op::Read, 0), (1000, Op::Write, 8192), (3000, Op::Read, 4096)]);
    let lens: Vec<_> = run.submitted.iter().map(|io| io.shape.len_bytes).collect();
    assert_eq!(lens, [4096, 8192, 512]);
    assert!(run.submitted.iter().all(|io| io.since == Some(io.at)));
    assert_eq!(run.end, Nanos(13_000), "it ends with the last completion");
}

#[test]
fn replay_loops_and_scales() {
    // A round lasts 3 us and a mean gap of 1.5 us; twice as fast, 2.25 us.
    let replay = Replay { looping: true, speed: 2.0, jobs: 2, ..Replay::new(sample_trace()) };
    let run = run(&Workload::Replay(replay), 10, Nanos(6_500));
    let seen: Vec<_> = run.submitted.iter().map(|io| (io.at.0, io.job, io.shape.offset_bytes)).collect();
    let expected = [
        (0, 0, 0),
        (500, 1, 8192),
        (1500, 0, 4096),
        (2250, 1, 0),
        (2750, 0, 8192),
        (3750, 1, 4096),
        (4500, 0, 0),
        (5000, 1, 8192),
        (6000, 0, 4096),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn replay_refuses_what_it_cannot_do() {
    let replay = Workload::Replay(Replay::new(sample_trace()));
    let past_end = WorkloadError::PastEnd { end_bytes: 16_384, disk_bytes: 12_288 };
    assert_eq!(replay.validate(12_288), Err(past_end));
    assert!(replay.jobs(12_288, 1).is_empty());
    let looping = Replay { looping: true, ..Replay::new(sample_trace()[..1].into()) };
    assert_eq!(Workload::Replay(looping).validate(DISK_BYTES), Err(WorkloadError::NoSpan));
}

#[test]
fn idle_has_no_jobs() {
    assert!(Workload::Idle.jobs(DISK_BYTES, 0).is_empty());
    assert_eq!(Workload::Idle.validate(0), Ok(()));
}

#[test]
fn the_seed_decides_everything() {
    let bursts = Arrivals::Bursts { iops: 2e5, on: Nanos(300_000), off: Nanos(700_000) };
    let workloads = [
        Workload::Fio(Fio::random_4k(2, 3, 50)),
        Workload::Open(Open { arrivals: bursts, ..Open::random_4k(2, 1.0, 50) }),
        Workload::Phases(changing()),
        Workload::Webuser(Webuser::default()),
    ];
    for workload in workloads {
        let until = Nanos::from_millis(20);
        assert_eq!(run(&workload, 1, until), run(&workload, 1, until), "{workload:?}");
        assert_ne!(run(&workload, 1, until), run(&workload, 2, until), "{workload:?}");
    }
}

#[test]
fn bad_numbers_are_named() {
    let fio = |iodepth, access| Workload::Fio(Fio { jobs: 1, iodepth, access });
    let sized = |bytes| Access { block_sizes: vec![BlockSize { bytes, weight: 1 }], ..Access::random_4k(50) };
    let open = |iops| Workload::Open(Open::random_4k(1, iops, 50));
    let webuser = |swing| Workload::Webuser(Webuser { swing, ..Webuser::default() });
    for (workload, expected) in [
        (fio(0, Access::random_4k(50)), "iodepth is 0, expected 1 to 65536"),
        (fio(1, Access::random_4k(101)), "read_percent is 101, expected 0 to 100"),
        (fio(1, sized(1000)), "block size is 1000, expected a multiple of 512, up to 16 MiB"),
        (fio(1, Access { block_sizes: vec![], ..Access::random_4k(50) }), "block_sizes is empty"),
        (open(f64::NAN), "iops is NaN, expected 0.001 to 100000000"),
        (webuser(1.5), "swing is 1.5, expected 0 to 1"),
    ] {
        let message = workload.validate(DISK_BYTES).map_err(|error| error.to_string());
        assert_eq!(message, Err(expected.to_owned()));
        assert!(workload.jobs(DISK_BYTES, 1).is_empty());
    }
    let small = Workload::Fio(Fio::random_4k(1, 1, 0)).validate(512);
    assert_eq!(small, Err(WorkloadError::Space { jobs: 1, need_bytes: 4096, have_bytes: 512 }));
}
