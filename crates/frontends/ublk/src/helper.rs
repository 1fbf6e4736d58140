//! The daemon's end of the process that makes, starts and deletes its block devices.
//!
//! These take CAP_SYS_ADMIN each time, also of a daemon that has dropped all rights. So a process that keeps them is
//! started before that, and does nothing else: [`serve`](crate::serve). What the daemon gets of it is an open
//! `/dev/ublkcN`, which is all that serving a device takes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytemuck::{Zeroable, bytes_of, pod_read_unaligned};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::message::{Answer, Request, TEXT_BYTES, receive, send, verb};
use crate::shape::Shape;
use crate::spec::SECTOR_BYTES;

/// The first argument of a process that is to [`serve`](crate::serve), and nothing else.
pub const ARGUMENT: &str = "--ublk-helper";

/// Where devices have their names.
pub const DIRECTORY: &str = "/dev/evenkeel";

/// A former server is waited for this long at most; then it takes a moment to say so.
const ANSWER_LIMIT: Duration = Duration::from_secs(12);

/// What keeps a device from being made, started or deleted.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// Why, and what to do.
    #[error("{text}")]
    Refused {
        /// In words.
        text: String,
        /// The system's error number.
        errno: i32,
    },
    /// It was killed, or hangs.
    #[error("the daemon's helper process for block devices does not answer: {0}; restart the daemon")]
    Silent(io::Error),
}

/// The daemon's end. The process ends when it is dropped.
#[derive(Debug)]
pub struct Helper {
    socket: OwnedFd,
    /// Kept so that the process becomes a zombie if it ends first, and its number is not reused.
    _process: Mutex<Child>,
}

/// The device that a disk is to have.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The disk's name.
    pub name: &'a str,
    /// Identifies the disk and its drive to the next daemon that serves it: see [`mark`].
    pub mark: u64,
    /// What it is like.
    pub shape: Shape,
}

/// A device that is to be served.
#[derive(Debug)]
pub struct Device {
    /// The number in its name.
    pub id: u32,
    /// `/dev/ublkcN`.
    pub file: OwnedFd,
    /// As the driver has it: perhaps with fewer queues than were wanted; shorter, if it was there before the disk grew.
    pub shape: Shape,
    /// A former server's, with requests that wait.
    pub is_recovered: bool,
}

/// Marks devices as ours, in the driver's memory: "EK".
pub(crate) const MAGIC: u64 = 0x454b << 48;

/// What the driver remembers of a disk's device, so that the next daemon finds it.
pub fn mark(drive: &str, disk: &str) -> u64 {
    // FNV-1a: the same in every build.
    let bytes = drive.bytes().chain([0]).chain(disk.bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    MAGIC | (hash & !(0xffff << 48))
}

impl Helper {
    /// Starts this program once more, with [`ARGUMENT`] and `arguments`: its `main` is to call
    /// [`serve`](crate::serve) then, with its standard input. It has the rights that the caller has.
    ///
    /// # Errors
    /// The kernel has no process or descriptor left, or the program's file is not there any more.
    pub fn start(arguments: &[&str]) -> io::Result<Arc<Self>> {
        let (socket, theirs) = pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("evenkeeld-ublk").arg(ARGUMENT).args(arguments);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Arc::new(Self { socket, _process: Mutex::new(command.spawn()?) }))
    }

    /// Where a disk's device has its name.
    pub fn path(name: &str) -> PathBuf {
        PathBuf::from(DIRECTORY).join(name)
    }

    /// Makes a disk's device, or finds the one that an earlier daemon left. Waits for that daemon's end.
    ///
    /// # Errors
    /// The driver is not there or too old, or the device is another daemon's.
    pub fn open(&self, wanted: &Wanted<'_>) -> Result<Device, HelperError> {
        let Wanted { name, mark, shape } = *wanted;
        let (queues, depth) = (shape.queues, shape.depth);
        let request = Request { queues, depth, params: shape.params(), ..request(verb::OPEN, name, mark) };
        let (answer, file) = self.ask(&request)?;
        let missing = || HelperError::Silent(io::Error::from(io::ErrorKind::UnexpectedEof));
        let shape = Shape { queues: answer.queues, size_bytes: answer.dev_sectors * SECTOR_BYTES, ..shape };
        let is_recovered = answer.is_recovered != 0;
        Ok(Device { id: answer.dev_id, file: file.ok_or_else(missing)?, shape, is_recovered })
    }

    /// Has a device appear under its name, once each of its queues is served.
    ///
    /// # Errors
    /// The driver refused.
    pub fn begin(&self, name: &str, mark: u64, id: u32, is_recovered: bool) -> Result<(), HelperError> {
        let pid = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        let request =
            Request { dev_id: id, pid, is_recovered: is_recovered.into(), ..request(verb::START, name, mark) };
        self.ask(&request).map(drop)
    }

    /// Deletes a device, even if it is open. Waits for nothing; later requests about the disk wait for the deletion.
    pub fn delete(&self, name: &str, mark: u64, id: u32) {
        let request = Request { dev_id: id, ..request(verb::DELETE, name, mark) };
        // A helper that is gone deletes nothing; the next daemon does.
        let _ = send(&self.socket, [bytes_of(&request), &[]], None);
    }

    /// Deletes a device unless it is open. `true`: it is open, and waits for the next daemon.
    ///
    /// # Errors
    /// The driver refused.
    pub fn part(&self, name: &str, mark: u64, id: u32) -> Result<bool, HelperError> {
        let (answer, _) = self.ask(&Request { dev_id: id, ..request(verb::PART, name, mark) })?;
        Ok(answer.is_open != 0)
    }

    /// Whether a device is open.
    ///
    /// # Errors
    /// It is not there any more.
    pub fn is_open(&self, name: &str, mark: u64, id: u32) -> Result<bool, HelperError> {
        let (answer, _) = self.ask(&Request { dev_id: id, ..request(verb::IS_OPEN, name, mark) })?;
        Ok(answer.is_open != 0)
    }

    fn ask(&self, request: &Request) -> Result<(Answer, Option<OwnedFd>), HelperError> {
        let silent = |errno: rustix::io::Errno| HelperError::Silent(errno.into());
        let (ours, theirs) = pair().map_err(HelperError::Silent)?;
        send(&self.socket, [bytes_of(request), &[]], Some(theirs.as_fd())).map_err(silent)?;
        drop(theirs);
        let mut fds = [PollFd::new(&ours, PollFlags::IN)];
        let limit = Timespec { tv_sec: ANSWER_LIMIT.as_secs() as i64, tv_nsec: 0 };
        if poll(&mut fds, Some(&limit)).map_err(silent)? == 0 {
            return Err(HelperError::Silent(io::ErrorKind::TimedOut.into()));
        }
        let mut buffer = [0; size_of::<Answer>() + TEXT_BYTES];
        let (len, fd) = receive(&ours, &mut buffer).map_err(silent)?;
        if len < size_of::<Answer>() {
            return Err(HelperError::Silent(io::ErrorKind::UnexpectedEof.into()));
        }
        let (head, text) = buffer[..len].split_at(size_of::<Answer>());
        let answer: Answer = pod_read_unaligned(head);
        match answer.errno {
            0 => Ok((answer, fd)),
            errno => Err(HelperError::Refused { text: String::from_utf8_lossy(text).into_owned(), errno }),
        }
    }
}

fn request(verb: u32, name: &str, mark: u64) -> Request {
    let mut request = Request { verb, mark, ..Request::zeroed() };
    let len = name.len().min(request.name.len());
    request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
    request.name_len = len as u16;
    request
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_tells_disks_and_drives_apart() {
        assert_ne!(mark("a", "db"), mark("a", "dc"));
        assert_ne!(mark("a", "bc"), mark("ab", "c"));
        assert_eq!(mark("a", "db") >> 48, 0x454b);
        assert_eq!(mark("a", "db"), mark("a", "db"));
    }
}
