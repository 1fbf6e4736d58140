//! What a request brings with it.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use api::Problem;

use crate::api_error::{Refused, SEE_DOCUMENT};

/// A body that is a JSON object. [`Json`] alone takes an array, too, for its fields in their order.
pub struct Object<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Object<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let (parts, body) = request.into_parts();
        let bytes = Bytes::from_request(Request::from_parts(parts.clone(), body), state).await?;
        if bytes.trim_ascii_start().first() == Some(&b'[') {
            return Err(Problem::new(422, "not-understood", "The body is no JSON object", SEE_DOCUMENT).into());
        }
        let Json(value) = Json::from_request(Request::from_parts(parts, Body::from(bytes)), state).await?;
        Ok(Self(value))
    }
}
