//! The asking end of the control socket.

use std::fmt;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{Answer, Ask, Snapshot};

/// A daemon that takes longer than this to answer is stopped or stuck.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The users that may use the control socket besides root, and the remedy for all others.
pub const WHO_ELSE_MAY_ASK: &str = "its own user, and the groups that `operators` and `viewers` under [api] in its \
                                    configuration name; have root add you to one";

/// Nobody serves the control socket.
#[derive(Debug)]
pub struct NoDaemon(pub(crate) PathBuf);

impl fmt::Display for NoDaemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.0.display();
        write!(f, "no daemon answers at {path}; is `evenkeel serve` running with this runtime_dir?")
    }
}

/// A connection to a daemon.
pub struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Client {
    /// Connects to the daemon that serves `path`.
    pub fn connect(path: &Path) -> Result<Self> {
        let stream = match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                bail!("you may not ask the daemon at {}: root may, {WHO_ELSE_MAY_ASK}", path.display())
            }
            connected => connected.with_context(|| NoDaemon(path.to_owned()))?,
        };
        Ok(Self { stream: BufReader::new(stream), path: path.to_owned() })
    }

    /// All tenants over the next `span_ms` (0: since the start).
    pub fn stats(&mut self, span_ms: u64) -> Result<Snapshot> {
        let mut request = serde_json::to_vec(&Ask::Stats { span_ms })?;
        request.push(b'\n');
        let limit = Duration::from_millis(span_ms) + ANSWER_LIMIT;
        self.stream.get_ref().set_read_timeout(Some(limit))?;
        let gone = || format!("the daemon at {} went away", self.path.display());
        // A refused client gets the reason at once, and can no longer write.
        let _ = self.stream.get_mut().write_all(&request);
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => bail!(gone()),
            Ok(_) => {}
            // It ended with our request unread.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => bail!(gone()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                bail!("the daemon at {} did not answer in {limit:?}: it is stopped or stuck", self.path.display())
            }
            Err(error) => return Err(error).with_context(gone),
        }
        match serde_json::from_str(&line).with_context(gone)? {
            Answer::Stats(snapshot) => Ok(snapshot),
            Answer::Error(error) => bail!("the daemon refused: {error}"),
        }
    }
}
