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

    /// Where the layout of `device` is kept; `None` for back ends that keep nothing.
    pub fn layout_path(&self, device: &DeviceIdentity) -> Option<PathBuf> {
        match &self.device.backend {
            Backend::File { .. } => Some(LayoutFile::beside(device)),
            Backend::Block { .. } => Some(LayoutFile::in_directory(&self.state_dir, device)),
            Backend::Memory | Backend::Null | Backend::Model => None,
        }
    }
}
