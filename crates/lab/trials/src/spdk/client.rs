//! Its clients, on our targets and on its own.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result};
use serde_json::json;
use tempfile::NamedTempFile;

use super::huge_page_places;
use super::target::mask;

/// What a client takes in huge pages: half of it is too little where they lie far apart.
pub const MEMORY_MIB: u64 = 512;
/// One is enough for a job, but a scan for partitions may still have it when the job begins.
const VIRTIO_QUEUES: u32 = 2;

/// What a client saw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    pub iops: f64,
    pub mean_us: f64,
}

/// What a tree's programs call themselves.
///
/// # Errors
/// When there are none.
pub fn version(tree: &Path) -> Result<String> {
    let program = tree.join("build/bin/nvmf_tgt");
    let output = Command::new(&program).arg("--version").output();
    let output = output.with_context(|| format!("can't start {}: is this an SPDK build tree?", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// 4 KiB random reads of an NVMe controller, by its socket or the directory that has it, for `seconds` after those
/// that do not count.
///
/// # Errors
/// When it can't be started or prints no figures.
pub fn nvme_perf(tree: &Path, cpu: usize, (socket, nqn): (&Path, &str), depth: u32, seconds: u64) -> Result<Run> {
    let directory = if socket.is_dir() { socket } else { socket.parent().context("a socket is in a directory")? };
    let transport = format!("trtype:VFIOUSER traddr:{} subnqn:{nqn}", directory.display());
    let mut command = Command::new(tree.join("build/bin/spdk_nvme_perf"));
    command
        .args(["-s", &MEMORY_MIB.to_string(), "-g", "-q", &depth.to_string(), "-o", "4096", "-w", "randread"])
        .args(["-a", &WARM_UP_S.to_string(), "-t", &seconds.to_string(), "-c", &mask(cpu), "-r", &transport]);
    // IOPS, MiB/s, the mean.
    figures("spdk_nvme_perf", &run(&mut command)?, 2)
}

/// Seconds for which [`nvme_perf`] reads before it counts.
pub const WARM_UP_S: u64 = 1;

/// 4 KiB random reads of a virtio-blk disk on one queue, for `seconds`.
///
/// # Errors
/// As [`nvme_perf`].
pub fn bdevperf(tree: &Path, cpu: usize, socket: &Path, depth: u32, seconds: u64) -> Result<Run> {
    let attach = json!({
        "name": "disk", "trtype": "user", "traddr": socket, "dev_type": "blk", "vq_count": VIRTIO_QUEUES,
        "vq_size": 256,
    });
    let calls = json!([{"method": "bdev_virtio_attach_controller", "params": attach}]);
    let configuration = NamedTempFile::new()?;
    let text = json!({"subsystems": [{"subsystem": "bdev", "config": calls}]}).to_string();
    std::fs::write(configuration.path(), text)?;
    let mut command = Command::new(tree.join("build/examples/bdevperf"));
    command
        .args(["-s", &MEMORY_MIB.to_string(), "-g", "--no-pci", "--no-rpc-server", "--disable-cpumask-locks"])
        .args(["-q", &depth.to_string(), "-o", "4096", "-w", "randread", "-t", &seconds.to_string()])
        .args(["-m", &mask(cpu), "-c"])
        .arg(configuration.path());
    // IOPS, MiB/s, failures and timeouts a second, the mean.
    figures("bdevperf", &run(&mut command)?, 4)
}

/// Runs a client, and frees its memory, whose file it leaves for the next one to remove.
fn run(command: &mut Command) -> Result<Output> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child
        .with_context(|| format!("can't start {}: is this an SPDK build tree?", command.get_program().display()))?;
    let memory = format!("spdk_pid{}map_", child.id());
    let output = child.wait_with_output()?;
    for place in huge_page_places()? {
        for file in std::fs::read_dir(&place).with_context(|| place.display().to_string())? {
            let file = file?;
            if file.file_name().to_string_lossy().starts_with(&memory) {
                std::fs::remove_file(file.path()).with_context(|| file.path().display().to_string())?;
            }
        }
    }
    Ok(output)
}

/// What the line of the total says. Their exit status is 0 even when they could not attach.
fn figures(program: &str, output: &Output, mean_field: usize) -> Result<Run> {
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text, mean_field)
        .with_context(|| format!("{program} printed no total: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn parse(text: &str, mean_field: usize) -> Option<Run> {
    let (_, total) = text.lines().find_map(|line| line.trim().strip_prefix("Total")?.split_once(':'))?;
    let fields: Vec<f64> = total.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let run = Run { iops: *fields.first()?, mean_us: *fields.get(mean_field)? };
    (run.iops.is_finite() && run.iops > 0.0).then_some(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_is_read_and_nothing_is_none() {
        let perf = "from core  1: 1457596.36  5693.74  88.17  9.20  20119.32\n\
                    Total    : 1457596.36  5693.74  88.17  9.20  1\n";
        assert_eq!(parse(perf, 2), Some(Run { iops: 1_457_596.36, mean_us: 88.17 }));
        let bdevperf =
            " Total                       :            4652279.82   18172.97       0.00     0.00      27.46  15.16\n";
        assert_eq!(parse(bdevperf, 4), Some(Run { iops: 4_652_279.82, mean_us: 27.46 }));
        let nothing =
            " Total                       :                  -nan       -nan       -nan     -nan       0.00\n";
        assert_eq!(parse(nothing, 4), None);
        assert_eq!(parse("Initializing NVMe Controllers\n", 2), None);
    }
}
