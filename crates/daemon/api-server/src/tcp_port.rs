//! The API's TCP port: read-only figures, for clients on this host that show the token.
//!
//! It is for Prometheus and browsers, which can't use a Unix socket. Any process of the host can connect, and TCP does
//! not identify it. So a client that has not shown the token may lose its slot: if all slots are taken, the oldest such
//! client is disconnected. Clients of the Unix socket never wait for these.

use std::collections::VecDeque;
use std::fmt;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use axum::Extension;
use axum::Router;
use client_socket::{Level, Sink};
use config::{Config, Identity};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::task::AbortHandle;

use crate::api_socket::{RETRY, serve_connection};
use crate::token::{Proof, Token};
use crate::traces::Stay;

/// Connections at a time.
const MAX_CLIENTS: usize = 32;

/// How long an answer may wait for its client to read on.
const UNREAD_LIMIT_MS: u32 = 5000;

/// The port, and the token for it.
pub struct OpenedPort {
    listener: TcpListener,
    token: Token,
}

impl OpenedPort {
    /// Opens the port of the configuration, if it has one. If another process has the port, there is none until the
    /// next start: any process may take it, and disks must be served anyway.
    ///
    /// # Errors
    /// The port is unavailable, or the token can't be made.
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
        write!(f, "http://{address}/ serves the page and /metrics: {}", self.token.remedy)
    }
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
