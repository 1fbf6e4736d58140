//! What must hold after a kill.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use api::{Disk, DiskState, Problem};
use load::Direction;

use super::client::{Client, MOST_BYTES, Piece};
use super::content::{BLOCK_BYTES, Shared, lock};
use super::files::{Drive, offset_on_drive};
use super::model::{Change, SPARES, Seen};
use super::writer::Target;
use super::{HANG, MIB, World};

impl World<'_> {
    /// All disks as soon as all of them are served in full.
    pub fn wait_for_rest(&self) -> Result<Vec<Disk>> {
        let start = Instant::now();
        loop {
            let disks = self.rest().disks()?;
            if disks.iter().all(|disk| disk.state == DiskState::Served && disk.grows_to_bytes.is_none()) {
                return Ok(disks);
            }
            if start.elapsed() > HANG {
                bail!("not all disks are served: {disks:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The change that was being made when the daemon died came to nothing, or to all of it; nothing else changed.
    pub fn after_kill(&mut self, change: Change, result: Result<Option<Disk>>) -> Result<()> {
        let daemon = self.host.start().with_context(|| format!("after a kill amid {}", change.kind()))?;
        let disks = self.wait_for_rest()?;
        let found = Seen::of(&disks, &self.rest().drives()?);
        let mut after = self.state.with(&change);
        if let Change::Create(name, _) = &change {
            found.disks.get(name).into_iter().for_each(|shape| after.settle(name, shape));
        }
        let kind = change.kind();
        let (is_before, is_after) = (found == self.state.seen(), found == after.seen());
        let refusal = result.as_ref().err().and_then(|error| error.downcast_ref::<Problem>()).cloned();
        let told = match (&result, &refusal) {
            (Ok(_), _) if is_after => "",
            (Ok(_), _) if is_before => "it was acknowledged, and is lost",
            (_, Some(_)) if is_before => "",
            (_, Some(_)) if is_after => "it was refused, and is there",
            (Err(_), None) if is_before || is_after => "",
            _ => "what is there is neither what was nor what was to be",
        };
        if !told.is_empty() {
            self.is_astray = true;
            let (was, to_be) = (self.state.seen(), after.seen());
            self.finding(format!("after a kill amid {kind}: {told}: {found:?}; before {was:?}; after {to_be:?}"));
            return Ok(());
        }
        match refusal {
            Some(problem) => self.refused(&change, &problem)?,
            None => {
                if result.is_err() {
                    self.report.interrupted.entry(kind).or_default()[usize::from(is_after)] += 1;
                }
                if is_after {
                    let told = match &change {
                        Change::Create(name, _) => disks.iter().find(|disk| disk.name == *name),
                        _ => None,
                    };
                    self.made(change, told)?;
                }
            }
        }
        // A drive that is not Evenkeel's belongs to another program, whatever was under way.
        for name in SPARES.into_iter().filter(|name| !found.drives.contains_key(*name)) {
            if !self.strangers.have(name) {
                self.leave_to_strangers(name)?;
            }
        }
        SPARES.iter().filter(|name| found.drives.contains_key(**name)).for_each(|name| self.strangers.give(name));
        self.check_contents()?;
        self.checked = Some(daemon);
        Ok(())
    }

    /// No daemon runs: no byte of a drive is two disks', what is nobody's holds nothing, and what is no drive of
    /// Evenkeel's was not touched.
    pub fn check_files(&mut self) -> Result<()> {
        let mut findings = Vec::new();
        for drive in Drive::of(&self.host)? {
            drive.check(&mut findings)?;
        }
        self.strangers.check(&self.host, &mut findings)?;
        self.is_astray |= !findings.is_empty();
        self.findings(findings);
        Ok(())
    }

    /// All of all disks, through every controller that has them. Nobody writes.
    pub fn check_contents(&mut self) -> Result<()> {
        let never = AtomicBool::new(false);
        let tenants = self.state.disks.iter().filter(|(_, known)| known.shape.terms.is_some());
        let tenants: Vec<String> = tenants.map(|(name, _)| name.clone()).collect();
        for tenant in tenants {
            let mut client =
                Client::attach(&self.host.runtime_dir().join(&tenant), &never).with_context(|| tenant.clone())?;
            for target in self.targets_of(&tenant) {
                self.check_through(&mut client, &target, &never)
                    .with_context(|| format!("{} of {tenant}", target.name))?;
            }
        }
        let alone =
            self.state.disks.iter().filter(|(_, it)| it.shape.terms.is_none() && it.shape.attachments.is_empty());
        let alone: Vec<_> = alone.map(|(name, known)| (name.clone(), known.clone())).collect();
        for (name, known) in alone {
            let drive = known.shape.drive.clone().unwrap_or_default();
            self.check_on(&drive, &name, &known.content).with_context(|| name.clone())?;
        }
        Ok(())
    }

    fn check_through(&mut self, client: &mut Client, target: &Target, never: &AtomicBool) -> Result<()> {
        let has_bytes = self.state.disks[&target.name].shape.mib * MIB;
        let sees_bytes = client.size_bytes(target.nsid)?;
        if sees_bytes != has_bytes {
            self.finding(format!("{}: its client sees {sees_bytes} bytes instead of {has_bytes}", target.name));
            return Ok(());
        }
        let mut piece = vec![0; MOST_BYTES as usize];
        for offset_bytes in (0..has_bytes).step_by(piece.len()) {
            let at = Piece { nsid: target.nsid, offset_bytes };
            let outcome = client.run(Direction::Read, at, &mut piece, never)?;
            outcome.map_err(|failure| anyhow!("a read at {offset_bytes} failed: {failure}"))?;
            self.check_blocks(&target.name, &target.content, offset_bytes, &piece);
        }
        Ok(())
    }

    /// A namespace that no controller has, on its drive.
    fn check_on(&mut self, drive: &str, name: &str, content: &Shared) -> Result<()> {
        let drives = Drive::of(&self.host)?;
        let drive = drives.iter().find(|it| it.name == drive).with_context(|| format!("the drive {drive}"))?;
        let layout = drive.layout()?.context("a layout")?;
        let placement = layout.find(name).context("its place")?;
        let image = File::open(&drive.image)?;
        let mut block = vec![0; BLOCK_BYTES as usize];
        for offset_bytes in (0..placement.size_bytes()).step_by(block.len()) {
            let at = offset_on_drive(placement, offset_bytes).context("a place of it")?;
            image.read_exact_at(&mut block, at)?;
            self.check_blocks(name, content, offset_bytes, &block);
        }
        Ok(())
    }

    fn check_blocks(&mut self, name: &str, content: &Shared, offset_bytes: u64, found: &[u8]) {
        for (index, found) in found.chunks(BLOCK_BYTES as usize).enumerate() {
            let at = (offset_bytes / BLOCK_BYTES) as usize + index;
            self.report.checked_blocks += 1;
            let mut content = lock(content);
            if !content.fits(at, found) {
                let version = content.versions.get(at).copied();
                drop(content);
                self.is_astray = true;
                self.finding(format!("{name}: block {at} is not version {version:?}: {:?}", &found[..32]));
            }
        }
    }
}
