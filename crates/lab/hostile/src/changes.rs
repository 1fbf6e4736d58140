//! Random changes of disks, namespaces, drives and policies, each while others are written and verified, and a daemon
//! that is killed again and again.
//!
//! After each kill the next daemon must have all as it was before the change that was being made, or all as it is after
//! it; each byte that was acknowledged; none of a drive's ranges twice; and nothing of a deleted disk anywhere but
//! where it is still being wiped. A namespace is written and verified through every controller that has it, and refused
//! to those that have it no more or may only read it.

mod client;
mod content;
mod draw;
mod files;
mod life;
mod model;
mod sabotage;
mod verify;
mod writer;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use api::{Deletion, DriveRemoval, Rest, api_path};
use fastrand::Rng;
use serde::Serialize;

use crate::host::{Daemon, Host};
use content::Content;
use files::Strangers;
use model::{BASES, Declared, State};
pub use sabotage::Sabotage;
use writer::Writer;

const MIB: u64 = 1 << 20;
/// Tenants that are written to at a time.
const WRITERS: usize = 4;
/// Nothing that works takes this long.
const HANG: Duration = Duration::from_secs(60);
/// Findings that are kept.
const MOST_FINDINGS: usize = 100;

/// What is to be done.
pub struct Plan<'a> {
    /// The daemon's program.
    pub program: &'a Path,
    /// Changes in all.
    pub changes: u32,
    /// How many of them it is killed in.
    pub kills: u32,
    /// What happens follows from it.
    pub seed: u64,
    /// Done once after a kill, to see whether it is found.
    pub sabotage: Option<Sabotage>,
    /// Hears how far it is.
    pub tell: &'a dyn Fn(&str),
}

/// What came of it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Changes that were made, of each kind.
    pub made: BTreeMap<&'static str, u32>,
    /// Changes that were refused, by the reason's code.
    pub refused: BTreeMap<String, u32>,
    /// Changes that a kill interrupted, of each kind: they came to nothing, or to all that they were meant to be.
    pub interrupted: BTreeMap<&'static str, [u32; 2]>,
    /// How often the daemon was killed.
    pub kills: u32,
    /// Blocks that were written while others changed.
    pub written_blocks: u64,
    /// Blocks that were read and looked at.
    pub checked_blocks: u64,
    /// Commands that had to fail, and did: to namespaces that are detached, or that may only be read.
    pub forbidden: u64,
    /// Whether the sabotage that was asked for was done.
    pub is_sabotaged: bool,
    /// What must not be.
    pub findings: Vec<String>,
}

struct World<'a> {
    plan: &'a Plan<'a>,
    host: Host,
    random: Rng,
    state: State,
    strangers: Strangers,
    writers: BTreeMap<String, Writer>,
    /// The daemon that was started after a kill, and that has all that it should have.
    checked: Option<Daemon>,
    /// Given to disks, and to what writers are told of.
    serial: u64,
    /// What there is, is not what should be: all else would follow from that.
    is_astray: bool,
    report: Report,
}

/// Runs the plan.
///
/// # Errors
/// A daemon does not start, or a client can't attach.
pub fn run(plan: &Plan<'_>) -> Result<Report> {
    let host = Host::with_config(plan.program, &Declared::FIRST.text())?;
    let contents = [0, 1].map(|index| Content::new(index as u64 + 1, BASES[index].1));
    let mut world = World {
        plan,
        host,
        random: Rng::with_seed(plan.seed),
        state: State::new(contents),
        strangers: Strangers::default(),
        writers: BTreeMap::new(),
        checked: None,
        serial: BASES.len() as u64,
        is_astray: false,
        report: Report::default(),
    };
    let mut left = plan.changes;
    while left > 0 && !world.is_astray {
        // The number of changes in this life, the last one amid a kill.
        let lives = (plan.kills - world.report.kills.min(plan.kills)).max(1);
        let span = world.random.u32(1..=(2 * left / (lives + 1)).max(1)).min(left);
        world.life(span)?;
        left -= span;
        let (kills, disks) = (world.report.kills, world.state.disks.len());
        (plan.tell)(&format!("{left} changes left, {kills} kills, {disks} disks"));
    }
    if !world.is_astray {
        world.end()?;
    }
    Ok(world.report)
}

impl World<'_> {
    fn rest(&self) -> Rest {
        Rest::new(api_path(&self.host.runtime_dir()))
    }

    fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn finding(&mut self, what: String) {
        self.findings(vec![what]);
    }

    fn findings(&mut self, what: Vec<String>) {
        let room = MOST_FINDINGS.saturating_sub(self.report.findings.len());
        self.report.findings.extend(what.into_iter().take(room));
    }

    /// Deletes all that the API made; then nothing of that is left.
    fn end(&mut self) -> Result<()> {
        let daemon = self.daemon()?;
        self.wait_for_rest()?;
        self.check_contents()?;
        let is_made = |name: &&String| !BASES.iter().any(|(base, _)| base == name);
        let names: Vec<String> = self.state.disks.keys().filter(is_made).cloned().collect();
        for name in names {
            self.rest().delete(&name, Deletion { force: true, ..Deletion::default() })?;
            self.state.disks.remove(&name);
        }
        let start = Instant::now();
        while !self.rest().operations()?.is_empty() {
            if start.elapsed() > HANG {
                bail!("the wiper does not end");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        for name in std::mem::take(&mut self.state.added).keys() {
            self.rest().remove_drive(name, DriveRemoval::default())?;
        }
        drop(daemon);
        self.check_files()
    }
}
