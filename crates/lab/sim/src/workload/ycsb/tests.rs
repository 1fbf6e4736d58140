//! The key-value store against a drive of fixed latency.

use io_model::{Nanos, Op};

use super::super::driver::{Run, drive};
use super::*;

const DISK_BYTES: u64 = 40 << 30;

/// A store of 4 MiB, 1024 times smaller than the default one.
fn small(core: Core) -> Ycsb {
    Ycsb::new(core).scaled_down(1024)
}

fn run(ycsb: &Ycsb, seed: u64, until: Nanos) -> (Run, StatsHandle) {
    let mut store = ycsb.start(DISK_BYTES, seed).expect("valid");
    let run = drive(&mut store.jobs, 10_000, 1_000, until);
    (run, store.stats)
}

fn share(run: &Run, kind: &str) -> f64 {
    let of_kind = run.operations.iter().filter(|operation| operation.kind == kind).count();
    of_kind as f64 / run.operations.len() as f64
}

fn mean_latency_ns(run: &Run, kind: &str) -> f64 {
    let of_kind: Vec<f64> = run
        .operations
        .iter()
        .filter(|operation| operation.kind == kind)
        .map(|operation| operation.latency.0 as f64)
        .collect();
    of_kind.iter().sum::<f64>() / of_kind.len() as f64
}

#[test]
fn the_core_workloads_have_their_mixes() {
    for (core, expected) in [
        (Core::A, [("read", 0.5), ("update", 0.5)]),
        (Core::B, [("read", 0.95), ("update", 0.05)]),
        (Core::C, [("read", 1.0), ("update", 0.0)]),
        (Core::D, [("read", 0.95), ("insert", 0.05)]),
        (Core::E, [("scan", 0.95), ("insert", 0.05)]),
        (Core::F, [("read", 0.5), ("rmw", 0.5)]),
    ] {
        let ycsb = Ycsb { operations: Some(20_000), ..small(core) };
        let (run, _) = run(&ycsb, 1, Nanos::MAX);
        assert_eq!(run.operations.len(), 20_000, "{core:?}");
        for (kind, part) in expected {
            assert!((share(&run, kind) - part).abs() < 0.015, "{core:?} {kind}: {}", share(&run, kind));
        }
    }
}

#[test]
fn what_goes_to_the_drive_is_what_is_counted() {
    for sync in [false, true] {
        let mut ycsb = Ycsb { operations: Some(60_000), ..small(Core::A) };
        ycsb.lsm.sync = sync;
        // Runs until nothing is left to do, background threads included.
        let (run, handle) = run(&ycsb, 2, Nanos::MAX);
        let bytes = |op: Op| -> u64 {
            let all = run.submitted.iter().filter(|io| io.shape.op == op);
            all.map(|io| u64::from(io.shape.len_bytes)).sum()
        };
        let stats = handle.read();
        assert_eq!(bytes(Op::Write), stats.wal_bytes + stats.flush_bytes + stats.compaction_write_bytes);
        let updates = run.operations.iter().filter(|operation| operation.kind == "update").count() as u64;
        assert_eq!(stats.user_bytes, updates * 1024);
        assert_eq!(stats.flush_bytes, stats.user_bytes / ycsb.lsm.memtable_bytes * ycsb.lsm.memtable_bytes);
        assert!(stats.compaction_write_bytes > 0);
        let level_bytes = handle.0.borrow().tree().total_bytes();
        assert_eq!(level_bytes, ycsb.db_bytes() + stats.flush_bytes - stats.dropped_bytes);
        for io in &run.submitted {
            let end = io.shape.offset_bytes + u64::from(io.shape.len_bytes);
            assert!(io.shape.len_bytes > 0 && io.shape.len_bytes.is_multiple_of(4096) && end <= DISK_BYTES);
        }
    }
}

#[test]
fn write_amplification_is_as_stated() {
    // Slow enough for compaction to keep up.
    let cpu = CpuCosts { read: Nanos(100_000), ..small(Core::A).cpu };
    let ycsb = Ycsb { operations: Some(400_000), cpu, ..small(Core::A) };
    let (_, handle) = run(&ycsb, 3, Nanos::MAX);
    let stats = handle.read();
    let log = stats.wal_bytes as f64 / stats.user_bytes as f64;
    assert!((log - 1.0).abs() < 0.02, "each record is logged once: {log}");
    let measured = stats.write_amplification() - log;
    let expected = ycsb.expected_write_amplification();
    assert!((measured / expected - 1.0).abs() < 0.2, "measured {measured}, expected {expected}");
}

#[test]
fn writes_wait_for_a_slow_flush() {
    let mut ycsb =
        Ycsb { operations: Some(20_000), cpu: CpuCosts { write: Nanos(100), ..small(Core::A).cpu }, ..small(Core::A) };
    ycsb.mix = Mix { insert: 100, ..Mix::default() };
    ycsb.lsm.background_depth = 1;
    ycsb.lsm.background_io_bytes = 4096;
    let (run, handle) = run(&ycsb, 4, Nanos::MAX);
    assert_eq!(run.operations.len(), 20_000, "none waits for ever");
    assert!(handle.read().stopped_writes > 0);
    // Two full memtables at most: the drive takes 4 KiB in 11 us, and no more can be written than it takes.
    let flushed_at_least = 20_000 * 1024 - 3 * ycsb.lsm.memtable_bytes;
    assert!(run.end.0 >= flushed_at_least / 4096 * 11_000, "{:?}", run.end);
}

#[test]
fn too_many_files_delay_writes_then_stop_them() {
    let mut ycsb = Ycsb { operations: Some(40_000), ..small(Core::A) };
    ycsb.mix = Mix { insert: 100, ..Mix::default() };
    ycsb.lsm.merge_bytes_per_second = 4_000_000;
    ycsb.lsm.l0_slowdown = 4;
    ycsb.lsm.l0_stop = 6;
    let (run, handle) = run(&ycsb, 5, Nanos::MAX);
    let stats = handle.read();
    assert_eq!(run.operations.len(), 40_000);
    assert!(stats.delayed_writes > 0 && stats.stopped_writes > 0, "{stats:?}");
}

#[test]
fn without_sync_an_update_costs_a_read_and_a_little_more() {
    let (run, _) = run(&small(Core::B), 6, Nanos::from_millis(300));
    let (read, update) = (mean_latency_ns(&run, "read"), mean_latency_ns(&run, "update"));
    assert!((11_000.0..14_000.0).contains(&(update - read)), "read {read}, update {update}");
}

#[test]
fn with_sync_threads_commit_in_groups() {
    let mut ycsb = Ycsb { threads: 8, vcpus: 8, ..small(Core::A) };
    ycsb.mix = Mix { insert: 100, ..Mix::default() };
    ycsb.lsm.sync = true;
    // None fills up meanwhile.
    ycsb.lsm.memtable_bytes = 64 << 20;
    let (run, handle) = run(&ycsb, 7, Nanos::from_millis(20));
    let log_writes = run.submitted.iter().filter(|io| io.job < 8).count();
    let records = handle.read().user_bytes as usize / 1024;
    assert!(records > 3 * log_writes, "{records} records in {log_writes} writes");
    // 12 us of CPU, then at most the rest of one group's write and a write of its own.
    assert!(run.operations.iter().all(|operation| (23_000..=37_000).contains(&operation.latency.0)));
}

#[test]
fn a_larger_cache_leaves_fewer_reads() {
    let reads_with = |cache_bytes| {
        let mut ycsb = Ycsb { operations: Some(20_000), ..small(Core::C) };
        ycsb.lsm.cache_bytes = cache_bytes;
        run(&ycsb, 8, Nanos::MAX).0.submitted.len()
    };
    let reads = [0, 2 << 20, 3 << 20, 5 << 20].map(reads_with);
    // Without a cache each lookup reads, some of them in two levels.
    assert!(reads[0] > 20_000 && reads[0] < 40_000, "{reads:?}");
    assert!(reads[0] > reads[1] && reads[1] > reads[2] && reads[2] > 0, "{reads:?}");
    assert_eq!(reads[3], 0, "all is cached");
}

#[test]
fn the_default_store_hits_its_cache_as_zipf_says() {
    let ycsb = Ycsb { operations: Some(40_000), ..Ycsb::new(Core::C) };
    let (run, _) = run(&ycsb, 9, Nanos::MAX);
    let misses = run.submitted.len() as f64 / 40_000.0;
    assert!((0.05..0.3).contains(&misses), "{misses}");
}

#[test]
fn the_seed_decides_everything() {
    for core in [Core::A, Core::D, Core::E] {
        let of = |seed| run(&small(core), seed, Nanos::from_millis(50)).0;
        assert_eq!(of(1), of(1), "{core:?}");
        assert_ne!(of(1), of(2), "{core:?}");
    }
}

#[test]
fn bad_numbers_are_named() {
    let message = |ycsb: Ycsb| ycsb.validate(DISK_BYTES).map_err(|error| error.to_string());
    let mix = Mix { read: 50, ..Mix::default() };
    let message_of_mix = message(Ycsb { mix, ..small(Core::A) });
    assert_eq!(message_of_mix, Err("the sum of the mix is 50, expected 100".to_owned()));
    let mut odd = small(Core::A);
    odd.lsm.memtable_bytes = 1000;
    assert_eq!(message(odd), Err("memtable_bytes is 1000, expected a multiple of 4096, not too large".to_owned()));
    let too_small = Ycsb::new(Core::A).validate(4 << 30);
    assert!(matches!(too_small, Err(WorkloadError::Space { .. })), "{too_small:?}");
    assert!(Ycsb::new(Core::A).start(4 << 30, 1).is_err());
}
