//! An image to read.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use imago::file::File as ImageFile;
use imago::format::Format;
use imago::format::builder::FormatDriverBuilder;
use imago::format::gate::ImplicitOpenGate;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::vmdk::Vmdk;
use imago::{FormatAccess, Mapping, Storage, StorageOpenOptions};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::opened::{Opened, Use, resolve};
use crate::{CHECK, CONVERT, Fault, ImageError, ImageFormat, PATH, qcow2};

/// An image to read.
pub struct Source {
    access: FormatAccess<ImageFile>,
    /// A raw image, whose holes the file system knows.
    raw: Option<File>,
    /// The image's files; the first is its own.
    opened: Vec<Opened>,
}

impl Source {
    /// Opens an image. `format`: `None` to find out from its first bytes. `named`: files that it may build on.
    ///
    /// # Errors
    /// It is no such image, is damaged, QEMU writes to it, or it builds on files that were not named.
    pub fn open(path: &Path, format: Option<ImageFormat>, named: &[PathBuf]) -> Result<Self, ImageError> {
        let opened = Opened::open(path, Use::Copy)?;
        let format = format.map_or_else(|| ImageFormat::of(&opened.file), Ok).map_err(|fault| fault.of(path))?;
        let raw = (format == ImageFormat::Raw).then(|| opened.file.try_clone()).transpose();
        let raw = raw.map_err(|error| Fault::from(error).of(path))?;
        let own = storage(&opened, Use::Copy).map_err(|error| Fault::from(error).of(path))?;
        let (access, opened) = open_gated(opened, Use::Copy, named, |mut gate| match format {
            ImageFormat::Raw => gate.open_format(Raw::builder(own)),
            ImageFormat::Qcow2 => gate.open_format(Qcow2::<ImageFile>::builder(own)),
            ImageFormat::Vmdk => gate.open_format(Vmdk::<ImageFile>::builder(own)),
        })?;
        let source = Self { access, raw, opened };
        if source.size_bytes() == 0 {
            return Err(Fault::new("it is empty", PATH).of(path));
        }
        if format == ImageFormat::Vmdk {
            source.check_extents().map_err(|fault| fault.of(path))?;
        }
        Ok(source)
    }

    /// Size of the disk in the image.
    pub fn size_bytes(&self) -> u64 {
        self.access.size()
    }

    /// How many bytes from `offset_bytes` on are known to be zeros without being read, maybe none.
    ///
    /// # Errors
    /// The image can't be read.
    pub fn zeros_from(&self, offset_bytes: u64) -> Result<u64, ImageError> {
        let rest_bytes = self.size_bytes() - offset_bytes;
        if let Some(raw) = &self.raw {
            // A file system that knows no holes has data everywhere.
            return Ok(match seek(raw, SeekFrom::Data(offset_bytes)) {
                Ok(data) => (data - offset_bytes).min(rest_bytes),
                Err(Errno::NXIO) => rest_bytes,
                Err(_) => 0,
            });
        }
        match self.access.get_mapping(offset_bytes, rest_bytes) {
            Ok((Mapping::Zero { .. }, len_bytes)) => Ok(len_bytes),
            Ok(_) => Ok(0),
            Err(error) => Err(self.unread(offset_bytes, &error)),
        }
    }

    /// Reads, and fills what lies behind the image's end with zeros.
    ///
    /// # Errors
    /// The image can't be read, or a compressed cluster is damaged.
    pub fn read(&self, offset_bytes: u64, data: &mut [u8]) -> Result<(), ImageError> {
        let inside = self.size_bytes().saturating_sub(offset_bytes).min(data.len() as u64) as usize;
        data[inside..].fill(0);
        self.access.read(&mut data[..inside], offset_bytes).map_err(|error| self.unread(offset_bytes, &error))
    }

    /// Refuses an image of which a file has changed since it was opened.
    ///
    /// # Errors
    /// One has.
    pub fn refuse_change(&self) -> Result<(), ImageError> {
        self.opened.iter().try_for_each(Opened::refuse_change)
    }

    fn unread(&self, offset_bytes: u64, error: &io::Error) -> ImageError {
        let path = self.opened.first().map(|opened| opened.path.as_path()).unwrap_or(Path::new(""));
        Fault::new(format!("it can't be read at byte {offset_bytes} of its disk: {error}"), CHECK).of(path)
    }

    /// Checks that files hold what a VMDK says of them.
    fn check_extents(&self) -> Result<(), Fault> {
        let mut at = 0;
        while at < self.size_bytes() {
            let (mapping, len_bytes) = self.access.get_mapping(at, self.size_bytes() - at)?;
            if let Mapping::Raw { storage, offset, .. } = mapping
                && offset.checked_add(len_bytes).is_none_or(|end| storage.size().is_ok_and(|size| end > size))
            {
                let what =
                    format!("the extent {storage} is shorter than the {len_bytes} bytes that are said to be in it");
                return Err(Fault::new(what, "fetch all of the image's files again"));
            }
            if len_bytes == 0 {
                return Err(Fault::new(format!("nothing is said of byte {at} of its disk"), CONVERT));
            }
            at += len_bytes;
        }
        Ok(())
    }
}

/// Opens an image of which `own` is the first file. It may build on files that were `named`. Returns all of its files:
/// after its own the one that it builds on, and so on.
pub(crate) fn open_gated(
    own: Opened,
    backing: Use,
    named: &[PathBuf],
    open: impl FnOnce(Gate<'_>) -> io::Result<FormatAccess<ImageFile>>,
) -> Result<(FormatAccess<ImageFile>, Vec<Opened>), ImageError> {
    let path = own.path.clone();
    let named = named.iter().map(|path| resolve(path)).collect::<Result<_, _>>()?;
    let files = RefCell::new(Files { named, backing, opened: vec![own], refused: None });
    let access = open(Gate(&files));
    let Files { opened, refused, .. } = files.into_inner();
    let access = access.map_err(|error| refused.unwrap_or_else(|| Fault::new(error.to_string(), CONVERT).of(&path)))?;
    Ok((access, opened))
}

/// The most files that an image consists of.
pub(crate) const FILES_MAX: usize = 8;

/// Files of an image.
struct Files {
    /// Those that the operator named and that are not opened yet. Each is opened once, so a circle ends.
    named: Vec<PathBuf>,
    backing: Use,
    opened: Vec<Opened>,
    /// Why one was refused.
    refused: Option<ImageError>,
}

/// Opens the files that an image builds on, if they were named.
#[derive(Clone, Copy)]
pub(crate) struct Gate<'a>(&'a RefCell<Files>);

impl Gate<'_> {
    /// Keeps an error as it is: `imago` would put it into words of its own.
    fn kept<T>(self, done: Result<T, ImageError>) -> io::Result<T> {
        done.map_err(|error| {
            let told = io::Error::other(error.title.clone());
            self.0.borrow_mut().refused.get_or_insert(error);
            told
        })
    }

    fn take(self, path: Option<&Path>) -> Result<ImageFile, ImageError> {
        let files = &mut *self.0.borrow_mut();
        let own = files.opened.first().map(|opened| opened.path.clone()).unwrap_or_default();
        let refused = || {
            let what = path.map_or("another file".to_owned(), |path| path.display().to_string());
            let (key, remedy) = match files.backing {
                Use::Copy => ("--backing", "if it is the right file, add --backing FILE"),
                _ => ("image_backing", "if it is the right file, add image_backing = [\"FILE\"] to the disk"),
            };
            Fault::new(format!("it builds on {what}, which was not named by {key}"), remedy).of(&own)
        };
        let path = path.ok_or_else(refused)?.canonicalize().map_err(|_| refused())?;
        let is_open = |opened: &Opened| opened.path.canonicalize().is_ok_and(|its| its == path);
        if files.opened.iter().any(is_open) {
            return Err(Fault::new(format!("{} builds on itself", path.display()), CHECK).of(&own));
        }
        let at = files.named.iter().position(|named| *named == path).ok_or_else(refused)?;
        files.named.swap_remove(at);
        if files.opened.len() == FILES_MAX {
            let what = format!("it consists of more than {FILES_MAX} files");
            return Err(Fault::new(what, "merge some of them: `qemu-img commit`, or `qemu-img convert`").of(&own));
        }
        let opened = Opened::open(&path, files.backing)?;
        let file = storage(&opened, files.backing).map_err(|error| Fault::from(error).of(&path))?;
        files.opened.push(opened);
        Ok(file)
    }

    /// Checks the file that was opened last, before anything follows its tables.
    fn check(self, format: Format) -> Result<(), ImageError> {
        match self.0.borrow().opened.last() {
            Some(opened) if format == Format::Qcow2 => {
                qcow2::check(&opened.file).map_err(|fault| fault.of(&opened.path))
            }
            _ => Ok(()),
        }
    }
}

impl ImplicitOpenGate<ImageFile> for Gate<'_> {
    fn open_format<F: FormatDriverBuilder<ImageFile>>(&mut self, builder: F) -> io::Result<FormatAccess<ImageFile>> {
        self.kept(self.check(F::FORMAT))?;
        builder.open(*self).map(FormatAccess::new)
    }

    fn open_storage(&mut self, options: StorageOpenOptions) -> io::Result<ImageFile> {
        self.kept(self.take(options.get_filename()))
    }
}

/// A file as its tables are read and written.
pub(crate) fn storage(opened: &Opened, what_for: Use) -> io::Result<ImageFile> {
    let options = StorageOpenOptions::new().filename(&opened.path).write(what_for == Use::Write);
    ImageFile::from_open_file(opened.for_tables(what_for)?, options)
}
