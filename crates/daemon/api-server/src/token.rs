//! The token of the API's TCP port.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::Problem;
use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use crate::api_error::Refused;

/// What a client must show.
#[derive(Clone)]
pub struct Token {
    pub(crate) secret: Arc<str>,
    /// Where to find it.
    pub remedy: Arc<str>,
}

impl Token {
    /// Whether a request shows it (RFC 6750). Takes as long for any other token of its length.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let Some((scheme, shown)) = shown.and_then(|shown| shown.split_at_checked("Bearer ".len())) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(shown.trim_ascii().ct_eq(self.secret.as_bytes()))
    }
}

/// Whether a connection has shown the token.
#[derive(Clone, Default)]
pub struct Proof(pub Arc<AtomicBool>);

/// Tells a client without the token what to do.
pub async fn if_proven(
    State(token): State<Token>,
    Extension(proof): Extension<Proof>,
    request: Request,
    next: Next,
) -> Response {
    if token.is_in(request.headers()) {
        proof.0.store(true, Ordering::Relaxed);
        return next.run(request).await;
    }
    let title = match request.headers().contains_key(header::AUTHORIZATION) {
        true => "that is not the token",
        false => "this takes a token",
    };
    let problem = Problem::new(401, "no-token", title, &*token.remedy);
    ([(header::WWW_AUTHENTICATE, "Bearer")], Refused(problem)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_alone_is_the_token() {
        let token = Token { secret: "0123456789abcdef".into(), remedy: "".into() };
        let shows = |value: &str| {
            let value = HeaderValue::from_str(value).expect("a header's value");
            token.is_in(&HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
        };
        assert!(shows("Bearer 0123456789abcdef") && shows("bearer  0123456789abcdef"));
        for value in ["", "Bearer", "Bearer ", "0123456789abcdef", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0"]
        {
            assert!(!shows(value), "{value}");
        }
        assert!(!shows("Basic  0123456789abcdef") && !shows("Bearer 0123456789ABCDEF"));
        assert!(!token.is_in(&HeaderMap::new()));
    }
}
