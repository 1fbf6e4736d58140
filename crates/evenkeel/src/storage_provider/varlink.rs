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

/// A call of a method.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The interface's name, a dot, and the method's.
    pub method: String,
    /// The arguments by name.
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

/// What a call that succeeds is answered with.
#[derive(Debug, Default)]
pub struct Replies {
    /// The result of each reply.
    pub results: Vec<Value>,
    /// The descriptor that goes with the first reply.
    pub descriptor: Option<OwnedFd>,
}

impl Replies {
    /// A single reply.
    pub fn one(result: Value) -> Self {
        Self { results: vec![result], descriptor: None }
    }
}

/// Why a call fails, as the interfaces name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// An error of `io.systemd.StorageProvider`, by its name.
    Storage(&'static str),
    ExpectedMore,
    InterfaceNotFound(String),
    InvalidParameter(String),
    MethodNotFound(String),
    PermissionDenied,
    /// An error of the host or the daemon.
    System(Errno),
}

impl Failure {
    fn name(&self) -> String {
        let service = |name: &str| format!("org.varlink.service.{name}");
        match self {
            Self::Storage(name) => format!("{}.{name}", super::volumes::INTERFACE),
            Self::ExpectedMore => service("ExpectedMore"),
            Self::InterfaceNotFound(_) => service("InterfaceNotFound"),
            Self::InvalidParameter(_) => service("InvalidParameter"),
            Self::MethodNotFound(_) => service("MethodNotFound"),
            Self::PermissionDenied => service("PermissionDenied"),
            Self::System(_) => "io.systemd.System".to_owned(),
        }
    }

    fn parameters(&self) -> Option<Value> {
        Some(match self {
            Self::InterfaceNotFound(name) => json!({ "interface": name }),
            Self::InvalidParameter(name) => json!({ "parameter": name }),
            Self::MethodNotFound(name) => json!({ "method": name }),
            Self::System(errno) => json!({ "origin": "linux", "errno": errno.raw_os_error() }),
            Self::Storage(_) | Self::ExpectedMore | Self::PermissionDenied => return None,
        })
    }
}

/// The parameters of a call. Each is taken once; what is left is unknown.
#[derive(Debug)]
pub struct Parameters(Map<String, Value>);

impl Parameters {
    pub fn new(given: Option<Map<String, Value>>) -> Self {
        Self(given.unwrap_or_default())
    }

    /// A parameter that may be absent or `null`.
    ///
    /// # Errors
    /// It has another type.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Failure> {
        let value = self.0.remove(name).unwrap_or(Value::Null);
        serde_json::from_value(value).map_err(|_| Failure::InvalidParameter(name.to_owned()))
    }

    /// A parameter that must be there.
    ///
    /// # Errors
    /// It is absent or has another type.
    pub fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, Failure> {
        self.take(name)?.ok_or_else(|| Failure::InvalidParameter(name.to_owned()))
    }

    /// All parameters were taken.
    ///
    /// # Errors
    /// One is left.
    pub fn end(self) -> Result<(), Failure> {
        self.0.into_iter().next().map_or(Ok(()), |(name, _)| Err(Failure::InvalidParameter(name)))
    }
}

#[derive(Serialize)]
struct Message<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<&'a Value>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    continues: bool,
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
    /// # Errors
    /// The stream takes no time limit.
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
                // Told as the end of the limit by the next look at it.
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
            Err(failure) => {
                let (error, parameters) = (Some(failure.name()), failure.parameters());
                return self.send(&Message { error, parameters: parameters.as_ref(), continues: false }, None);
            }
        };
        let mut descriptor = descriptor.as_ref();
        for (at, result) in results.iter().enumerate() {
            let continues = at + 1 < results.len();
            self.send(&Message { error: None, parameters: Some(result), continues }, descriptor.take())?;
        }
        Ok(())
    }

    fn send(&self, message: &Message<'_>, descriptor: Option<&OwnedFd>) -> Result<()> {
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
