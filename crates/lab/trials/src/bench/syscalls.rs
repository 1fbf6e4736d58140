//! System calls while polling, counted by strace.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::server::{Server, load, tenant};
use super::{Figure, Goal, Options};

/// System calls of the whole daemon per million commands, while its poller is busy.
pub fn measure(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        notes.push("system calls were not counted: strace is not installed".into());
        return Ok(Vec::new());
    }
    let server = Server::start("memory", "lpns", &tenant("a", "weight = 1"))?;
    let socket = server.socket("a");
    let seconds = options.seconds + 3;
    let client = std::thread::spawn(move || load(&socket, 32, seconds));
    // Past connecting and ramping up.
    std::thread::sleep(Duration::from_millis(1500));
    let trace = Command::new("timeout")
        .args(["-s", "INT", "2", "strace", "-f", "-c", "-p", &server.pid().to_string()])
        .output()
        .context("can't run strace")?;
    let run = client.join().map_err(|_| anyhow::anyhow!("the client's thread failed"))??;
    let table = String::from_utf8_lossy(&trace.stderr).into_owned();
    if !table.contains("attached") {
        bail!("strace did not attach: {}", table.trim());
    }
    let calls: u64 = table
        .lines()
        .filter(|line| !line.contains("total") && line.split_whitespace().count() >= 5)
        .filter_map(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok())
        .sum();
    notes.push(format!("strace counted {calls} system calls in 2 s of about {:.0} commands per second", run.iops));
    let per_million = calls as f64 / (run.iops * 2.0) * 1e6;
    Ok(vec![Figure::of(
        "system calls per million commands, busy poller",
        vec![per_million],
        "calls",
        Some(Goal::AtMost(10.0)),
    )?])
}
