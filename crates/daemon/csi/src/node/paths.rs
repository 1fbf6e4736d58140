//! Paths of requests, and what is mounted there.

use std::path::{Path, PathBuf};

use api::Disk;
use tonic::Status;

use crate::host::Mount;
use crate::parts::Parts;

/// The block device of a volume.
pub fn device(parts: &Parts, disk: &Disk) -> Result<PathBuf, Status> {
    let words = |error| Status::unavailable(format!("volume {:?} has no block device: {error}", disk.name));
    parts.host.device(disk).map_err(words)
}

/// A path of a request, to find a mount by.
pub fn path(given: &str, field: &str) -> Result<PathBuf, Status> {
    if given.is_empty() { Err(Status::invalid_argument(format!("{field} is missing"))) } else { Ok(given.into()) }
}

/// A path of a request, to mount at.
pub fn absolute(given: &str, field: &str) -> Result<PathBuf, Status> {
    let path = path(given, field)?;
    if path.is_absolute() { Ok(path) } else { Err(Status::invalid_argument(format!("{field} is not absolute"))) }
}

pub fn need_volume(id: &str) -> Result<(), Status> {
    if id.is_empty() { Err(Status::invalid_argument("volume_id is missing")) } else { Ok(()) }
}

pub fn mounts(parts: &Parts) -> Result<Vec<Mount>, Status> {
    parts.host.mounts().map_err(|error| Status::internal(format!("mounts can't be listed: {error}")))
}

/// What is mounted at a path, topmost.
pub fn mounted_at<'m>(mounts: &'m [Mount], path: &Path) -> Option<&'m Mount> {
    mounts.iter().rfind(|mount| mount.target == path)
}

/// Unmounts all that is mounted at a path.
pub fn clear(parts: &Parts, path: &Path) -> Result<(), Status> {
    for _ in mounts(parts)?.iter().filter(|mount| mount.target == path) {
        let words = |error| Status::internal(format!("{} stays mounted: {error}", path.display()));
        parts.host.unmount(path).map_err(words)?;
    }
    Ok(())
}
