//! The drives' files while no daemon runs: each disk's ranges, and the free ones.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use layout::{Layout, LayoutFile, Placement};

use super::MIB;
use super::content::{BLOCK_BYTES, ZEROS};
use super::model::{DECLARED, SPARE_MIB, SPARES};
use crate::host::Host;

/// The content that another program wrote to a drive that was not Evenkeel's.
pub const FOREIGN: [u8; BLOCK_BYTES as usize] = [0xfe; BLOCK_BYTES as usize];

/// A drive of the host's.
pub struct Drive {
    pub name: &'static str,
    pub size_bytes: u64,
    pub image: PathBuf,
    pub layout: PathBuf,
}

impl Drive {
    /// The drives that the daemon has: those that are declared, and those that were added.
    pub fn of(host: &Host) -> Result<Vec<Self>> {
        let added = std::fs::read_to_string(host.path("state/drives.toml")).unwrap_or_default();
        let has = |name: &&str| added.contains(&format!("name = \"{name}\"\n"));
        let declared = DECLARED.iter().map(|(name, mib)| Self {
            name,
            size_bytes: mib * MIB,
            image: host.path(&format!("{name}.img")),
            layout: host.path(&format!("{name}.img.layout.toml")),
        });
        Ok(declared.chain(SPARES.into_iter().filter(has).map(|name| Self::spare(host, name))).collect())
    }

    /// A drive that is added and removed.
    pub fn spare(host: &Host, name: &'static str) -> Self {
        let (image, layout) = (spare_image(host, name), host.path(&format!("state/layout-of-{name}.toml")));
        Self { name, size_bytes: SPARE_MIB * MIB, image, layout }
    }

    /// What is recorded of it.
    pub fn layout(&self) -> Result<Option<Layout>> {
        let file = LayoutFile::open(Some(self.layout.clone())).map_err(|error| anyhow!("{error}"))?;
        Ok(file.layout().cloned())
    }

    /// No byte is two disks', and what is nobody's holds nothing of anybody.
    pub fn check(&self, findings: &mut Vec<String>) -> Result<()> {
        let layout = match self.layout() {
            Ok(Some(layout)) => layout,
            Ok(None) => return Ok(()),
            Err(error) => {
                findings.push(format!("{}: {error:#}", self.name));
                return Ok(());
            }
        };
        let mut taken: Vec<(u64, u64, &str)> = Vec::new();
        for placement in layout.placements() {
            let extents = placement.extents.iter();
            taken.extend(extents.map(|it| (it.offset_bytes, it.end_bytes(), placement.name.as_str())));
        }
        let wiping = layout.wiping().iter().map(layout::Wiping::extent);
        taken.extend(wiping.map(|it| (it.offset_bytes, it.end_bytes(), "what is wiped")));
        taken.push((self.size_bytes, self.size_bytes, "the end"));
        taken.sort_unstable();
        let image = File::open(&self.image).with_context(|| self.image.display().to_string())?;
        let mut at = 0;
        for (start, end, who) in taken {
            if start < at {
                findings.push(format!("{}: {who} has bytes from {start} on that somebody else has", self.name));
            }
            let mut free = vec![0; start.saturating_sub(at) as usize];
            image.read_exact_at(&mut free, at)?;
            let is_nothing = |page: &[u8]| page == ZEROS || page == FOREIGN;
            if let Some(index) = free.chunks(BLOCK_BYTES as usize).position(|page| !is_nothing(page)) {
                let offset = index * BLOCK_BYTES as usize;
                let found = &free[offset..offset + 32];
                findings.push(format!("{}: what is free holds {found:?} at {}", self.name, at + offset as u64));
            }
            at = at.max(end);
        }
        Ok(())
    }
}

/// The file of a drive that comes and goes.
pub fn spare_image(host: &Host, name: &str) -> PathBuf {
    host.path(&format!("{name}.img"))
}

/// Where a byte of a disk lies on its drive.
pub fn offset_on_drive(placement: &Placement, mut offset_bytes: u64) -> Option<u64> {
    for extent in &placement.extents {
        if offset_bytes < extent.size_bytes {
            return Some(extent.offset_bytes + offset_bytes);
        }
        offset_bytes -= extent.size_bytes;
    }
    None
}

/// Drives that Evenkeel does not have, and to which another program wrote.
#[derive(Default)]
pub struct Strangers {
    names: BTreeSet<&'static str>,
}

impl Strangers {
    /// Another program uses the drive.
    pub fn take(&mut self, host: &Host, name: &'static str) -> Result<()> {
        if self.names.insert(name) {
            let image = File::options().write(true).create(true).truncate(false).open(spare_image(host, name))?;
            (0..SPARE_MIB * MIB / BLOCK_BYTES).try_for_each(|at| image.write_all_at(&FOREIGN, at * BLOCK_BYTES))?;
        }
        Ok(())
    }

    /// Whether another program uses the drive.
    pub fn have(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// It is Evenkeel's from now on, perhaps with what they left.
    pub fn give(&mut self, name: &str) {
        self.names.remove(name);
    }

    /// Nobody wrote to what is not Evenkeel's.
    pub fn check(&self, host: &Host, findings: &mut Vec<String>) -> Result<()> {
        for name in &self.names {
            let image = std::fs::read(spare_image(host, name))?;
            if let Some(at) = image.chunks(BLOCK_BYTES as usize).position(|page| page != FOREIGN) {
                findings.push(format!("{name} is not Evenkeel's, and its page {at} was written"));
            }
        }
        Ok(())
    }
}
