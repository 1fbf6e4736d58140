//! One Varlink connection: calls and replies as JSON that a NUL ends, and descriptors beside replies.
//!
//! The crate zlink (0.8) would do that too. It brings asynchronous readers and macros, where one blocking connection is
//! served, and has neither a limit of our choice on a call's length nor one on its time.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The longest call that is read. A call of the interface has a name and a few words.
const MAX_CALL_BYTES: usize = 64 << 10;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    pub method: String,
    pub parameters: Option<Map<String, Value>>,
    /// The caller takes several replies.
    #[serde(default)]
    pub more: bool,
    /// The caller takes no reply.
    #[serde(default)]
    pub oneway: bool,
    /// A caller may ask for another protocol after the reply. No method here has one.
    #[serde(default, rename = "upgrade")]
    _upgrade: bool,
}

/// The replies to a call that succeeds.
#[derive(Debug)]
pub struct Replies {
    pub results: Vec<Value>,
    /// Goes with the first reply.
    pub descriptor: Option<OwnedFd>,
}

impl Replies {
    pub fn one(result: Value) -> Self {
        Self { results: vec![result], descriptor: None }
    }
}

/// The reply to a call that fails.
#[derive(Debug, Serialize)]
pub struct Failure {
    error: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Value>,
}

impl Failure {
    /// An error by its full name.
    pub const fn named(error: &'static str) -> Self {
        Self { error, parameters: None }
    }

    pub fn with(error: &'static str, parameters: Value) -> Self {
        Self { error, parameters: Some(parameters) }
    }

    pub fn invalid(parameter: &str) -> Self {
        Self::with("org.varlink.service.InvalidParameter", json!({ "parameter": parameter }))
    }

    /// An error of the host or the daemon.
    pub fn system(errno: Errno) -> Self {
        Self::with("io.systemd.System", json!({ "origin": "linux", "errno": errno.raw_os_error() }))
    }
}

/// The parameters of a call. Each is taken once; what is left is unknown.
#[derive(Debug)]
pub struct Parameters(pub Map<String, Value>);

impl Parameters {
    /// A parameter that may be absent or `null`.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Failure> {
        let value = self.0.remove(name).unwrap_or(Value::Null);
        serde_json::from_value(value).map_err(|_| Failure::invalid(name))
    }

    /// A parameter that must be there.
    pub fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, Failure> {
        self.take(name)?.ok_or_else(|| Failure::invalid(name))
    }

    /// Fails if a parameter is left.
    pub fn end(self) -> Result<(), Failure> {
        self.0.keys().next().map_or(Ok(()), |name| Err(Failure::invalid(name)))
    }
}

/// A client's connection.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    /// How long a call may take to arrive, and a part of a reply to leave.
    limit: Duration,
    /// What has arrived of the next calls.
    arrived: Vec<u8>,
}

impl Connection {
    pub fn new(stream: UnixStream, limit: Duration) -> Result<Self> {
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { stream, limit, arrived: Vec::new() })
    }

    /// The next call. None if the client has closed the connection between two calls.
    ///
    /// # Errors
    /// What arrives is no call, or too long, or takes longer than the limit. No reply is possible then.
    pub fn next_call(&mut self) -> Result<Option<Call>> {
        let start = Instant::now();
        let mut buffer = [0; 4096];
        let end = loop {
            if let Some(end) = self.arrived.iter().position(|byte| *byte == 0) {
                break end;
            }
            ensure!(self.arrived.len() <= MAX_CALL_BYTES, "a call is longer than {MAX_CALL_BYTES} bytes");
            let left = self.limit.saturating_sub(start.elapsed());
            ensure!(!left.is_zero(), "no call within {} s", self.limit.as_secs());
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut buffer) {
                Ok(0) if self.arrived.is_empty() => return Ok(None),
                Ok(0) => bail!("the client went away within a call"),
                Ok(count) => self.arrived.extend_from_slice(&buffer[..count]),
                // The next look at the limit tells that it is over.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let message: Vec<u8> = self.arrived.drain(..=end).collect();
        let call: Call = serde_json::from_slice(&message[..end]).context("no call")?;
        ensure!(!(call.more && call.oneway), "a call asks for several replies and for none");
        Ok(Some(call))
    }

    /// Sends the replies to a call.
    ///
    /// # Errors
    /// The client is gone, or takes nothing for longer than the limit.
    pub fn reply(&self, answer: Result<Replies, Failure>) -> Result<()> {
        let Replies { results, descriptor } = match answer {
            Ok(replies) => replies,
            Err(failure) => return self.send(&failure, None),
        };
        let (count, mut descriptor) = (results.len(), descriptor.as_ref());
        for (at, result) in results.into_iter().enumerate() {
            let message = match at + 1 < count {
                true => json!({ "parameters": result, "continues": true }),
                false => json!({ "parameters": result }),
            };
            self.send(&message, descriptor.take())?;
        }
        Ok(())
    }

    fn send(&self, message: &impl Serialize, descriptor: Option<&OwnedFd>) -> Result<()> {
        let mut bytes = serde_json::to_vec(message)?;
        bytes.push(0);
        let fds: Vec<_> = descriptor.map(AsFd::as_fd).into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ensure!(control.push(SendAncillaryMessage::ScmRights(&fds)), "no space for a descriptor");
        }
        let mut sent = 0;
        while sent < bytes.len() {
            match sendmsg(&self.stream, &[IoSlice::new(&bytes[sent..])], &mut control, SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error).context("a reply can't be sent"),
            }
            // It went with the first bytes.
            control.clear();
        }
        Ok(())
    }
}
