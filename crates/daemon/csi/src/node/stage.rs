//! A volume is made ready on the node, once for all of its pods: formatted if it is empty, mounted, grown.

use std::path::Path;

use api::Disk;
use tonic::Status;

use super::paths::{absolute, clear, device, mounted_at, mounts, need_volume, path};
use crate::capabilities::{self, Mounted};
use crate::host::{Content, FileSystem};
use crate::parts::Parts;
use crate::spec::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeStageVolumeRequest, NodeStageVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
};

/// Mounts a volume at its staging path. A raw block volume only waits until it is served.
pub fn stage(parts: &Parts, request: &NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse, Status> {
    need_volume(&request.volume_id)?;
    let target = absolute(&request.staging_target_path, "staging_target_path")?;
    let usage = capabilities::usage(request.volume_capability.as_ref())?;
    let disk = parts.ready(parts.volume(&request.volume_id)?, Parts::key(&request.secrets))?;
    let device = device(parts, &disk)?;
    let Some(wanted) = usage.mounted else { return Ok(NodeStageVolumeResponse {}) };
    if let Some(found) = mounted_at(&mounts(parts)?, &target) {
        if !found.is_of(&device) {
            let words = format!("{} is mounted at {} already", found.source.display(), target.display());
            return Err(Status::failed_precondition(words));
        }
        let is_another = wanted.file_system.is_some_and(|it| it.name() != found.kind);
        if is_another {
            return Err(Status::already_exists(format!("the volume is staged with {}", found.kind)));
        }
        return Ok(NodeStageVolumeResponse {});
    }
    let file_system = file_system(parts, &disk, &device, &wanted)?;
    let words = |error| Status::internal(format!("volume {:?} can't be mounted: {error}", disk.name));
    let options = options(file_system, wanted.options);
    parts.host.mount(&device, &target, file_system, &options).map_err(words)?;
    // It may be larger than its file system: a clone, or grown while it was not mounted.
    grow(parts, &disk.name, &device, &target, file_system)?;
    Ok(NodeStageVolumeResponse {})
}

/// The file system of a volume, which is made if there is nothing at all.
fn file_system(parts: &Parts, disk: &Disk, device: &Path, wanted: &Mounted) -> Result<FileSystem, Status> {
    let content = parts.host.content(device);
    let content =
        content.map_err(|error| Status::internal(format!("volume {:?} can't be read: {error}", disk.name)))?;
    let holds = match content {
        Content::Nothing => {
            let file_system = wanted.file_system.unwrap_or(FileSystem::Ext4);
            let words = |error| Status::internal(format!("volume {:?} can't be formatted: {error}", disk.name));
            return parts.host.format(device, file_system).map_err(words).map(|()| file_system);
        }
        Content::Of(found) if wanted.file_system.is_none_or(|wanted| wanted == found) => return Ok(found),
        Content::Of(found) => found.name().to_owned(),
        Content::Other(found) => found,
    };
    let words = format!("volume {:?} holds {holds}; it is not formatted over that", disk.name);
    Err(Status::failed_precondition(words))
}

/// Options of `mount`. A clone has the identifier of its origin, which XFS mounts once only without this option.
fn options(file_system: FileSystem, mut options: Vec<String>) -> Vec<String> {
    if file_system == FileSystem::Xfs && !options.iter().any(|option| option == "nouuid") {
        options.push("nouuid".to_owned());
    }
    options
}

fn grow(parts: &Parts, volume: &str, device: &Path, at: &Path, file_system: FileSystem) -> Result<(), Status> {
    let words = |error| Status::internal(format!("the file system of volume {volume:?} can't grow: {error}"));
    parts.host.grow(device, at, file_system).map_err(words)
}

/// Unmounts a volume from its staging path.
pub fn unstage(parts: &Parts, request: &NodeUnstageVolumeRequest) -> Result<NodeUnstageVolumeResponse, Status> {
    need_volume(&request.volume_id)?;
    clear(parts, &absolute(&request.staging_target_path, "staging_target_path")?)?;
    Ok(NodeUnstageVolumeResponse {})
}

/// Lets a file system fill a disk that has become larger.
pub fn expand(parts: &Parts, request: &NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, Status> {
    need_volume(&request.volume_id)?;
    let at = path(&request.volume_path, "volume_path")?;
    let sizes = capabilities::Sizes::of(request.capacity_range.as_ref())?;
    let disk = parts.volume(&request.volume_id)?;
    let device = device(parts, &disk)?;
    let mounts = mounts(parts)?;
    let found = mounted_at(&mounts, &at).filter(|mount| mount.is_of(&device));
    let found = found.ok_or_else(|| Status::not_found(format!("volume {:?} is not at {}", disk.name, at.display())))?;
    let words = |error| Status::internal(format!("{} can't be asked its size: {error}", device.display()));
    let bytes = parts.host.device_bytes(&device).map_err(words)?;
    if sizes.least.is_some_and(|least| bytes < least) {
        let words = "the kernel keeps the device's size until the daemon starts while no pod uses the volume";
        return Err(Status::failed_precondition(words));
    }
    // A raw block volume has none of ours.
    if let Some(file_system) = FileSystem::named(&found.kind) {
        grow(parts, &disk.name, &device, &at, file_system)?;
    }
    Ok(NodeExpandVolumeResponse { capacity_bytes: i64::try_from(bytes).unwrap_or(i64::MAX) })
}
