//! The output of a program that prints a key.

use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use keys::{HostKeys, LONGEST_FILE_BYTES};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use zeroize::Zeroizing;

/// How long it may take.
const LIMIT: Duration = Duration::from_secs(30);

/// How often to look whether it has ended, once it has closed its output.
const PERIOD: Duration = Duration::from_millis(5);

/// Where programs look for others.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The host keys that a program prints, as a file has them. It has no input, and an environment of `PATH` alone. Its
/// standard error is this process's. After 30 s the program and its children are killed.
///
/// # Errors
/// It can't be started, fails, prints no key, or does not end in time.
pub(crate) fn host_keys(words: &[String]) -> Result<HostKeys> {
    let keys = output(words).and_then(|text| {
        HostKeys::parse(&text)
            .context("it prints no key; 64 hexadecimal digits are wanted, as `openssl rand -hex 32` makes")
    });
    keys.with_context(|| format!("key_command {:?}", words.join(" ")))
}

fn output(words: &[String]) -> Result<Zeroizing<Vec<u8>>> {
    let mut child = start(words)?;
    let read = read(&mut child, Instant::now() + LIMIT);
    if read.is_err() {
        kill(&child);
    }
    let status = child.wait()?;
    let text = read?;
    ensure!(status.success(), "it fails: {status}");
    Ok(text)
}

/// In a process group of its own, so that whatever it starts can be killed with it.
fn start(words: &[String]) -> Result<Child> {
    let [program, arguments @ ..] = words else { bail!("it names no program") };
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", PATH).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    command.spawn().context("it can't be started")
}

/// Kills a program that was not waited for, with its group.
fn kill(child: &Child) {
    // All of them have ended by themselves, at worst.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}

/// Whether a program has ended, which is still to be waited for.
fn has_ended(child: &Child, more: WaitIdOptions) -> Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | more;
    Ok(waitid(WaitId::Pid(Pid::from_child(child)), options)?.is_some())
}

fn read(child: &mut Child, deadline: Instant) -> Result<Zeroizing<Vec<u8>>> {
    let has_ended = |child: &Child| has_ended(child, WaitIdOptions::NOHANG);
    let late = |child: &Child| match has_ended(child) {
        Ok(true) => "it has ended, and a process that it started holds its output open".to_owned(),
        _ => format!("it has not ended within {} s", LIMIT.as_secs()),
    };
    let mut out = child.stdout.take().context("it has no output")?;
    // With room for all of it: a vector that grows leaves copies behind.
    let mut text = Zeroizing::new(vec![0; LONGEST_FILE_BYTES as usize + 1]);
    let mut len = 0;
    while len < text.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&out, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => bail!(late(child)),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match out.read(&mut text[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    ensure!(len <= LONGEST_FILE_BYTES as usize, "it prints more than keys");
    text.truncate(len);
    while !has_ended(child)? {
        ensure!(Instant::now() <= deadline, late(child));
        std::thread::sleep(PERIOD);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    fn shell(script: &str) -> [String; 3] {
        ["/bin/sh", "-c", script].map(str::to_owned)
    }

    fn output_of(script: &str) -> Result<Vec<u8>, String> {
        output(&shell(script)).map(|text| text.to_vec()).map_err(|error| format!("{error:#}"))
    }

    /// A program that fails after it printed a key, prints for ever, or is not there.
    #[test]
    fn only_a_program_that_succeeds_gives_a_key() {
        assert_eq!(output_of("printf key; exec 1>&-; sleep 0.01"), Ok(b"key".to_vec()));
        assert_eq!(output_of("printf \"$HOME\""), Ok(Vec::new()));
        assert_eq!(output_of("printf key; exit 3").unwrap_err(), "it fails: exit status: 3");
        assert_eq!(output_of("while :; do echo 5a5a5a5a5a5a5a5a; done").unwrap_err(), "it prints more than keys");
        let missing = format!("{:#}", host_keys(&["/nonexistent/program".to_owned()]).unwrap_err());
        assert!(missing.starts_with("key_command \"/nonexistent/program\": it can't be started: "), "{missing}");
    }

    /// Another process of the program's that goes on after it, or a message that blames the program for it.
    #[test]
    fn what_the_program_started_is_killed_with_it() {
        let mut child = start(&shell("(sleep 5; echo alive) & echo key")).unwrap();
        assert!(has_ended(&child, WaitIdOptions::empty()).unwrap());
        let mut out = File::from(child.stdout.as_ref().unwrap().as_fd().try_clone_to_owned().unwrap());
        let late = read(&mut child, Instant::now()).unwrap_err().to_string();
        assert_eq!(late, "it has ended, and a process that it started holds its output open");
        kill(&child);
        child.wait().unwrap();
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert!(!rest.contains("alive"), "{rest}");
    }
}
