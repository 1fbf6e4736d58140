//! Fig. 16: block sizes.

use sim::workload::{Access, BlockSize, Fio, Pattern, Workload};

use super::systems::{Drive, System, alike, assumptions, native_means, run, scenario, slowdowns};
use crate::paper::Paper;
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

const DRIVE: Drive = Drive::P3520;
const VMS: usize = 8;
const SIZES_BYTES: [u32; 7] = [512, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// "Intensive": 4 jobs of depth 32, as in the twelve cases.
const INTENSE: (u32, u32) = (4, 32);

const PATTERNS: [(&str, Pattern, u8); 2] =
    [("sequential read", Pattern::Sequential, 100), ("random write", Pattern::Random, 0)];

fn workload(pattern: Pattern, read_percent: u8, bytes: u32) -> Workload {
    let block_sizes = vec![BlockSize { bytes, weight: 1 }];
    let access = Access { read_percent, pattern, block_sizes, working_set_bytes: None };
    Workload::Fio(Fio { jobs: INTENSE.0, iodepth: INTENSE.1, access })
}

fn size_name(bytes: u32) -> String {
    if bytes < 1024 { format!("{bytes}B") } else { format!("{}K", bytes / 1024) }
}

/// The figure.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = Figure::new(Paper::FairNvme, "fig16", "Eight VMs over block sizes, P3520");
    figure.shows = "Mean latency and worst slowdown from 512 B to 64 KiB, n4d32. The paper's figure has no numbers: \
                    latency grows from 4K on, and below 4K it does not shrink."
        .into();
    figure.goal = "latency grows with every size above 4K".into();
    figure.assumptions = assumptions(DRIVE);
    figure.assume(
        "The drive's profile serves less than 4 KiB in the time of 4 KiB; what a drive does to write part of \
         a page is not modelled.",
    );
    for (name, pattern, read_percent) in PATTERNS {
        let workloads = SIZES_BYTES.map(|bytes| workload(pattern, read_percent, bytes));
        let native_ns = native_means(context, DRIVE, &workloads)?;
        let cases: Vec<(System, usize)> = System::SHARED
            .into_iter()
            .flat_map(|system| (0..workloads.len()).map(move |size| (system, size)))
            .collect();
        let label =
            |(system, size): &(System, usize)| format!("{name} of {} B on {}", SIZES_BYTES[*size], system.name());
        let reports = context.all(&cases, label, |(system, size)| {
            run(&scenario(context, *system, DRIVE, &alike(&workloads[*size], VMS)))
        })?;
        let (mean, slowdown) = (format!("{name}: mean latency (µs)"), format!("{name}: maximum slowdown"));
        for ((system, size), report) in cases.iter().zip(&reports) {
            let means = report.tenants.iter().map(|tenant| tenant.latency.mean_ns / 1e3);
            let (x, vms) = (size_name(SIZES_BYTES[*size]), report.tenants.len() as f64);
            figure.push(Row::new(system.name(), x.as_str(), &mean, means.sum::<f64>() / vms));
            let worst = slowdowns(report, &[native_ns[*size]; VMS]).into_iter().fold(f64::NAN, f64::max);
            figure.push(Row::new(system.name(), x, &slowdown, worst));
        }
        let ours: Vec<f64> = SIZES_BYTES
            .iter()
            .filter(|bytes| **bytes >= 4 << 10)
            .filter_map(|bytes| figure.ours(System::FairNvme.name(), &size_name(*bytes).into(), &mean))
            .collect();
        let grows = ours.iter().zip(ours.iter().skip(1)).all(|(small, large)| large > small);
        let saw: Vec<String> = ours.iter().map(|us| format!("{us:.0}")).collect();
        figure.demand(
            format!("{name}: FairNVMe's latency grows from 4K to 64K"),
            grows,
            format!("{} µs", saw.join(", ")),
        );
        figure.plots.push(Plot::lines(&mean, "block size").log_y());
        figure.plots.push(Plot::bars(&slowdown, "block size"));
    }
    Ok(vec![figure])
}
