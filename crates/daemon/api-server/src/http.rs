//! The HTTP API: its routes, the role that each needs, and its description for `docs/openapi.json`.
//!
//! Requests reach it on the sockets of `api_socket`. It asks the owner thread for everything it answers.

use std::time::Duration;

use api::{
    Action, Applied, Apply, Attach, Attachment, BlameRow, BoundRow, Ceilings, Deletion, Disk, DiskPatch, DiskSnapshot,
    DiskSpec, DiskState, DiskVerdict, Drive, DriveHealth, DrivePolicy, DriveRemoval, Erasure, Event, EventKind, Events,
    EventsAfter, Exported, HeldRow, HostKeys, Key, Live, LiveDetail, LiveDisk, LiveDrive, LiveLatency, LivePoller,
    LiveTenant, LiveVerdict, MAX_EVENT_WAIT_S, MAX_SPAN_MS, Moved, NewDrive, NewSnapshots, Operation, OperationState,
    PollerRow, PoolRoom, Predicted, PriceRow, Problem, Rewrapped, Rollback, Snapshot, Step, TenantKey, TenantRow, Wipe,
};
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Json, Router};
use tokio::sync::oneshot;
use utoipa::OpenApi;
use utoipa::openapi::RefOr;

use crate::api_error::{Refused, SEE_DOCUMENT};
use crate::api_state::Asked;
use crate::client_stream::HandedOver;
use crate::foreign_pages;
use crate::http_observed;
use crate::http_snapshots;
use crate::http_why;
use crate::json_body::Object;
use crate::roles::Role;
use crate::stats;
use crate::token::{self, Token};
use observe::events::Happened;
use runtime::command::{Command, DiskCommand, Handed, Handle, Reply};
use zeroize::Zeroizing;

/// The time limit of one request, beyond the span that it asks about.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// Limit of a request's body. A disk takes a few hundred bytes.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Limit of an `apply` request's body. The file has up to 4 MiB, and more once it is JSON text.
const MAX_FILE_BODY_BYTES: usize = 8 << 20;

/// The OpenAPI description. `docs/openapi.json` is a copy of it.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Evenkeel", description = "Manages the disks and drives of a running Evenkeel daemon.",
        license(name = "Apache-2.0")
    ),
    paths(
        list, create, show, change, delete, erase, reencrypt, http_snapshots::snapshot, http_snapshots::roll_back,
        http_snapshots::delete_snapshot, unlock, host_keys, attach, detach, operations, drives, add_drive,
        remove_drive, apply, export, events, http_observed::metrics, http_why::why, http_why::last_hour,
        http_why::trace, http_observed::live, http_observed::live_of, stats::stats
    ),
    components(schemas(
        Event,
        EventKind,
        Events,
        Action,
        Applied,
        Apply,
        Attach,
        Attachment,
        Exported,
        Key,
        Step,
        BlameRow,
        BoundRow,
        Ceilings,
        Disk,
        DiskSnapshot,
        DiskState,
        DiskVerdict,
        Drive,
        DriveHealth,
        DrivePolicy,
        HeldRow,
        Live,
        LiveDetail,
        LiveDisk,
        LiveDrive,
        LiveLatency,
        LivePoller,
        LiveVerdict,
        LiveTenant,
        Moved,
        DiskSpec,
        NewDrive,
        NewSnapshots,
        Operation,
        OperationState,
        PollerRow,
        PoolRoom,
        Predicted,
        PriceRow,
        Problem,
        Rollback,
        Snapshot,
        TenantKey,
        TenantRow,
        Wipe
    )),
    modifiers(&Descriptions)
)]
struct Document;

/// Fills in the description of each answer that has none: most statuses mean the same in all operations.
struct Descriptions;

impl utoipa::Modify for Descriptions {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let items = document.paths.paths.values_mut();
        let operations =
            items.flat_map(|item| [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete]);
        for (status, response) in operations.flatten().flat_map(|operation| &mut operation.responses.responses) {
            let RefOr::T(response) = response else { continue };
            if response.description.is_empty() {
                meaning(status).clone_into(&mut response.description);
            }
        }
    }
}

fn meaning(status: &str) -> &'static str {
    match status {
        "200" => "The request succeeded",
        "201" => "The disk was created",
        "404" => "There is no such resource",
        "409" => "The request conflicts with the current state",
        "422" => "The request is malformed or invalid",
        "503" => "Temporarily impossible; try again later",
        "507" => "The change can't be stored durably; nothing has changed",
        _ => "The request failed",
    }
}

/// The web page. It requests its data itself.
async fn the_page() -> impl IntoResponse {
    (page::headers(), page::html())
}

/// All routes, for the sockets.
pub fn router(asked: Asked) -> Router {
    Router::new()
        .route("/v1/disks", get(list).post(create))
        .route("/v1/disks/{name}", get(show).patch(change).delete(delete))
        .route("/v1/disks/{name}/erase", post(erase))
        .route("/v1/disks/{name}/reencrypt", post(reencrypt))
        .route("/v1/disks/{name}/key", put(unlock))
        .route("/v1/disks/{name}/attachments", post(attach))
        .route("/v1/disks/{name}/trace", post(http_why::trace))
        .route("/v1/disks/{name}/attachments/{tenant}", axum::routing::delete(detach))
        .route("/v1/snapshots", post(http_snapshots::snapshot))
        .route("/v1/disks/{name}/rollback", post(http_snapshots::roll_back))
        .route("/v1/disks/{name}/snapshots/{snapshot}", axum::routing::delete(http_snapshots::delete_snapshot))
        .route("/v1/host-keys", put(host_keys))
        .route("/v1/operations", get(operations))
        .route("/v1/drives", get(drives).post(add_drive))
        .route("/v1/drives/{name}", axum::routing::delete(remove_drive))
        .route("/v1/apply", post(apply).layer(DefaultBodyLimit::max(MAX_FILE_BODY_BYTES)))
        .route("/v1/export", get(export))
        .route("/v1/events", get(events))
        .route(STATS, get(stats::stats))
        .merge(looks())
        .route("/", get(the_page))
        .route("/openapi.json", get(|| async { Json(Document::openapi()) }))
        .fallback(nothing_here)
        .method_not_allowed_fallback(no_such_method)
        .layer(axum::middleware::from_fn(if_allowed))
        .layer(axum::middleware::from_fn(foreign_pages::refuse))
        .layer(axum::middleware::from_fn(if_text))
        .layer(axum::middleware::from_fn(in_time))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(asked)
}

/// The routes that return figures. Each is computed once a second at most, but for `why`: its thread has few places.
fn looks() -> Router<Asked> {
    Router::new()
        .route("/metrics", get(http_observed::metrics))
        .route("/live", get(http_observed::live))
        .route("/live/{name}", get(http_observed::live_of))
        .route("/v1/why/{tenant}", get(http_why::why))
        .route("/v1/hour", get(http_why::last_hour))
}

/// The routes for the TCP port: figures only, nothing that changes anything.
pub fn router_of_port(asked: Asked, token: Token) -> Router {
    looks()
        .fallback(nothing_here)
        .method_not_allowed_fallback(no_such_method)
        .layer(axum::middleware::from_fn(if_text))
        .layer(axum::middleware::from_fn_with_state(token, token::if_proven))
        // The page holds no secrets, and a browser has no token before it has the page.
        .route("/", get(the_page).fallback(no_such_method))
        .layer(axum::middleware::from_fn(in_time))
        .layer(DefaultBodyLimit::max(0))
        .with_state(asked)
}

async fn nothing_here() -> Refused {
    Refused(Problem::new(404, "no-such-thing", "there is no such path", SEE_DOCUMENT))
}

async fn no_such_method() -> Refused {
    Refused(Problem::new(405, "no-such-method", "this path does not have that method", SEE_DOCUMENT))
}

/// What the user of a tenant's socket may read, beside the tenant's own disks.
const OF_TENANTS: [&str; 3] = ["/v1/disks", "/v1/events", "/openapi.json"];

/// Refuses a request that the client's role does not allow, and names the roles that may make it.
async fn if_allowed(Extension(role): Extension<Role>, request: Request, next: Next) -> Response {
    let (is_look, path) = (request.method() == Method::GET, request.uri().path());
    let is_of_tenants = OF_TENANTS.contains(&path) || path.starts_with("/v1/disks/");
    let (title, remedy) = match role {
        Role::Operator => return next.run(request).await,
        Role::Viewer if is_look => return next.run(request).await,
        Role::Tenant(_) if is_look && is_of_tenants => return next.run(request).await,
        Role::Viewer => ("you may only look, not change anything".to_owned(), BECOME_OPERATOR),
        Role::Tenant(uid) => (format!("user {uid} may look only at its own disks and their events"), BECOME_OPERATOR),
        Role::Nobody(uid) => (format!("user {uid} may not use the API"), BECOME_ANY),
    };
    Refused(Problem::new(403, "forbidden", title, remedy)).into_response()
}

/// Refuses a path that is not UTF-8 once decoded.
async fn if_text(request: Request, next: Next) -> Response {
    if is_utf8(request.uri().path()) {
        return next.run(request).await;
    }
    let title = "the path is not UTF-8 once its %XX are decoded";
    Refused(Problem::new(400, "not-understood", title, SEE_DOCUMENT)).into_response()
}

/// Whether a path is UTF-8 once its %XX are decoded (RFC 3986, section 2.1).
fn is_utf8(path: &str) -> bool {
    let (mut bytes, mut rest) = (Vec::new(), path.as_bytes());
    let hex = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
    while let [first, after @ ..] = rest {
        let decoded = match (first, after) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).is_ok()
}

const BECOME_OPERATOR: &str = "ask root to add you to the group in `operators` under [api] of the configuration";
const BECOME_ANY: &str = "ask root to add you to the group in `operators` or `viewers` under [api] of the \
                          configuration, or to write `tenants = true` there: each user of a tenant's socket sees \
                          that tenant";

/// Its answer takes as long as the span that it covers.
const STATS: &str = "/v1/stats";

/// Ends requests that take too long, such as a client that sends one byte a second.
async fn in_time(request: Request, next: Next) -> Response {
    let span = if request.uri().path() == STATS { Duration::from_millis(MAX_SPAN_MS) } else { Duration::ZERO };
    match tokio::time::timeout(REQUEST_LIMIT + span, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            Refused(Problem::new(408, "too-slow", "the request took too long", "send it in one piece")).into_response()
        }
    }
}

/// Sends a command to the owner and waits for its answer.
pub(crate) async fn ask<T: Send + 'static>(
    daemon: &Handle,
    command: impl FnOnce(Reply<T>) -> DiskCommand,
) -> Result<T, Refused> {
    let (answer, answered) = oneshot::channel();
    daemon.tell(Command::Disk(command(Box::new(move |it| {
        // The client may have disconnected.
        let _ = answer.send(it);
    }))));
    answered.await.map_err(|_| api::DiskError::ending().into())
}

/// Lists all disks.
#[utoipa::path(get, path = "/v1/disks", responses((status = 200, body = [Disk])))]
async fn list(State(daemon): State<Handle>, Extension(role): Extension<Role>) -> Result<Json<Vec<Disk>>, Refused> {
    ask(&daemon, |reply| DiskCommand::List(role.sees_only(), reply)).await.map(Json)
}

/// Returns one disk.
#[utoipa::path(
    get, path = "/v1/disks/{name}", params(("name" = String, Path, description = "Name of the disk")),
    responses((status = 200, body = Disk), (status = 404, body = Problem))
)]
async fn show(
    State(daemon): State<Handle>,
    Extension(role): Extension<Role>,
    Path(name): Path<String>,
) -> Result<Json<Disk>, Refused> {
    let disks = ask(&daemon, |reply| DiskCommand::List(role.sees_only(), reply)).await?;
    let found = disks.into_iter().find(|disk| disk.name == name);
    Ok(Json(found.ok_or_else(|| api::DiskError::no_such_disk(&name))?))
}

/// Creates a disk. Repeating the request is harmless.
#[utoipa::path(
    post, path = "/v1/disks", request_body = DiskSpec,
    responses(
        (status = 201, body = Disk), (status = 200, description = "It was there with these settings", body = Disk),
        (status = 409, body = Problem), (status = 422, body = Problem), (status = 507, body = Problem)
    )
)]
async fn create(
    State(daemon): State<Handle>,
    Object(disk): Object<DiskSpec>,
) -> Result<(StatusCode, Json<Disk>), Refused> {
    let (disk, is_new) = ask(&daemon, |reply| DiskCommand::Create(Box::new(disk), reply)).await??;
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json(disk)))
}

/// Changes a disk's promise, limits, size or front end: a JSON Merge Patch (RFC 7396) of what it was made with.
///
/// A key that is absent stays as it is; `null` removes it. `name`, `drive`, `lba_size`, `attach` and `nsid` can't
/// change. The keys from `frontend` on change only while no client is attached. A setting that the new class or
/// front end does not have goes away with the old one, and the burst with the last limit.
#[utoipa::path(
    patch, path = "/v1/disks/{name}",
    params(("name" = String, Path, description = "Name of the disk")),
    request_body(content = DiskSpec, content_type = "application/merge-patch+json"),
    responses(
        (status = 200, body = Disk), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 422, body = Problem), (status = 507, body = Problem)
    )
)]
async fn change(
    State(daemon): State<Handle>,
    Path(name): Path<String>,
    Object(change): Object<DiskPatch>,
) -> Result<Json<Disk>, Refused> {
    Ok(Json(ask(&daemon, |reply| DiskCommand::Change(name, Box::new(change), reply)).await??))
}

/// Deletes a disk. It is gone at once; its space is free once its data is overwritten. Repeating the request is
/// harmless.
#[utoipa::path(
    delete, path = "/v1/disks/{name}", params(("name" = String, Path, description = "Name of the disk"), Deletion),
    responses(
        (status = 200, description = "Operations until the disk's space is free", body = [Operation]),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 507, body = Problem)
    )
)]
async fn delete(
    State(daemon): State<Handle>,
    Path(name): Path<String>,
    deletion: Result<Query<Deletion>, QueryRejection>,
) -> Result<Json<Vec<Operation>>, Refused> {
    let Query(deletion) = deletion?;
    Ok(Json(ask(&daemon, |reply| DiskCommand::Delete(name, deletion, reply)).await??))
}

/// Gives an encrypted disk another key, so that its data can't be read any more. The answer comes once the new key is
/// durable and the former one is in no memory. A disk that is attached to a client is refused without `force`.
#[utoipa::path(
    post, path = "/v1/disks/{name}/erase", params(("name" = String, Path, description = "Name of the disk")),
    request_body = Erasure,
    responses(
        (status = 200, body = Disk), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 422, body = Problem), (status = 507, body = Problem)
    )
)]
async fn erase(
    State(daemon): State<Handle>,
    Path(name): Path<String>,
    Object(erasure): Object<Erasure>,
) -> Result<Json<Disk>, Refused> {
    Ok(Json(ask(&daemon, |reply| DiskCommand::Erase(name, erasure, reply)).await??))
}

/// Begins to give an encrypted disk another key. Its data stays, also while guests use it. `GET /v1/operations` shows
/// the progress. Only for disks with a key of the host's.
#[utoipa::path(
    post, path = "/v1/disks/{name}/reencrypt", params(("name" = String, Path, description = "Name of the disk")),
    responses(
        (status = 200, body = Disk), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 422, body = Problem), (status = 507, body = Problem)
    )
)]
async fn reencrypt(State(daemon): State<Handle>, Path(name): Path<String>) -> Result<Json<Disk>, Refused> {
    Ok(Json(ask(&daemon, |reply| DiskCommand::Reencrypt(name, reply)).await??))
}

/// Hands over a tenant's own key of a disk, which is served from then on. A wrong key is refused. After a client
/// detached, or the daemon started again, the disk is locked until the key is handed over once more.
#[utoipa::path(
    put, path = "/v1/disks/{name}/key", params(("name" = String, Path, description = "Name of the disk")),
    request_body = TenantKey,
    responses(
        (status = 200, body = Disk), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 422, body = Problem), (status = 507, body = Problem)
    )
)]
async fn unlock(
    State(daemon): State<Handle>,
    Path(name): Path<String>,
    Object(TenantKey { key, erase, force }): Object<TenantKey>,
) -> Result<Json<Disk>, Refused> {
    let handed = Handed { key: Zeroizing::new(key), erase, force };
    Ok(Json(ask(&daemon, |reply| DiskCommand::Unlock(name, handed, reply)).await??))
}

/// Hands over the host keys, as the file of `host_key` has them. The keys of all disks are wrapped by the present one,
/// and disks that were locked for want of a host key are served. Repeating the request is harmless.
#[utoipa::path(
    put, path = "/v1/host-keys", request_body = HostKeys,
    responses((status = 200, body = Rewrapped), (status = 422, body = Problem), (status = 507, body = Problem))
)]
async fn host_keys(
    State(daemon): State<Handle>,
    Object(HostKeys { lines }): Object<HostKeys>,
) -> Result<Json<Rewrapped>, Refused> {
    Ok(Json(ask(&daemon, |reply| DiskCommand::HostKeys(Zeroizing::new(lines), reply)).await??))
}

/// Attaches a namespace to an NVMe tenant. The guest sees it at once. Repeating the request is harmless.
#[utoipa::path(
    post, path = "/v1/disks/{name}/attachments",
    params(("name" = String, Path, description = "Name of the namespace")), request_body = Attach,
    responses(
        (status = 200, body = Disk), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 422, body = Problem), (status = 507, body = Problem)
    )
)]
async fn attach(
    State(daemon): State<Handle>,
    Path(name): Path<String>,
    Object(attach): Object<Attach>,
) -> Result<Json<Disk>, Refused> {
    Ok(Json(ask(&daemon, |reply| DiskCommand::Attach(name, attach, reply)).await??))
}

/// Detaches a namespace from a tenant. The answer comes once the tenant has no command in flight to it. The namespace
/// keeps its data. Repeating the request is harmless.
#[utoipa::path(
    delete, path = "/v1/disks/{name}/attachments/{tenant}",
    params(
        ("name" = String, Path, description = "Name of the namespace"),
        ("tenant" = String, Path, description = "Name of the NVMe tenant")
    ),
    responses(
        (status = 200, body = Disk), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 507, body = Problem)
    )
)]
async fn detach(
    State(daemon): State<Handle>,
    Path((name, tenant)): Path<(String, String)>,
) -> Result<Json<Disk>, Refused> {
    Ok(Json(ask(&daemon, |reply| DiskCommand::Detach(name, tenant, reply)).await??))
}

/// Lists the background operations, such as overwriting deleted disks.
#[utoipa::path(get, path = "/v1/operations", responses((status = 200, body = [Operation])))]
async fn operations(State(daemon): State<Handle>) -> Result<Json<Vec<Operation>>, Refused> {
    ask(&daemon, DiskCommand::Operations).await.map(Json)
}

/// Lists the drives.
#[utoipa::path(get, path = "/v1/drives", responses((status = 200, body = [Drive])))]
async fn drives(State(daemon): State<Handle>) -> Result<Json<Vec<Drive>>, Refused> {
    ask(&daemon, DiskCommand::Drives).await.map(Json)
}

/// Adds a drive. It succeeds if a drive of that name with the same settings exists already.
#[utoipa::path(
    post, path = "/v1/drives", request_body = NewDrive,
    responses(
        (status = 200, body = Drive), (status = 409, body = Problem), (status = 422, body = Problem),
        (status = 507, body = Problem)
    )
)]
async fn add_drive(
    State(daemon): State<Handle>,
    Extension(handed_over): Extension<HandedOver>,
    Object(drive): Object<NewDrive>,
) -> Result<Json<Drive>, Refused> {
    let handed_over = handed_over.take();
    Ok(Json(ask(&daemon, |reply| DiskCommand::AddDrive(Box::new(drive), handed_over, reply)).await??))
}

/// Removes a drive that was added while the daemon ran and that has no disks. Returns the remaining drives.
///
/// `force` also removes a drive that failed to open, together with its disks, and a drive on which deleted data can't
/// be overwritten.
#[utoipa::path(
    delete, path = "/v1/drives/{name}",
    params(("name" = String, Path, description = "Name of the drive"), DriveRemoval),
    responses((status = 200, body = [Drive]), (status = 404, body = Problem), (status = 409, body = Problem))
)]
async fn remove_drive(
    State(daemon): State<Handle>,
    Path(name): Path<String>,
    removal: Result<Query<DriveRemoval>, QueryRejection>,
) -> Result<Json<Vec<Drive>>, Refused> {
    let Query(removal) = removal?;
    Ok(Json(ask(&daemon, |reply| DiskCommand::RemoveDrive(name, removal, reply)).await??))
}

/// Applies a configuration file: serves its tenants, or says what that would change. Repeating the request changes
/// nothing.
#[utoipa::path(
    post, path = "/v1/apply", request_body = Apply,
    responses(
        (status = 200, body = Applied), (status = 409, body = Problem), (status = 422, body = Problem),
        (status = 507, body = Problem)
    )
)]
async fn apply(State(daemon): State<Handle>, Object(file): Object<Apply>) -> Result<Json<Applied>, Refused> {
    Ok(Json(ask(&daemon, |reply| DiskCommand::Apply(Box::new(file), reply)).await??))
}

/// Returns the running configuration as one file, including the disks that were created since the daemon started.
#[utoipa::path(get, path = "/v1/export", responses((status = 200, body = Exported)))]
async fn export(State(daemon): State<Handle>) -> Result<Json<Exported>, Refused> {
    Ok(Json(ask(&daemon, DiskCommand::Export).await??))
}

/// Returns the events after a number. Waits up to `wait_s` seconds if there are none.
#[utoipa::path(
    get, path = "/v1/events", params(EventsAfter),
    responses((status = 200, body = Events), (status = 422, body = Problem), (status = 503, body = Problem))
)]
async fn events(
    State(asked): State<Asked>,
    Extension(role): Extension<Role>,
    after: Result<Query<EventsAfter>, QueryRejection>,
) -> Result<Json<Events>, Refused> {
    let Query(EventsAfter { since, wait_s }) = after?;
    if wait_s > MAX_EVENT_WAIT_S {
        let remedy = format!("wait {MAX_EVENT_WAIT_S} seconds at most, and ask again");
        return Err(Problem::new(422, "invalid", format!("wait_s is {wait_s}"), remedy).into());
    }
    // Watch before reading, so that an event in between ends the wait.
    let mut newest = asked.events.watch();
    let its_own = match role.sees_only() {
        Some(uid) => Some(ask(&asked.daemon, |reply| DiskCommand::List(Some(uid), reply)).await?),
        None => None,
    };
    let seen = |happened: Happened| match &its_own {
        Some(disks) => happened.within(disks),
        None => happened.in_full(),
    };
    let look = || if since == 0 { asked.events.all(seen) } else { asked.events.after(since, seen) };
    let told = look();
    if wait_s == 0 || told.lost || !told.events.is_empty() {
        return Ok(Json(told));
    }
    let _place = asked.place_to_wait("ask without wait_s, or later")?;
    let waited = tokio::time::timeout(Duration::from_secs(wait_s.into()), newest.changed()).await;
    Ok(Json(if waited.is_ok() { look() } else { told }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The copy in the repository is current. Run with `UPDATE=1` to write it.
    #[test]
    fn the_document_is_the_one_that_is_kept() {
        let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/openapi.json");
        let now = Document::openapi().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(kept, &now).unwrap();
        }
        assert!(std::fs::read_to_string(kept).unwrap_or_default() == now, "run this test with UPDATE=1");
    }
}
