//! Processes of a virtio guest share its disk by their I/O priorities, of which neither the disk nor they know.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::guest::daemon::Daemon;
use crate::guest::lab::Lab;
use crate::guest::prepare::Qemu;
use crate::guest::qemu::{Disk, Guest};

/// So slow that the guest, emulated, always has commands waiting.
const DRIVE: &str = "name = \"slow\"\ndescription = \"one unit\"\narbitration = \"rr\"\nburst = 1\nwindow = 256\n\
                     controller_ns = 0\npipeline_ns = 0\nunits = 1\nplacement = \"hashed\"\nstripe_bytes = 16384\n\
                     read_ns = 2500000\nfurther_ns = 2500000\nlink_read_mb_s = 7200\nlink_write_mb_s = 7200\n\
                     [writes]\nkind = \"in-place\"\nwrite_ns = 2500000\nack_ns = 0\n";
/// The weights of the paper's Section V-D, in KiB a round.
const CONFIG: &str = "runtime_dir = \"DIR/run\"\n[device]\nbackend = \"model\"\nprofile = \"DIR/slow.toml\"\n\
                      size = \"64MiB\"\n[policy]\nname = \"drr\"\nhigh_weight = 128\nmedium_weight = 64\n\
                      low_weight = 32\nmax_in_flight = 4\n";
const TENANT: &str =
    "[[tenant]]\nname = \"NAME\"\nsize = \"32MiB\"\nfrontend = \"vhost-user-blk\"\npriority = \"client\"\n";
const TENANTS: [&str; 2] = ["one", "two"];
/// Seconds of each scenario.
const RUNTIME_S: u32 = 12;
/// When both jobs are under way.
const FROM_MS: u32 = 2000;
/// Of the expected ratio.
const TOLERANCE: f64 = 0.05;

/// Classes of `ionice`.
const REALTIME: u8 = 1;
const BEST_EFFORT: u8 = 2;
const IDLE: u8 = 3;

/// Two jobs at a time: each one's disk, class and blocks.
struct Scenario {
    jobs: [(&'static str, u8, &'static str); 2],
    /// Of their bandwidths, by the weights.
    ratio: f64,
}

/// Jobs of one class have disks of their own: on one disk they take turns by command, whatever its size.
const SCENARIOS: [Scenario; 5] = [
    Scenario { jobs: [("vda", REALTIME, "4k/100"), ("vda", BEST_EFFORT, "8k/100")], ratio: 2.0 },
    Scenario { jobs: [("vda", REALTIME, "4k/100"), ("vdb", REALTIME, "4k/100")], ratio: 1.0 },
    Scenario { jobs: [("vda", REALTIME, "4k/100"), ("vda", IDLE, "8k/100")], ratio: 4.0 },
    Scenario { jobs: [("vda", REALTIME, "8k/100"), ("vdb", IDLE, "4k/100")], ratio: 4.0 },
    Scenario { jobs: [("vda", REALTIME, "4k/50:8k/50"), ("vdb", REALTIME, "8k/50:16k/50")], ratio: 1.0 },
];

/// QoS for NVMe, Section V-D: nothing is changed between the scenarios but the jobs' own sizes and priorities.
pub fn by_ionice(lab: &mut Lab) -> Result<()> {
    // What stands in for Evenkeel has no priorities.
    let Some(binary) = lab.binary() else { return Ok(()) };
    let dir = lab.dir().join("priorities");
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("slow.toml"), DRIVE)?;
    let sockets = TENANTS.map(|tenant| dir.join("run").join(tenant).join("vhost.sock"));
    let tenants = TENANTS.map(|tenant| TENANT.replace("NAME", tenant)).concat();
    let config = CONFIG.replace("DIR", &dir.display().to_string()) + &tenants;
    let daemon = Daemon::start_with(&binary, &dir, &config, &sockets)?;
    let disks = sockets.map(Disk::VhostUser);
    let mut guest = Guest::spawn(lab.machine(), lab.accel(), "priorities", Qemu::Newest, &disks)?;
    guest.wait_ready().with_context(|| guest.logs())?;
    for (number, Scenario { jobs, ratio: expected }) in (1..).zip(SCENARIOS) {
        let found = ratio(&mut guest, jobs).with_context(|| guest.logs())?;
        println!("    scenario {number}: {found:.3}, by the weights {expected}");
        let is_right = (found / expected - 1.0).abs() <= TOLERANCE;
        ensure!(is_right, "scenario {number}: bandwidths as {found:.3} to 1, by the weights {expected} to 1");
    }
    drop(guest);
    daemon.stop().map(drop)
}

/// The first job's bandwidth by the second's, while both have all their commands under way: what fio's summary says of
/// them begins and ends with one alone.
fn ratio(guest: &mut Guest, jobs: [(&str, u8, &str); 2]) -> Result<f64> {
    let job = |(cpu, (disk, class, blocks)): (usize, (&str, u8, &str))| {
        // On one disk, each has a CPU and with it a virtqueue of its own.
        format!(" --name={cpu} --filename=/dev/{disk} --cpus_allowed={cpu} --prioclass={class} --bssplit={blocks}")
    };
    let jobs: String = jobs.into_iter().enumerate().map(job).collect();
    guest.run(&format!(
        "rm -f /run/fio_bw.*.log; \
         fio --direct=1 --ioengine=libaio --iodepth=64 --rw=randread --time_based \
         --runtime={RUNTIME_S} --write_bw_log=/run/fio --log_avg_msec=500 {jobs}"
    ))?;
    let to_ms = RUNTIME_S * 1000;
    let mut bandwidth = |job: usize| -> Result<f64> {
        let sum = format!("$1 > {FROM_MS} && $1 < {to_ms} {{ sum += $2; n++ }} END {{ print n, sum / n }}");
        let text = guest.run(&format!("awk -F, '{sum}' /run/fio_bw.{job}.log"))?;
        let (samples, mean) = text.trim().split_once(' ').with_context(|| text.clone())?;
        ensure!(samples.parse::<u32>()? >= RUNTIME_S, "too few samples: {text}");
        Ok(mean.parse()?)
    };
    Ok(bandwidth(1)? / bandwidth(2)?)
}
