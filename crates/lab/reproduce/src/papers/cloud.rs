//! NVMe for cloud VMs: passthrough, shared through the host, or through a polling daemon. `cloud.toml` has the words of
//! its figures.

use policy::{PolicyConfig, Terms};
use sim::{Layout, Report, Scenario};

use super::bench::{EVENKEEL, each, evenkeel, fio, first, least, play, profile, tenant};
use crate::paper::printed;
use crate::report::{Figure, Row};
use crate::runner::{Context, Error};

const DISK_BYTES: u64 = 200 << 30;
const PASSTHROUGH: &str = "passthrough";
const NAMESPACE: &str = "virtio-blk on a namespace";
const VHOST: &str = "SPDK vhost";
/// "Saturates … when using 4 I/O processes" (§3.1).
const JOBS: u16 = 4;
const BANDWIDTH: &str = "4K random read bandwidth (GB/s)";
/// "Low to medium concurrency", in I/Os outstanding.
const MEDIUM: u32 = 16;
/// virtio-blk on a namespace: its share of the drive's peak at low to medium concurrency, at least.
const NAMESPACE_SHARE: f64 = 0.60;

/// One VM with as many vCPUs as jobs.
fn run(context: &Context<'_>, way: &str, jobs: u16, depth: u32, reads: u8) -> Result<Report, String> {
    let drive = profile("pm1725a")?;
    let (layout, policy) = match way {
        PASSTHROUGH => (Layout::SrIov, PolicyConfig::Passthrough),
        NAMESPACE => (Layout::Virtio, PolicyConfig::Passthrough),
        EVENKEEL => (Layout::Evenkeel, evenkeel(&drive)),
        _ => (Layout::Spdk, PolicyConfig::Passthrough),
    };
    let vm = tenant("VM", Terms::default(), jobs, DISK_BYTES, fio(jobs.into(), depth, reads));
    play(&Scenario { layout, policy: policy.into(), ..context.scenario(drive, vec![vm], (100, 400)) })
}

/// Fig. 6 to 8: bandwidth and latency over concurrency.
pub fn scaling(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = context.figure("fig6-8");
    let cases = each([PASSTHROUGH, NAMESPACE, VHOST, EVENKEEL], [1, 2, 4, 8, 16, 32, 64, 128]);
    let seen = context.all(cases, |(way, depth)| run(context, way, JOBS, *depth, 100))?;
    for ((way, depth), report) in seen {
        let outstanding = depth * u32::from(JOBS);
        figure.show(way, outstanding, BANDWIDTH, report.total_bandwidth_bytes_s() / 1e9);
        figure.show(way, outstanding, "p95 latency (µs)", first(&report, |vm| vm.latency.p95_ns as f64 / 1e3));
        figure.show(way, outstanding, "host cores that move commands", report.poller_utilization.iter().sum());
    }
    let direct = figure.curve(PASSTHROUGH, BANDWIDTH);
    let at_least = |way: &str, depths: usize| {
        least(figure.curve(way, BANDWIDTH).iter().zip(&direct).take(depths).map(|(shared, direct)| shared / direct))
    };
    // Depths 1, 2 and 4 are up to medium concurrency.
    let (namespace, vhost) = (at_least(NAMESPACE, 3), at_least(VHOST, 8));
    let percent = |share: f64| format!("at least {:.0} %", share * 100.0);
    figure.demand(
        format!("virtio-blk ≥ {:.0} % of passthrough up to {MEDIUM} outstanding", NAMESPACE_SHARE * 100.0),
        namespace >= NAMESPACE_SHARE,
        percent(namespace),
    );
    figure.demand("vhost ≥ 90 % of passthrough at any concurrency", vhost >= 0.9, percent(vhost));
    Ok(vec![figure])
}

/// Table 2: MiB/s of 32 jobs (psync) through SPDK's vhost-user targets: case, reads in 100, rates.
const TABLE2: [(&str, u8, [f64; 3]); 3] =
    [("read", 100, [764.0, 963.0, 940.0]), ("write", 0, [405.0, 421.0, 415.0]), ("mixed", 50, [294.0, 302.0, 280.0])];

/// Table 2. psync is one I/O at a time.
pub fn table2(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    const RATE: &str = "bandwidth (MiB/s)";
    let mut figure = context.figure("table2");
    let rates = context.all(each(TABLE2, [VHOST, EVENKEEL]), |((_, reads, _), way)| {
        Ok(run(context, way, 32, 1, *reads)?.total_bandwidth_bytes_s() / f64::from(1 << 20))
    })?;
    for (((case, _, prints), way), rate) in rates {
        if way == EVENKEEL {
            figure.show(way, case, RATE, rate);
            continue;
        }
        for (target, print) in ["vhost-user-nvme", "vhost-user-scsi", "vhost-user-blk"].into_iter().zip(prints) {
            figure.push(Row::new(target, case, RATE, rate).against(printed(print), 0.25));
        }
    }
    Ok(vec![figure])
}

/// How long it takes to erase a drive: arithmetic.
pub fn erase(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    /// The drive's sheet (PM1725): sequential read and write, MB/s.
    const SHEET_MB_S: (f64, f64) = (6200.0, 2600.0);
    /// A three-pass erase of 1 TB, minutes.
    const THREE_PASSES: f64 = 40.0;
    let mut figure = context.figure("erase");
    let minutes = |mb_s: f64| 1e6 / mb_s / 60.0;
    let (read, write) = (minutes(SHEET_MB_S.0), minutes(SHEET_MB_S.1));
    let ways = [("at the sheet's sequential rate", 3.0 * write), ("and every pass read back", 3.0 * (write + read))];
    for (way, minutes) in ways {
        let row = Row::new(way, "three passes", "minutes for 1 TB", minutes);
        figure.push(row.against(printed(THREE_PASSES), 0.25));
    }
    Ok(vec![figure])
}
