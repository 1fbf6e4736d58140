//! A directory of images as a drive. Each image has addresses of its own, with the files that it builds on behind it.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use backend_uring::{Uring, UringDrive, WINDOW_BYTES};
use config::{Config, RANGE_STEP_BYTES, Tenant};
use images::{DiskImage, ImageError};
use io_model::units::Size;

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
    /// Opens the images of a drive's tenants, and reads where their clusters are.
    ///
    /// # Errors
    /// One of them can't be opened, has another size than its tenant, or there is none.
    pub fn open(config: &Config) -> Result<Self> {
        let mut windows: Vec<Option<(File, PathBuf)>> = Vec::new();
        let mut images = Vec::new();
        for (number, tenant) in config.tenants.iter().enumerate() {
            let Some(wanted) = &tenant.image else { continue };
            let base_bytes = config::image_base_bytes(number);
            let image = DiskImage::open(&wanted.path, &wanted.backing).map_err(|error| told(tenant, error))?;
            refuse_size(tenant, &image)?;
            let files = image.files().context("no more files can be opened; raise LimitNOFILE= of the unit")?;
            windows.resize_with((base_bytes / WINDOW_BYTES) as usize, || None);
            windows.extend(files.into_iter().map(Some));
            images.push(OpenedImage { tenant: tenant.name.clone(), base_bytes, image });
        }
        let mut windows = windows.into_iter();
        let Some(first) = windows.next().flatten() else { bail!("the drive has no image: add a [[tenant]] with one") };
        let files = UringDrive::in_windows(first, windows.collect())?;
        Ok(Self { files, images: Arc::new(Mutex::new(images)) })
    }
}

fn told(tenant: &Tenant, ImageError { title, remedy }: ImageError) -> anyhow::Error {
    anyhow!("tenant {:?}: {title}; {remedy}", tenant.name)
}

fn refuse_size(tenant: &Tenant, image: &DiskImage) -> Result<()> {
    let (wanted, found) = (tenant.size, Size(image.size_bytes()));
    if wanted == found {
        return Ok(());
    }
    let remedy = match found.round_up(RANGE_STEP_BYTES) {
        Some(whole) if whole != found => format!("make that {whole}: `qemu-img resize`, and write size = \"{whole}\""),
        _ => format!("write size = \"{found}\""),
    };
    bail!("tenant {:?} has a size of {wanted}, and its image one of {found}; {remedy}", tenant.name)
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
