//! `cargo xtask browser-test`: the page in a real browser, on real daemons.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `chromium` | a headless Chromium |
//! | `axe` | the check of what keeps people from using a page |
//! | `site` | a daemon with its port, and the load on its tenants |
//! | `checks` | what is checked |

mod axe;
mod checks;
mod chromium;
mod site;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};

use chromium::{Chromium, Program};

use crate::guest::daemon;

#[derive(Debug, Default, clap::Args)]
pub struct Options {
    /// Write the pictures that the documentation shows, docs/images/page-*.png
    #[arg(long)]
    screenshots: bool,
    /// Only the checks whose names contain this
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// Where what is fetched is kept [default: EVENKEEL_CACHE, or evenkeel/guest in the user's cache]
    #[arg(long = "cache", value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// Runs the checks. Where there is no browser they are skipped, unless `CI` is set: then that is a failure.
///
/// # Errors
/// When one failed.
pub fn run(options: &Options) -> Result<()> {
    let start = Instant::now();
    let (program, axe) = match tools(options) {
        Ok(tools) => tools,
        Err(error) if crate::guest::required() => {
            return Err(error.context("the browser test must not be skipped here"));
        }
        Err(error) => {
            println!("browser test: skipped, {error:#}");
            return Ok(());
        }
    };
    let binary = daemon::binary(daemon::Profile::Dev)?;
    let dir = tempfile::Builder::new().prefix("evenkeel-browser-").tempdir()?;
    let chromium = Chromium::start(&program, dir.path())?;
    let mut bench = checks::Bench { chromium, axe, binary, dir: dir.path().to_path_buf() };
    for (name, check) in checks::ALL {
        if options.filter.as_ref().is_some_and(|part| !name.contains(part.as_str())) {
            continue;
        }
        let began = Instant::now();
        check(&mut bench, options.screenshots).with_context(|| format!("browser test {name}"))?;
        println!("browser test {name} ... ok ({:.1} s)", began.elapsed().as_secs_f64());
    }
    println!("The browser test took {:.0} s.", start.elapsed().as_secs_f64());
    Ok(())
}

/// The browser, and axe's script.
fn tools(options: &Options) -> Result<(Program, String)> {
    let cache = options.cache.clone().map_or_else(crate::guest::default_cache, Ok)?;
    let program = Program::find(&cache).context("there is no Chromium (apt-get install chromium)")?;
    Ok((program, axe::script(&cache)?))
}
