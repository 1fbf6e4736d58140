//! The sockets that the API is asked on, a thread with the daemon's only asynchronous runtime, and how many may ask.

use std::future::poll_fn;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::{Extension, Router};
use client_socket::{Gate, Listener};
use confine::ThreadKind;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::socket_peercred;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;

use crate::api_state::{Asked, MAX_CLIENTS};
use crate::client_stream::{ClientStream, HandedOver};
use crate::connection_slots::{Connected, Places, Who};
use crate::http::{router, router_of_port};
use crate::roles::{Role, Roles};
use crate::tcp_port::{self, OpenedPort};
use crate::traces::Stay;
use runtime::{panics, threads};

/// Clients that may wait for a place, beyond which connecting fails or waits itself (listen(2)).
const BACKLOG: i32 = 128;

/// Time limit for a client's request headers.
const HEADER_LIMIT: Duration = Duration::from_secs(5);

/// How long a connection may stay.
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);

/// After an accept that failed.
pub const RETRY: Duration = Duration::from_millis(10);

/// The socket; its file goes when this is dropped.
pub struct ApiSocket {
    listener: Arc<Listener>,
    closed: Arc<Notify>,
}

impl ApiSocket {
    /// Serves the API, on a thread of its own; and what can be looked at by TCP, if it has a port.
    ///
    /// # Errors
    /// The kernel refused a thread or the socket.
    pub fn serve(
        listener: Listener,
        port: Option<OpenedPort>,
        roles: Roles,
        asked: Asked,
        gate: Option<Arc<Gate>>,
    ) -> Result<Self> {
        let listener = Arc::new(listener);
        listener.listen_for(gate, BACKLOG)?;
        let closed = Arc::new(Notify::new());
        let (served, is_closed) = (Arc::clone(&listener), Arc::clone(&closed));
        let thread = std::thread::Builder::new().name("api".into()).spawn(move || {
            threads::enter(ThreadKind::Api);
            panics::drill();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            // Without it nobody is answered: a client sees its connection end.
            if let Ok(runtime) = runtime {
                runtime.block_on(async {
                    tokio::select! {
                        biased;
                        () = is_closed.notified() => {}
                        _ = accept(served, roles, router(asked.clone())) => {}
                        _ = tcp_port::accept(port, |token| router_of_port(asked, token)) => {}
                    }
                });
            }
        });
        thread.context("can't start the API's thread")?;
        Ok(Self { listener, closed })
    }
}

impl Drop for ApiSocket {
    fn drop(&mut self) {
        // No accept would tell: a socket that was taken off its place has nobody now and later.
        self.closed.notify_one();
        self.listener.close();
    }
}

async fn accept(listener: Arc<Listener>, roles: Roles, router: Router) -> Result<()> {
    let waited = tokio::net::UnixListener::from_std(listener.as_fd().try_clone_to_owned()?.into())?;
    let places = Places::new(MAX_CLIENTS);
    loop {
        // Unlike `accept` it gives way now and then, also on a socket that was taken off its place and is always ready.
        let mut stream = match poll_fn(|context| waited.poll_accept(context)).await {
            Ok((stream, _)) => ClientStream::new(stream, Arc::clone(&listener)),
            // It changed its mind, or there is no descriptor left for a moment.
            Err(_) => {
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let role = listener.admit(&stream).ok().and_then(|()| roles.of(&stream).ok());
        let Some((role, peer)) = role.zip(socket_peercred(&stream).ok()) else { continue };
        let who = Who::new(role, peer.pid, peer.uid.as_raw());
        let handed_over = HandedOver::default();
        if role == Role::Operator {
            stream.may_hand_over(handed_over.clone());
        }
        let stay = Stay::default();
        let asked = router.clone().layer(Extension(role)).layer(Extension(handed_over)).layer(Extension(stay.clone()));
        let places = Arc::clone(&places);
        tokio::spawn(async move {
            let taken = tokio::time::timeout(CONNECTION_LIMIT, places.take(who)).await;
            let Ok(Some(place)) = taken else { return };
            let connection = Arc::clone(&place.connection);
            let asked = asked.layer(from_fn(move |request, next| answer(request, next, Arc::clone(&connection))));
            tokio::select! {
                () = serve_connection(stream, TowerToHyperService::new(asked), &stay) => {}
                () = place.connection.has_to_go() => {}
            }
        });
        // It gets its slot, waits or goes before the next one comes: an accept costs less than that.
        tokio::task::yield_now().await;
    }
}

/// Answers a client's requests on one connection, as long as the connection may stay.
pub async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    service: TowerToHyperService<Router>,
    stay: &Stay,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_LIMIT);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    // What became of it, its client knows.
    while tokio::time::timeout(CONNECTION_LIMIT, connection.as_mut()).await.is_err() && stay.is_wanted() {}
}

/// Answers a request, during which the connection keeps its place.
async fn answer(request: Request, next: Next, connection: Arc<Connected>) -> Response {
    connection.set_busy(true);
    let response = next.run(request).await;
    connection.set_busy(false);
    response
}
