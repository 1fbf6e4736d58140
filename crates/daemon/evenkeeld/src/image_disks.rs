//! Disks that are images in a drive's directory.
//!
//! They are opened at the start, before rights are dropped. Their files say where their data is, so the layout of such
//! a drive is kept nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Result;
use api::{DiskError, Reason};
use config::Tenant;
use io_model::PieceMap;
use runtime::happening::{Happening, Teller};
use runtime::image_disk::{ImageDisk, OpenedImage, Wish};

/// A drive's disks that are images, by name.
#[derive(Default)]
pub(crate) struct ImageDisks {
    disks: BTreeMap<String, ImageDisk>,
    /// Disks of images that can't be opened. They are not served.
    missing: BTreeSet<String>,
}

impl ImageDisks {
    /// Starts what changes images. Comes before any disk is served. Images that could not be opened are told of.
    pub fn start(&mut self, images: Vec<OpenedImage>, teller: &Teller) {
        for image in images {
            let (name, of_disk, to_owner) = (image.tenant.clone(), image.tenant.clone(), teller.clone());
            let started = image.start(move |wish| {
                to_owner.tell(match wish {
                    Wish::Quiet(witness) => Happening::Quiet(witness),
                    Wish::Failed(why) => {
                        let what = format!("its image can't be changed: {why}; commands that need new clusters fail");
                        Happening::ImageFailed(of_disk.clone(), what)
                    }
                });
            });
            match started {
                Ok(disk) => drop(self.disks.insert(name, disk)),
                Err(why) => {
                    let what = format!("it is not served until the daemon starts again: {why}");
                    teller.tell(Happening::ImageFailed(name.clone(), what));
                    self.missing.insert(name);
                }
            }
        }
    }

    /// Whether a disk is an image that can't be opened.
    pub fn is_missing(&self, name: &str) -> bool {
        self.missing.contains(name)
    }

    /// What pollers read of a disk. `None`: it is no image.
    pub fn map(&self, name: &str) -> Option<Arc<PieceMap>> {
        self.disks.get(name).map(ImageDisk::map)
    }

    /// # Errors
    /// The disk is an image that was not opened at the start.
    pub fn refuse_unopened(&self, tenant: &Tenant) -> Result<()> {
        if tenant.image.is_none() || self.disks.contains_key(&tenant.name) || self.is_missing(&tenant.name) {
            return Ok(());
        }
        let title = format!("disk {:?} is an image, and images are opened when the daemon starts", tenant.name);
        Err(DiskError::new(Reason::NotServable, title, "start the daemon again").into())
    }

    /// # Errors
    /// The disk is an image, which has its own size.
    pub fn refuse_to_grow(&self, name: &str) -> Result<(), DiskError> {
        if !self.disks.contains_key(name) && !self.is_missing(name) {
            return Ok(());
        }
        let title = format!("disk {name:?} is an image, and its size is the image's");
        let remedy = "stop the daemon, run `qemu-img resize`, and write the new size into the configuration";
        Err(DiskError::new(Reason::NotServable, title, remedy))
    }

    /// The daemon ends, and no poller is left.
    pub fn stop(&mut self) {
        std::mem::take(&mut self.disks).into_values().for_each(ImageDisk::stop);
    }
}
