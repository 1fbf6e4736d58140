//! `cargo xtask more`: what `make test` leaves to `make test-all`, in an order drawn from the commit, until the time is
//! used. Over some days of commits all of it runs, and a failure can be repeated by its name.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::guest::{self, CacheDir, Session};

/// The tests of the nextest profile `all` that its default profile leaves out.
const LEFT_OUT: &str = "not default()";

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Start nothing after this many minutes
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    minutes: u64,
    /// Draw the order from this text [default: the commit's hash]
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,
    #[command(flatten)]
    cache: CacheDir,
}

/// A piece of what is left out.
enum Item {
    /// Tests of one test program, by nextest's name for it.
    Suite(String),
    /// The documentation, with warnings as errors.
    Documentation,
    /// The fuzz targets with libFuzzer, checked but not run.
    FuzzTargets,
    /// The page in a browser.
    Browser,
    Guest(&'static guest::Test),
}

impl Item {
    fn name(&self) -> String {
        match self {
            Self::Suite(name) => format!("suite {name}"),
            Self::Documentation => "documentation".to_owned(),
            Self::FuzzTargets => "fuzz targets".to_owned(),
            Self::Browser => "browser test".to_owned(),
            Self::Guest(test) => format!("guest test {}", test.name),
        }
    }
}

/// Runs pieces until the time is used, and prints what it left out.
///
/// # Errors
/// When a piece failed; the message names each.
pub fn run(options: &Options) -> Result<()> {
    let seed = match &options.seed {
        Some(seed) => seed.clone(),
        None => output(Command::new("git").args(["rev-parse", "HEAD"]))?.trim().to_owned(),
    };
    let mut items: Vec<Item> = suites()?.into_iter().map(Item::Suite).collect();
    items.extend([Item::Documentation, Item::FuzzTargets, Item::Browser]);
    items.extend(guest::beyond_daily().map(Item::Guest));
    fastrand::Rng::with_seed(number_of(&seed)).shuffle(&mut items);

    println!("{} pieces in the order drawn from {seed}, for {} min:", items.len(), options.minutes);
    let (start, limit) = (Instant::now(), Duration::from_secs(options.minutes * 60));
    let mut session: Option<Session> = None;
    let (mut passed, mut failed, mut left) = (0, Vec::new(), Vec::new());
    for item in items {
        if start.elapsed() >= limit {
            left.push(item.name());
            continue;
        }
        println!("{:5.0} s  {}", start.elapsed().as_secs_f64(), item.name());
        match piece(&item, &mut session, &options.cache) {
            Ok(()) => passed += 1,
            Err(error) => {
                println!("{} ... FAILED: {error:#}", item.name());
                failed.push(item.name());
            }
        }
    }
    if let Some(session) = session {
        session.end(false);
    }
    if !left.is_empty() {
        println!("Left out, {} of {}: {}", left.len(), left.len() + passed + failed.len(), left.join(", "));
    }
    println!("{passed} passed, {} failed, {} skipped", failed.len(), left.len());
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn piece(item: &Item, session: &mut Option<Session>, cache: &CacheDir) -> Result<()> {
    match item {
        Item::Suite(name) => {
            let tests = format!("{LEFT_OUT} & binary_id(={name})");
            nextest("run").args(["--no-fail-fast", "-E", &tests]).run()
        }
        Item::Documentation => {
            cargo(&["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings").run()
        }
        Item::FuzzTargets => {
            cargo(&["clippy", "--package", "evenkeel-fuzz", "--features", "fuzzing", "--quiet", "--", "-D", "warnings"])
                .run()
        }
        Item::Browser => crate::browser::run(&crate::browser::Options::default()),
        Item::Guest(test) => {
            let session = match session {
                Some(session) => session,
                None => session.insert(Session::of_this_checkout(cache)?),
            };
            ensure!(session.run(test), "see above");
            Ok(())
        }
    }
}

/// Test programs with tests that the default profile leaves out.
fn suites() -> Result<Vec<String>> {
    let listed = output(nextest("list").args(["-E", LEFT_OUT, "--message-format", "json"]))?;
    let listed: serde_json::Value = serde_json::from_str(&listed).context("what nextest lists")?;
    let programs = listed["rust-suites"].as_object().context("nextest lists no programs")?;
    let has_some = |program: &serde_json::Value| {
        let mut tests = program["testcases"].as_object().into_iter().flat_map(|tests| tests.values());
        tests.any(|test| test["filter-match"]["status"] == "matches")
    };
    Ok(programs.iter().filter(|(_, program)| has_some(program)).map(|(name, _)| name.clone()).collect())
}

fn nextest(subcommand: &str) -> Command {
    let mut command = cargo(&["nextest", subcommand, "--workspace", "--ignore-default-filter"]);
    // Its own report; what tests print is shown where they fail.
    command.env("NEXTEST_STATUS_LEVEL", "slow");
    command
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// What a command that must succeed prints.
fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{program} can't be run"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// Running a command to its end.
trait Run {
    /// # Errors
    /// When it can't be run or fails.
    fn run(&mut self) -> Result<()>;
}

impl Run for Command {
    fn run(&mut self) -> Result<()> {
        let program = self.get_program().to_string_lossy().into_owned();
        let status = self.status().with_context(|| format!("{program} can't be run"))?;
        ensure!(status.success(), "{program} ended with {status}");
        Ok(())
    }
}

/// A number that follows from a text (FNV-1a).
fn number_of(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two commits that drew the same order would leave the same pieces out.
    #[test]
    fn each_text_has_a_number_of_its_own() {
        assert_eq!(number_of("a"), 0xaf63_dc4c_8601_ec8c);
        assert_ne!(number_of("1985e04a"), number_of("1985e04b"));
    }
}
