//! One daemon from its start to its end, and the changes meanwhile.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::{Action, Apply, Deletion, Disk, DiskPatch, DiskSpec, DriveRemoval, NewDrive, Problem};
use rustix::process::{Pid, Signal, kill_process};

use super::content::lock;
use super::draw::draw;
use super::files::spare_image;
use super::model::{Change, Declared, SPARE_MIB, SPARES, Shape, disk_change, new_disk};
use super::writer::{Phase, Target, Writer};
use super::{WRITERS, World};
use crate::changes::client::OWN;
use crate::host::Daemon;

/// After a change is asked for, in microseconds.
const KILLED_WITHIN_US: u64 = 6_000;

impl World<'_> {
    /// One daemon, from its start to a kill amid the last of `changes`.
    pub fn life(&mut self, changes: u32) -> Result<()> {
        let daemon = self.daemon()?;
        let pid = Pid::from_raw(daemon.id() as i32).context("a process without a number")?;
        for left in (0..changes).rev() {
            self.keep_writing()?;
            self.writers.values().try_for_each(Writer::wait_for_command)?;
            let change = self.next_change()?;
            self.announce(&change);
            let is_last = left == 0 && self.report.kills < self.plan.kills;
            // Most changes are over in a few milliseconds.
            let delay = Duration::from_micros(self.random.u64(..KILLED_WITHIN_US));
            let killer = is_last.then(|| {
                std::thread::spawn(move || {
                    std::thread::sleep(delay);
                    // Fails after its end.
                    let _ = kill_process(pid, Signal::KILL);
                })
            });
            let result = self.send(&change);
            if let Some(killer) = killer {
                // It can't fail.
                let _ = killer.join();
                self.report.kills += 1;
                drop(daemon);
                self.stop_writers();
                self.sabotage()?;
                self.check_files()?;
                return if self.is_astray { Ok(()) } else { self.after_kill(change, result) };
            }
            self.settle(change, result)?;
            if self.is_astray {
                return Ok(());
            }
        }
        self.stop_writers();
        drop(daemon);
        self.check_files()
    }

    /// The one that was looked at after a kill, or another one.
    pub fn daemon(&mut self) -> Result<Daemon> {
        self.checked.take().map_or_else(|| self.host.start(), Ok)
    }

    fn next_change(&mut self) -> Result<Change> {
        let owner = self.serial();
        let change = loop {
            if let Some(change) = draw(&mut self.random, &self.state, owner) {
                break change;
            }
        };
        if let Change::AddDrive(name, _) = &change {
            let image = spare_image(&self.host, name);
            let is_left_as_it_is = self.strangers.have(name) && self.random.bool();
            if !is_left_as_it_is {
                self.strangers.give(name);
                File::create(image)?.set_len(SPARE_MIB * super::MIB)?;
            }
        }
        Ok(change)
    }

    /// Before a change: who writes to what it takes away expects that.
    fn announce(&mut self, change: &Change) {
        let set = |writer: &Writer, name: &str| writer.set_phase(name, Phase::Leaving);
        match change {
            Change::Detach(name, tenant) => self.writers.get(tenant).into_iter().for_each(|it| set(it, name)),
            Change::Delete(name) => self.writers.values().for_each(|it| set(it, name)),
            Change::Create(_, known) => {
                let tenants = known.shape.attachments.keys();
                tenants.filter_map(|tenant| self.writers.get(tenant)).for_each(Writer::forget_gone);
            }
            Change::Attach(_, attach) => {
                self.writers.get(&attach.tenant).into_iter().for_each(Writer::forget_gone);
            }
            _ => {}
        }
    }

    /// Asks for a change. The disk as it is now, where it is about one that stays.
    fn send(&mut self, change: &Change) -> Result<Option<Disk>> {
        let rest = self.rest();
        match change {
            Change::Create(name, known) => rest.create(&new_disk(name, &known.shape)).map(Some),
            Change::Grow(name, mib) => {
                let size = format!("{mib}MiB");
                rest.change(name, &DiskPatch::of(&DiskSpec { size, ..DiskSpec::default() })).map(Some)
            }
            Change::Set(name, terms) => rest.change(name, &disk_change(*terms)).map(Some),
            Change::Delete(name) => rest.delete(name, Deletion { force: true, ..Deletion::default() }).map(|_| None),
            Change::Attach(name, attach) => rest.attach(name, attach).map(Some),
            Change::Detach(name, tenant) => rest.detach(name, tenant).map(Some),
            Change::AddDrive(name, policy) => self.add_drive(name, *policy).map(|()| None),
            Change::RemoveDrive(name) => rest.remove_drive(name, DriveRemoval::default()).map(|_| None),
            Change::Apply(declared) => self.apply(declared).map(|()| None),
        }
    }

    fn add_drive(&self, name: &str, policy: Option<&str>) -> Result<()> {
        let path = spare_image(&self.host, name);
        let image = File::options().read(true).write(true).open(&path)?;
        let drive = NewDrive {
            name: name.to_owned(),
            backend: "file".to_owned(),
            path: Some(path.display().to_string()),
            policy: policy.map(str::to_owned),
            ..NewDrive::default()
        };
        self.rest().add_drive(&drive, &[image.as_fd()]).map(drop)
    }

    /// As an operator does it: what can be done is written into the file that the daemon starts with, and applied.
    fn apply(&self, declared: &Declared) -> Result<()> {
        let text = self.host.fill_in(&declared.text())?;
        let file = self.host.config().display().to_string();
        let ask = |dry_run| self.rest().apply(&Apply { file: file.clone(), text: text.clone(), dry_run, agreed: None });
        let planned = ask(true)?;
        if planned.steps.iter().any(|step| step.action == Action::Later) {
            return Err(Problem::new(409, "put-off", "it takes another start", "start the daemon again").into());
        }
        self.host.configure(&declared.text())?;
        let applied = ask(false);
        if applied.as_ref().is_err_and(is_refusal) {
            self.host.configure(&self.state.declared.text())?;
        }
        applied.map(drop)
    }

    /// A change that the daemon answered.
    fn settle(&mut self, change: Change, result: Result<Option<Disk>>) -> Result<()> {
        match result {
            Ok(told) => self.made(change, told.as_ref()),
            Err(error) => match error.downcast::<Problem>() {
                Ok(problem) => self.refused(&change, &problem),
                Err(error) => bail!("the daemon gave no answer to {}: {error:#}", change.kind()),
            },
        }
    }

    /// Nothing has changed.
    pub fn refused(&mut self, change: &Change, problem: &Problem) -> Result<()> {
        *self.report.refused.entry(problem.code.clone()).or_default() += 1;
        if problem.status >= 500 {
            self.finding(format!("{}: {problem}", change.kind()));
        }
        if let Change::Detach(name, _) | Change::Delete(name) = change {
            self.writers.values().for_each(|it| it.set_phase(name, Phase::Here));
        }
        Ok(())
    }

    /// A change is made: what should be is another state from now on.
    pub fn made(&mut self, change: Change, told: Option<&Disk>) -> Result<()> {
        *self.report.made.entry(change.kind()).or_default() += 1;
        let after = self.state.with(&change);
        let before = std::mem::replace(&mut self.state, after);
        if let Some(told) = told {
            let found = Shape::of(told);
            self.state.settle(&told.name, &found);
            let should_be = self.state.disks.get(&told.name).map(|known| known.shape.clone());
            if should_be.as_ref() != Some(&found) {
                self.is_astray = true;
                self.finding(format!("{}: told of {found:?} instead of {should_be:?}", change.kind()));
            }
        }
        match change {
            Change::Create(name, _) => self.tell_writers(&name, None),
            Change::Attach(name, attach) => self.tell_writers(&name, Some(&attach.tenant)),
            Change::Grow(name, mib) => {
                self.state.disks.get(&name).into_iter().for_each(|known| lock(&known.content).grow(mib));
            }
            Change::Detach(name, tenant) => {
                self.writers.get(&tenant).into_iter().for_each(|it| it.set_phase(&name, Phase::Gone));
            }
            Change::Delete(name) => {
                self.writers.values().for_each(|it| it.set_phase(&name, Phase::SoonGone));
                if before.disks.get(&name).is_some_and(|known| known.shape.terms.is_some()) {
                    // Its client was cut off.
                    drop(self.stop_writer(&name));
                }
            }
            Change::RemoveDrive(name) => self.leave_to_strangers(&name)?,
            Change::AddDrive(name, _) => self.strangers.give(&name),
            Change::Set(..) | Change::Apply(_) => {}
        }
        Ok(())
    }

    /// Another program gets a drive that is not Evenkeel's, and writes to it.
    pub fn leave_to_strangers(&mut self, name: &str) -> Result<()> {
        let name = SPARES.into_iter().find(|it| *it == name).context("a drive that comes and goes")?;
        self.strangers.take(&self.host, name)
    }

    /// Clients of tenants that have a namespace now write to it, or that of one tenant.
    fn tell_writers(&mut self, name: &str, only: Option<&str>) {
        let Some(known) = self.state.disks.get(name).cloned() else { return };
        for (tenant, read_only) in &known.shape.attachments {
            if only.is_none_or(|only| only == tenant) && self.writers.contains_key(tenant) {
                let target = self.target(name, known.shape.nsid.unwrap_or(OWN), *read_only);
                self.writers[tenant].add(target);
            }
        }
    }

    fn target(&mut self, name: &str, nsid: u32, read_only: bool) -> Target {
        let (serial, content) = (self.serial(), self.state.disks[name].content.clone());
        Target { serial, name: name.to_owned(), nsid, read_only, content, phase: Phase::Here }
    }

    /// All disks of a tenant: its own, and its namespaces.
    pub fn targets_of(&mut self, tenant: &str) -> Vec<Target> {
        let disks = self.state.disks.iter().filter_map(|(name, known)| {
            let read_only = known.shape.attachments.get(tenant)?;
            Some((name.clone(), known.shape.nsid?, *read_only))
        });
        let disks: Vec<(String, u32, bool)> = [(tenant.to_owned(), OWN, false)].into_iter().chain(disks).collect();
        disks.into_iter().map(|(name, nsid, read_only)| self.target(&name, nsid, read_only)).collect()
    }

    /// Some tenants are written to all the time.
    fn keep_writing(&mut self) -> Result<()> {
        let done: Vec<String> =
            self.writers.iter().filter(|(_, it)| it.has_ended()).map(|(name, _)| name.clone()).collect();
        for name in done {
            // The daemon lives, and has the disk.
            if let Some(end) = self.stop_writer(&name) {
                self.finding(format!("{name}: what others did ended its load: {end:#}"));
            }
        }
        let is_idle = |(name, known): &(&String, &super::model::Known)| {
            known.shape.terms.is_some() && !self.writers.contains_key(*name)
        };
        let idle: Vec<String> = self.state.disks.iter().filter(is_idle).map(|(name, _)| name.clone()).collect();
        if self.writers.len() < WRITERS
            && let Some(name) = self.random.choice(&idle).cloned()
        {
            let (seed, disks) = (self.random.u64(..), self.targets_of(&name));
            let writer = Writer::start(&name, self.host.runtime_dir().join(&name), disks, seed)?;
            self.writers.insert(name, writer);
        } else if self.random.u8(..4) == 0
            && let Some(name) = self.random.choice(&self.writers.keys().cloned().collect::<Vec<_>>())
        {
            drop(self.stop_writer(name));
        }
        Ok(())
    }

    /// Why the writer had ended before, if it had.
    fn stop_writer(&mut self, name: &str) -> Option<anyhow::Error> {
        let Some(did) = self.writers.remove(name)?.stop() else {
            self.finding(format!("{name}: its writer panicked"));
            return None;
        };
        self.report.written_blocks += did.blocks;
        self.report.checked_blocks += did.checked;
        self.report.forbidden += did.forbidden;
        self.findings(did.findings);
        did.end
    }

    /// They end with the daemon, and all that was under way with them.
    fn stop_writers(&mut self) {
        let names: Vec<String> = self.writers.keys().cloned().collect();
        names.iter().for_each(|name| drop(self.stop_writer(name)));
        let contents: BTreeMap<_, _> = self.state.disks.iter().map(|(name, known)| (name, &known.content)).collect();
        contents.values().for_each(|content| lock(content).release_all());
    }

    fn sabotage(&mut self) -> Result<()> {
        if let Some(sabotage) = self.plan.sabotage.filter(|_| !self.report.is_sabotaged) {
            self.report.is_sabotaged = sabotage.commit(&self.host, &self.state, &self.strangers)?;
        }
        Ok(())
    }
}

/// Whether it is an answer, and a no.
pub fn is_refusal(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Problem>().is_some()
}
