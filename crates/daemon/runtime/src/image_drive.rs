//! A directory of images as a drive. Each image has addresses of its own, with the files that it builds on behind it.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use backend_uring::{Uring, UringDrive, WINDOW_BYTES};
use config::{Config, Image, RANGE_STEP_BYTES, Tenant};
use images::{DiskImage, ImageError};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::drive_trait::{Drive, Facts};
use crate::image_disk::OpenedImage;

/// A directory of images.
#[derive(Clone)]
pub(crate) struct ImageDrive {
    files: UringDrive,
    /// Until they are taken.
    images: Arc<Mutex<Vec<OpenedImage>>>,
}

impl ImageDrive {
    /// Opens the images of a drive's tenants, and reads where their clusters are. An image that can't be opened is left
    /// out if the drive may be missing.
    ///
    /// # Errors
    /// One of them can't be opened, or has another size than its tenant.
    pub fn open(config: &Config) -> Result<Self> {
        let mut windows: Vec<Option<(File, PathBuf)>> = Vec::new();
        let mut images = Vec::new();
        for (number, tenant) in config.tenants.iter().enumerate() {
            let Some(wanted) = &tenant.image else { continue };
            let base_bytes = config::image_base_bytes(number);
            let image = match open_one(tenant, wanted) {
                Err(error) if config.device.nofail => Err(format!("{error:#}")),
                opened => Ok(opened?),
            };
            if let Ok(image) = &image {
                let files = image.files().context("no more files can be opened; raise LimitNOFILE= of the unit")?;
                windows.resize_with((base_bytes / WINDOW_BYTES) as usize, || None);
                windows.extend(files.into_iter().map(Some));
            }
            images.push(OpenedImage { tenant: tenant.name.clone(), base_bytes, image });
        }
        let mut windows = windows.into_iter();
        let first = windows.next().flatten().map_or_else(nothing, Ok)?;
        let files = UringDrive::in_windows(first, windows.collect())?;
        Ok(Self { files, images: Arc::new(Mutex::new(images)) })
    }
}

fn open_one(tenant: &Tenant, wanted: &Image) -> Result<DiskImage> {
    let opened = DiskImage::open(&wanted.path, &wanted.backing);
    let image =
        opened.map_err(|ImageError { title, remedy }| anyhow!("tenant {:?}: {title}; {remedy}", tenant.name))?;
    match config::wrong_image_size(tenant, image.size_bytes()) {
        Some(wrong) => bail!(wrong),
        None => Ok(image),
    }
}

/// For the first window, which always has a file.
fn nothing() -> Result<(File, PathBuf)> {
    const NAME: &str = "no-image";
    let file = File::from(memfd_create(NAME, MemfdFlags::CLOEXEC)?);
    file.set_len(RANGE_STEP_BYTES)?;
    Ok((file, PathBuf::from(NAME)))
}

impl Drive for ImageDrive {
    type Queues = Uring;

    fn facts(&self) -> Facts {
        Facts { discard: true, ..Drive::facts(&self.files) }
    }

    fn open_queues(&self, hwqs: u16, depth: u32) -> Result<Uring> {
        Ok(self.files.open_queues(hwqs, depth)?)
    }

    fn take_images(&self) -> Vec<OpenedImage> {
        std::mem::take(&mut self.images.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
