//! Snapshots of thin disks over HTTP.

use api::{Disk, NewSnapshots, Problem, Rollback};
use axum::Json;
use axum::extract::{Path, State};
use runtime::command::{DiskCommand, Handle};

use crate::api_error::{Refused, SEE_DOCUMENT};
use crate::http::ask;
use crate::json_body::Object;

/// Makes snapshots of thin disks, all of them at one instant. Guests' writes wait for some milliseconds.
#[utoipa::path(
    post, path = "/v1/snapshots", request_body = NewSnapshots,
    responses(
        (status = 200, description = "The disks", body = [Disk]), (status = 404, body = Problem),
        (status = 409, body = Problem), (status = 422, body = Problem), (status = 507, body = Problem)
    )
)]
pub async fn snapshot(
    State(daemon): State<Handle>,
    Object(NewSnapshots { snapshots }): Object<NewSnapshots>,
) -> Result<Json<Vec<Disk>>, Refused> {
    let named = |text: &String| text.split_once('@').map(|(disk, snapshot)| (disk.to_owned(), snapshot.to_owned()));
    let snapshots: Option<Vec<_>> = snapshots.iter().map(named).collect();
    let snapshots = snapshots.filter(|named| !named.is_empty()).ok_or_else(|| {
        Problem::new(422, "not-understood", "snapshots are named DISK@SNAPSHOT, at least one of them", SEE_DOCUMENT)
    })?;
    Ok(Json(ask(&daemon, |reply| DiskCommand::Snapshot(snapshots, reply)).await??))
}

/// Has a thin disk become as its snapshot is. Refused while a client is attached.
#[utoipa::path(
    post, path = "/v1/disks/{name}/rollback", params(("name" = String, Path, description = "Name of the disk")),
    request_body = Rollback,
    responses(
        (status = 200, body = Disk), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 422, body = Problem), (status = 507, body = Problem)
    )
)]
pub async fn roll_back(
    State(daemon): State<Handle>,
    Path(name): Path<String>,
    Object(Rollback { snapshot }): Object<Rollback>,
) -> Result<Json<Disk>, Refused> {
    Ok(Json(ask(&daemon, |reply| DiskCommand::RollBack(name, snapshot, reply)).await??))
}

/// Deletes a snapshot of a thin disk. Clones of it stay.
#[utoipa::path(
    delete, path = "/v1/disks/{name}/snapshots/{snapshot}",
    params(
        ("name" = String, Path, description = "Name of the disk"),
        ("snapshot" = String, Path, description = "Name of the snapshot")
    ),
    responses((status = 200, body = Disk), (status = 404, body = Problem), (status = 507, body = Problem))
)]
pub async fn delete_snapshot(
    State(daemon): State<Handle>,
    Path((name, snapshot)): Path<(String, String)>,
) -> Result<Json<Disk>, Refused> {
    Ok(Json(ask(&daemon, |reply| DiskCommand::DeleteSnapshot(name, snapshot, reply)).await??))
}
