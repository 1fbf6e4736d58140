//! Formats, and how their first bytes tell them apart.

use std::fs::File;

use crate::opened::read_at;
use crate::{CONVERT, Fault};

/// The format of an image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ImageFormat {
    /// A disk's bytes, one after the other
    Raw,
    /// QEMU's format, of versions 2 and 3
    Qcow2,
    /// VMware's format with flat extents, for reading only
    Vmdk,
}

const DECOMPRESS: &str = "decompress the file first";
const AS_IT_IS: &str = "rewrite it by `qemu-img convert -O qcow2 IMAGE NEW`; or write --image-format raw to take the \
                        file's bytes as they are";

/// First bytes of files that are no disk's bytes, and what to do with them. Taken as raw, they would fill a disk with
/// what no guest can read.
const REFUSED: [(&[u8], &str, &str); 11] = [
    (b"KDMV", "it is a sparse VMDK", CONVERT),
    (b"COWD", "it is a sparse VMDK of ESX", CONVERT),
    (b"vhdxfile", "it is a VHDX image", AS_IT_IS),
    (b"conectix", "it is a VHD image", AS_IT_IS),
    (b"<<< ", "it is a VDI image", AS_IT_IS),
    (b"QED\0", "it is a QED image", AS_IT_IS),
    (b"\x1f\x8b", "it is compressed by gzip", DECOMPRESS),
    (b"\xfd7zXZ\0", "it is compressed by xz", DECOMPRESS),
    (b"BZh", "it is compressed by bzip2", DECOMPRESS),
    (b"\x28\xb5\x2f\xfd", "it is compressed by zstd", DECOMPRESS),
    (b"PK\x03\x04", "it is a ZIP archive", DECOMPRESS),
];

impl ImageFormat {
    /// By the first bytes of a file.
    pub(crate) fn of(file: &File) -> Result<Self, Fault> {
        let mut first = [0; 21];
        read_at(file, &mut first, 0)?;
        if let Some((_, what, remedy)) = REFUSED.iter().find(|(magic, ..)| first.starts_with(magic)) {
            return Err(Fault::new(*what, remedy));
        }
        Ok(match &first {
            [b'Q', b'F', b'I', 0xfb, ..] => Self::Qcow2,
            b"# Disk DescriptorFile" => Self::Vmdk,
            _ => Self::Raw,
        })
    }
}
