//! The routes of the HTTP API that explain why a tenant was slow and that record its commands.

use std::pin::Pin;
use std::task::{Context, Poll};

use api::{DiskError, LastHour, MAX_TRACE_S, Problem, TraceAsked, Why, WhyAsked};
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRef, Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use hyper::body::{Bytes, Frame};
use tokio::sync::{mpsc, oneshot};

use crate::api_error::Refused;
use crate::api_state::Asked;
use crate::traces::{Stay, Traces};
use observe::why::Asker;
use runtime::command::{Command, Handle, Recorded};

impl FromRef<Asked> for Asker {
    fn from_ref(asked: &Asked) -> Self {
        asked.asker.clone()
    }
}

impl FromRef<Asked> for Traces {
    fn from_ref(asked: &Asked) -> Self {
        asked.traces.clone()
    }
}

fn ending<T>(_: T) -> DiskError {
    DiskError::ending()
}

/// Explains why a tenant was slow: what it got, what it usually gets, what caused the difference and what would have
/// helped.
#[utoipa::path(
    get, path = "/v1/why/{tenant}", params(("tenant" = String, Path, description = "Name of the tenant"), WhyAsked),
    responses(
        (status = 200, body = Why),
        (status = 404, description = "There is no such disk, or no history of that time", body = Problem),
        (status = 422, body = Problem), (status = 503, body = Problem)
    )
)]
pub async fn why(
    State(asker): State<Asker>,
    Path(tenant): Path<String>,
    asked: Result<Query<WhyAsked>, QueryRejection>,
) -> Result<Json<Why>, Refused> {
    let Query(asked) = asked?;
    let (answer, answered) = oneshot::channel();
    let reply = move |it| {
        // The client may have disconnected.
        let _ = answer.send(it);
    };
    asker.ask(tenant, asked, reply)?;
    Ok(Json(answered.await.map_err(ending)??))
}

/// The last hour of all tenants, minute by minute. At most 30 s old.
#[utoipa::path(get, path = "/v1/hour", responses((status = 200, body = LastHour), (status = 503, body = Problem)))]
pub async fn last_hour(State(asker): State<Asker>) -> Result<Response, Refused> {
    let (answer, answered) = oneshot::channel();
    asker.last_hour(move |hour| {
        // The client may have disconnected.
        let _ = answer.send(hour);
    })?;
    Ok(Json(&*answered.await.map_err(ending)?).into_response())
}

/// Records every command of a tenant for a given time. Only operators may: a trace shows where the tenant reads and
/// writes.
///
/// The answer is the trace as it is recorded. It consists of lines of CSV and a last line with the number of commands
/// recorded and lost.
#[utoipa::path(
    post, path = "/v1/disks/{name}/trace",
    params(("name" = String, Path, description = "Name of the tenant"), TraceAsked),
    responses(
        (status = 200, description = "The trace", body = String, content_type = "text/csv"),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 422, body = Problem),
        (status = 503, body = Problem)
    )
)]
pub async fn trace(
    State(daemon): State<Handle>,
    State(traces): State<Traces>,
    Extension(stay): Extension<Stay>,
    Path(name): Path<String>,
    asked: Result<Query<TraceAsked>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(TraceAsked { seconds }) = asked?;
    if seconds == 0 || seconds > MAX_TRACE_S {
        let remedy = format!("ask for 1 to {MAX_TRACE_S} seconds");
        return Err(Problem::new(422, "invalid", format!("seconds is {seconds}"), remedy).into());
    }
    let claim = traces.claim(&name)?;
    let (answer, answered) = oneshot::channel();
    let owner = daemon.clone();
    let reply = Box::new(move |it| {
        if let Err(Ok(unwanted)) = answer.send(it) {
            // The client has disconnected.
            let Recorded { tenant, .. } = unwanted;
            owner.tell(Command::StopRecording(tenant));
        }
    });
    daemon.tell(Command::Record(name, reply));
    let recorded = answered.await.map_err(ending)??;
    let body = Lines(traces.begin(claim, recorded, seconds, &stay));
    Ok(([(header::CONTENT_TYPE, "text/csv")], Body::new(body)).into_response())
}

/// The body of a trace's answer: the lines as they arrive.
struct Lines(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Lines {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}
