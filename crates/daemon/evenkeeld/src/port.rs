//! The API's TCP port: read-only figures, for clients on this host that show the token.
//!
//! It is for Prometheus and browsers, which can't use a Unix socket. Any process of the host can connect, and TCP does
//! not identify it. So a client that has not shown the token may lose its slot: if all slots are taken, the oldest such
//! client is disconnected. Clients of the Unix socket never wait for these.

use std::collections::VecDeque;
use std::fmt;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use api::Problem;
use axum::Extension;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use client_socket::{Level, Sink};
use config::{Config, Identity};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_user_timeout;
use subtle::ConstantTimeEq;
use tokio::task::AbortHandle;

use crate::api_error::Refused;
use crate::api_socket::{RETRY, serve_connection};
use crate::traces::Stay;

/// Connections at a time.
const MAX_CLIENTS: usize = 32;

/// How long an answer may wait for its client to read on.
const UNREAD_LIMIT_MS: u32 = 5000;

/// What who asks must show.
#[derive(Clone)]
pub struct Token {
    secret: Arc<str>,
    /// Where it is to be found.
    remedy: Arc<str>,
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

/// The port, and the token for it.
pub struct OpenedPort {
    listener: TcpListener,
    token: Token,
}

impl OpenedPort {
    /// Opens the port of the configuration, if it has one. If another process has the port, there is none until the
    /// next start: any process may take it, and disks must be served all the same.
    ///
    /// # Errors
    /// It can't be had, or the token can't be made.
    pub fn open(config: &Config, identity: Option<&Identity>, sink: &Sink) -> Result<Option<Self>> {
        let Some(address) = config.api.listen else { return Ok(None) };
        let listener = match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let line = format!(
                    "can't listen on {address}, another process does: there are no metrics and no page by TCP until \
                     the next start; end that process, or write another port as `listen` under [api]"
                );
                sink(Level::Warn.of_daemon(), &line);
                return Ok(None);
            }
            bound => bound.with_context(|| format!("can't listen on {address}"))?,
        };
        listener.set_nonblocking(true)?;
        let (secret, path) = (config.make_token(identity)?, config.token_path());
        let remedy = format!("send `Authorization: Bearer TOKEN`; the token is in {}", path.display());
        Ok(Some(Self { listener, token: Token { secret: secret.into(), remedy: remedy.into() } }))
    }
}

impl fmt::Display for OpenedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(address) = self.listener.local_addr() else { return Ok(()) };
        write!(f, "http://{address}/ shows who hurts whom, and has /metrics: {}", self.token.remedy)
    }
}

/// Whether a connection has shown the token.
#[derive(Clone, Default)]
pub struct Proof(Arc<AtomicBool>);

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

/// Serves all clients that connect; never ends. Without a port there are none.
///
/// # Errors
/// The runtime can't watch the port.
pub async fn accept(port: Option<OpenedPort>, router: impl FnOnce(Token) -> Router) -> Result<()> {
    let Some(OpenedPort { listener, token }) = port else { return std::future::pending().await };
    let (listener, router) = (tokio::net::TcpListener::from_std(listener)?, router(token));
    let mut clients = Clients::default();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Its client changed its mind, or there is no descriptor left for a moment.
            tokio::time::sleep(RETRY).await;
            continue;
        };
        if !clients.make_room() {
            continue;
        }
        // A client that reads nothing keeps its slot, and what it was told, for no longer.
        let _ = set_tcp_user_timeout(&stream, UNREAD_LIMIT_MS);
        let proof = Proof::default();
        let service = TowerToHyperService::new(router.clone().layer(Extension(proof.clone())));
        // Nothing is offered here that takes longer.
        let task = tokio::spawn(async move { serve_connection(stream, service, &Stay::default()).await });
        clients.0.push_back((task.abort_handle(), proof));
        // A client that has sent its request is answered before many clients that only connect take its slot.
        tokio::task::yield_now().await;
    }
}

/// The connected clients, the oldest first.
#[derive(Default)]
struct Clients(VecDeque<(AbortHandle, Proof)>);

impl Clients {
    /// `false`: all connected clients have shown the token.
    fn make_room(&mut self) -> bool {
        self.0.retain(|(task, _)| !task.is_finished());
        if self.0.len() < MAX_CLIENTS {
            return true;
        }
        let oldest = self.0.iter().position(|(_, proof)| !proof.0.load(Ordering::Relaxed));
        let oldest = oldest.and_then(|at| self.0.remove(at));
        oldest.map(|(task, _)| task.abort()).is_some()
    }
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
