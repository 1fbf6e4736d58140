//! Disks that are images in a drive's directory.
//!
//! They are opened at the start, before rights are dropped. Their files say where their data is, so the layout of such a
//! drive is kept nowhere.

use anyhow::{Context, Result};
use api::{DiskError, EventKind, Reason};
use client_socket::Level;
use config::Tenant;
use runtime::happening::Happening;
use runtime::image_disk::Wish;

use crate::served_drive::ServedDrive;

impl ServedDrive {
    /// Starts what changes images. Comes before any disk is served.
    ///
    /// # Errors
    /// An image's tables can't be read.
    pub(crate) fn start_images(&mut self) -> Result<()> {
        for image in self.pollers.take_images() {
            let (name, teller) = (image.tenant.clone(), self.teller.clone());
            let of_disk = name.clone();
            let started = image.start(move |wish| {
                teller.tell(match wish {
                    Wish::Quiet(witness) => Happening::Quiet(witness),
                    Wish::Failed(why) => Happening::ImageFailed(of_disk.clone(), why),
                });
            });
            let started = started.with_context(|| format!("tenant {name}: its image can't be read"))?;
            self.images.insert(name, started);
        }
        Ok(())
    }

    /// # Errors
    /// The disk is an image that was not opened at the start.
    pub(crate) fn refuse_unopened_image(&self, tenant: &Tenant) -> Result<()> {
        if tenant.image.is_none() || self.images.contains_key(&tenant.name) {
            return Ok(());
        }
        let title = format!("disk {:?} is an image, and images are opened when the daemon starts", tenant.name);
        Err(DiskError::new(Reason::NotServable, title, "start the daemon again").into())
    }

    /// # Errors
    /// The disk is an image, which has its own size.
    pub(crate) fn refuse_image_to_grow(&self, name: &str) -> Result<(), DiskError> {
        if !self.images.contains_key(name) {
            return Ok(());
        }
        let title = format!("disk {name:?} is an image, and its size is the image's");
        let remedy = "stop the daemon, run `qemu-img resize`, and write the new size into the configuration";
        Err(DiskError::new(Reason::NotServable, title, remedy))
    }

    /// The image of a disk can't be changed.
    pub(crate) fn image_fails(&self, name: &str, why: &str) {
        let line = format!("{name}: its image can't be changed: {why}; commands that need new clusters fail");
        (self.around.sink)(Level::Warn.of_tenant(name), &line);
        self.events.tell(EventKind::DriveFailing, Some(name), Some(line));
    }

    /// The daemon ends, and no poller is left.
    pub(crate) fn close_images(&mut self) {
        std::mem::take(&mut self.images).into_values().for_each(runtime::image_disk::ImageDisk::stop);
    }
}
