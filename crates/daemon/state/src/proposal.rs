//! A proposed disk, with the configuration that would have it. Nothing is applied before its promises are judged.

use std::collections::HashMap;

use api::{DiskError, DiskPatch, DiskSpec, Reason};
use config::{Config, KeyChange, Tenant};
use io_model::TenantId;
use io_model::units::Size;
use layout::Placement;

use crate::disks::Phase;
use crate::drive_state::DriveState;
use crate::errors::{
    being_deleted, broken, declared, invalid, name_reserved, no_room_to_grow, not_changeable, not_writable, otherwise,
};

/// A tenant that is to come or to change.
#[derive(Debug, Clone)]
pub struct Proposal {
    /// The drive's configuration with it.
    pub config: Config,
    /// The tenant.
    pub tenant: Tenant,
    /// Its `[[tenant]]` section.
    pub section: String,
}

impl DriveState {
    /// The disk of that name, if its section has equal settings.
    ///
    /// # Errors
    /// There is another disk of that name, or data of one.
    pub fn same_disk(&self, name: &str, section: &str) -> Result<TenantId, DiskError> {
        let id = self.disks().find(name).ok_or_else(|| name_reserved(name))?;
        if self.jobs().is_held(id) {
            return Err(being_deleted(name));
        }
        let made = self.section_of(name).ok_or_else(|| declared(name, self.config()))?;
        let on = &self.config().device.name;
        let is_other = |it: &KeyChange| it.key != "drive" || it.new.as_ref().is_some_and(|new| new != on);
        let others: Vec<_> = config::made_changes(made, section).into_iter().filter(is_other).collect();
        if others.is_empty() { Ok(id) } else { Err(otherwise(name, &others)) }
    }

    /// A tenant as its section says, whether it is there or not.
    ///
    /// # Errors
    /// Everything that is wrong with it, by itself and beside the other disks.
    pub fn propose(&self, name: &str, section: String) -> Result<Proposal, DiskError> {
        let config = self.config_with(&section)?;
        let tenant = config.tenants.iter().find(|tenant| tenant.name == name).cloned().ok_or_else(broken)?;
        Ok(Proposal { config, tenant, section })
    }

    /// A tenant that the API made, with a change. Also returns its section as it is now.
    ///
    /// # Errors
    /// It can't change so.
    pub fn propose_change(&self, name: &str, change: &DiskPatch) -> Result<(Proposal, &str), DiskError> {
        let disk = self.disks().find(name).and_then(|id| self.disks().get(id));
        let disk = disk.ok_or_else(|| DiskError::no_such_disk(name))?;
        if disk.phase == Phase::Leaving {
            return Err(being_deleted(name));
        }
        let before = self.section_of(name).ok_or_else(|| declared(name, self.config()))?;
        change.size().map_or(Ok(()), |size| self.refuse_too_large(name, size, false))?;
        let spec = DiskSpec::from_section(before).map_err(|_| broken())?;
        let changed = change.apply(&spec).map_err(|why| not_changeable(&why))?;
        let section = changed.to_section().map_err(not_writable)?;
        Ok((self.propose(name, section)?, before))
    }

    /// The configuration without a disk.
    ///
    /// # Errors
    /// It does not hold together so.
    pub fn config_without(&self, name: &str) -> Result<Config, DiskError> {
        let detached = self.detached_sections(|tenant| tenant != name);
        let detached: Vec<&str> = detached.iter().map(|(_, section)| section.as_str()).collect();
        self.config().changed_by(&detached, Some(name)).map_err(|errors| invalid(&errors))
    }

    /// The configuration with one disk as its section says.
    pub(crate) fn config_with(&self, section: &str) -> Result<Config, DiskError> {
        let config = self.config().changed_by(&[section], None).map_err(|errors| invalid(&errors))?;
        self.refuse_smaller_blocks(&config)?;
        Ok(config)
    }

    /// Refuses new disks that are to have smaller blocks than the drive.
    fn refuse_smaller_blocks(&self, config: &Config) -> Result<(), DiskError> {
        let placements = self.layout().into_iter().flat_map(layout::Layout::placements);
        let placed: HashMap<&str, u32> = placements.map(|it| (it.name.as_str(), it.lba_bytes)).collect();
        let refused = config.refuse_smaller_blocks(self.facts().block_bytes, &|name| placed.get(name).copied());
        refused.map_err(|errors| invalid(&errors))
    }

    /// Whether there is room for a disk to come or to grow. What is wrong with the size itself is told with the rest.
    ///
    /// # Errors
    /// There is no room.
    pub fn refuse_too_large(&self, name: &str, size: &str, is_thin: bool) -> Result<(), DiskError> {
        let (Some(layout), Ok(size)) = (self.layout(), size.parse::<Size>()) else { return Ok(()) };
        // The pool's overcommit is its limit.
        if is_thin || layout.find(name).is_some_and(|placement| placement.thin.is_some()) {
            return Ok(());
        }
        let free = Size(layout.free_bytes());
        let has_bytes = layout.find(name).map_or(0, Placement::size_bytes);
        if size.0.saturating_sub(has_bytes) <= free.0 {
            return Ok(());
        }
        if has_bytes > 0 {
            return Err(no_room_to_grow(name, has_bytes, free.0));
        }
        let wiping: u64 = layout.wiping().iter().map(|range| range.size_bytes).sum();
        let title = format!("no room for {name:?} of {size}: drive {:?} has {free} free", self.config().device.name);
        let mut remedy = "make it smaller, or delete unused disks".to_owned();
        if wiping > 0 {
            remedy += &format!(", or wait until {} of deleted disks are wiped", Size(wiping));
        }
        Err(DiskError::new(Reason::NoRoom, title, remedy))
    }
}
