//! What runs in the background of a guest, and what a guest is waited for.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::agent::Output;
use super::qemu::{COMMAND_LIMIT, Guest};

/// The limit of a load that a test ends itself.
pub const ENDLESS: Duration = Duration::from_secs(3600);

/// How long anything in a guest may take to come, on a machine that does much else.
const WAIT_LIMIT: Duration = Duration::from_secs(240);

impl Guest {
    /// Waits until the command line `condition` succeeds in the guest.
    ///
    /// # Errors
    /// As [`Guest::run`]; when it does not within minutes, the error names `what`.
    pub fn wait_for(&mut self, what: &str, condition: &str) -> Result<()> {
        self.wait_for_within(what, condition, WAIT_LIMIT)
    }

    fn wait_for_within(&mut self, what: &str, condition: &str, limit: Duration) -> Result<()> {
        let (what, limit_s, condition) = (quoted(what), limit.as_secs(), quoted(condition));
        let command = format!(". /lib/wait-for.sh; wait_for {what} {limit_s} {condition}");
        self.run_within(&command, limit + COMMAND_LIMIT).map(drop)
    }

    /// Starts a command in the background of the guest, under a name.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn start_job(&mut self, job: &str, command: &str, limit: Duration) -> Result<()> {
        let (command, limit_s) = (quoted(command), limit.as_secs());
        self.run(&format!(
            "rm -f /run/{job}.code /run/{job}.stop; \
             (timeout -s KILL {limit_s} sh -c {command} >/run/{job}.out 2>&1; \
             echo $? >/run/{job}.code.new; mv /run/{job}.code.new /run/{job}.code) &"
        ))?;
        Ok(())
    }

    /// Starts a command in the background that is run again and again until [`Guest::finish_rounds`], and at least
    /// once; the first that fails is the last.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn start_rounds(&mut self, job: &str, command: &str) -> Result<()> {
        let rounds = format!("while true; do {command} || exit; test -e /run/{job}.stop && exit; done");
        self.start_job(job, &rounds, ENDLESS)
    }

    /// Whether a background command is still running.
    ///
    /// # Errors
    /// As [`Guest::attempt`].
    pub fn job_runs(&mut self, job: &str) -> Result<bool> {
        Ok(self.attempt(&format!("test -e /run/{job}.code"), COMMAND_LIMIT)?.code != 0)
    }

    /// Waits for a background command's end.
    ///
    /// # Errors
    /// As [`Guest::attempt`], and when it does not end within `limit`.
    pub fn finish_job(&mut self, job: &str, limit: Duration) -> Result<Output> {
        self.wait_for_within(&format!("the end of job {job}"), &format!("test -e /run/{job}.code"), limit)?;
        self.attempt(&format!("cat /run/{job}.out; exit $(cat /run/{job}.code)"), COMMAND_LIMIT)
    }

    /// Tells a job of rounds to stop, and waits for the end of its last one.
    ///
    /// # Errors
    /// As [`Guest::finish_job`].
    pub fn finish_rounds(&mut self, job: &str, limit: Duration) -> Result<Output> {
        self.run(&format!("touch /run/{job}.stop"))?;
        self.finish_job(job, limit)
    }

    /// Waits until a drive, by its name in `/sys/block`, has completed `count` more requests than it has now.
    ///
    /// # Errors
    /// As [`Guest::wait_for`].
    pub fn wait_for_requests(&mut self, drive: &str, count: u64) -> Result<()> {
        let (now, _) = self.requests(drive)?;
        let sum = "awk '{print $1 + $5 + $12 + $16}'";
        self.wait_for(
            &format!("{count} requests of {drive}"),
            &format!("test $({sum} /sys/block/{drive}/stat) -ge {}", now + count),
        )
    }

    /// Requests of a drive that the kernel saw completed since boot, and those in flight.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn requests(&mut self, drive: &str) -> Result<(u64, u64)> {
        let text = self.run(&format!("cat /sys/block/{drive}/stat"))?;
        let fields: Vec<u64> =
            text.split_whitespace().map(str::parse).collect::<Result<_, _>>().context(text.clone())?;
        // Kernel's Documentation/block/stat.rst: reads, writes, discards and flushes; in flight.
        match fields[..] {
            [reads, _, _, _, writes, _, _, _, in_flight, _, _, discards, _, _, _, flushes, ..] => {
                Ok((reads + writes + discards + flushes, in_flight))
            }
            _ => bail!("too few figures: {text}"),
        }
    }
}

/// As one word of the guest's shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
