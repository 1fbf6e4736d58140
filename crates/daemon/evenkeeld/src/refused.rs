//! A problem as an answer of the API (RFC 9457).

use api::Problem;
use axum::Json;
use axum::extract::rejection::{BytesRejection, JsonRejection, QueryRejection};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Where everything else is said.
pub(crate) const SEE_DOCUMENT: &str = "GET /openapi.json describes the API";

/// A problem as an answer.
pub(crate) struct Refused(pub(crate) Problem);

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(problem)
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
