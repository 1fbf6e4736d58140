//! `evenkeel calibrate`: learns a drive and writes its profile.
//!
//! The measuring is the crate `calibrate`'s; here is what stands around it: `target` finds the drive and refuses one
//! that is in use (`nvme`: one that was taken from the kernel), `state` keeps what was measured for when it is
//! interrupted, `progress` and `report` talk.

mod nvme;
mod progress;
mod report;
mod state;
mod target;

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use backend_memory::NullDrive;
use calibrate::{CipherTimes, Clock, DEPTH, Effort, Facts, Failure, Fit, HWQS, Rig, Session};
use io_model::units::Size;
use io_model::{Backend, Nanos};
use progress::Progress;
use report::Report;
use signal_hook::consts::{SIGINT, SIGTERM};
use ssd_model::Profile;
use state::{Identity, State};
use target::Target;

use crate::output::print;

/// Measure a drive and write its profile, for admission and `evenkeel plan`.
///
/// Only reads, unless --overwrite gives a range to destroy: otherwise the cost of writes is assumed. Refuses a drive
/// that is mounted or in use. A claimed drive (`evenkeel drive claim`) is measured on queues of its own. After an
/// interruption, run the same command again to continue.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file whose drive is measured.
    #[arg(required_unless_present = "path", conflicts_with = "path", value_name = "CONFIG")]
    config: Option<PathBuf>,

    /// Name of the drive, if the configuration has several.
    #[arg(long, value_name = "NAME", conflicts_with = "path")]
    drive: Option<String>,

    /// Instead of a configuration: a file, a block device, or a claimed drive's PCI address (its first namespace).
    #[arg(long, visible_alias = "device", value_name = "PATH")]
    path: Option<PathBuf>,

    /// File of the profile; it must not exist.
    #[arg(long, short, default_value = "drive.toml", value_name = "FILE")]
    output: PathBuf,

    /// A range of the drive to write to: 10GiB:4GiB is 4 GiB from 10 GiB on. ITS DATA IS LOST.
    #[arg(long, value_name = "OFFSET:LENGTH", value_parser = range)]
    overwrite: Option<(Size, Size)>,

    /// Fewer samples: seconds instead of a minute, wider intervals.
    #[arg(long)]
    quick: bool,

    /// Don't ask before overwriting.
    #[arg(long)]
    yes: bool,

    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// What the operator gave can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{what}\n  {remedy}")]
pub struct Refused {
    what: String,
    remedy: String,
}

impl Refused {
    fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

fn range(text: &str) -> Result<(Size, Size), String> {
    let (offset, length) = text.split_once(':').ok_or("expected OFFSET:LENGTH, such as 10GiB:4GiB")?;
    let size = |text: &str| text.parse::<Size>().map_err(|error| error.to_string());
    Ok((size(offset)?, size(length)?))
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let name = profile_name(&args.output)?;
    refuse_existing(&args.output)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("can't watch for signals")?;
    }
    let target = match (&args.config, &args.path) {
        (_, Some(path)) => Target::of_path(path)?,
        (Some(config), None) => Target::of_config(config, args.drive.as_deref())?,
        (None, None) => return Err(Refused::new("no drive", "name a configuration, or --path").into()),
    };
    let overwrite = target.overwrite(args.overwrite)?;
    let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    let identity = Identity::new(&target, overwrite, effort);
    let state = State::open(&args.output, identity)?;
    announce(args, &target, overwrite, effort, &state);
    if target.is_persistent() && overwrite.is_some() && !args.yes {
        confirm(&target, overwrite)?;
    }
    state.save()?;
    let facts =
        Facts { size_bytes: target.size_bytes, block_bytes: target.block_bytes, overwrite, own_ns: own_ns(&stop)? };
    let job = Job { args, facts, effort, name, title: target.title(), stop: &stop };
    target.with_queues(MeasureOn { job, state })
}

/// The measuring, for whichever back end it is.
struct MeasureOn<'a> {
    job: Job<'a>,
    state: State,
}

impl target::Use for MeasureOn<'_> {
    fn on<B: Backend>(self, queues: B) -> Result<()> {
        self.job.measure(queues, self.state)
    }
}

struct Job<'a> {
    args: &'a Args,
    facts: Facts,
    effort: Effort,
    name: String,
    title: String,
    stop: &'a AtomicBool,
}

impl Job<'_> {
    fn measure<B: Backend>(&self, queues: B, mut state: State) -> Result<()> {
        let rig = Rig::new(queues, RealClock::start(), self.facts, self.stop)?;
        let mut session = Session::new(rig, self.effort, state.seen.clone());
        let stages: Vec<_> = session.stages().collect();
        let mut progress = Progress::new(stages.len(), !self.args.json);
        let before = state.elapsed();
        let started = Instant::now();
        for (index, stage) in stages.iter().enumerate() {
            if stage.is_done(&session.seen) {
                continue;
            }
            progress.show(index, stage.describe());
            let outcome = session.run(*stage);
            state.keep(&session.seen, before + started.elapsed());
            if let Err(failure) = outcome {
                progress.end();
                state.save()?;
                return Err(ended_early(failure, state.path(), index, stages.len()));
            }
            state.save()?;
        }
        progress.end();
        let lost = Duration::from_nanos(session.lost_ns()).as_secs_f64() / started.elapsed().as_secs_f64().max(1e-9);
        self.finish(&state, lost)
    }

    /// `lost` is the part of the time in which the measuring loop had no CPU.
    fn finish(&self, state: &State, lost: f64) -> Result<()> {
        let took = state.elapsed();
        let fitted =
            calibrate::fit(&state.seen, self.facts, &self.name, &self.title).context("nothing was measured")?;
        let cipher = CipherTimes::measure(RealClock::start, self.stop);
        let fitted = cipher.into_iter().fold(fitted, |fitted, cipher| cipher.in_fit(fitted));
        let compared = calibrate::judge(&fitted.profile, self.facts, self.effort, &state.seen);
        let text = self.text(&fitted, took);
        Profile::from_toml(&text).map_err(|error| anyhow::anyhow!("the fitted profile is invalid: {error}"))?;
        state::write_new(&self.args.output, &text)?;
        state.remove();
        let report = Report::new(&self.args.output, self.facts, &fitted, compared, (took, lost));
        print(self.args.json, &report, || report.to_string())
    }

    /// The profile's text, with how it came about.
    fn text(&self, fitted: &Fit, took: Duration) -> String {
        let writes = match self.facts.overwrite {
            Some((start, len)) => format!("Wrote to {} from {} on.", Size(len), Size(start)),
            None => "Only read: its figures for writes are assumed.".to_owned(),
        };
        fitted.profile.to_toml(&format!(
            "Measured by evenkeel calibrate {} in {:.0} s: {}.\n{writes}\n\n\
             In [basis]: [M] measured, [F] assumed. Times are \
             the back end's, without the measuring loop's own.",
            env!("CARGO_PKG_VERSION"),
            took.as_secs_f64(),
            self.title
        ))
    }
}

fn ended_early(failure: Failure, state: &Path, done: usize, all: usize) -> anyhow::Error {
    let kept = format!("{done} of {all} stages are kept in {}: run the same command to continue", state.display());
    match failure {
        Failure::Interrupted => anyhow::anyhow!("interrupted; {kept}"),
        failure => anyhow::anyhow!("{failure}\n  {kept}, once the drive is well (`dmesg`)"),
    }
}

/// The measuring loop looks at the clock all the time; a longer gap means that its CPU was taken away. More than
/// submitting some hundred commands takes.
const GAP: Nanos = Nanos(50_000);

/// The clock of this machine.
struct RealClock {
    start: Instant,
    last: Nanos,
    lost: Nanos,
}

impl RealClock {
    fn start() -> Self {
        Self { start: Instant::now(), last: Nanos(0), lost: Nanos(0) }
    }
}

impl Clock for RealClock {
    fn now(&mut self) -> Nanos {
        let now = Nanos::from(self.start.elapsed());
        if now - self.last > GAP {
            self.lost += now - self.last;
        }
        self.last = now;
        now
    }

    fn wait(&mut self, _next: Option<Nanos>) {
        std::hint::spin_loop();
    }

    fn lost(&self) -> Nanos {
        self.lost
    }
}

/// What the measuring loop takes by itself: a lone command's latency and the time between two of a burst, on a drive
/// that does nothing.
fn own_ns(stop: &AtomicBool) -> Result<(f64, f64)> {
    const SIZE_BYTES: u64 = 1 << 30;
    let facts = Facts { size_bytes: SIZE_BYTES, block_bytes: 512, overwrite: None, own_ns: (0.0, 0.0) };
    let queues = NullDrive::new(SIZE_BYTES).open_queues(HWQS, DEPTH);
    let mut session =
        Session::new(Rig::new(queues, RealClock::start(), facts, stop)?, Effort::FULL, Default::default());
    session.run(calibrate::Stage::Basics).map_err(|failure| anyhow::anyhow!("{failure}"))?;
    let basics = session.seen.basics.context("nothing was measured")?;
    Ok((basics.read.value, basics.apart_spacing.value))
}

/// The output's name without its ending, as far as a profile can be called that.
fn profile_name(output: &Path) -> Result<String> {
    let stem = output.file_stem().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = stem.chars().take(32).map(plain).collect();
    if name.is_empty() || output.file_name().is_none() {
        let what = format!("--output {} is not a file's name", output.display());
        return Err(Refused::new(what, "give one such as --output drive.toml").into());
    }
    Ok(name)
}

fn refuse_existing(output: &Path) -> Result<()> {
    if output.symlink_metadata().is_ok() {
        let what = format!("{} exists", output.display());
        return Err(Refused::new(what, "move it away, or choose another --output").into());
    }
    Ok(())
}

/// Says what will be done, before any of it.
fn announce(args: &Args, target: &Target, overwrite: Option<(u64, u64)>, effort: Effort, state: &State) {
    let mut text = format!("Will measure {}, {}.\n", target.title(), Size(target.size_bytes));
    match overwrite {
        Some((start, len)) if target.is_persistent() => {
            text += &format!("  OVERWRITES {} from {} on: its data is lost.\n", Size(len), Size(start));
        }
        Some(_) => text += "  Writes to all of it: nothing is kept there.\n",
        None => text += "  Only reads. What writes cost will be assumed; --overwrite OFFSET:LENGTH measures it.\n",
    }
    let stages = if overwrite.is_some() { 12 } else { 8 };
    let done = state.stages_done();
    text += &format!(
        "  {} stages, about {} s in all; the profile goes to {}.\n",
        stages,
        estimate(effort, overwrite.is_some()).as_secs(),
        args.output.display()
    );
    if done > 0 {
        text += &format!("  Goes on with {}: {done} stages are done.\n", state.path().display());
    }
    for warning in &target.warnings {
        text += &format!("  Warning: {warning}\n");
    }
    // If standard error can't be written, go on without it.
    let _ = write!(std::io::stderr(), "{text}");
}

/// Loads at their longest, and what the other stages take on a drive with a latency of 100 µs.
fn estimate(effort: Effort, writes: bool) -> Duration {
    let cells = if writes { 60 } else { 20 };
    let others_ns = effort.rounds as u64 * 100_000_000 + if writes { 2 * effort.sustained_ns } else { 0 };
    Duration::from_nanos(cells * effort.cell_ns + others_ns)
}

fn confirm(target: &Target, overwrite: Option<(u64, u64)>) -> Result<()> {
    let (start, len) = overwrite.unwrap_or_default();
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let what = format!("no confirmation that {} may be overwritten", target.title());
        return Err(Refused::new(what, "say --yes").into());
    }
    let _ = write!(std::io::stderr(), "Overwrite {} of {} from {} on? [y/N] ", Size(len), target.title(), Size(start));
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        return Err(Refused::new("nothing was overwritten", "answer y, or leave --overwrite out").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_two_sizes() {
        assert_eq!(range("10GiB:4GiB"), Ok((Size(10 << 30), Size(4 << 30))));
        assert_eq!(range("0:1MiB"), Ok((Size(0), Size(1 << 20))));
        for wrong in ["4GiB", "4GiB:", ":4GiB", "1GiB:2GiB:3GiB", "-1:5", "a:b"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_profile_is_called_as_its_file() {
        assert_eq!(profile_name(Path::new("/srv/my drive.toml")).unwrap(), "my-drive");
        assert_eq!(profile_name(Path::new(&"x".repeat(80))).unwrap().len(), 32);
        for wrong in ["/", "..", ""] {
            assert!(profile_name(Path::new(wrong)).is_err(), "{wrong:?}");
        }
    }
}
