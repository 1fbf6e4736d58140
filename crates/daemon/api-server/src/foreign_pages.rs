//! Refuses requests that a web page of another host makes through a user's browser (CSRF, DNS rebinding).
//!
//! Only permitted users reach the API's socket, until one of them forwards it to a port (`ssh -L`). Then any web page
//! in a browser on that machine can send requests there with that user's rights.
//!
//! Browsers reveal such requests. `Origin` names the page's host, and `Host` names the host that the page asked for.
//! With DNS rebinding, `Host` is still the page's own name.

use std::net::{Ipv4Addr, Ipv6Addr};

use api::Problem;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::api_error::Refused;

/// Refuses requests from pages of other hosts.
pub async fn refuse(request: Request, next: Next) -> Response {
    if !is_foreign(request.headers()) {
        return next.run(request).await;
    }
    let remedy = "if you sent it yourself, use the host name localhost and no Origin header of another host";
    let title = "refused: a web page of another host sent this through a browser";
    Refused(Problem::new(403, "foreign-page", title, remedy)).into_response()
}

fn is_foreign(headers: &HeaderMap) -> bool {
    let of_host = |value: &HeaderValue| value.to_str().is_ok_and(|host| host.is_empty() || is_here(host));
    // Sandboxed pages send the origin `null`.
    let of_origin = |value: &HeaderValue| {
        value.to_str().is_ok_and(|origin| origin.split_once("://").is_some_and(|(_, host)| is_here(host)))
    };
    let hosts = headers.get_all(header::HOST).iter().all(of_host);
    let origins = headers.get_all(header::ORIGIN).iter().all(of_origin);
    !(hosts && origins)
}

/// Whether a host name means this machine, or can't belong to a page on the Internet. Programs that talk to a Unix
/// socket send an arbitrary word.
fn is_here(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    let host = authority.host().trim_end_matches('.');
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_v4 = address.parse().is_ok_and(|address: Ipv4Addr| address.is_loopback());
    let is_v6 = address.parse().is_ok_and(|address: Ipv6Addr| address.is_loopback());
    is_v4 || is_v6 || !host.contains(['.', ':']) || host.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_another_host_is_known() {
        let foreign = |headers: &[(header::HeaderName, &str)]| {
            let value = |text: &str| HeaderValue::from_str(text).expect("a header's value");
            is_foreign(&headers.iter().map(|(name, text)| (name.clone(), value(text))).collect())
        };
        let (host, origin) = (header::HOST, header::ORIGIN);
        for here in
            ["localhost", "LOCALHOST:9560", "127.0.0.1:9560", "127.3.2.1", "[::1]:9560", "db.localhost:1", "x", ""]
        {
            assert!(!foreign(&[(host.clone(), here)]), "{here}");
        }
        for there in
            ["evil.example:9560", "evil.example", "localhost.evil.example", "10.0.0.7:9560", "[fe80::1]:80", "a b"]
        {
            assert!(foreign(&[(host.clone(), there)]), "{there}");
        }
        assert!(!foreign(&[]));
        assert!(!foreign(&[(host.clone(), "localhost:1"), (origin.clone(), "http://localhost:1")]));
        for there in ["https://evil.example", "null", "http://10.0.0.7", ""] {
            assert!(foreign(&[(host.clone(), "localhost:1"), (origin.clone(), there)]), "{there}");
        }
        assert!(foreign(&[(host.clone(), "localhost"), (host.clone(), "evil.example")]), "twice");
    }
}
