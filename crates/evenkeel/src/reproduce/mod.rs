//! `evenkeel reproduce`: repeats the papers' experiments with this project's code, and compares.

mod live;

use std::io::{IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Result, bail};
use reproduce::report::{Counts, Evidence, Output, Report, counts};
use reproduce::{Options, Paper, Progress};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::table;

/// Run the experiments of the papers behind Evenkeel in the simulator, and compare.
///
/// Writes report.html (with plots), report.md (its short form), report.json and report.csv. Equal seeds give equal
/// reports.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The paper whose experiments to run.
    #[arg(default_value = "all", value_parser = ["lpns", "fairnvme", "qos", "vbmq", "cloud", "policy", "all"])]
    paper: String,

    /// Directory for the report; created if it is missing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print report.json instead of the summary.
    #[arg(long)]
    json: bool,

    /// Shorten the experiments: rough numbers, quickly.
    #[arg(long)]
    quick: bool,

    /// Measure the arbitration paper's figures on a real daemon with a modelled drive, instead of simulating. Takes
    /// about three minutes on otherwise idle CPUs. No two reports are the same.
    #[arg(long)]
    live: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let output = Output::prepare(&args.out)?;
    let papers: Vec<Paper> =
        Paper::ALL.into_iter().filter(|paper| args.paper == "all" || args.paper == paper.key()).collect();
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let options = Options { seed: args.seed, quick: args.quick, threads };
    let screen = Screen { is_terminal: std::io::stderr().is_terminal(), filled: AtomicUsize::new(0) };
    let report = if args.live {
        measure_live(args, &screen)
    } else {
        reproduce::run(&papers, options, &|progress| screen.show(progress)).map_err(Into::into)
    };
    screen.clear();
    let report = report?;

    // Until here an interrupt ends the program with nothing written. From here on it waits until the files are
    // complete.
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, interrupted.clone())?;
    let [page, ..] = output.write(&report)?;
    if interrupted.load(Ordering::Relaxed) {
        signal_hook::low_level::emulate_default_handler(SIGINT)?;
    }

    let mut out = std::io::stdout().lock();
    if args.json {
        out.write_all(report.json().as_bytes())?;
    } else {
        write!(out, "{}", summary(&report))?;
        writeln!(out, "\n{}", page.display())?;
    }
    Ok(out.flush()?)
}

/// Measures what only a daemon in real time can show.
fn measure_live(args: &Args, screen: &Screen) -> Result<Report> {
    if args.paper != "qos" {
        bail!("--live measures the figures of one paper only: evenkeel reproduce qos --live");
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let rounds = if args.quick { 1 } else { 5 };
    let run = live::Run { seconds: 1, rounds, seed: args.seed, stop: &stop };
    let figures = live::figures(&run, &mut |what| screen.say(what))?;
    Ok(Report { seed: args.seed, quick: args.quick, figures, uncovered: Vec::new() })
}

/// Counts of each paper and figure by kind of evidence, and what is missed.
fn summary(report: &Report) -> String {
    let cells = |name: String, all: Counts| {
        let counts = Evidence::ALL.into_iter().zip(all).map(|(evidence, count)| evidence.count(count));
        std::iter::once(name).chain(counts).collect::<Vec<String>>()
    };
    let papers = counts(&report.figures).into_iter().map(|(name, counts)| cells(name.to_owned(), counts));
    let figures = report.figures.iter().map(|figure| {
        let name = format!("{} {}: {}", figure.paper.key(), figure.id, figure.title);
        cells(name, Evidence::ALL.map(|evidence| figure.count(evidence)))
    });
    let heading = ["", "unseen", "fitted", "identities", "claims", "our own", "shown"];
    let mut text = table::layout(&heading, &papers.chain(figures).collect::<Vec<_>>());
    for one in &report.uncovered {
        text += &format!("{}: {}: not covered, {}\n", one.paper.key(), one.figure, one.why);
    }
    for figure in &report.figures {
        for missed in figure.criteria.iter().filter(|criterion| !criterion.met) {
            let verdict = missed.verdict();
            text += &format!("{verdict}: {} {}: {}: {}\n", figure.paper.key(), figure.id, missed.text, missed.saw);
        }
    }
    text
}

/// Shows progress: a bar on a terminal, else a line per experiment.
struct Screen {
    is_terminal: bool,
    /// Filled cells of the bar. If an experiment turns out to have more runs, the bar does not go back.
    filled: AtomicUsize,
}

/// Width of the bar in cells.
const BAR: usize = 24;

impl Screen {
    fn show(&self, progress: &Progress) {
        let (done, all) = progress.experiments;
        let (runs_done, runs) = progress.runs;
        let name = format!("{}: {}", progress.paper.key(), progress.experiment);
        let mut err = std::io::stderr().lock();
        // Go on if progress can't be shown.
        let _ = if self.is_terminal {
            let part = if runs == 0 { 0.0 } else { runs_done as f64 / runs as f64 };
            let now = ((done as f64 + part) / all.max(1) as f64 * BAR as f64) as usize;
            let filled = self.filled.fetch_max(now, Ordering::Relaxed).max(now);
            let bar = "█".repeat(filled) + &"░".repeat(BAR.saturating_sub(filled));
            write!(err, "\r\x1b[K{bar} {}/{all} {runs_done}/{runs}  {name}", done + 1)
        } else if runs == 0 {
            writeln!(err, "{}/{all}  {name}", done + 1)
        } else {
            Ok(())
        };
        let _ = err.flush();
    }

    /// Announces something that takes a few seconds.
    fn say(&self, what: &str) {
        let mut err = std::io::stderr().lock();
        // As above.
        let _ = if self.is_terminal { write!(err, "\r\x1b[K{what}") } else { writeln!(err, "{what}") };
        let _ = err.flush();
    }

    fn clear(&self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
