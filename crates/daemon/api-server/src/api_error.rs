//! A problem as an answer of the API (RFC 9457).

use api::Problem;
use axum::Json;
use axum::extract::rejection::{BytesRejection, JsonRejection, QueryRejection};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use api::{DiskError, Reason};

/// Where everything else is said.
pub const SEE_DOCUMENT: &str = "GET /openapi.json describes the API";

/// A problem as an answer.
pub struct Refused(pub Problem);

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl From<DiskError> for Refused {
    fn from(error: DiskError) -> Self {
        let DiskError { reason, title, remedy, details } = error;
        Self(Problem { status: status(reason).as_u16(), code: reason.code().to_owned(), title, remedy, details })
    }
}

fn status(reason: Reason) -> StatusCode {
    match reason {
        Reason::Hung
        | Reason::Idle
        | Reason::NoSuchDisk
        | Reason::NoSuchDrive
        | Reason::NoSuchTenant
        | Reason::NoSummaries => StatusCode::NOT_FOUND,
        Reason::Invalid | Reason::NoDescriptor => StatusCode::UNPROCESSABLE_ENTITY,
        Reason::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        Reason::Ending | Reason::TooManyAsk | Reason::TooManyTraces => StatusCode::SERVICE_UNAVAILABLE,
        Reason::NotDurable => StatusCode::INSUFFICIENT_STORAGE,
        // The state of things stands against it.
        _ => StatusCode::CONFLICT,
    }
}

impl Refused {
    fn not_understood(status: StatusCode, detail: String) -> Self {
        Self(Problem::new(status.as_u16(), "not-understood", detail, SEE_DOCUMENT))
    }
}

impl From<BytesRejection> for Refused {
    fn from(rejection: BytesRejection) -> Self {
        Self::not_understood(rejection.status(), rejection.body_text())
    }
}

impl From<JsonRejection> for Refused {
    fn from(rejection: JsonRejection) -> Self {
        Self::not_understood(rejection.status(), rejection.body_text())
    }
}

impl From<QueryRejection> for Refused {
    fn from(rejection: QueryRejection) -> Self {
        Self::not_understood(rejection.status(), rejection.body_text())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(header::CONTENT_TYPE, "application/problem+json")], Json(self.0)).into_response()
    }
}
