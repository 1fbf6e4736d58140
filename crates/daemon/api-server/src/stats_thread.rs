//! What `GET /v1/stats` answers: all tenants over one span, read from the probes on a thread of its own. The model that
//! explains the figures takes milliseconds, which nobody else is to wait for.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use api::{MAX_SPAN_MS, Snapshot, StatsAsked};
use axum::Extension;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use confine::ThreadKind;
use tokio::sync::oneshot;

use crate::api_error::Refused;
use crate::api_state::Asked;
use crate::traces::Stay;
use api::{DiskError, Reason};
use observe::clock::Clock;
use observe::snapshot::Marks;
use runtime::command::Handle;
use runtime::{panics, threads};

/// Asks the thread. It ends when nobody can ask any more.
#[derive(Clone)]
pub struct StatsView {
    requests: Sender<Request>,
}

enum Request {
    /// The start of a span.
    Begin(oneshot::Sender<Marks>),
    /// What happened from then until now.
    End(Marks, oneshot::Sender<Snapshot>),
}

impl StatsView {
    /// Starts the thread.
    ///
    /// # Errors
    /// The kernel refused it.
    pub fn start(daemon: Handle, clock: Clock) -> Result<Self> {
        let (requests, asked) = channel();
        let run = move || run(&asked, &daemon, clock);
        std::thread::Builder::new().name("stats".into()).spawn(run).context("can't start the thread of stats")?;
        Ok(Self { requests })
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, Refused> {
        let (answer, answered) = oneshot::channel();
        // If nobody hears it, nobody answers.
        let _ = self.requests.send(request(answer));
        answered.await.map_err(|_| DiskError::ending().into())
    }
}

fn run(requests: &Receiver<Request>, daemon: &Handle, clock: Clock) {
    threads::enter(ThreadKind::Metrics);
    panics::drill();
    for request in requests {
        let Ok(drives) = daemon.describe() else { return };
        // The client may have gone.
        match request {
            Request::Begin(answer) => drop(answer.send(Marks::now(&drives, clock.now()))),
            Request::End(marks, answer) => drop(answer.send(marks.until(clock.now(), &drives))),
        }
    }
}

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
        let marks = asked.stats.ask(Request::Begin).await?;
        tokio::time::sleep(Duration::from_millis(span_ms)).await;
        marks
    };
    asked.stats.ask(|answer| Request::End(marks, answer)).await.map(Json)
}
