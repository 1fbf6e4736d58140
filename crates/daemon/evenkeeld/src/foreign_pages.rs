//! What a browser was made to ask by somebody else's page.
//!
//! Nobody but who may use the socket reaches it, until it is forwarded to a port (`ssh -L`): then any page that a
//! browser of that machine shows can send something there, with the rights of who forwarded it. Such a page is known by
//! what browsers say themselves: where it is from (`Origin`), and by which name it reached the port (`Host`), which is
//! its own even where it had that name lead here (DNS rebinding).

use std::net::{Ipv4Addr, Ipv6Addr};

use api::Problem;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::refused::Refused;

/// Such a request is refused.
pub async fn refuse(request: Request, next: Next) -> Response {
    if !is_foreign(request.headers()) {
        return next.run(request).await;
    }
    let remedy = "if that is you, ask by the name localhost, and send no Origin of another host";
    let title = "a page of another host has a browser ask this";
    Refused(Problem::new(403, "foreign-page", title, remedy)).into_response()
}

fn is_foreign(headers: &HeaderMap) -> bool {
    let of_host = |value: &HeaderValue| value.to_str().is_ok_and(|host| host.is_empty() || is_here(host));
    // `null` is where a page in a sandbox is from.
    let of_origin = |value: &HeaderValue| {
        value.to_str().is_ok_and(|origin| origin.split_once("://").is_some_and(|(_, host)| is_here(host)))
    };
    let hosts = headers.get_all(header::HOST).iter().all(of_host);
    let origins = headers.get_all(header::ORIGIN).iter().all(of_origin);
    !(hosts && origins)
}

/// Whether a host is this one, or has a name that no page on the Internet has: programs that speak to a socket put any
/// word there.
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
