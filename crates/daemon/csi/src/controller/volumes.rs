//! Volumes made, deleted, expanded and modified: each is one disk of the daemon.

use api::{Deletion, Disk, DiskPatch, DiskSpec, Reason};
use tonic::{Code, Status};

use super::snapshots;
use super::source::{SOURCE, source};
use crate::capabilities::{self, Sizes, signed};
use crate::names::MARK;
use crate::parts::Parts;
use crate::spec::validate_volume_capabilities_response::Confirmed;
use crate::spec::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerModifyVolumeRequest,
    ControllerModifyVolumeResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
};
use crate::{parameters, refusal};

/// Size of a volume that was asked for without a size, in bytes: that of Kubernetes' own examples.
const USUAL_BYTES: u64 = 1 << 30;

/// Makes a volume, or finds the one of that name.
pub fn create(parts: &Parts, name: &str, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
    capabilities::check(&request.volume_capabilities)?;
    let sizes = Sizes::of(request.capacity_range.as_ref())?;
    let mut spec = parameters::disk(&request.parameters, &request.mutable_parameters)?;
    let node = &parts.settings.node;
    if !capabilities::may_be_here(request.accessibility_requirements.as_ref(), node) {
        return Err(Status::resource_exhausted(format!("this is node {node:?}, where the volume can't be")));
    }
    if !parts.host.has_devices() {
        let words =
            "the kernel of this node lacks the driver ublk; load it (`modprobe ublk_drv`), and start the daemon";
        return Err(Status::resource_exhausted(words));
    }
    let source = source(request.volume_content_source.as_ref())?;
    spec.name = name.to_owned();
    spec.frontend = Some(parts.settings.frontend.clone());
    spec.labels.insert(MARK.to_owned(), request.name);
    spec.labels.extend(source.map(|source| (SOURCE.to_owned(), source.id().to_owned())));
    let found = parts.disk_if_any(name)?;
    if let Some(found) = &found {
        refuse_another(found, &spec, sizes)?;
    }
    let disk = match (found, source) {
        // Its size and labels may have changed since. The daemon compares the rest.
        (Some(found), None) => {
            let (size, labels) = (found.size_bytes.to_string(), found.labels);
            parts.daemon.create(&DiskSpec { size, labels, ..spec }).map_err(|error| refusal::status(&error))?
        }
        (Some(found), Some(source)) => snapshots::end_clone(parts, source, name).map(|()| found)?,
        (None, None) => {
            spec.size = sizes.choose(USUAL_BYTES).to_string();
            parts.daemon.create(&spec).map_err(|error| refusal::status(&error))?
        }
        (None, Some(source)) => {
            spec.size = sizes.least.map(|bytes| bytes.to_string()).unwrap_or_default();
            snapshots::clone(parts, source, spec)?
        }
    };
    let volume = Volume {
        capacity_bytes: signed(disk.size_bytes),
        volume_id: disk.name,
        volume_context: Default::default(),
        content_source: request.volume_content_source,
        accessible_topology: vec![capabilities::topology(node)],
    };
    Ok(CreateVolumeResponse { volume: Some(volume) })
}

/// A disk of that name that is none of this volume.
fn refuse_another(found: &Disk, wanted: &DiskSpec, sizes: Sizes) -> Result<(), Status> {
    let differs = |key: &str| found.labels.get(key) != wanted.labels.get(key);
    let why = if differs(MARK) {
        "it belongs to something else".to_owned()
    } else if differs(SOURCE) {
        "it began as something else".to_owned()
    } else if !sizes.allow(found.size_bytes) {
        format!("it has {} bytes", found.size_bytes)
    } else {
        return Ok(());
    };
    Err(Status::already_exists(format!("there is a disk {:?} already: {why}", found.name)))
}

/// Deletes a volume. It succeeds if there is none.
pub fn delete(parts: &Parts, id: &str) -> Result<DeleteVolumeResponse, Status> {
    let Some(disk) = parts.volume_if_any(id)? else { return Ok(DeleteVolumeResponse {}) };
    if let Some(snapshot) = disk.snapshots.first() {
        let words =
            format!("volume {id:?} has snapshot {:?}, which would go with it; delete that first", snapshot.name);
        return Err(Status::failed_precondition(words));
    }
    match parts.daemon.delete(id, Deletion::default()) {
        Err(error) if !refusal::is(&error, Reason::NoSuchDisk) => Err(refusal::status(&error)),
        _ => Ok(DeleteVolumeResponse {}),
    }
}

/// Says whether a volume can be used in these ways.
pub fn validate(
    parts: &Parts,
    request: ValidateVolumeCapabilitiesRequest,
) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
    if request.volume_capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities are missing"));
    }
    parts.volume(&request.volume_id)?;
    if let Err(why) = capabilities::check(&request.volume_capabilities) {
        return Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message: why.message().to_owned() });
    }
    let confirmed = Confirmed {
        volume_context: request.volume_context,
        volume_capabilities: request.volume_capabilities,
        parameters: request.parameters,
        mutable_parameters: request.mutable_parameters,
    };
    Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
}

/// Makes a volume larger. Its file system grows on the node, by NodeExpandVolume.
pub fn expand(
    parts: &Parts,
    request: &ControllerExpandVolumeRequest,
) -> Result<ControllerExpandVolumeResponse, Status> {
    let sizes = Sizes::of(request.capacity_range.as_ref())?;
    let least = sizes.least.ok_or_else(|| Status::invalid_argument("capacity_range is missing"))?;
    let mut disk = parts.volume(&request.volume_id)?;
    let has = |disk: &Disk| disk.grows_to_bytes.unwrap_or(disk.size_bytes);
    if has(&disk) < least {
        let larger = DiskSpec { size: least.to_string(), ..DiskSpec::default() };
        let grown = parts.daemon.change(&disk.name, &DiskPatch::of(&larger));
        disk = grown.map_err(|error| refusal::status(&error))?;
    }
    Ok(ControllerExpandVolumeResponse { capacity_bytes: signed(has(&disk)), node_expansion_required: true })
}

/// Changes a volume's promise, weight or limits while pods use it.
pub fn modify(
    parts: &Parts,
    request: &ControllerModifyVolumeRequest,
) -> Result<ControllerModifyVolumeResponse, Status> {
    let disk = parts.volume(&request.volume_id)?;
    let change = parameters::change(&request.mutable_parameters)?;
    if !change.is_empty() {
        parts.daemon.change(&disk.name, &change).map_err(|error| match refusal::status(&error) {
            // It may fit later: Kubernetes tries again.
            status if status.code() == Code::ResourceExhausted => Status::unavailable(status.message()),
            status => status,
        })?;
    }
    Ok(ControllerModifyVolumeResponse {})
}
