//! Each tenant's range on the drive, with contradictions told at their lines.

use std::path::PathBuf;

use layout::{About, Change, DeviceIdentity, Layout, LayoutFile, Wanted};

use crate::config::{Backend, Config};
use crate::problem::{ConfigErrors, Sink};

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
        let wanted = self.tenants.iter().map(|tenant| Wanted {
            name: &tenant.name,
            size: tenant.size,
            offset: tenant.offset,
            lba_bytes: tenant.lba_bytes,
        });
        Layout::plan(&wanted.collect::<Vec<_>>(), device, recorded).map_err(|contradictions| {
            let mut sink = Sink::new(&self.text);
            let marks = |index: usize| self.tenants.get(index).map(|tenant| &tenant.marks);
            let drive = self.marks.path.as_ref().or(self.marks.device.as_ref());
            for found in contradictions {
                let mark = match found.about {
                    About::Device => drive,
                    About::DeviceSize => self.marks.size.as_ref().or(drive),
                    About::Size(index) => marks(index).map(|marks| &marks.size),
                    About::Offset(index) => marks(index).map(|marks| marks.offset.as_ref().unwrap_or(&marks.name)),
                    About::Plan => None,
                };
                sink.maybe_at(mark, found.what, found.remedy);
            }
            ConfigErrors { file: self.text.file.clone(), problems: sink.into_problems() }
        })
    }

    /// Serves the disks too that were made while an earlier daemon ran.
    ///
    /// # Errors
    /// The file has a tenant of the same name, or what is wrong with one of them beside the file as it is now.
    pub(crate) fn take_disks(&mut self, recorded: Option<&Layout>) -> Result<(), ConfigErrors> {
        let disks: Vec<(&str, &str)> = recorded.iter().flat_map(|layout| layout.settings()).collect();
        self.refuse_names(&disks.iter().map(|(name, _)| *name).collect::<Vec<_>>())?;
        if !disks.is_empty() {
            *self = self.with_disks(disks.into_iter().map(|(_, settings)| settings))?;
            self.look_up_accounts()?;
        }
        Ok(())
    }

    /// # Errors
    /// Each tenant that has the name of a disk that was made while a daemon ran.
    pub fn refuse_names(&self, made: &[&str]) -> Result<(), ConfigErrors> {
        let mut sink = Sink::new(&self.text);
        for tenant in self.tenants.iter().filter(|tenant| made.contains(&tenant.name.as_str())) {
            let what = format!("a disk {:?} was made by `evenkeel disk create`", tenant.name);
            sink.at(&tenant.marks.name, what, "choose another name, or delete that disk first");
        }
        sink.finish()
    }

    /// Where the layout of `device` is kept; `None` for back ends that keep nothing.
    pub fn layout_path(&self, device: &DeviceIdentity) -> Option<PathBuf> {
        match &self.device.backend {
            Backend::File { .. } => Some(LayoutFile::beside(device)),
            Backend::Block { .. } => Some(LayoutFile::in_directory(&self.state_dir, device)),
            Backend::Memory | Backend::Null | Backend::Model => None,
        }
    }
}
