//! `evenkeel trace`: every command of a tenant, in a file of the person's who asks.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use api::{MAX_TRACE_S, Rest, TraceAsked, trace_ended};
use io_model::units::Size;
use serde::Serialize;

use crate::disk::Daemon;

/// Record every command of a tenant for a while, in a file that `evenkeel sim` replays: when it arrived, what it did
/// and where, how long it waited and was served. The tenant's data are not in it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The tenant.
    tenant: String,

    /// For how long, in seconds; a day at most
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MAX_TRACE_S as i64))]
    seconds: u32,

    /// The file, which must not be there
    #[arg(long, value_name = "FILE")]
    output: PathBuf,

    /// End when the file is so large: a command takes about 45 bytes
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    max_size: Size,

    #[command(flatten)]
    daemon: Daemon,
}

/// Of a trace, at the least.
const MIN_SIZE_BYTES: u64 = 4096;

/// What became of it.
#[derive(Debug, Serialize)]
struct Told {
    tenant: String,
    file: PathBuf,
    bytes: u64,
    /// Commands in the file; none where it ended early.
    commands: Option<u64>,
    /// Those that are missing, since who recorded them could not keep up; none where it ended early.
    lost: Option<u64>,
    /// How long it took.
    seconds: f64,
    /// It ended before its time, because the file was as large as it may be.
    reached_max_size: bool,
}

/// Runs the command.
///
/// # Errors
/// There is no daemon or no such tenant, the file can't be written, or the trace was cut off.
pub fn run(args: &Args) -> Result<()> {
    let Args { tenant, seconds, output, max_size, daemon } = args;
    if max_size.0 < MIN_SIZE_BYTES {
        bail!("--max-size {max_size} has room for hardly a command: give 4KiB or more");
    }
    let mut kept = Kept { file: None, output, bytes: 0, most_bytes: max_size.0, tail: Vec::new(), is_full: false };
    let (rest, begun) = (Rest::new(&daemon.socket), Instant::now());
    let traced = rest.trace(tenant, TraceAsked { seconds: *seconds }, |chunk| kept.take(chunk));
    let file = output.display();
    if kept.file.is_some() {
        traced.with_context(|| format!("the trace was cut off; {file} has what came until then"))?;
    } else {
        traced?;
    }
    let ended = kept.ended();
    let told = Told {
        tenant: tenant.clone(),
        file: output.clone(),
        bytes: kept.bytes,
        commands: ended.map(|(commands, _)| commands),
        lost: ended.map(|(_, lost)| lost),
        reached_max_size: kept.is_full,
        seconds: begun.elapsed().as_secs_f64().min((*seconds).into()),
    };
    let ended_early = told.seconds < f64::from(*seconds) - 1.0;
    if ended.is_none() && !kept.is_full {
        bail!("the trace was cut off: the daemon ended; {file} has what came until then");
    }
    let mut out = std::io::stdout().lock();
    if daemon.json {
        writeln!(out, "{}", serde_json::to_string(&told)?)?;
        return Ok(out.flush()?);
    }
    match ended {
        Some((commands, lost)) => {
            writeln!(out, "{tenant}: {commands} commands in {:.0} s, in {file} ({} bytes)", told.seconds, kept.bytes)?;
            if ended_early {
                writeln!(out, "it ended early: {tenant} was deleted, or its pollers changed")?;
            }
            if lost > 0 {
                writeln!(out, "{lost} more are missing: the host was too busy to keep up")?;
            }
        }
        None => writeln!(out, "{tenant}: {file} has reached --max-size {max_size}; what came later is not in it")?,
    }
    let file = file.to_string();
    writeln!(out, "to replay it, name it in a scenario: [tenant.workload] kind = \"trace\", path = {file:?}")?;
    Ok(out.flush()?)
}

/// What was written so far.
struct Kept<'a> {
    /// None before there is something to write: of a tenant that is not there no file is left.
    file: Option<File>,
    output: &'a PathBuf,
    bytes: u64,
    most_bytes: u64,
    /// The end of it.
    tail: Vec<u8>,
    is_full: bool,
}

/// More than a line.
const TAIL_BYTES: usize = 256;

impl Kept<'_> {
    /// Writes a piece, or as many lines of it as may still be. `false`: that is all.
    fn take(&mut self, chunk: &[u8]) -> Result<bool> {
        let room = usize::try_from(self.most_bytes.saturating_sub(self.bytes)).unwrap_or(usize::MAX);
        let (fits, is_all) = match chunk.get(..room) {
            Some(head) if room < chunk.len() => (head, false),
            _ => (chunk, true),
        };
        self.write(fits)?;
        if is_all {
            return Ok(true);
        }
        self.is_full = true;
        self.cut_at_line()?;
        Ok(false)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let path = self.output.display();
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let made = File::options().write(true).create_new(true).open(self.output);
                self.file.insert(made.with_context(|| format!("can't make {path}"))?)
            }
        };
        let written = file.write_all(bytes);
        if written.is_err() {
            // A part of it may be there.
            self.cut_at_line()?;
        }
        written.with_context(|| format!("can't write {path}"))?;
        self.bytes += bytes.len() as u64;
        self.tail.extend(bytes);
        self.tail.drain(..self.tail.len().saturating_sub(TAIL_BYTES));
        Ok(())
    }

    /// Takes the part of a line away with which the file ends.
    fn cut_at_line(&mut self) -> Result<()> {
        let part = self.tail.iter().rev().take_while(|byte| **byte != b'\n').count();
        self.bytes = self.bytes.saturating_sub(part as u64);
        if let Some(file) = &self.file {
            file.set_len(self.bytes).with_context(|| format!("can't shorten {}", self.output.display()))?;
        }
        Ok(())
    }

    /// What its last line says: commands, and those that were lost. `None`: it was cut off.
    fn ended(&self) -> Option<(u64, u64)> {
        let text = String::from_utf8_lossy(&self.tail);
        text.lines().last().filter(|_| text.ends_with('\n')).and_then(trace_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(output: &PathBuf, most_bytes: u64) -> Kept<'_> {
        Kept { file: None, output, bytes: 0, most_bytes, tail: Vec::new(), is_full: false }
    }

    #[test]
    fn a_trace_past_its_limit_ends_with_a_whole_line() {
        let directory = tempfile::tempdir().expect("a directory");
        let line = "1000,0,read,8,4096,10,80000,ok\n";
        for most_bytes in 0..200 {
            let output = directory.path().join(most_bytes.to_string());
            let mut kept = kept(&output, most_bytes);
            let mut pieces = line.repeat(10);
            pieces += &api::trace_end(10, 0);
            // Pieces end anywhere.
            let went_on = pieces.as_bytes().chunks(7).all(|piece| kept.take(piece).expect("written"));
            let text = std::fs::read_to_string(&output).expect("a file");
            assert!(!went_on && kept.is_full && kept.ended().is_none(), "{most_bytes}");
            assert_eq!(text, line.repeat(most_bytes as usize / line.len()), "{most_bytes}");
            assert_eq!(kept.bytes, text.len() as u64);
        }
    }

    #[test]
    fn a_whole_trace_says_how_it_ended() {
        let directory = tempfile::tempdir().expect("a directory");
        let output = directory.path().join("trace");
        let mut whole = kept(&output, 1 << 20);
        assert!(whole.take(b"0,0,read,8,4096,1,2,ok\n").expect("written"));
        assert_eq!(whole.ended(), None, "it goes on");
        assert!(whole.take(api::trace_end(1, 7).as_bytes()).expect("written"));
        assert_eq!(whole.ended(), Some((1, 7)));
        // What is there is not overwritten.
        let told = kept(&output, 1 << 20).take(b"x").expect_err("refused");
        assert!(format!("{told:#}").contains("can't make"), "{told:#}");
        assert_eq!(std::fs::metadata(&output).expect("there").len(), whole.bytes);
    }
}
