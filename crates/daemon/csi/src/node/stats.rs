//! How full a volume is, and whether its promise is kept.

use api::{Disk, DiskState};
use tonic::Status;

use super::paths::{mounted_at, mounts, need_volume, path};
use crate::capabilities::signed;
use crate::host::FileSystem;
use crate::parts::Parts;
use crate::spec::volume_usage::Unit;
use crate::spec::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage};

/// Answers for a volume at one of its paths.
pub fn get(parts: &Parts, request: &NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, Status> {
    need_volume(&request.volume_id)?;
    let at = path(&request.volume_path, "volume_path")?;
    let condition = match parts.volume(&request.volume_id) {
        Ok(disk) => condition(&disk),
        Err(status) if status.code() == tonic::Code::Unavailable => {
            let message = format!("its promise is not known: {}", status.message());
            VolumeCondition { abnormal: true, message }
        }
        Err(status) => return Err(status),
    };
    let mounts = mounts(parts)?;
    let nothing = || Status::not_found(format!("nothing is mounted at {}", at.display()));
    let found = mounted_at(&mounts, &at).ok_or_else(nothing)?;
    let words = |error| Status::internal(format!("{}: {error}", at.display()));
    let usage = if FileSystem::named(&found.kind).is_some() {
        let told = parts.host.usage(&at).map_err(words)?;
        let used_inodes = told.total_inodes.saturating_sub(told.free_inodes);
        vec![
            usage(Unit::Bytes, told.total_bytes, told.available_bytes, told.used_bytes),
            usage(Unit::Inodes, told.total_inodes, told.free_inodes, used_inodes),
        ]
    } else {
        vec![usage(Unit::Bytes, parts.host.device_bytes(&at).map_err(words)?, 0, 0)]
    };
    Ok(NodeGetVolumeStatsResponse { usage, volume_condition: Some(condition) })
}

fn usage(unit: Unit, total: u64, available: u64, used: u64) -> VolumeUsage {
    VolumeUsage { unit: unit.into(), total: signed(total), available: signed(available), used: signed(used) }
}

/// Whether the disk is as its class says.
fn condition(disk: &Disk) -> VolumeCondition {
    let verdict = disk.verdict.filter(|verdict| verdict.kept == Some(false));
    let told = match (disk.state, verdict) {
        (DiskState::Served | DiskState::Zeroing, None) => None,
        (DiskState::Served | DiskState::Zeroing, Some(verdict)) => {
            let took = verdict.at_percentile_us.map_or("more".to_owned(), |us| format!("{us:.0} µs"));
            let target = disk.latency_target_us.map_or("its floor".to_owned(), |us| format!("{us:.0} µs"));
            let why = "`evenkeel why` on the node names the cause";
            Some(format!("the promise was broken in the last {} ms: {took} against {target}; {why}", verdict.span_ms))
        }
        (DiskState::Locked, _) => disk.locked_why.clone().or_else(|| Some("it is locked".to_owned())),
        (state, _) => Some(format!("it is {}", state.name())),
    };
    VolumeCondition { abnormal: told.is_some(), message: told.unwrap_or_else(|| "served as promised".to_owned()) }
}
