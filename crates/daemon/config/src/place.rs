//! Each tenant's range on the drive, with contradictions told at their lines.

use std::path::PathBuf;

use io_model::units::Size;
use layout::{About, Change, DeviceIdentity, Layout, LayoutFile, Wanted};

use crate::config::{Backend, Config};
use crate::host::DeviceLock;
use crate::problem::{ConfigErrors, Problem, Sink};
use crate::{images, sections};

impl Config {
    /// Gives every tenant its range; see [`Layout::plan`].
    ///
    /// # Errors
    /// All contradictions between this configuration and what was recorded, and new tenants for which there is no room.
    pub fn plan_layout(
        &self,
        device: &DeviceIdentity,
        recorded: Option<&Layout>,
    ) -> Result<(Layout, Vec<Change>), ConfigErrors> {
        let tenants = self.tenants.iter().enumerate().map(|(number, tenant)| Wanted {
            name: &tenant.name,
            size: tenant.size,
            offset: tenant.image.as_ref().map_or(tenant.offset, |_| Some(Size(images::base_bytes(number)))),
            lba_bytes: tenant.lba_bytes,
            is_thin: tenant.is_thin,
        });
        let namespaces = self.namespaces.iter().map(|namespace| Wanted {
            name: &namespace.name,
            size: namespace.size,
            offset: None,
            lba_bytes: namespace.lba_bytes,
            is_thin: false,
        });
        self.plan_for(&tenants.chain(namespaces).collect::<Vec<_>>(), device, recorded)
    }

    /// # Errors
    /// What was recorded is of another drive, or of one of another size.
    pub(crate) fn refuse_layout(&self, device: &DeviceIdentity, recorded: Option<&Layout>) -> Result<(), ConfigErrors> {
        self.plan_for(&[], device, recorded).map(drop)
    }

    fn plan_for(
        &self,
        wanted: &[Wanted<'_>],
        device: &DeviceIdentity,
        recorded: Option<&Layout>,
    ) -> Result<(Layout, Vec<Change>), ConfigErrors> {
        Layout::plan(wanted, self.device.pool, device, recorded).map_err(|contradictions| {
            let mut sink = Sink::new(&self.text);
            let marks = |index: usize| self.tenants.get(index).map(|tenant| &tenant.marks);
            let size_mark = |index: usize| match index.checked_sub(self.tenants.len()) {
                None => marks(index).map(|marks| &marks.size),
                Some(index) => self.namespaces.get(index).map(|namespace| &namespace.marks.size),
            };
            let drive = self.marks.path.as_ref().or(self.marks.device.as_ref());
            for found in contradictions {
                let mark = match found.about {
                    About::Device => drive,
                    About::DeviceSize => self.marks.size.as_ref().or(drive),
                    About::Size(index) => size_mark(index),
                    About::Offset(index) => marks(index).map(|marks| marks.offset.as_ref().unwrap_or(&marks.name)),
                    About::Pool => self.marks.pool.as_ref().or(drive),
                    About::Plan => None,
                };
                sink.maybe_at(mark, found.what, found.remedy);
            }
            ConfigErrors { file: self.text.file.clone(), problems: sink.into_problems() }
        })
    }

    /// Whether the next start would find room on its drive for everything that is declared, as far as that can be seen
    /// while an earlier configuration of that drive is `served`. Nothing is said of a drive at another path.
    ///
    /// # Errors
    /// What would keep the daemon from starting: a smaller drive, or what [`Config::plan_layout`] reports.
    pub fn check_next_start(
        &self,
        served: &Self,
        lock: &DeviceLock,
        block_bytes: u32,
        recorded: Option<&Layout>,
    ) -> Result<(), ConfigErrors> {
        if !self.device.backend.is_same_drive(&served.device.backend)
            || self.device.layout_file != served.device.layout_file
        {
            return Ok(());
        }
        self.refuse_smaller_than(Some(block_bytes), recorded)?;
        match (&self.device.backend, recorded, lock.file()) {
            (Backend::File { .. }, Some(recorded), Some(opened)) => {
                self.plan_layout(&self.check_opened(opened, None)?.device, Some(recorded)).map(drop)
            }
            // To ask the drive itself could make everybody wait.
            (Backend::Block { .. } | Backend::Nvme { .. }, Some(recorded), _) => {
                self.plan_layout(recorded.device(), Some(recorded)).map(drop)
            }
            // It is empty then.
            (Backend::Memory | Backend::Null | Backend::Model { .. } | Backend::Directory { .. }, ..) => {
                self.plan_layout(&self.of_no_file().device, None).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Serves the disks too that were made while an earlier daemon ran, but for those that the file names by now.
    /// Returns those, with their new sections, that were attached to tenants which have left the file since.
    ///
    /// # Errors
    /// What is wrong with one of them beside the file as it is now.
    pub(crate) fn take_disks(&mut self, recorded: Option<&Layout>) -> Result<Vec<(String, String)>, ConfigErrors> {
        let made = recorded.iter().flat_map(|layout| layout.settings());
        let disks: Vec<(&str, &str)> = made.filter(|(name, _)| !self.has_disk(name)).collect();
        if disks.is_empty() && self.namespaces.is_empty() {
            return Ok(Vec::new());
        }
        let is_there = |tenant: &str| {
            disks.iter().any(|(name, _)| *name == tenant) || self.tenants.iter().any(|it| it.name == tenant)
        };
        let detach =
            |(name, section): &(&str, &str)| Some(((*name).to_owned(), sections::detached(section, is_there)?));
        let detached: Vec<(String, String)> = disks.iter().filter_map(detach).collect();
        let now = |(name, section)| detached.iter().find(|(of, _)| of == name).map_or(section, |(_, it)| it.as_str());
        let made = self.with_disks(disks.iter().copied().map(now));
        // Their sections stand in the layout, so a line of the file would mislead.
        *self = made.map_err(|errors| ConfigErrors { file: "disks that the API made".into(), ..errors })?;
        self.look_up_accounts()?;
        Ok(detached)
    }

    /// Disks that were made while an earlier daemon ran and that the file names by now.
    pub(crate) fn declares(&self, layout: &Layout) -> Vec<String> {
        layout.settings().map(|(name, _)| name).filter(|name| self.has_disk(name)).map(str::to_owned).collect()
    }

    fn has_disk(&self, name: &str) -> bool {
        self.disks().any(|(its, ..)| its == name)
    }

    /// What is said of a namespace that [`take_disks`](Self::take_disks) detached.
    pub(crate) fn is_detached(name: &str) -> Problem {
        let what = format!("namespace {name:?} is detached from tenants that the configuration does not name any more");
        let remedy = "restore such a tenant before the daemon starts, or attach the namespace to it later";
        Problem { place: None, what, remedy: remedy.to_owned() }
    }

    /// Size of the drive, and how much of it is free, as an operator sees it.
    pub fn room(&self, layout: &Layout) -> (u64, u64) {
        match self.device.backend {
            Backend::Directory { .. } => (self.tenants.iter().map(|tenant| tenant.size.0).sum(), 0),
            _ => (layout.device().size_bytes, layout.free_bytes()),
        }
    }

    /// Where the layout of `device` is kept; `None` for back ends that keep nothing.
    pub fn layout_path(&self, device: &DeviceIdentity) -> Option<PathBuf> {
        match &self.device.backend {
            Backend::File { .. } | Backend::Block { .. } | Backend::Nvme { .. }
                if self.device.layout_file.is_some() =>
            {
                self.device.layout_file.clone()
            }
            Backend::File { .. } => Some(LayoutFile::beside(device)),
            Backend::Block { .. } | Backend::Nvme { .. } => Some(LayoutFile::in_directory(&self.state_dir, device)),
            Backend::Memory | Backend::Null | Backend::Model { .. } | Backend::Directory { .. } => None,
        }
    }
}
