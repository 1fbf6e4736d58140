//! `evenkeel storage-provider`: disks as volumes for systemd 261 and later, on one connection.
//!
//! systemd accepts connections and starts this for each, so that a client can hold up nobody else.

mod device;
#[cfg(test)]
mod tests;
mod varlink;
mod volumes;

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::Rest;

use self::varlink::Connection;
use self::volumes::Volumes;
use crate::disk::DEFAULT_SOCKET;

/// A client that sends no call for so long is sent away.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Offer disks that are block devices to systemd, on the connection that is standard input
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The daemon's API socket: `api.sock` in the `runtime_dir` of its configuration.
    #[arg(long, value_name = "PATH", env = "EVENKEEL_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// Standard input is no connection, or the client breaks the protocol or takes too long.
pub fn run(args: &Args) -> Result<()> {
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    if stream.peer_addr().is_err() {
        bail!("standard input is no connection: `evenkeel-storage-provider.socket` starts this for each client");
    }
    let volumes = Volumes::new(Rest::new(&args.socket));
    let mut connection = Connection::new(stream, CALL_LIMIT)?;
    while let Some(call) = connection.next_call().context("a client of io.systemd.StorageProvider")? {
        let is_oneway = call.oneway;
        let answer = volumes.answer(call);
        if !is_oneway {
            connection.reply(answer)?;
        }
    }
    Ok(())
}

/// A line for the journal: replies have no place for words.
fn note(text: &str) {
    // Without a journal there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "{text}");
}
