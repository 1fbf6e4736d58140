//! Of the HTTP API: why a tenant was slow.

use api::{Problem, Why, WhyAsked};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use tokio::sync::oneshot;

use crate::refused::Refused;
use crate::why::Asker;

/// What a tenant got at some time, beside what it gets usually; whose fault it was if it was slow, and what would have
/// helped.
#[utoipa::path(
    get, path = "/v1/why/{tenant}", params(("tenant" = String, Path), WhyAsked),
    responses(
        (status = 200, body = Why),
        (status = 404, description = "There is no such disk, or nothing is kept of that time", body = Problem),
        (status = 422, body = Problem), (status = 503, body = Problem)
    )
)]
pub(crate) async fn why(
    State(asker): State<Asker>,
    Path(tenant): Path<String>,
    asked: Result<Query<WhyAsked>, QueryRejection>,
) -> Result<Json<Why>, Refused> {
    let Query(asked) = asked?;
    let (answer, answered) = oneshot::channel();
    let reply = move |it| {
        // Who asked may have gone.
        let _ = answer.send(it);
    };
    asker.ask(tenant, asked, reply)?;
    let ending = |_| Problem::new(503, "ending", "the daemon is ending", "try again once it runs");
    Ok(Json(answered.await.map_err(ending)??))
}
