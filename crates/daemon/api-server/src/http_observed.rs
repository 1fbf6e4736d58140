//! `GET /live` and `/metrics`: answers of the observer.

use api::LiveDetail;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use metrics::Format;

use crate::api_error::Refused;
use crate::observer::{Observer, Sources};
use crate::response_cache;

const JSON: [(&str, &str); 2] = [("content-type", "application/json"), ("cache-control", "no-store")];

/// What each tenant gets beside its promise, and which tenants harm others, over about the last second.
///
/// The page at `GET /` shows this.
#[utoipa::path(
    get, path = "/live", tag = "http", operation_id = "live",
    responses((status = 200, body = api::Live), (status = 503, body = api::Problem))
)]
pub async fn live(State(observer): State<Observer>) -> Result<Response, Refused> {
    let text = observer.ask(Sources::live).await?;
    Ok((JSON, response_cache::body(text)).into_response())
}

/// All data about one tenant, with the histogram of its latencies since the daemon started.
///
/// For a plot over time, subtract the previous answer's counts.
#[utoipa::path(
    get, path = "/live/{name}", tag = "http", operation_id = "live_tenant",
    params(("name" = String, Path, description = "Name of the tenant")),
    responses(
        (status = 200, body = LiveDetail), (status = 404, body = api::Problem), (status = 503, body = api::Problem)
    )
)]
pub async fn live_of(State(observer): State<Observer>, Path(name): Path<String>) -> Result<Response, Refused> {
    let text = observer.ask(move |sources| sources.live_of(&name)).await??;
    Ok((JSON, text).into_response())
}

/// Metrics of drives, pollers and tenants for Prometheus.
///
/// The format is OpenMetrics if `Accept` asks for it, else Prometheus text. docs/METRICS.md describes each metric.
#[utoipa::path(
    get, path = "/metrics", tag = "http", operation_id = "metrics",
    responses((status = 200, body = String, content_type = "text/plain"), (status = 503, body = api::Problem))
)]
pub async fn metrics(State(observer): State<Observer>, headers: HeaderMap) -> Result<Response, Refused> {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept);
    let text = observer.ask(move |sources| sources.metrics(format)).await?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], response_cache::body(text)).into_response())
}
