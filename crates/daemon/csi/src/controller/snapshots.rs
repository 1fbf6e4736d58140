//! Snapshots of volumes on thin disks, and volumes that begin as one.
//!
//! A snapshot's identifier is `DISK@SNAPSHOT`, as the daemon names it.

use std::time::{Duration, SystemTime};

use api::{Disk, DiskSnapshot, DiskSpec, NewSnapshots, Reason};
use tonic::Status;

use super::source::Source;
use crate::capabilities::signed;
use crate::names::{self, MARK};
use crate::parts::Parts;
use crate::refusal;
use crate::spec::{CreateSnapshotResponse, DeleteSnapshotResponse, Snapshot};

/// Makes a snapshot, or finds the one of that name.
pub fn create(parts: &Parts, name: &str, volume: &str) -> Result<CreateSnapshotResponse, Status> {
    let of = parts.volume(volume)?;
    let found = |disk: &Disk| disk.snapshots.iter().find(|it| it.name == name).cloned();
    let disks = parts.daemon.disks().map_err(|error| refusal::status(&error))?;
    let volumes = disks.iter().filter(|disk| disk.labels.contains_key(MARK));
    if let Some((disk, snapshot)) = volumes.filter_map(|disk| Some((disk, found(disk)?))).next() {
        if disk.name != of.name {
            let words = format!("snapshot {name:?} is of volume {:?} already", disk.name);
            return Err(Status::already_exists(words));
        }
        return Ok(answer(&of.name, &snapshot));
    }
    let made = snapshot(parts, &of.name, name)?;
    let snapshot = made.as_ref().and_then(found);
    let snapshot = snapshot.ok_or_else(|| Status::unavailable(format!("snapshot {name:?} is not listed yet")))?;
    Ok(answer(&of.name, &snapshot))
}

fn snapshot(parts: &Parts, disk: &str, name: &str) -> Result<Option<Disk>, Status> {
    let wanted = NewSnapshots { snapshots: vec![format!("{disk}@{name}")] };
    let made = parts.daemon.snapshot(&wanted).map_err(|error| refusal::status(&error))?;
    Ok(made.into_iter().find(|made| made.name == disk))
}

fn answer(disk: &str, snapshot: &DiskSnapshot) -> CreateSnapshotResponse {
    let made = SystemTime::UNIX_EPOCH + Duration::from_secs(snapshot.made_s);
    let snapshot = Snapshot {
        size_bytes: signed(snapshot.size_bytes),
        snapshot_id: format!("{disk}@{}", snapshot.name),
        source_volume_id: disk.to_owned(),
        creation_time: Some(made.into()),
        ready_to_use: true,
        group_snapshot_id: String::new(),
    };
    CreateSnapshotResponse { snapshot: Some(snapshot) }
}

/// Deletes a snapshot. It succeeds if there is none. Volumes that began as it stay.
pub fn delete(parts: &Parts, id: &str) -> Result<DeleteSnapshotResponse, Status> {
    if id.is_empty() {
        return Err(Status::invalid_argument("snapshot_id is missing"));
    }
    let named = id.split_once('@').filter(|(disk, name)| names::is_name(disk) && names::is_name(name));
    if let Some((disk, name)) = named
        && parts.volume_if_any(disk)?.is_some()
    {
        remove(parts, disk, name)?;
    }
    Ok(DeleteSnapshotResponse {})
}

fn remove(parts: &Parts, disk: &str, name: &str) -> Result<(), Status> {
    match parts.daemon.delete_snapshot(disk, name) {
        Err(error) if !refusal::is(&error, Reason::NoSuchDisk) => Err(refusal::status(&error)),
        _ => Ok(()),
    }
}

/// Makes a volume that begins as its source.
pub fn clone(parts: &Parts, source: Source<'_>, spec: DiskSpec) -> Result<Disk, Status> {
    let name = spec.name.clone();
    let clone_of = match source {
        Source::Snapshot(id) => {
            let (disk, snapshot) = id.split_once('@').unwrap_or((id, ""));
            let volume = parts.volume_if_any(disk)?;
            if !volume.is_some_and(|disk| disk.snapshots.iter().any(|it| it.name == snapshot)) {
                return Err(Status::not_found(format!("there is no snapshot {id:?} on this node")));
            }
            id.to_owned()
        }
        Source::Volume(id) => {
            let volume = parts.volume(id)?;
            let between = name_between(&name);
            // A former try may have made it.
            if !volume.snapshots.iter().any(|it| it.name == between) {
                snapshot(parts, id, &between)?;
            }
            format!("{id}@{between}")
        }
    };
    let spec = DiskSpec { clone_of: Some(clone_of), ..spec };
    let disk = parts.daemon.create(&spec).map_err(|error| refusal::status(&error));
    // A volume that can't be made leaves no snapshot behind. Nor does one that is made.
    let ended = end_clone(parts, source, &name);
    disk.and_then(|disk| ended.map(|()| disk))
}

/// Removes what was between a volume and its clone.
pub fn end_clone(parts: &Parts, source: Source<'_>, name: &str) -> Result<(), Status> {
    match source {
        Source::Snapshot(_) => Ok(()),
        Source::Volume(id) => remove(parts, id, &name_between(name)),
    }
}

/// The snapshot from which a volume is cloned.
fn name_between(clone: &str) -> String {
    // The name of a disk becomes one of a snapshot, however long it is.
    names::made_of(&format!("clone-{clone}")).unwrap_or_else(|_| clone.to_owned())
}
