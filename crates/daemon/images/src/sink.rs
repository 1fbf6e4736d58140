//! A new image.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use imago::file::File as ImageFile;
use imago::format::builder::FormatDriverBuilder;
use imago::qcow2::Qcow2;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder, StorageOpenOptions};
use tempfile::NamedTempFile;

use crate::{ImageError, ImageFormat};

/// An image that is being written, beside its place. Dropped before it is finished, it is gone.
pub struct Sink {
    /// `None`: a raw image.
    qcow2: Option<FormatAccess<ImageFile>>,
    file: NamedTempFile,
    to: PathBuf,
}

impl Sink {
    /// A new image at `to` of a disk of `size_bytes`, which its user alone may read.
    ///
    /// # Errors
    /// It is there already or can't be made, or VMDK is asked for.
    pub fn create(to: &Path, format: ImageFormat, size_bytes: u64) -> Result<Self, ImageError> {
        if to.symlink_metadata().is_ok() {
            return Err(exists(to));
        }
        if format == ImageFormat::Vmdk {
            let title = format!("can't write {}: VMDK images are for reading only", to.display());
            return Err(ImageError { title, remedy: "write qcow2, and convert it by `qemu-img convert`".to_owned() });
        }
        let made = || -> io::Result<Self> {
            let name = to.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy();
            let file = tempfile::Builder::new().prefix(&format!(".{name}.")).suffix(".part").tempfile_in(folder(to))?;
            let qcow2 = match format {
                ImageFormat::Qcow2 => Some(new_qcow2(file.as_file(), size_bytes)?),
                _ => None,
            };
            if qcow2.is_none() {
                file.as_file().set_len(size_bytes)?;
            }
            Ok(Self { qcow2, file, to: to.to_owned() })
        };
        made().map_err(|error| unwritten(to, &error))
    }

    /// Writes data. What is not written reads as zeros.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(&self, offset_bytes: u64, data: &[u8]) -> Result<(), ImageError> {
        let written = match &self.qcow2 {
            Some(image) => image.write(data, offset_bytes),
            None => self.file.as_file().write_all_at(data, offset_bytes),
        };
        written.map_err(|error| unwritten(&self.to, &error))
    }

    /// Makes all of it durable, and gives it its name.
    ///
    /// # Errors
    /// The file can't be written, or its name is taken by now.
    pub fn finish(self) -> Result<(), ImageError> {
        let Self { qcow2, file, to } = self;
        let durable = qcow2.map_or(Ok(()), |image| image.flush()).and_then(|()| file.as_file().sync_all());
        durable.map_err(|error| unwritten(&to, &error))?;
        file.persist_noclobber(&to).map_err(|error| match error.error {
            error if error.kind() == io::ErrorKind::AlreadyExists => exists(&to),
            error => unwritten(&to, &error),
        })?;
        File::open(folder(&to)).and_then(|folder| folder.sync_all()).map_err(|error| unwritten(&to, &error))
    }
}

fn new_qcow2(file: &File, size_bytes: u64) -> io::Result<FormatAccess<ImageFile>> {
    let open = || ImageFile::from_open_file(file.try_clone()?, StorageOpenOptions::new().write(true));
    Qcow2::<ImageFile>::create_builder(open()?).size(size_bytes).create()?;
    let image = Qcow2::<ImageFile>::builder(open()?).write(true).open(DenyImplicitOpenGate::default())?;
    Ok(FormatAccess::new(image))
}

/// The folder that a file is in.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn exists(path: &Path) -> ImageError {
    let title = format!("{} exists already", path.display());
    ImageError { title, remedy: "choose another name, or remove it".to_owned() }
}

fn unwritten(path: &Path, error: &io::Error) -> ImageError {
    let title = format!("can't write {}: {error}", path.display());
    ImageError { title, remedy: "check the path, this user's rights, and the room there".to_owned() }
}
