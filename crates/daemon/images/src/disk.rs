//! A qcow2 image that is a disk: where its clusters are, and changes to them.
//!
//! Data is moved by others, straight from and to the files. What is changed here is durable before it is seen.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;

use imago::file::File as ImageFile;
use imago::format::builder::FormatDriverBuilder;
use imago::qcow2::Qcow2;
use imago::{FormatAccess, Mapping};
use rustix::fs::{FallocateFlags, fallocate};

use crate::opened::{Opened, Use};
use crate::source::{open_gated, storage};
use crate::{Fault, ImageError, counts};

/// Smaller clusters would make a map that is too large. It is the size that `qemu-img` gives.
const CLUSTER_BYTES_MIN: u64 = 64 << 10;

/// Where a cluster of the disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cluster {
    /// Nowhere: it reads as zeros.
    Nothing,
    /// At that byte of the image's own file, for the disk alone.
    Own(u64),
    /// At that byte of the file of that number. It must not be written.
    Shared(usize, u64),
    /// It is compressed, or in several places: it must be [allocated](DiskImage::allocate) before it is read.
    Packed,
}

/// A qcow2 image that is a disk.
pub struct DiskImage {
    access: FormatAccess<ImageFile>,
    opened: Vec<Opened>,
    cluster_bytes: u64,
}

impl DiskImage {
    /// Opens an image for reading and writing, gives back clusters that a killed program left, and locks its files as
    /// QEMU does. `named`: files that it may build on.
    ///
    /// # Errors
    /// It is no such image, is damaged or in use, has what a disk can't be written with, or builds on files that were
    /// not named.
    pub fn open(path: &Path, named: &[PathBuf]) -> Result<Self, ImageError> {
        Self::open_for(path, named, Use::Write)
    }

    /// Checks an image as [`open`](Self::open) does, and changes nothing. Returns its size.
    ///
    /// # Errors
    /// As there. An image that is in use is one of them.
    pub fn check(path: &Path, named: &[PathBuf]) -> Result<u64, ImageError> {
        Self::open_for(path, named, Use::Copy).map(|disk| disk.size_bytes())
    }

    fn open_for(path: &Path, named: &[PathBuf], what_for: Use) -> Result<Self, ImageError> {
        let own = Opened::open(path, what_for)?;
        let is_written = what_for == Use::Write;
        let prepared = || -> Result<(ImageFile, u64), Fault> {
            crate::qcow2::check(&own.file)?;
            if is_written { counts::mend(&own.file) } else { counts::check(&own.file) }?;
            let cluster_bytes = crate::qcow2::cluster_bytes(&own.file)?;
            if cluster_bytes < CLUSTER_BYTES_MIN {
                let what = format!("its clusters have {cluster_bytes} bytes, and a disk's have 64 KiB to 2 MiB");
                return Err(Fault::new(
                    what,
                    "rewrite it by `qemu-img convert -O qcow2 -o cluster_size=64K IMAGE NEW`",
                ));
            }
            Ok((storage(&own, what_for)?, cluster_bytes))
        };
        let (file, cluster_bytes) = prepared().map_err(|fault| fault.of(path))?;
        // Its own tables are checked. The gate checks those of files that it builds on.
        let (access, opened) = open_gated(own, Use::Read, named, |gate| {
            Qcow2::<ImageFile>::builder(file).write(is_written).open(gate).map(FormatAccess::new)
        })?;
        let disk = Self { access, opened, cluster_bytes };
        if !disk.size_bytes().is_multiple_of(512) || disk.size_bytes() == 0 {
            let what = format!("its size of {} bytes is no multiple of 512", disk.size_bytes());
            return Err(Fault::new(what, "resize it by `qemu-img resize`").of(path));
        }
        Ok(disk)
    }

    /// Size of the disk.
    pub fn size_bytes(&self) -> u64 {
        self.access.size()
    }

    /// Bytes of a cluster: 64 KiB to 2 MiB.
    pub fn cluster_bytes(&self) -> u64 {
        self.cluster_bytes
    }

    /// How many clusters the disk has.
    pub fn clusters(&self) -> u32 {
        self.size_bytes().div_ceil(self.cluster_bytes) as u32
    }

    /// The image's files, for moving data: its own, then the one that it builds on, and so on. Each is locked as long
    /// as it is open anywhere.
    ///
    /// # Errors
    /// This process can't have more open files.
    pub fn files(&self) -> io::Result<Vec<(File, PathBuf)>> {
        self.opened.iter().map(|opened| Ok((opened.file.try_clone()?, opened.path.clone()))).collect()
    }

    /// Where clusters from `first` on are, and how many of them are so in a row. `None`: the disk ends before.
    ///
    /// # Errors
    /// A table can't be read.
    pub fn find(&self, first: u32) -> io::Result<Option<(Cluster, u32)>> {
        let at = u64::from(first) * self.cluster_bytes;
        let Some(rest_bytes) = self.size_bytes().checked_sub(at).filter(|rest| *rest > 0) else { return Ok(None) };
        let (mapping, len_bytes) = self.access.get_mapping(at, rest_bytes)?;
        // The last cluster of a disk may be short.
        let count = if len_bytes == rest_bytes {
            rest_bytes.div_ceil(self.cluster_bytes)
        } else {
            len_bytes / self.cluster_bytes
        };
        if count == 0 {
            return Ok(Some((Cluster::Packed, 1)));
        }
        let cluster = match mapping {
            Mapping::Zero { .. } => Cluster::Nothing,
            Mapping::Raw { storage, offset, writable, .. } if offset.is_multiple_of(self.cluster_bytes) => {
                match self.number_of(storage) {
                    Some(0) if writable => Cluster::Own(offset),
                    Some(number) => Cluster::Shared(number, offset),
                    None => Cluster::Packed,
                }
            }
            _ => Cluster::Packed,
        };
        Ok(Some((cluster, u32::try_from(count).unwrap_or(u32::MAX))))
    }

    /// Which of its files that is.
    fn number_of(&self, storage: &ImageFile) -> Option<usize> {
        // The last one is the image's own.
        let all = self.access.inner().collect_storage_dependencies();
        all.iter().rev().position(|file| ptr::eq(*file, storage))
    }

    /// Gives the disk clusters of its own, with the data that it has there. They are seen after [`flush`](Self::flush).
    ///
    /// # Errors
    /// The file system's; some may be allocated.
    pub fn allocate(&self, first: u32, count: u32) -> io::Result<()> {
        let mut at = u64::from(first) * self.cluster_bytes;
        let end = (at + u64::from(count) * self.cluster_bytes).min(self.size_bytes());
        while at < end {
            let (_, _, len_bytes) = self.access.ensure_data_mapping(at, end - at, false)?;
            if len_bytes == 0 {
                return Err(io::Error::other("nothing was allocated"));
            }
            at += len_bytes;
        }
        Ok(())
    }

    /// Gives clusters back: they read as zeros. No command may use them any more.
    ///
    /// # Errors
    /// The file system's; some may be given back.
    pub fn discard(&mut self, first: u32, count: u32) -> io::Result<()> {
        let mut freed = Vec::new();
        let mut next = first;
        while next < first + count
            && let Some((cluster, run)) = self.find(next)?
        {
            let run = run.min(first + count - next);
            if let Cluster::Own(at) = cluster {
                freed.push((at, u64::from(run) * self.cluster_bytes));
            }
            next += run;
        }
        let at = u64::from(first) * self.cluster_bytes;
        let len_bytes = (u64::from(count) * self.cluster_bytes).min(self.size_bytes() - at);
        self.access.discard_to_zero(at, len_bytes)?;
        self.flush()?;
        for (at, len_bytes) in freed {
            // Where a file system has no holes, the room stays the file's.
            let _ =
                fallocate(&self.opened[0].file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len_bytes);
        }
        Ok(())
    }

    /// Makes all changes durable.
    ///
    /// # Errors
    /// The file system's.
    pub fn flush(&self) -> io::Result<()> {
        self.access.flush()
    }
}

#[cfg(test)]
mod tests;
