//! The client of the HTTP API.

use std::fmt;
use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{
    Applied, Apply, Attach, Deletion, Disk, DiskPatch, DiskSpec, Drive, DriveRemoval, Erasure, Events, EventsAfter,
    Exported, HostKeys, Live, NewDrive, NewSnapshots, Operation, Problem, Rewrapped, Rollback, Snapshot, StatsAsked,
    TenantKey, TraceAsked, Why, WhyAsked, Wipe,
};

/// A daemon that takes longer than this to answer is stopped or stuck.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The most descriptors that a request carries: the three of VFIO.
const MAX_HANDED_OVER: usize = 3;

/// The largest answer that is read.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Path of the API socket of the daemon whose sockets are in `runtime_dir`.
pub fn api_path(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("api.sock")
}

/// Roles that may ask besides root, and the remedy for all others.
const WHO_ELSE_MAY_ASK: &str =
    "its own user, and the groups in `operators` and `viewers` under [api]; ask root to add you to one";

/// No daemon listens on the API's socket.
#[derive(Debug)]
pub struct NoDaemon(PathBuf);

impl fmt::Display for NoDaemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.0.display();
        write!(f, "no daemon answers at {path}; is `evenkeel serve` running with this runtime_dir?")
    }
}

/// A client of one daemon. Each request opens a connection of its own.
#[derive(Debug, Clone)]
pub struct Rest {
    socket: PathBuf,
}

impl Rest {
    /// A client of the daemon at this socket. It does not connect yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Lists all disks.
    ///
    /// # Errors
    /// No daemon serves the socket ([`NoDaemon`]), or the daemon refused ([`Problem`]).
    pub fn disks(&self) -> Result<Vec<Disk>> {
        self.ask(Method::GET, "/v1/disks", None::<&()>)
    }

    /// What each tenant gets now.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn live(&self) -> Result<Live> {
        self.ask(Method::GET, "/live", None::<&()>)
    }

    /// Returns each tenant's statistics over a span, which this call waits for.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn stats(&self, asked: StatsAsked) -> Result<Snapshot> {
        let StatsAsked { span_ms } = asked;
        let limit = ANSWER_LIMIT + Duration::from_millis(span_ms);
        let at = format!("/v1/stats?span_ms={span_ms}");
        Ok(self.ask_with(&[], limit, Method::GET, &at, None::<&()>)?.1)
    }

    /// Returns one disk.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn disk(&self, name: &str) -> Result<Disk> {
        self.ask(Method::GET, &at(name)?, None::<&()>)
    }

    /// Creates a disk. It succeeds if a disk of that name with the same settings exists already.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn create(&self, disk: &DiskSpec) -> Result<Disk> {
        self.create_or_find(disk).map(|(disk, _)| disk)
    }

    /// As [`Rest::create`], with whether the disk is new.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn create_or_find(&self, disk: &DiskSpec) -> Result<(Disk, bool)> {
        let (status, disk) = self.ask_with(&[], ANSWER_LIMIT, Method::POST, "/v1/disks", Some(disk))?;
        Ok((disk, status == StatusCode::CREATED))
    }

    /// Changes a disk's promise, limits, size or front end.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn change(&self, name: &str, change: &DiskPatch) -> Result<Disk> {
        self.ask(Method::PATCH, &at(name)?, Some(change))
    }

    /// Deletes a disk. Returns the operations that must finish before its space is free. Deleting it again returns what
    /// is left of them.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn delete(&self, name: &str, deletion: Deletion) -> Result<Vec<Operation>> {
        let wipe = match deletion.wipe {
            None => "",
            Some(Wipe::Zeros) => "&wipe=zeros",
            Some(Wipe::ThreePasses) => "&wipe=three-passes",
        };
        let at = format!("{}?force={}{wipe}", at(name)?, deletion.force);
        self.ask(Method::DELETE, &at, None::<&()>)
    }

    /// Erases an encrypted disk: gives it another key.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn erase(&self, name: &str, erasure: Erasure) -> Result<Disk> {
        self.ask(Method::POST, &format!("{}/erase", at(name)?), Some(&erasure))
    }

    /// Begins to re-encrypt a disk by another key. [`Rest::operations`] has the progress.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn reencrypt(&self, name: &str) -> Result<Disk> {
        self.ask(Method::POST, &format!("{}/reencrypt", at(name)?), None::<&()>)
    }

    /// Makes snapshots of thin disks, all at one instant: each `DISK@SNAPSHOT`.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn snapshot(&self, snapshots: &NewSnapshots) -> Result<Vec<Disk>> {
        self.ask(Method::POST, "/v1/snapshots", Some(snapshots))
    }

    /// Has a thin disk become as its snapshot is.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn roll_back(&self, name: &str, snapshot: &str) -> Result<Disk> {
        let rollback = Rollback { snapshot: snapshot.to_owned() };
        self.ask(Method::POST, &format!("{}/rollback", at(name)?), Some(&rollback))
    }

    /// Deletes a snapshot of a thin disk.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn delete_snapshot(&self, name: &str, snapshot: &str) -> Result<Disk> {
        // An invalid name must fail here: in a URL it could name another path.
        at(snapshot)?;
        self.ask(Method::DELETE, &format!("{}/snapshots/{snapshot}", at(name)?), None::<&()>)
    }

    /// Hands over a tenant's own key of a disk.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn unlock(&self, name: &str, key: &TenantKey) -> Result<Disk> {
        self.ask(Method::PUT, &format!("{}/key", at(name)?), Some(key))
    }

    /// Hands over the host keys, and has the keys of all disks wrapped by the present one.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn host_keys(&self, keys: &HostKeys) -> Result<Rewrapped> {
        self.ask(Method::PUT, "/v1/host-keys", Some(keys))
    }

    /// Attaches a namespace to a tenant. It succeeds if the namespace is attached in the same way already.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn attach(&self, name: &str, attach: &Attach) -> Result<Disk> {
        self.ask(Method::POST, &format!("{}/attachments", at(name)?), Some(attach))
    }

    /// Detaches a namespace from a tenant, and waits until the tenant has no command in flight to it. It succeeds if
    /// the namespace is not attached.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn detach(&self, name: &str, tenant: &str) -> Result<Disk> {
        // An invalid name must fail here: in a URL it could name another path.
        at(tenant)?;
        self.ask(Method::DELETE, &format!("{}/attachments/{tenant}", at(name)?), None::<&()>)
    }

    /// Lists the background operations.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn operations(&self) -> Result<Vec<Operation>> {
        self.ask(Method::GET, "/v1/operations", None::<&()>)
    }

    /// Lists the drives.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn drives(&self) -> Result<Vec<Drive>> {
        self.ask(Method::GET, "/v1/drives", None::<&()>)
    }

    /// Adds a drive. It succeeds if a drive of that name with the same settings exists already.
    ///
    /// `opened` has the drive's descriptors: of its file or block device, or VFIO's three (see [`NewDrive`]).
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn add_drive(&self, drive: &NewDrive, opened: &[BorrowedFd<'_>]) -> Result<Drive> {
        Ok(self.ask_with(opened, ANSWER_LIMIT, Method::POST, "/v1/drives", Some(drive))?.1)
    }

    /// Removes a drive that was added while the daemon ran and that has no disks. See [`DriveRemoval`].
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn remove_drive(&self, name: &str, removal: DriveRemoval) -> Result<Vec<Drive>> {
        let at = format!("{}?force={}", named("drives", name)?, removal.force);
        self.ask(Method::DELETE, &at, None::<&()>)
    }

    /// Applies a configuration file, or returns what applying it would do.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn apply(&self, file: &Apply) -> Result<Applied> {
        self.ask(Method::POST, "/v1/apply", Some(file))
    }

    /// Returns the running configuration as one file.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn export(&self) -> Result<Exported> {
        self.ask(Method::GET, "/v1/export", None::<&()>)
    }

    /// Returns the events after a number. Waits for one if asked to.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn events(&self, after: EventsAfter) -> Result<Events> {
        let EventsAfter { since, wait_s } = after;
        self.ask(Method::GET, &format!("/v1/events?since={since}&wait_s={wait_s}"), None::<&()>)
    }

    /// Explains why a tenant was slow at some time.
    ///
    /// # Errors
    /// As [`Rest::disks`].
    pub fn why(&self, tenant: &str, asked: WhyAsked) -> Result<Why> {
        let WhyAsked { from_unix_ms, to_unix_ms } = asked;
        let at = format!("{}?from_unix_ms={from_unix_ms}&to_unix_ms={to_unix_ms}", named("why", tenant)?);
        self.ask(Method::GET, &at, None::<&()>)
    }

    /// Records every command of a tenant. Passes the trace to `take` piece by piece, until the end or until `take`
    /// returns `false`.
    ///
    /// # Errors
    /// As [`Rest::disks`], and those of `take`.
    pub fn trace(&self, tenant: &str, asked: TraceAsked, mut take: impl FnMut(&[u8]) -> Result<bool>) -> Result<()> {
        let TraceAsked { seconds } = asked;
        let stream = self.connect(&[])?;
        let uri = format!("{}/trace?seconds={seconds}", at(tenant)?);
        let request = Request::builder().method(Method::POST).uri(uri).header(header::HOST, "localhost");
        // An error of `take` is kept apart from the daemon's errors.
        let mut untaken = None;
        let take = |chunk: &[u8]| {
            take(chunk).unwrap_or_else(|error| {
                untaken = Some(error);
                false
            })
        };
        let answer = pass_on(stream, request.body(Full::default())?, take);
        let answered = self.wait(answer, ANSWER_LIMIT + Duration::from_secs(seconds.into()));
        match (untaken, answered?) {
            (Some(error), _) => Err(error),
            (None, None) => Ok(()),
            (None, Some((status, answer))) => Err(refused(status, &answer)),
        }
    }

    fn connect(&self, fds: &[BorrowedFd<'_>]) -> Result<UnixStream> {
        let stream = match UnixStream::connect(&self.socket) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                bail!("you may not ask the daemon at {}: root may, {WHO_ELSE_MAY_ASK}", self.socket.display())
            }
            connected => connected.with_context(|| NoDaemon(self.socket.clone()))?,
        };
        if !fds.is_empty() {
            hand_over(&stream, fds).with_context(|| format!("the daemon at {}", self.socket.display()))?;
        }
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    fn wait<T>(&self, answer: impl Future<Output = Result<T>>, limit: Duration) -> Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answered = runtime.block_on(async { tokio::time::timeout(limit, answer).await });
        let late = |_| anyhow!("it did not answer in {limit:?}: it is stopped or stuck");
        let answer = answered.map_err(late).and_then(|answer| answer);
        answer.with_context(|| format!("the daemon at {}", self.socket.display()))
    }

    fn ask<T: DeserializeOwned>(&self, method: Method, at: &str, body: Option<&impl Serialize>) -> Result<T> {
        Ok(self.ask_with(&[], ANSWER_LIMIT, method, at, body)?.1)
    }

    fn ask_with<T: DeserializeOwned>(
        &self,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
        method: Method,
        at: &str,
        body: Option<&impl Serialize>,
    ) -> Result<(StatusCode, T)> {
        let stream = self.connect(fds)?;
        let request = Request::builder().method(method).uri(at).header(header::HOST, "localhost");
        let request = match body {
            Some(body) => request
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from(serde_json::to_vec(body)?))),
            None => request.body(Full::default()),
        }?;
        let (status, answer) = self.wait(send(stream, request), limit)?;
        if status.is_success() {
            let answer = serde_json::from_slice(&answer).context("the daemon's answer is not understood")?;
            return Ok((status, answer));
        }
        Err(refused(status, &answer))
    }
}

fn refused(status: StatusCode, answer: &[u8]) -> anyhow::Error {
    match serde_json::from_slice::<Problem>(answer) {
        Ok(problem) => problem.into(),
        Err(_) => anyhow!("the daemon refused: {status}"),
    }
}

/// Sends the descriptors with an empty line before the request. Servers skip that line (RFC 9112, section 2.2).
fn hand_over(stream: &UnixStream, fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_HANDED_OVER))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        bail!("a drive comes with {MAX_HANDED_OVER} descriptors at most");
    }
    sendmsg(stream, &[IoSlice::new(b"\r\n")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The path of a disk.
fn at(name: &str) -> Result<String> {
    named("disks", name)
}

/// The path of a disk or drive. Fails on an invalid name, which in a URL could name another path.
fn named(kind: &str, name: &str) -> Result<String> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !(1..=63).contains(&name.len()) || !name.bytes().all(is_valid) {
        let remedy = "use 1 to 63 of a-z, 0-9, _ and -";
        return Err(Problem::new(404, "no-such-name", format!("{name:?} is no name"), remedy).into());
    }
    Ok(format!("/v1/{kind}/{name}"))
}

async fn send(stream: UnixStream, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes)> {
    let stream = TokioIo::new(tokio::net::UnixStream::from_std(stream)?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let answer = async { whole(sender.send_request(request).await?).await };
    drive(connection, answer).await
}

/// Passes the answer's body on. Returns the daemon's error if it refused, `None` otherwise.
async fn pass_on(
    stream: UnixStream,
    request: Request<Full<Bytes>>,
    mut take: impl FnMut(&[u8]) -> bool,
) -> Result<Option<(StatusCode, Bytes)>> {
    let stream = TokioIo::new(tokio::net::UnixStream::from_std(stream)?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let answer = async {
        let mut answer = sender.send_request(request).await?;
        if !answer.status().is_success() {
            return whole(answer).await.map(Some);
        }
        while let Some(frame) = answer.frame().await {
            // The connection also ends if the daemon dies. The caller notices because the trace's last line is missing.
            let Ok(frame) = frame else { break };
            if let Some(data) = frame.data_ref()
                && !take(data)
            {
                break;
            }
        }
        Ok(None)
    };
    drive(connection, answer).await
}

async fn whole(answer: hyper::Response<hyper::body::Incoming>) -> Result<(StatusCode, Bytes)> {
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
    Ok((status, body.map_err(|error| anyhow!(error))?.to_bytes()))
}

/// Waits for the answer while driving the connection.
async fn drive<T>(
    connection: impl Future<Output = hyper::Result<()>>,
    answer: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::pin!(connection);
    tokio::pin!(answer);
    let answered = tokio::select! {
        biased;
        answer = &mut answer => answer,
        ended = &mut connection => match ended {
            Ok(()) => answer.await,
            Err(error) => Err(error.into()),
        },
    };
    answered.map_err(|error| match error.downcast_ref::<hyper::Error>() {
        Some(lost) if lost.is_incomplete_message() || lost.is_canceled() => anyhow!("it went away"),
        _ => error,
    })
}
