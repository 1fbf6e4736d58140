//! The host's end of the command channel to a guest; the guest's end is `guest/init.sh`.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::wait;

/// What a command left behind.
#[derive(Debug)]
pub struct Output {
    /// Its exit code; 137 when it ran past its limit.
    pub code: i32,
    /// Its standard output and error together.
    pub text: String,
}

/// A connection to the process that runs commands in a guest.
pub struct Agent {
    stream: UnixStream,
    received: Vec<u8>,
    last_id: u64,
}

/// How often a wait looks whether the guest still lives.
const LOOK: Duration = Duration::from_millis(500);
/// A command's limit is kept inside the guest; the host waits this much longer for the word of it.
const GRACE: Duration = Duration::from_secs(60);
/// How long QEMU may take until it listens.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);

impl Agent {
    /// Connects to the channel's socket, which QEMU makes as it starts.
    ///
    /// # Errors
    /// When the socket does not appear in time or `alive` fails.
    pub fn connect(path: &Path, alive: &mut dyn FnMut() -> Result<()>) -> Result<Self> {
        let stream = wait::for_this("the guest's command channel", CONNECT_LIMIT, || {
            alive()?;
            Ok(UnixStream::connect(path).ok())
        })?;
        stream.set_read_timeout(Some(LOOK))?;
        Ok(Self { stream, received: Vec::new(), last_id: 0 })
    }

    /// Waits until the guest has booted.
    ///
    /// # Errors
    /// When it has not within `limit`, or `alive` fails.
    pub fn wait_boot(&mut self, limit: Duration, alive: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let deadline = Instant::now() + limit;
        while self.line(deadline, alive).context("waiting for the guest to boot")? != "EVK hello" {}
        Ok(())
    }

    /// Sends a command without waiting for its end.
    ///
    /// # Errors
    /// When the channel is gone or the command is more than one line.
    pub fn send(&mut self, command: &str, limit: Duration) -> Result<()> {
        ensure!(!command.contains('\n'), "a command is one line: {command}");
        self.last_id += 1;
        let line = format!("{} {} {command}\n", self.last_id, limit.as_secs().max(1));
        self.stream.write_all(line.as_bytes()).context("sending a command to the guest")
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// When the guest does not answer, or `alive` fails; not when the command itself fails.
    pub fn run(&mut self, command: &str, limit: Duration, alive: &mut dyn FnMut() -> Result<()>) -> Result<Output> {
        self.send(command, limit)?;
        let deadline = Instant::now() + limit + GRACE;
        loop {
            let line = self.line(deadline, alive)?;
            let Some((id, code, size_bytes)) = parse_header(&line) else { continue };
            let bytes = self.bytes(size_bytes, deadline, alive)?;
            // An answer to an earlier command that was given up on is passed over.
            if id == self.last_id {
                return Ok(Output { code, text: String::from_utf8_lossy(&bytes).into_owned() });
            }
        }
    }

    fn line(&mut self, deadline: Instant, alive: &mut dyn FnMut() -> Result<()>) -> Result<String> {
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.receive(deadline, alive)?;
        }
    }

    fn bytes(
        &mut self,
        size_bytes: usize,
        deadline: Instant,
        alive: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<u8>> {
        while self.received.len() < size_bytes {
            self.receive(deadline, alive)?;
        }
        Ok(self.received.drain(..size_bytes).collect())
    }

    fn receive(&mut self, deadline: Instant, alive: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let mut chunk = [0; 16 << 10];
        match self.stream.read(&mut chunk) {
            Ok(0) => {
                alive()?;
                bail!("the guest's command channel closed");
            }
            Ok(count) => self.received.extend_from_slice(&chunk[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                alive()?;
                ensure!(Instant::now() < deadline, "the guest did not answer in time");
            }
            Err(error) => return Err(error).context("reading the guest's command channel"),
        }
        Ok(())
    }
}

fn parse_header(line: &str) -> Option<(u64, i32, usize)> {
    let mut fields = line.strip_prefix("EVK ")?.split(' ');
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_late_answer_and_noise_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        let listener = UnixListener::bind(&path).unwrap();
        let mut agent = Agent::connect(&path, &mut || Ok(())).unwrap();
        let (mut guest, _) = listener.accept().unwrap();
        guest.write_all(b"noise\nEVK hello\nEVK 1 137 5\nEVK 2EVK 2 3 4\nout\n").unwrap();
        agent.wait_boot(Duration::from_secs(5), &mut || Ok(())).unwrap();
        agent.send("first", Duration::from_secs(1)).unwrap();
        let output = agent.run("second", Duration::from_secs(1), &mut || Ok(())).unwrap();
        assert_eq!((output.code, output.text.as_str()), (3, "out\n"));
    }

    #[test]
    fn a_dead_guest_ends_the_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        let listener = UnixListener::bind(&path).unwrap();
        let mut agent = Agent::connect(&path, &mut || Ok(())).unwrap();
        let _guest = listener.accept().unwrap();
        let result = agent.run("x", Duration::from_secs(60), &mut || bail!("it died"));
        assert_eq!(result.unwrap_err().to_string(), "it died");
    }
}
