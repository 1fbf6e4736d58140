//! What a node can still promise to a StorageClass, for Kubernetes' scheduler.
//!
//! The daemon is asked what applying a file would do that has one more disk of the class: it judges that disk and
//! changes nothing. A drive counts with its free room if the promise would hold there, and with 0 otherwise.

use api::{Apply, DiskSpec, Drive, Problem};
use tonic::Status;

use crate::parts::Parts;
use crate::spec::{GetCapacityRequest, GetCapacityResponse};
use crate::{capabilities, parameters, refusal};

/// Name of the disk that is judged. PersistentVolumes have no `_` in their names.
const PROBE: &str = "room_of_class";
/// The least size of a disk, in bytes.
const LEAST_BYTES: u64 = 4096;
/// How much of the pool thin disks may have altogether where the configuration says nothing, in percent.
const USUAL_OVERCOMMIT: i64 = 100;

/// Answers how much room there is for volumes of a class.
pub fn get(parts: &Parts, request: &GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
    let nowhere = GetCapacityResponse { available_capacity: 0, maximum_volume_size: None, minimum_volume_size: None };
    let node = &parts.settings.node;
    if request.accessible_topology.as_ref().is_some_and(|place| !capabilities::is_here(place, node)) {
        return Ok(nowhere);
    }
    if !parts.host.has_devices() {
        return Ok(nowhere);
    }
    if !request.volume_capabilities.is_empty() && capabilities::check(&request.volume_capabilities).is_err() {
        return Ok(nowhere);
    }
    let mut spec = parameters::disk(&request.parameters, &Default::default())?;
    spec.name = PROBE.to_owned();
    spec.size = LEAST_BYTES.to_string();
    spec.frontend = Some(parts.settings.frontend.clone());
    spec.reserve = None;
    let drives = parts.daemon.drives().map_err(|error| refusal::status(&error))?;
    let served = parts.daemon.export().map_err(|error| refusal::status(&error))?.text;
    let wanted = drives.iter().filter(|drive| spec.drive.as_ref().is_none_or(|name| *name == drive.name));
    let (mut all, mut largest) = (0, 0);
    for drive in wanted.filter(|drive| drive.failed.is_none()) {
        let room = room(drive, spec.thin == Some(true), &served);
        if room >= LEAST_BYTES
            && is_admitted(parts, &served, &DiskSpec { drive: Some(drive.name.clone()), ..spec.clone() })?
        {
            all += room;
            largest = largest.max(room);
        }
    }
    Ok(GetCapacityResponse {
        available_capacity: capabilities::signed(all),
        maximum_volume_size: Some(capabilities::signed(largest)),
        minimum_volume_size: Some(capabilities::signed(LEAST_BYTES)),
    })
}

/// Whether the daemon would make this disk beside all that it serves.
fn is_admitted(parts: &Parts, served: &str, probe: &DiskSpec) -> Result<bool, Status> {
    let section = probe.to_section().map_err(|error| Status::invalid_argument(error.to_string()))?;
    let text = format!("{served}\n{section}");
    let asked = Apply { file: "room".to_owned(), text, dry_run: true, agreed: None };
    match parts.daemon.apply(&asked) {
        Ok(_) => Ok(true),
        Err(error) if error.is::<Problem>() => match refusal::status(&error) {
            status if status.code() == tonic::Code::ResourceExhausted => Ok(false),
            status => Err(status),
        },
        Err(error) => Err(refusal::status(&error)),
    }
}

/// Bytes that new disks can have on a drive.
fn room(drive: &Drive, is_thin: bool, served: &str) -> u64 {
    let Some(pool) = drive.pool.filter(|_| is_thin) else { return if is_thin { 0 } else { drive.free_bytes } };
    let percent = u64::try_from(overcommit(&drive.name, served)).unwrap_or_default();
    let may_be_promised = u128::from(pool.size_bytes) * u128::from(percent) / 100;
    u64::try_from(may_be_promised).unwrap_or(u64::MAX).saturating_sub(pool.promised_bytes)
}

/// `pool_overcommit` of a drive in the configuration.
fn overcommit(drive: &str, served: &str) -> i64 {
    let config: toml::Table = served.parse().unwrap_or_default();
    let is_it = |section: &&toml::Value| section.get("name").and_then(toml::Value::as_str).unwrap_or("device") == drive;
    let drives = config.get("drive").and_then(toml::Value::as_array).into_iter().flatten();
    let section = drives.chain(config.get("device")).find(is_it);
    section.and_then(|section| section.get("pool_overcommit")?.as_integer()).unwrap_or(USUAL_OVERCOMMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only here: thin volumes are sent to a node whose pool can't have them, or kept from one that can.
    #[test]
    fn the_pool_counts_with_its_overcommit() {
        let served = "[device]\npool = \"1GiB\"\n[[drive]]\nname = \"b\"\npool_overcommit = 300\n";
        assert_eq!([overcommit("device", served), overcommit("b", served), overcommit("c", "?")], [100, 300, 100]);
    }
}
