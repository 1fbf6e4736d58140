//! Results for programs (fio's JSON) and for people.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::stats::{Counts, Direction, JobResult, Latency};

/// fio's default list of percentiles.
const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

/// Errno values that fio's `error` field would hold.
const EIO: i32 = 5;
const EILSEQ: i32 = 84;

/// Everything as fio's `--output-format=json` names it. Times end in `_ns`, `bw` is KiB/s, `bw_bytes`
/// bytes/s, `runtime` ms. `version` goes to `evenkeel version`.
pub fn json(results: &[JobResult], version: &str) -> Value {
    json!({ "evenkeel version": version, "jobs": results.iter().map(job).collect::<Vec<_>>() })
}

fn job(result: &JobResult) -> Value {
    let mut job = json!({
        "jobname": result.name,
        "target": result.target,
        "error": error_number(result),
        "job_runtime": result.runtime_ns / 1_000_000,
        "total_err": result.failed_ios,
        "job options": options(result),
    });
    for direction in Direction::ALL {
        job[direction.name()] = counts(result.totals.of(direction), result);
    }
    if let Some(priority) = result.queue_priority {
        job["queue_priority"] = json!(priority.name());
    }
    if let Some(error) = &result.error {
        job["error_text"] = json!(error);
    }
    if let Some(verify) = &result.verify {
        let mismatches: Vec<Value> = verify
            .mismatches
            .iter()
            .map(|mismatch| json!({ "offset": mismatch.offset_bytes, "text": mismatch.to_string() }))
            .collect();
        job["verify"] = json!({
            "checked_blocks": verify.checked_units,
            "bad_blocks": verify.mismatch_count,
            "mismatches": mismatches,
        });
    }
    job
}

fn error_number(result: &JobResult) -> i32 {
    match &result.verify {
        Some(verify) if verify.mismatch_count > 0 => EILSEQ,
        _ if result.error.is_some() => EIO,
        _ => 0,
    }
}

fn options(result: &JobResult) -> Value {
    let spec = &result.spec;
    let sizes: Vec<String> = spec.block_sizes.shares().iter().map(|(size, share)| format!("{size}/{share}")).collect();
    let mut options = json!({
        "rw": spec.rw.name(),
        "rwmixread": spec.rwmixread,
        "iodepth": spec.iodepth,
        "numjobs": spec.numjobs,
        "ramp_time_ms": spec.ramp_time.as_millis() as u64,
        "randseed": spec.seed,
    });
    match spec.block_sizes.shares() {
        [(only, _)] => options["bs"] = json!(only),
        _ => options["bssplit"] = json!(sizes.join(":")),
    }
    if let Some(rate) = spec.rate_iops {
        options["rate_iops"] = json!(rate);
    }
    if let Some(runtime) = spec.runtime {
        options["runtime_ms"] = json!(runtime.as_millis() as u64);
    }
    options
}

/// `count` per second of `runtime_ns`.
fn per_second(count: u64, runtime_ns: u64) -> f64 {
    if runtime_ns == 0 { 0.0 } else { count as f64 * 1e9 / runtime_ns as f64 }
}

fn counts(counts: &Counts, result: &JobResult) -> Value {
    let bw_bytes = per_second(counts.bytes, result.runtime_ns);
    let mut out = json!({
        "io_bytes": counts.bytes,
        "io_kbytes": counts.bytes >> 10,
        "bw_bytes": bw_bytes as u64,
        "bw": bw_bytes as u64 >> 10,
        "iops": per_second(counts.ios, result.runtime_ns),
        "runtime": if counts.ios > 0 { result.runtime_ns / 1_000_000 } else { 0 },
        "total_ios": counts.ios,
        "clat_ns": latency(&counts.clat),
        "lat_ns": latency(counts.lat()),
    });
    // Intervals are kept for the job as a whole: only a job with one direction can tell whose they are.
    if counts.ios > 0 && counts.ios == result.totals.ios() && !result.interval_iops.is_empty() {
        let samples = &result.interval_iops;
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        out["iops_min"] = json!(samples.iter().copied().fold(f64::INFINITY, f64::min));
        out["iops_max"] = json!(samples.iter().copied().fold(0.0, f64::max));
        out["iops_mean"] = json!(mean);
        out["iops_samples"] = json!(samples.len());
    }
    out
}

fn latency(latency: &Latency) -> Value {
    let mut out = json!({
        "min": latency.min_ns(),
        "max": latency.max_ns(),
        "mean": latency.mean_ns(),
        "stddev": latency.stddev_ns(),
        "N": latency.count(),
    });
    if latency.count() > 0 {
        let percentiles = PERCENTILES.iter().map(|&p| (format!("{p:.6}"), json!(latency.percentile_ns(p))));
        out["percentile"] = Value::Object(percentiles.collect::<Map<_, _>>());
    }
    out
}

/// A latency in µs with three digits that matter.
pub fn micros(ns: f64) -> String {
    let us = ns / 1000.0;
    match us {
        us if us < 10.0 => format!("{us:.2}"),
        us if us < 100.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

/// A table for people: one line per job and direction, then what went wrong.
pub fn table(results: &[JobResult]) -> String {
    let wide = results.iter().map(|result| result.name.len()).max().unwrap_or(0).max("job".len());
    let mut out = String::new();
    // Writing to a string can't fail.
    let _ = writeln!(
        out,
        "{:wide$}  {:6}  {:5}  {:>10}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}",
        "job", "queue", "", "IOPS", "MiB/s", "mean µs", "p50", "p99", "p99.9", "p99.99", "max"
    );
    for result in results {
        for direction in Direction::ALL {
            let counts = result.totals.of(direction);
            if counts.ios > 0 {
                out.push_str(&line(result, direction, counts, wide));
            }
        }
        if result.totals.ios() == 0 {
            let _ = writeln!(out, "{:wide$}  nothing completed", result.name);
        }
    }
    for result in results {
        out.push_str(&remarks(result));
    }
    out
}

fn line(result: &JobResult, direction: Direction, counts: &Counts, wide: usize) -> String {
    let lat = counts.lat();
    let at = |percentile| micros(lat.percentile_ns(percentile) as f64);
    format!(
        "{:wide$}  {:6}  {:5}  {:>10.0}  {:>9.1}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}\n",
        result.name,
        result.queue_priority.map_or("-", io_model::QueuePriority::name),
        direction.name(),
        per_second(counts.ios, result.runtime_ns),
        per_second(counts.bytes, result.runtime_ns) / f64::from(1 << 20),
        micros(lat.mean_ns()),
        at(50.0),
        at(99.0),
        at(99.9),
        at(99.99),
        micros(lat.max_ns() as f64),
    )
}

fn remarks(result: &JobResult) -> String {
    let name = &result.name;
    let mut out = String::new();
    if let Some(error) = &result.error {
        let _ = writeln!(out, "{name}: {error}");
    }
    if result.failed_ios > 0 {
        let _ = writeln!(out, "{name}: {} commands failed", result.failed_ios);
    }
    if let Some(verify) = &result.verify {
        let (checked, bad) = (verify.checked_units, verify.mismatch_count);
        let _ = writeln!(out, "{name}: verify checked {checked} blocks, {bad} bad");
        for mismatch in &verify.mismatches {
            let _ = writeln!(out, "{name}: {mismatch}");
        }
    }
    out
}
