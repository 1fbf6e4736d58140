//! Disks that are images in a drive's directory.
//!
//! They are opened at the start, before rights are dropped. Their files say where their data is, so the layout of such
//! a drive is kept nowhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use api::{DiskError, Reason};
use config::Tenant;
use io_model::PieceMap;
use runtime::happening::{Happening, Teller};
use runtime::image_disk::{ImageDisk, OpenedImage, Wish};

/// A drive's disks that are images, by name.
#[derive(Default)]
pub(crate) struct ImageDisks(BTreeMap<String, ImageDisk>);

impl ImageDisks {
    /// Starts what changes images. Comes before any disk is served.
    ///
    /// # Errors
    /// An image's tables can't be read.
    pub fn start(&mut self, images: Vec<OpenedImage>, teller: &Teller) -> Result<()> {
        for image in images {
            let (name, of_disk, teller) = (image.tenant.clone(), image.tenant.clone(), teller.clone());
            let started = image.start(move |wish| {
                teller.tell(match wish {
                    Wish::Quiet(witness) => Happening::Quiet(witness),
                    Wish::Failed(why) => Happening::ImageFailed(of_disk.clone(), why),
                });
            });
            let started = started.with_context(|| format!("tenant {name}: its image can't be read"))?;
            self.0.insert(name, started);
        }
        Ok(())
    }

    /// What pollers read of a disk. `None`: it is no image.
    pub fn map(&self, name: &str) -> Option<Arc<PieceMap>> {
        self.0.get(name).map(ImageDisk::map)
    }

    /// # Errors
    /// The disk is an image that was not opened at the start.
    pub fn refuse_unopened(&self, tenant: &Tenant) -> Result<()> {
        if tenant.image.is_none() || self.0.contains_key(&tenant.name) {
            return Ok(());
        }
        let title = format!("disk {:?} is an image, and images are opened when the daemon starts", tenant.name);
        Err(DiskError::new(Reason::NotServable, title, "start the daemon again").into())
    }

    /// # Errors
    /// The disk is an image, which has its own size.
    pub fn refuse_to_grow(&self, name: &str) -> Result<(), DiskError> {
        if !self.0.contains_key(name) {
            return Ok(());
        }
        let title = format!("disk {name:?} is an image, and its size is the image's");
        let remedy = "stop the daemon, run `qemu-img resize`, and write the new size into the configuration";
        Err(DiskError::new(Reason::NotServable, title, remedy))
    }

    /// The daemon ends, and no poller is left.
    pub fn stop(&mut self) {
        std::mem::take(&mut self.0).into_values().for_each(ImageDisk::stop);
    }
}
