//! What `GET /v1/stats` answers: all tenants over one span.

use std::collections::HashMap;
use std::time::Duration;

use api::{Disk, DiskError, MAX_SPAN_MS, Reason, Snapshot, StatsAsked};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::{Extension, Json};
use observe::snapshot::Marks;
use runtime::command::DiskCommand;

use crate::api_error::Refused;
use crate::api_state::Asked;
use crate::observer::Sources;
use crate::traces::Stay;

/// What each tenant gets over the next `span_ms` milliseconds, beside what was promised and predicted.
///
/// The answer comes when the span is over.
#[utoipa::path(
    get, path = "/v1/stats", params(StatsAsked),
    responses((status = 200, body = Snapshot), (status = 422, body = api::Problem), (status = 503, body = api::Problem))
)]
pub async fn stats(
    State(asked): State<Asked>,
    Extension(stay): Extension<Stay>,
    span: Result<Query<StatsAsked>, QueryRejection>,
) -> Result<Json<Snapshot>, Refused> {
    let Query(StatsAsked { span_ms }) = span?;
    if span_ms > MAX_SPAN_MS {
        let remedy = format!("ask for {MAX_SPAN_MS} ms at most");
        return Err(DiskError::new(Reason::Invalid, format!("span_ms is {span_ms}"), remedy).into());
    }
    let marks = if span_ms == 0 {
        Marks::start()
    } else {
        let _place = asked.place_to_wait("ask for span_ms=0, or later")?;
        let _stay = stay.hold();
        let marks = asked.observer.ask(|from| Ok(Marks::now(&from.daemon.describe()?, from.clock.now()))).await?;
        tokio::time::sleep(Duration::from_millis(span_ms)).await;
        marks
    };
    let until = move |from: &mut Sources| {
        let snapshot = marks.until(from.clock.now(), &from.daemon.describe()?, from.verdicts.usuals());
        let disks = from.daemon.ask_disks(|reply| DiskCommand::List(None, reply))?;
        Ok(with_keys(snapshot, &disks))
    };
    asked.observer.ask(until).await.map(Json)
}

/// The snapshot, with what the disks' descriptions say of their keys.
fn with_keys(mut snapshot: Snapshot, disks: &[Disk]) -> Snapshot {
    let encrypted = disks.iter().filter(|disk| disk.encryption.is_some());
    let encrypted: HashMap<&str, &Disk> = encrypted.map(|disk| (disk.name.as_str(), disk)).collect();
    for row in &mut snapshot.tenants {
        let Some(disk) = encrypted.get(row.name.as_str()) else { continue };
        row.encryption.clone_from(&disk.encryption);
        row.locked = disk.is_locked();
    }
    snapshot
}
