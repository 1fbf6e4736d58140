//! Passthrough, a namespace through QEMU, and SPDK vhost, with one VM.

use io_model::Nanos;
use policy::Terms;
use sim::workload::{Fio, Workload};
use sim::{Layout, Report, Scenario, Tenant};
use ssd_model::Profile;

use super::printed::{NAMESPACE_SHARE, TABLE2};
use crate::paper::Paper;
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

const WARMUP: Nanos = Nanos::from_millis(100);
const DURATION: Nanos = Nanos::from_millis(400);
const DISK_BYTES: u64 = 200 << 30;
/// "Saturates … when using 4 I/O processes" (§3.1).
const JOBS: u16 = 4;
const DEPTHS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// "Low to medium concurrency".
const MEDIUM: u32 = 16;
const BANDWIDTH: &str = "4K random read bandwidth (GB/s)";
const LATENCY: &str = "p95 latency (µs)";
const CORES: &str = "host cores that move commands";

const WAYS: [(&str, Layout); 3] =
    [("passthrough", Layout::SrIov), ("virtio-blk on a namespace", Layout::Virtio), ("SPDK vhost", Layout::Spdk)];

const ASSUMPTIONS: [&str; 3] = [
    "Drive: the PM1725a profile; the paper names a Samsung 1725. Host: the default table of costs.",
    "Passthrough is a queue of the drive for each of the VM's queues and nobody in between; virtio-blk is QEMU's main \
     loop; vhost is one polling reactor.",
    "No page cache anywhere. The paper has QEMU write through the host's, which makes virtio-blk look faster than the \
     drive at low concurrency.",
];

fn run(context: &Context<'_>, layout: Layout, vcpus: u16, fio: Fio) -> Result<Report, String> {
    let profile = Profile::by_name("pm1725a").ok_or("no profile pm1725a")?;
    let tenant = Tenant {
        name: "VM".to_owned(),
        terms: Terms::default(),
        vcpus,
        vqs: vcpus,
        queue_priorities: Vec::new(),
        size_bytes: DISK_BYTES,
        workload: Workload::Fio(fio),
    };
    let scenario = Scenario {
        layout,
        tenants: vec![tenant],
        warmup: context.span(WARMUP),
        duration: context.span(DURATION),
        seed: context.seed(),
        ..Scenario::new(profile)
    };
    sim::run(&scenario).map_err(|error| error.to_string())
}

/// Fig. 6 to 8: bandwidth and latency over concurrency.
pub fn scaling(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = Figure::new(Paper::Cloud, "fig6-8", "Passthrough, virtio-blk and vhost over concurrency");
    figure.shows = format!(
        "One VM with {JOBS} vCPUs and as many jobs, as many as it took the paper to saturate its drive; the depth of \
         each grows. The paper's curves have no numbers, its text has: virtio-blk at least {:.0} % of passthrough up \
         to medium concurrency for one host CPU per VM, vhost close to passthrough for one per drive.",
        NAMESPACE_SHARE.value * 100.0
    );
    figure.goal = "the text's two comparisons".into();
    ASSUMPTIONS.iter().for_each(|text| figure.assume(*text));
    figure.assume(format!("\"Low to medium concurrency\" is up to {MEDIUM} I/Os outstanding."));
    let cases: Vec<_> = WAYS.iter().flat_map(|way| DEPTHS.map(|depth| (way, depth))).collect();
    let name = |(way, depth): &(&(&str, Layout), u32)| format!("{} at depth {depth}", way.0);
    let reports = context
        .all(&cases, name, |(way, depth)| run(context, way.1, JOBS, Fio::random_4k(JOBS.into(), *depth, 100)))?;
    for ((way, depth), report) in cases.iter().zip(&reports) {
        let outstanding = depth * u32::from(JOBS);
        let latency = report.tenants.first().map_or(f64::NAN, |tenant| tenant.latency.p95_ns as f64 / 1e3);
        figure.push(Row::new(way.0, outstanding, BANDWIDTH, report.total_bandwidth_bytes_s() / 1e9));
        figure.push(Row::new(way.0, outstanding, LATENCY, latency));
        figure.push(Row::new(way.0, outstanding, CORES, report.poller_utilization.iter().sum()));
    }
    let share = |way: &str, outstanding: u32| {
        let at = |way| figure.ours(way, &outstanding.into(), BANDWIDTH).unwrap_or(f64::NAN);
        at(way) / at(WAYS[0].0)
    };
    let all = || DEPTHS.iter().map(|depth| depth * u32::from(JOBS));
    let virtio = all().filter(|n| *n <= MEDIUM).map(|n| share(WAYS[1].0, n)).fold(f64::INFINITY, f64::min);
    let vhost = all().map(|n| share(WAYS[2].0, n)).fold(f64::INFINITY, f64::min);
    let wanted = NAMESPACE_SHARE.value;
    let percent = |share: f64| format!("at least {:.0} %", share * 100.0);
    figure.demand(
        format!("virtio-blk ≥ {:.0} % of passthrough up to {MEDIUM} outstanding", wanted * 100.0),
        virtio >= wanted,
        percent(virtio),
    );
    figure.demand("vhost ≥ 90 % of passthrough at any concurrency", vhost >= 0.9, percent(vhost));
    if !figure.is_good() {
        figure.deviation = Some(
            "An event loop and a reactor serve as many commands per second as their cost per command allows, and no \
             more. Cheaper commands, or the host's page cache in front of virtio-blk, would close the gap."
                .into(),
        );
    }
    figure.plots.push(Plot::lines(BANDWIDTH, "I/Os outstanding").log_x());
    figure.plots.push(Plot::lines(LATENCY, "I/Os outstanding").log_x().log_y());
    figure.plots.push(Plot::lines(CORES, "I/Os outstanding").log_x());
    Ok(vec![figure])
}

/// psync: one I/O at a time.
const PSYNC_JOBS: u16 = 32;
const RATE: &str = "bandwidth (MiB/s)";
const TOLERANCE: f64 = 0.25;

/// Table 2.
pub fn table2(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = Figure::new(Paper::Cloud, "table2", "32 synchronous jobs through SPDK vhost");
    figure.shows = "4K random I/O, one at a time from each of 32 jobs. The paper compares vhost-user-nvme, -scsi and \
                    -blk; our model of vhost is one, and stands beside each."
        .into();
    figure.goal = format!("within {:.0} %", TOLERANCE * 100.0);
    ASSUMPTIONS[..2].iter().for_each(|text| figure.assume(*text));
    figure.assume("The VM has a vCPU and a queue for every job. The paper prints neither.");
    let rates = context.all(
        &TABLE2,
        |case| case.0.to_owned(),
        |(_, reads, _)| {
            let fio = Fio::random_4k(PSYNC_JOBS.into(), 1, (reads * 100.0) as u8);
            Ok(run(context, Layout::Spdk, PSYNC_JOBS, fio)?.total_bandwidth_bytes_s() / f64::from(1 << 20))
        },
    )?;
    for ((case, _, printed), rate) in TABLE2.iter().zip(rates) {
        for (target, printed) in ["vhost-user-nvme", "vhost-user-scsi", "vhost-user-blk"].into_iter().zip(printed) {
            figure.push(Row::new(target, *case, RATE, rate).against(*printed, TOLERANCE));
        }
    }
    if !figure.is_good() {
        figure.deviation = Some(
            "The printed writes are half of what the drive's sheet promises and the mixed case is slower than either: \
             the signs of a drive that collects garbage, or that programs its flash while it should read. The profile \
             drains at the sheet's rate and reads do not wait for it. A steady-state profile of this very drive would \
             be needed."
                .into(),
        );
    }
    figure.plots.push(Plot::bars(RATE, "case"));
    Ok(vec![figure])
}
