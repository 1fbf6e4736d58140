//! The output of a program that prints a key.

use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use zeroize::Zeroizing;

use crate::host_key::LONGEST_FILE_BYTES;

/// How long it may take.
const LIMIT: Duration = Duration::from_secs(30);

/// How often to look whether it has ended, once it has closed its output.
const PERIOD: Duration = Duration::from_millis(5);

/// Where programs look for others.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a program and returns what it prints. One that does not end in 30 s is killed.
///
/// # Errors
/// It can't be started, fails, prints too much, or does not end in time.
pub(crate) fn output(words: &[String]) -> Result<Zeroizing<Vec<u8>>, String> {
    let [program, arguments @ ..] = words else { return Err("it names no program".to_owned()) };
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", PATH).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("it can't be started: {error}"))?;
    let read = read(&mut child, Instant::now() + LIMIT);
    if read.is_err() {
        // It has ended by itself, at worst.
        let _ = child.kill();
        let _ = child.wait();
    }
    read
}

fn read(child: &mut Child, deadline: Instant) -> Result<Zeroizing<Vec<u8>>, String> {
    let late = || format!("it has not ended within {} s", LIMIT.as_secs());
    let mut out = child.stdout.take().ok_or("it has no output")?;
    // With room for all of it: a vector that grows leaves copies behind.
    let mut text = Zeroizing::new(vec![0; LONGEST_FILE_BYTES as usize + 1]);
    let mut len = 0;
    while len < text.len() {
        let left_ms = deadline.saturating_duration_since(Instant::now()).as_millis() as u16;
        let mut fds = [PollFd::new(out.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(left_ms)) {
            Ok(0) => return Err(late()),
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.to_string()),
        }
        match out.read(&mut text[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    if len > LONGEST_FILE_BYTES as usize {
        return Err("it prints more than a key".to_owned());
    }
    text.truncate(len);
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(text),
            Some(status) => return Err(format!("it fails: {status}")),
            None if Instant::now() > deadline => return Err(late()),
            None => std::thread::sleep(PERIOD),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output_of(script: &str) -> Result<Vec<u8>, String> {
        output(&["/bin/sh", "-c", script].map(str::to_owned)).map(|text| text.to_vec())
    }

    /// A program that fails after it printed a key, prints for ever, or is not there.
    #[test]
    fn only_a_program_that_succeeds_gives_a_key() {
        assert_eq!(output_of("printf key; exec 1>&-; sleep 0.01"), Ok(b"key".to_vec()));
        assert_eq!(output_of("printf \"$HOME\""), Ok(Vec::new()));
        assert_eq!(output_of("printf key; exit 3").unwrap_err(), "it fails: exit status: 3");
        assert_eq!(output_of("while :; do echo 5a5a5a5a5a5a5a5a; done").unwrap_err(), "it prints more than a key");
        let missing = output(&["/nonexistent/program".to_owned()]).unwrap_err();
        assert!(missing.starts_with("it can't be started: "), "{missing}");
    }
}
