//! A staged volume is shown to a pod: its directory, or the block device itself.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use api::DiskPatch;
use serde_json::json;
use tonic::Status;

use super::paths::{absolute, clear, device, mounted_at, mounts, need_volume};
use crate::capabilities;
use crate::parts::Parts;
use crate::spec::{
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
};

/// Where kubelet writes the pod's name (`podInfoOnMount` of the CSIDriver).
const POD_NAME: &str = "csi.storage.k8s.io/pod.name";
/// Label of a disk that a pod uses. Of several pods it names the last.
const POD: &str = "pod";

/// Shows a volume at a pod's path.
pub fn publish(parts: &Parts, request: &NodePublishVolumeRequest) -> Result<NodePublishVolumeResponse, Status> {
    need_volume(&request.volume_id)?;
    let target = absolute(&request.target_path, "target_path")?;
    let usage = capabilities::usage(request.volume_capability.as_ref())?;
    let staged = absolute(&request.staging_target_path, "staging_target_path")?;
    let read_only = request.readonly || usage.reads_only;
    let disk = parts.volume(&request.volume_id)?;
    let device = device(parts, &disk)?;
    let mounts = mounts(parts)?;
    let is_elsewhere = |path: &Path| path != staged && path != target;
    if usage.is_exclusive
        && let Some(other) = mounts.iter().find(|mount| mount.is_of(&device) && is_elsewhere(&mount.target))
    {
        let words = format!("another pod has the volume, at {}", other.target.display());
        return Err(Status::failed_precondition(words));
    }
    if let Some(found) = mounted_at(&mounts, &target) {
        if !found.is_of(&device) {
            let words = format!("{} is mounted at {} already", found.source.display(), target.display());
            return Err(Status::failed_precondition(words));
        }
        if found.read_only != read_only {
            return Err(Status::already_exists(format!("the volume is at {} otherwise", target.display())));
        }
        return Ok(NodePublishVolumeResponse {});
    }
    let source = match usage.mounted {
        None => &device,
        Some(_) if mounted_at(&mounts, &staged).is_some_and(|mount| mount.is_of(&device)) => &staged,
        Some(_) => {
            let words = format!("volume {:?} is not staged at {}", disk.name, staged.display());
            return Err(Status::failed_precondition(words));
        }
    };
    let words = |error: io::Error| Status::internal(format!("{}: {error}", target.display()));
    make(&target, usage.mounted.is_some()).map_err(words)?;
    parts.host.bind(source, &target, read_only).map_err(words)?;
    label(parts, &disk.name, request.volume_context.get(POD_NAME));
    Ok(NodePublishVolumeResponse {})
}

/// Makes the directory or file to mount at.
fn make(target: &Path, is_directory: bool) -> io::Result<()> {
    let made = if is_directory { fs::create_dir(target) } else { File::create_new(target).map(drop) };
    match made {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Removes a volume from a pod's path, and the path.
pub fn unpublish(parts: &Parts, request: &NodeUnpublishVolumeRequest) -> Result<NodeUnpublishVolumeResponse, Status> {
    need_volume(&request.volume_id)?;
    let target = absolute(&request.target_path, "target_path")?;
    clear(parts, &target)?;
    // Nothing of the volume is seen there any more. A directory with content is not ours, and stays.
    let removed = match fs::symlink_metadata(&target) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(&target),
        Ok(_) => fs::remove_file(&target),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Status::internal(format!("{}: {error}", target.display())));
        }
        _ => {}
    }
    label(parts, &request.volume_id, None);
    Ok(NodeUnpublishVolumeResponse {})
}

/// Labels the disk with its pod, or with none. A pod starts and ends without that too.
fn label(parts: &Parts, disk: &str, pod: Option<&String>) {
    let has_label = || parts.volume_if_any(disk).is_ok_and(|disk| disk.is_some_and(|it| it.labels.contains_key(POD)));
    if pod.is_none() && !has_label() {
        return;
    }
    let change = serde_json::from_value(json!({ "labels": { POD: pod } })).map_err(anyhow::Error::from);
    if let Err(error) = change.and_then(|change: DiskPatch| parts.daemon.change(disk, &change)) {
        eprintln!("evenkeel-csi: {disk}: the label {POD} stays as it is: {error:#}");
    }
}
