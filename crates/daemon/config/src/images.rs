//! Disks that are image files.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use io_model::units::Size;
use toml::Spanned;

use crate::config::{Backend, Config, Image, Tenant};
use crate::draft::{Draft, TenantDraft};
use crate::keys::tenant;
use crate::problem::Sink;
use crate::section::Section;
use crate::values::Encryption;
use crate::{RANGE_STEP_BYTES, TENANTS_MAX};

/// Addresses of a drive for one disk and the files that it builds on: eight windows of 16 TiB.
const STEP_BYTES: u64 = 1 << 47;

/// Addresses of all disks of a drive.
const ADDRESS_BYTES: u64 = STEP_BYTES * TENANTS_MAX as u64;

/// Where the disk of the tenant of that number begins.
pub fn base_bytes(number: usize) -> u64 {
    number as u64 * STEP_BYTES
}

impl Image {
    /// With paths that begin at a directory, if they are relative.
    pub(crate) fn within(self, directory: &Path) -> Self {
        let join = |path: PathBuf| directory.join(path);
        Self { path: join(self.path), backing: self.backing.into_iter().map(join).collect() }
    }
}

/// `image` and `image_backing` of a tenant. `Some(None)`: it has none.
pub(crate) fn read(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Option<Image>> {
    let path = tenant::IMAGE.get_if_any(sink, section)?;
    let backing = tenant::IMAGE_BACKING.get_or_default(sink, section)?;
    let Some(path) = path else {
        section.forbid(sink, "image_backing", "the disk is no image", "remove it, or add image = \"vm.qcow2\"");
        return Some(None);
    };
    if path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        let what = format!("the image {} is not in the drive's directory", path.display());
        sink.maybe_at(section.mark("image").as_ref(), what, "give its path from there, and move the image there");
        return None;
    }
    let why = "the image says what the disk is";
    section.forbid(sink, "offset", why, "remove it");
    section.forbid(sink, "thin", why, "remove it: an image takes room as it is written");
    section.forbid(sink, "lba_size", why, "remove it");
    Some(Some(Image { path, backing }))
}

/// What a drive that is a directory can't have.
pub(crate) fn refuse_settings(sink: &mut Sink<'_>, section: &Section<'_, '_>) {
    for (key, why) in [
        ("size", "each image has its own size"),
        ("pool", "thin disks are no images"),
        ("encryption", "images are not encrypted here"),
        ("layout_file", "images say themselves where their data is"),
        ("wipe", "a deleted disk leaves its image"),
    ] {
        section.forbid(sink, key, why, "remove it");
    }
}

/// A drive that is a directory has only images, and no other one has any.
pub(crate) fn check(sink: &mut Sink<'_>, draft: &Draft) {
    let Some(device) = &draft.device else { return };
    let is_directory = matches!(device.backend, Backend::Directory { .. });
    let mut paths = HashSet::new();
    for draft in &draft.tenants {
        let TenantDraft { image: Some(image), name: Some(name), .. } = draft else { continue };
        match (image, is_directory) {
            (None, true) => {
                let what =
                    format!("tenant {:?} has no `image`, and its drive is a directory of images", name.get_ref());
                let remedy = "add image = \"vm.qcow2\" to its section in the configuration file, or name another drive";
                sink.at(&draft.span, what, remedy);
            }
            (Some(_), false) => {
                let what = format!("tenant {:?} has an `image`, and its drive is no directory", name.get_ref());
                let mark = draft.image_mark.as_ref();
                sink.maybe_at(mark, what, "remove it, or add a [[drive]] with backend = \"directory\"");
            }
            (Some(_), true) if !matches!(draft.encryption, None | Some(None | Some(Encryption::None))) => {
                let what = format!("tenant {:?} is an image, and images are not encrypted here", name.get_ref());
                sink.at(&draft.span, what, "remove `encryption`, or have the guest encrypt");
            }
            (Some(image), true) if !paths.insert(&image.path) => {
                let what = format!("the image {} is another tenant's already", image.path.display());
                sink.maybe_at(draft.image_mark.as_ref(), what, "give each tenant an image of its own");
            }
            _ => {}
        }
    }
    if let Some(name) = draft.namespaces.iter().find_map(|it| it.name.as_ref()).filter(|_| is_directory) {
        let what = format!("namespace {:?} is on a drive that is a directory of images", name.get_ref());
        sink.at(&Spanned::span(name), what, "put it on another drive");
    }
}

/// What is wrong with the size of an image for its tenant, and what to do.
pub fn wrong_image_size(tenant: &Tenant, image_bytes: u64) -> Option<String> {
    let (wanted, found) = (tenant.size, Size(image_bytes));
    if wanted == found {
        return None;
    }
    let remedy = match found.round_up(RANGE_STEP_BYTES) {
        Some(whole) if whole != found => {
            format!(
                "disks are multiples of 4 KiB: run `qemu-img resize IMAGE {}`, and write size = \"{whole}\"",
                whole.0
            )
        }
        _ => format!("write size = \"{found}\""),
    };
    Some(format!("tenant {:?} has a size of {wanted}, and its image one of {found}; {remedy}", tenant.name))
}

/// Size of a drive that is no file and no device.
pub(crate) fn size_of_no_file(config: &Config) -> u64 {
    match config.device.backend {
        Backend::Directory { .. } => ADDRESS_BYTES,
        _ => config.device.size.unwrap_or_default().0,
    }
}

/// Looks for a drive's directory and its images. `false`: something is wrong with them.
pub(crate) fn look(config: &Config, sink: &mut Sink<'_>, directory: &Path) -> bool {
    const REMEDY: &str = "check the path and its modes";
    let wrong = match directory.metadata() {
        Ok(metadata) if metadata.is_dir() => None,
        Ok(_) => Some((format!("{} is no directory", directory.display()), "give the one that the images are in")),
        Err(error) => Some((format!("can't look at {}: {error}", directory.display()), REMEDY)),
    };
    if let Some((what, remedy)) = wrong {
        sink.maybe_at(config.marks.path.as_ref(), what, remedy);
        return false;
    }
    let mut is_good = true;
    for tenant in &config.tenants {
        let images = tenant.image.iter().flat_map(|image| image.backing.iter().chain([&image.path]));
        for (image, error) in images.filter_map(|image| Some((image, image.metadata().err()?))) {
            let what = format!("can't look at the image {}: {error}", image.display());
            sink.maybe_at(tenant.marks.image.as_ref(), what, REMEDY);
            is_good = false;
        }
    }
    is_good
}
