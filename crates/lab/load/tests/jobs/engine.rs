//! Jobs in virtual time, against a controller in memory.

use std::time::Duration;

use fake_device::{BLOCK_BYTES, Fake, FakeDevice};
use load::disk::{Disk, Geometry};
use load::job::shape;
use load::spec::Arrivals;
use load::stats::Totals;
use load::value::{Amount, BlockSizes};
use load::verify::Found;
use load::{Direction, Job, JobSpec, NvmeDisk, NvmeQueue, Rw, Step};
use nvme_driver::Status;
use nvme_spec::opcode::nvm;

const DISK_BLOCKS: u64 = 2048;
const DISK_BYTES: u64 = DISK_BLOCKS * BLOCK_BYTES;
const MS: u64 = 1_000_000;

/// A job and what it runs on.
struct Bench {
    fake: Fake,
    job: Job<NvmeQueue>,
    _disk: NvmeDisk<FakeDevice>,
}

fn bench_on(fake: Fake, spec: &JobSpec) -> Bench {
    let mut disk = NvmeDisk::start(fake.device()).expect("the fake starts");
    let range = spec.range(&disk.geometry(), 0).expect("the job fits the disk");
    let mut queues = disk.open_queues(&[shape(spec, 0)]).expect("the fake has queues and memory");
    let job = Job::new(spec, 0, queues.remove(0), range).expect("the buffers fit");
    Bench { fake, job, _disk: disk }
}

fn bench(spec: &JobSpec) -> Bench {
    bench_on(Fake::new(DISK_BLOCKS), spec)
}

impl Bench {
    /// Steps every `step_ns` of virtual time from 0 on until the job is over; returns its counts.
    fn finish(&mut self, step_ns: u64) -> Box<Totals> {
        self.finish_from(0, step_ns)
    }

    fn finish_from(&mut self, mut now_ns: u64, step_ns: u64) -> Box<Totals> {
        while self.job.step(now_ns) != Step::Finished {
            now_ns += step_ns;
            assert!(now_ns < 1000 * 1000 * MS, "the job does not end");
        }
        self.job.swap_interval(Box::default())
    }
}

fn spec(rw: Rw) -> JobSpec {
    JobSpec { rw, ..JobSpec::default() }
}

fn timed(rw: Rw, ms: u64) -> JobSpec {
    JobSpec { runtime: Some(Duration::from_millis(ms)), ..spec(rw) }
}

#[test]
fn a_job_without_time_limit_moves_its_range_once() {
    for rw in [Rw::Read, Rw::Write, Rw::RandRead, Rw::Trim] {
        let mut bench = bench(&JobSpec { iodepth: 8, offset: Amount::Percent(50), ..spec(rw) });
        let totals = bench.finish(1000);
        assert_eq!(totals.bytes(), DISK_BYTES / 2, "{}", rw.name());
        let state = bench.fake.state();
        let first = state.log.iter().map(|sqe| sqe.slba()).min();
        assert!(rw == Rw::Trim || first >= Some(DISK_BLOCKS / 2));
    }
}

#[test]
fn sequential_jobs_go_in_order_and_wrap() {
    let mut bench = bench(&JobSpec { size: Some(Amount::Bytes(16384)), ..timed(Rw::Read, 10) });
    bench.finish(MS);
    let lbas: Vec<u64> = bench.fake.state().log.iter().map(|sqe| sqe.slba()).collect();
    assert!(lbas.len() >= 8);
    assert!(lbas.iter().zip([0, 8, 16, 24].iter().cycle()).all(|(lba, expected)| lba == expected), "{lbas:?}");
}

#[test]
fn the_queue_is_kept_full() {
    let mut bench =
        bench_on(Fake::new(DISK_BLOCKS).with_mapped_doorbells(), &JobSpec { iodepth: 7, ..timed(Rw::RandRead, 100) });
    for now_ns in 0..50 {
        bench.job.step(now_ns);
        assert_eq!(bench.job.in_flight(), 7);
        bench.fake.scan_doorbells();
    }
    assert_eq!(bench.job.completed_ios(), 49 * 7);
}

#[test]
fn the_mix_is_what_was_asked_for() {
    let spec = JobSpec { rwmixread: 70, iodepth: 16, ..timed(Rw::RandRw, 1000) };
    let totals = bench(&spec).finish(MS);
    let reads = totals.of(Direction::Read).ios as f64 / totals.ios() as f64;
    assert!(totals.ios() > 10_000);
    assert!((0.68..0.72).contains(&reads), "{reads}");
}

#[test]
fn block_sizes_have_their_shares() {
    let block_sizes: BlockSizes = "4k/60:64k/40".parse().unwrap();
    let mut bench = bench(&JobSpec { block_sizes, iodepth: 16, ..timed(Rw::RandRead, 1000) });
    let totals = bench.finish(MS);
    let state = bench.fake.state();
    let small = state.log.iter().filter(|sqe| sqe.nlb() == 7).count() as f64 / state.log.len() as f64;
    assert!(totals.ios() > 10_000);
    assert!((0.58..0.62).contains(&small), "{small}");
    assert!(state.log.iter().all(|sqe| sqe.slba() % 8 == 0));
}

#[test]
fn the_same_seed_sends_the_same_commands() {
    let commands = |seed| {
        let mut bench = bench(&JobSpec { seed, iodepth: 4, ..timed(Rw::RandRw, 100) });
        bench.finish(MS);
        let state = bench.fake.state();
        state.log.iter().map(|sqe| (sqe.opc, sqe.slba(), sqe.cdw12)).collect::<Vec<_>>()
    };
    assert_eq!(commands(1), commands(1));
    assert_ne!(commands(1), commands(2));
}

#[test]
fn a_paced_job_sends_when_commands_are_due() {
    let spec = JobSpec { rate_iops: Some(1000), iodepth: 4, ..timed(Rw::RandRead, 2000) };
    let mut bench = bench(&spec);
    let totals = bench.finish(MS / 10);
    assert_eq!(totals.ios(), 2000);
    assert_eq!(bench.job.measured_ns(), 2000 * MS);
    // Nothing to do until the next is due: the driver of the job may sleep until then.
    let mut bench = self::bench(&spec);
    bench.job.step(0);
    bench.job.step(0);
    assert_eq!(bench.job.step(10), Step::IdleUntil(MS));
}

#[test]
fn poisson_arrivals_keep_the_rate() {
    let spec =
        JobSpec { rate_iops: Some(1000), arrivals: Arrivals::Poisson, iodepth: 64, ..timed(Rw::RandRead, 10_000) };
    let totals = bench(&spec).finish(MS / 10);
    assert!((9_500..10_500).contains(&totals.ios()), "{}", totals.ios());
}

#[test]
fn a_stall_shows_in_the_latency_from_when_commands_were_due() {
    let spec = JobSpec { rate_iops: Some(1000), iodepth: 4, ..timed(Rw::RandRead, 1000) };
    let mut bench = bench_on(Fake::new(DISK_BLOCKS).with_mapped_doorbells(), &spec);
    let mut now_ns = 0;
    while bench.job.step(now_ns) != Step::Finished {
        now_ns += MS / 10;
        // The device is away from 300 ms to 500 ms.
        if !(300 * MS..500 * MS).contains(&now_ns) {
            bench.fake.scan_doorbells();
        }
    }
    let totals = bench.job.swap_interval(Box::default());
    let reads = totals.of(Direction::Read);
    assert_eq!(reads.ios, 1000, "what was due in the stall is made up for");
    assert!(reads.lat().max_ns() >= 199 * MS);
    assert!(reads.lat().count_above(50 * MS) >= 140, "every command that was due suffered");
    assert!(reads.clat.count_above(50 * MS) <= 5, "only those in flight waited for the device");
}

#[test]
fn warm_up_does_not_count() {
    let spec = JobSpec { ramp_time: Duration::from_millis(50), ..timed(Rw::RandRead, 100) };
    let mut bench = bench(&spec);
    let totals = bench.finish(MS);
    let sent = bench.fake.state().log.len() as u64;
    assert_eq!(bench.job.measured_ns(), 100 * MS);
    assert!((99..=101).contains(&totals.ios()), "{}", totals.ios());
    assert!(sent >= 149);
}

#[test]
fn think_time_separates_commands() {
    let spec = JobSpec { think_time: Duration::from_millis(10), ..timed(Rw::RandRead, 1000) };
    let totals = bench(&spec).finish(MS / 10);
    assert!((95..=100).contains(&totals.ios()), "{}", totals.ios());
}

#[test]
fn verify_passes_on_a_faithful_disk() {
    for rw in [Rw::Write, Rw::RandWrite, Rw::RandRw, Rw::ReadWrite] {
        let block_sizes = "4k/50:16k/50".parse().unwrap();
        let spec = JobSpec { verify: true, iodepth: 16, block_sizes, ..timed(rw, 300) };
        let mut bench = bench(&spec);
        bench.finish(MS);
        let result = bench.job.verify_result().unwrap();
        assert!(result.checked_units > 100, "{}", rw.name());
        assert_eq!(result.mismatches, [], "{}", rw.name());
        assert_eq!(bench.job.error(), None);
    }
}

#[test]
fn verify_finds_a_flipped_byte_on_the_disk() {
    let spec = JobSpec { verify: true, iodepth: 4, ..spec(Rw::Write) };
    let mut bench = bench(&spec);
    let is_write = |fake: &Fake| fake.state().log.last().is_none_or(|sqe| sqe.opc == nvm::WRITE);
    let mut now_ns = 0;
    while (bench.fake.state().log.len() as u64) < DISK_BYTES / 4096 {
        assert!(is_write(&bench.fake));
        bench.job.step(now_ns);
        now_ns += 1;
    }
    bench.fake.state().disk[40_960 + 100] ^= 0x20;
    bench.finish(1);
    let result = bench.job.verify_result().unwrap();
    assert_eq!(result.checked_units, DISK_BYTES / 4096);
    assert_eq!(result.mismatch_count, 1);
    assert_eq!(result.mismatches[0].offset_bytes, 40_960);
    assert!(matches!(result.mismatches[0].found, Found::Byte { at: 100, expected, found } if expected ^ found == 0x20));
}

#[test]
fn verify_finds_a_byte_flipped_on_the_way() {
    let spec = JobSpec { verify: true, size: Some(Amount::Bytes(8192)), ..timed(Rw::RandRw, 50) };
    let mut bench = bench(&spec);
    for now_ms in 0..20 {
        bench.job.step(now_ms * MS);
    }
    bench.fake.state().corrupt_next_read = 1;
    bench.finish(MS);
    assert_eq!(bench.job.verify_result().unwrap().mismatch_count, 1);
}

#[test]
fn verify_finds_a_lost_write() {
    let spec = JobSpec { verify: true, size: Some(Amount::Bytes(4096)), ..timed(Rw::Write, 50) };
    let mut bench = bench(&spec);
    let mut run = |from_ms: u64, to_ms: u64| {
        for now_ms in from_ms..to_ms {
            bench.job.step(now_ms * MS);
        }
        bench.fake.state().disk[..4096].to_vec()
    };
    let old = run(0, 10);
    run(10, 50);
    bench.fake.state().disk[..4096].copy_from_slice(&old);
    bench.finish_from(50 * MS, MS);
    let result = bench.job.verify_result().unwrap();
    assert_eq!(result.mismatches[0].expected, Some(50));
    assert_eq!(result.mismatches[0].found, Found::Generation(10));
}

#[test]
fn a_later_read_checks_what_an_earlier_run_left() {
    let fake = Fake::new(DISK_BLOCKS);
    let write = JobSpec { verify: true, seed: 9, iodepth: 4, ..spec(Rw::Write) };
    bench_on(fake.clone(), &write).finish(1);
    let read = JobSpec { rw: Rw::Read, ..write.clone() };
    let check = |spec: &JobSpec| {
        let mut bench = bench_on(fake.clone(), spec);
        bench.finish(1);
        bench.job.verify_result().unwrap()
    };
    let good = check(&read);
    assert_eq!((good.checked_units, good.mismatch_count), (DISK_BYTES / 4096, 0));
    fake.state().disk[4096..8192].fill(0);
    let bad = check(&read);
    assert_eq!(bad.mismatches.iter().map(|mismatch| mismatch.offset_bytes).collect::<Vec<_>>(), [4096]);
    assert_eq!(bad.mismatches[0].found, Found::Zeros);
    assert_eq!(check(&JobSpec { seed: 10, ..read }).mismatch_count, DISK_BYTES / 4096);
}

#[test]
fn the_first_failure_ends_the_job_unless_told_otherwise() {
    let fails_twice = || {
        let fake = Fake::new(DISK_BLOCKS);
        fake.state().failures.extend([Status::SUCCESS, Status::UNRECOVERED_READ, Status::UNRECOVERED_READ]);
        fake
    };
    let mut bench = bench_on(fails_twice(), &timed(Rw::Read, 100));
    let totals = bench.finish(MS);
    assert_eq!((totals.ios(), bench.job.failed_ios()), (1, 1));
    let error = bench.job.error().unwrap();
    assert!(error.starts_with("read of 4096 bytes at offset 4096 failed: UNRECOVERED_READ"), "{error}");

    let spec = JobSpec { continue_on_error: true, ..timed(Rw::Read, 100) };
    let mut bench = bench_on(fails_twice(), &spec);
    let totals = bench.finish(MS);
    assert_eq!(bench.job.failed_ios(), 2);
    assert!(totals.ios() > 90);
}

#[test]
fn impossible_jobs_are_refused_with_a_reason() {
    let disk = Geometry {
        block_bytes: BLOCK_BYTES as u32,
        size_bytes: DISK_BYTES,
        max_transfer_bytes: 1 << 20,
        max_trim_bytes: 1 << 16,
        max_depth: 64,
    };
    let refused_by = |disk: &Geometry, spec: JobSpec| spec.range(disk, 0).unwrap_err().to_string();
    let refused = |spec| refused_by(&disk, spec);
    let sized = |size_bytes| JobSpec { block_sizes: BlockSizes::fixed(size_bytes), ..JobSpec::default() };
    assert!(refused(sized(100)).contains("multiple"));
    assert!(refused(sized(2 << 20)).contains("limit of 1048576"));
    assert!(refused(sized(0)).contains("multiple"));
    let range = |offset, size| JobSpec { offset, size: Some(size), ..JobSpec::default() };
    assert!(refused(range(Amount::Percent(50), Amount::Percent(60))).contains("beyond"));
    assert!(refused(range(Amount::Bytes(u64::MAX - 4096), Amount::Bytes(8192))).contains("beyond"));
    assert!(refused(range(Amount::Bytes(0), Amount::Bytes(512))).contains("smaller"));
    assert!(refused(JobSpec { iodepth: 0, ..JobSpec::default() }).contains("at least 1"));
    assert!(refused(JobSpec { iodepth: 65, ..JobSpec::default() }).contains("iodepth 65"));
    let trim = JobSpec { rw: Rw::Trim, ..sized(1 << 17) };
    assert!(refused(trim.clone()).contains("limit of 65536"));
    assert!(refused_by(&Geometry { max_trim_bytes: 0, ..disk }, trim).contains("can't trim"));
}
