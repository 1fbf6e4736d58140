//! `evenkeel trace`: writes every command of a tenant to a file of the user that asks.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use api::{MAX_TRACE_S, Rest, TraceAsked, trace_ended};
use io_model::units::Size;
use serde::Serialize;

use crate::disk::Daemon;
use crate::output::print;

/// Record a tenant's commands in a file that `evenkeel sim` can replay.
///
/// The file has each command's arrival, kind, offset, size, time waiting and time in service. It has none of the
/// tenant's data.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the tenant.
    tenant: String,

    /// Seconds to record, 1 to 86400 (a day)
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MAX_TRACE_S as i64))]
    seconds: u32,

    /// The new file; it must not exist
    #[arg(long, value_name = "FILE")]
    output: PathBuf,

    /// Size at which to stop; a command takes about 45 bytes
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    max_size: Size,

    #[command(flatten)]
    daemon: Daemon,
}

/// The least size limit.
const MIN_SIZE_BYTES: u64 = 4096;

/// The result.
#[derive(Debug, Serialize)]
struct Told {
    tenant: String,
    file: PathBuf,
    file_bytes: u64,
    /// Commands in the file. `None`: the trace ended early.
    commands: Option<u64>,
    /// Commands that are missing because the recorder could not keep up. `None`: the trace ended early.
    lost: Option<u64>,
    took_ms: u64,
    /// It ended early because the file reached its size limit.
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
        traced.with_context(|| format!("the trace was cut off; {file} has the commands until then"))?;
    } else {
        traced?;
    }
    let ended = kept.ended();
    let told = Told {
        tenant: tenant.clone(),
        file: output.clone(),
        file_bytes: kept.bytes,
        commands: ended.map(|(commands, _)| commands),
        lost: ended.map(|(_, lost)| lost),
        reached_max_size: kept.is_full,
        took_ms: begun.elapsed().min(Duration::from_secs((*seconds).into())).as_millis() as u64,
    };
    if ended.is_none() && !kept.is_full {
        bail!("the trace was cut off: the daemon ended; {file} has the commands until then");
    }
    print(daemon.json, &told, || {
        let mut text = match ended {
            Some((commands, _)) => {
                let seconds = told.took_ms as f64 / 1000.0;
                format!("{tenant}: {commands} commands in {seconds:.0} s, in {file} ({} bytes)\n", kept.bytes)
            }
            None => format!("{tenant}: {file} has reached --max-size {max_size}; later commands are not in it\n"),
        };
        if ended.is_some() && told.took_ms + 1000 < u64::from(*seconds) * 1000 {
            text += &format!("it ended early: {tenant} was deleted, or its pollers changed\n");
        }
        if let Some(lost) = told.lost.filter(|lost| *lost > 0) {
            text += &format!("{lost} more are missing: the host was too busy to keep up\n");
        }
        let file = file.to_string();
        text + &format!("to replay it, name it in a scenario: [tenant.workload] kind = \"trace\", path = {file:?}\n")
    })
}

/// The file as written so far.
struct Kept<'a> {
    /// `None` before there is something to write, so that an unknown tenant leaves no file.
    file: Option<File>,
    output: &'a PathBuf,
    bytes: u64,
    most_bytes: u64,
    /// The last bytes of the file.
    tail: Vec<u8>,
    is_full: bool,
}

/// More than one line.
const TAIL_BYTES: usize = 256;

impl Kept<'_> {
    /// Writes a piece, or as many lines of it as fit. `false`: the file is full.
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
            // A part of the piece may have been written.
            self.cut_at_line()?;
        }
        written.with_context(|| format!("can't write {path}"))?;
        self.bytes += bytes.len() as u64;
        self.tail.extend(bytes);
        self.tail.drain(..self.tail.len().saturating_sub(TAIL_BYTES));
        Ok(())
    }

    /// Removes an incomplete last line from the file.
    fn cut_at_line(&mut self) -> Result<()> {
        let part = self.tail.iter().rev().take_while(|byte| **byte != b'\n').count();
        self.bytes = self.bytes.saturating_sub(part as u64);
        if let Some(file) = &self.file {
            file.set_len(self.bytes).with_context(|| format!("can't shorten {}", self.output.display()))?;
        }
        Ok(())
    }

    /// Parses the last line: commands in the trace, and commands lost. `None`: the trace was cut off.
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
            // Pieces may end anywhere.
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
        // An existing file is not overwritten.
        let told = kept(&output, 1 << 20).take(b"x").expect_err("refused");
        assert!(format!("{told:#}").contains("can't make"), "{told:#}");
        assert_eq!(std::fs::metadata(&output).expect("there").len(), whole.bytes);
    }
}
