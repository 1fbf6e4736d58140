//! Whole runs with threads, against controllers in memory, and what they report.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fake_device::{Fake, FakeDevice};
use io_model::QueuePriority;
use load::{JobResult, JobSpec, NvmeDisk, Options, Patience, Rw, Target, report, run};
use nvme_driver::priority_of_this_thread;
use serde_json::Value;

const DISK_BLOCKS: u64 = 2048;

fn target(name: &str, fake: &Fake, specs: Vec<JobSpec>) -> Target<NvmeDisk<FakeDevice>> {
    Target { name: name.into(), disk: NvmeDisk::start(fake.device()).expect("the fake starts"), specs }
}

fn quietly(targets: Vec<Target<NvmeDisk<FakeDevice>>>, options: &Options) -> Vec<JobResult> {
    run(targets, options, &AtomicBool::new(false), &mut |_| {}).expect("the jobs fit")
}

fn spec(rw: Rw) -> JobSpec {
    JobSpec { rw, iodepth: 4, ..JobSpec::default() }
}

#[test]
fn one_thread_drives_several_devices() {
    for threads in [1, 3, 100] {
        let options = Options { threads, patience: Patience::Yield, ..Options::default() };
        let twice = JobSpec { numjobs: 2, ..spec(Rw::RandRead) };
        let fakes = [Fake::new(DISK_BLOCKS), Fake::new(DISK_BLOCKS)];
        let targets =
            vec![target("a", &fakes[0], vec![twice, spec(Rw::Write)]), target("b", &fakes[1], vec![spec(Rw::Read)])];
        let results = quietly(targets, &options);
        let names: Vec<&str> = results.iter().map(|result| result.name.as_str()).collect();
        assert_eq!(names, ["a", "a", "a", "b"]);
        for result in &results {
            assert!(result.is_clean(), "{:?}", result.error);
            assert_eq!(result.totals.ios(), DISK_BLOCKS / 8);
        }
    }
}

#[test]
fn copies_with_verify_share_the_range_out() {
    let fake = Fake::new(DISK_BLOCKS);
    let spec = JobSpec { numjobs: 4, verify: true, ..spec(Rw::Write) };
    let results = quietly(vec![target("a", &fake, vec![spec])], &Options::default());
    assert_eq!(results.len(), 4);
    for result in &results {
        assert!(result.is_clean(), "{result:?}");
        assert_eq!(result.verify.as_ref().unwrap().checked_units, DISK_BLOCKS / 8 / 4);
    }
}

#[test]
fn json_has_the_names_that_fio_gives() {
    let fake = Fake::new(DISK_BLOCKS);
    let spec = JobSpec { name: "mix".into(), rwmixread: 70, verify: true, ..spec(Rw::RandRw) };
    let results = quietly(vec![target("a", &fake, vec![spec])], &Options::default());
    let json = report::json(&results, "1.2.3");
    assert_eq!(json["evenkeel version"], "1.2.3");
    let job = &json["jobs"][0];
    assert_eq!(
        (job["jobname"].as_str(), job["target"].as_str(), job["error"].as_i64()),
        (Some("mix"), Some("a"), Some(0))
    );
    assert_eq!(job["job options"]["rw"], "randrw");
    let mut ios = 0;
    for direction in ["read", "write"] {
        let side = &job[direction];
        let total = side["total_ios"].as_u64().unwrap();
        ios += total;
        assert_eq!(side["io_bytes"].as_u64(), Some(total * 4096));
        assert_eq!(side["io_kbytes"].as_u64(), Some(total * 4));
        for name in ["iops", "bw", "bw_bytes", "runtime"] {
            assert!(side[name].is_number(), "{direction}.{name}");
        }
        for name in ["clat_ns", "lat_ns"] {
            let latency = &side[name];
            assert_eq!(latency["N"].as_u64(), Some(total));
            let value = |value: &Value| value.as_f64().unwrap();
            let (min, mean, max) = (value(&latency["min"]), value(&latency["mean"]), value(&latency["max"]));
            assert!(min <= mean && mean <= max, "{latency}");
            let percentile = |name: &str| value(&latency["percentile"][name]);
            assert!(percentile("50.000000") <= percentile("99.000000"));
            assert!(percentile("99.000000") <= percentile("99.990000"));
            assert!(percentile("99.990000") <= max);
        }
    }
    assert_eq!(ios, DISK_BLOCKS / 8);
    assert_eq!(job["trim"]["total_ios"], 0);
    assert_eq!(job["verify"]["bad_blocks"], 0);
    assert!(job["verify"]["checked_blocks"].as_u64().unwrap() > 0);
    assert!(report::table(&results).contains("verify checked"));
}

#[test]
fn corruption_makes_the_run_fail_and_is_named() {
    let fake = Fake::new(DISK_BLOCKS);
    fake.state().corrupt_next_read = 0xff;
    let spec = JobSpec { verify: true, ..spec(Rw::Write) };
    let results = quietly(vec![target("a", &fake, vec![spec])], &Options::default());
    assert!(!results[0].is_clean());
    let json = report::json(&results, "");
    assert_ne!(json["jobs"][0]["error"], 0);
    assert_eq!(json["jobs"][0]["verify"]["bad_blocks"], 1);
    assert_eq!(json["jobs"][0]["verify"]["mismatches"][0]["offset"], 0);
    assert!(report::table(&results).contains("offset 0: expected the data of write 1"));
}

#[test]
fn a_set_stop_flag_ends_the_run_with_results() {
    let fake = Fake::new(DISK_BLOCKS);
    let spec = JobSpec { runtime: Some(Duration::from_secs(3600)), ..spec(Rw::RandRead) };
    let stop = AtomicBool::new(false);
    let mut ticks = 0;
    let results = run(vec![target("a", &fake, vec![spec])], &Options::default(), &stop, &mut |samples| {
        ticks += 1;
        assert_eq!(samples.len(), 1);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let results = results.unwrap();
    assert_eq!(ticks, 1);
    assert!(results[0].is_clean());
    assert!(results[0].totals.ios() > 0);
}

#[test]
fn a_device_that_vanishes_fails_its_own_jobs_only() {
    let (lost, kept) = (Fake::new(DISK_BLOCKS), Fake::new(DISK_BLOCKS));
    lost.state().stalled = true;
    let targets = vec![target("lost", &lost, vec![spec(Rw::Read)]), target("kept", &kept, vec![spec(Rw::Read)])];
    let results =
        run(targets, &Options::default(), &AtomicBool::new(false), &mut |_| lost.state().gone = true).unwrap();
    let error = results[0].error.as_deref().unwrap();
    assert!(error.contains("is gone"), "{error}");
    assert!(report::table(&results).contains("nothing completed"));
    assert!(results[1].is_clean());
}

#[test]
fn a_device_that_loses_commands_is_given_up_after_the_timeout() {
    let fake = Fake::new(DISK_BLOCKS);
    fake.state().stalled = true;
    let options = Options { timeout: Duration::from_secs(1), ..Options::default() };
    let results = quietly(vec![target("a", &fake, vec![spec(Rw::Read)])], &options);
    let error = results[0].error.as_deref().unwrap();
    assert!(error.contains("no command completed"), "{error}");
}

#[test]
fn queues_have_the_priorities_asked_for_and_results_say_so() {
    use QueuePriority::{High, Low, Medium, Urgent};
    let fake = Fake::new(DISK_BLOCKS).with_arbitration();
    let asked = JobSpec { numjobs: 5, queue_priorities: vec![Urgent, Low, High], ..spec(Rw::Read) };
    let results = quietly(vec![target("a", &fake, vec![asked])], &Options::default());
    let seen: Vec<_> = results.iter().map(|result| result.queue_priority).collect();
    assert_eq!(seen, [Urgent, Low, High, Urgent, Low].map(Some));
    assert_eq!(fake.state().qprios.values().copied().collect::<Vec<_>>(), [0, 3, 1, 0, 3]);
    let json = report::json(&results, "1");
    let names: Vec<&str> = (0..5).filter_map(|job| json["jobs"][job]["queue_priority"].as_str()).collect();
    assert_eq!(names, ["urgent", "low", "high", "urgent", "low"]);
    assert!(report::table(&results).contains("a    low     read"), "{}", report::table(&results));
    // Without a wish: by the I/O priority of the thread that starts the run.
    let results = quietly(vec![target("a", &fake, vec![spec(Rw::Read)])], &Options::default());
    assert_eq!(results[0].queue_priority, Some(priority_of_this_thread()));
    // Where queues have no priorities, a wish is refused, and results are silent.
    let plain = Fake::new(DISK_BLOCKS);
    let results = quietly(vec![target("a", &plain, vec![spec(Rw::Read)])], &Options::default());
    assert_eq!(results[0].queue_priority, None);
    let asked = JobSpec { queue_priorities: vec![Medium], ..spec(Rw::Read) };
    let targets = vec![target("a", &plain, vec![asked])];
    let refused = run(targets, &Options::default(), &AtomicBool::new(false), &mut |_| {});
    assert!(refused.is_err_and(|error| error.is_bad_input()));
}
