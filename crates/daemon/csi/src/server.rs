//! The services on a Unix socket.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::{fs, os::unix::fs::PermissionsExt};

use anyhow::{Context, Result};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::plugin::Plugin;
use crate::spec::controller_server::ControllerServer;
use crate::spec::identity_server::IdentityServer;
use crate::spec::node_server::NodeServer;

/// Calls of one client that are carried out at once. Others wait.
const CALLS_AT_ONCE: usize = 32;

/// Serves a plugin until the process ends. A socket that a former process left is replaced.
///
/// # Errors
/// The socket can't be made.
pub async fn serve(plugin: Plugin, socket: &Path) -> Result<()> {
    let listener = listen(socket).with_context(|| format!("{}", socket.display()))?;
    Server::builder()
        .concurrency_limit_per_connection(CALLS_AT_ONCE)
        .add_service(IdentityServer::new(plugin.clone()))
        .add_service(ControllerServer::new(plugin.clone()))
        .add_service(NodeServer::new(plugin))
        .serve_with_incoming(UnixListenerStream::new(listener))
        .await
        .context("the server ended")
}

fn listen(socket: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    // A client that may connect can delete volumes.
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
