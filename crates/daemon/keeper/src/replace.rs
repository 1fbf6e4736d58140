//! The program's file, executed again by the process that it is: a newer one goes on with what this one has, and
//! neither clients nor the daemon notice.

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use confine::ThreadKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, wait};

use crate::args::{CAN_RESUME, RESUME};
use crate::bytes::{VERSION, Writer};
use crate::clock::now;
use crate::control::Control;
use crate::device::{Device, Held};
use crate::log::line;
use crate::saved::{Carried, finish};
use crate::store::Store;

/// How long the new program may take to say whether it can go on.
const TRIAL_LIMIT: Duration = Duration::from_secs(5);
/// How long devices may take to stand still: they wait for nobody.
const HOLD_LIMIT: Duration = Duration::from_secs(5);
/// How long what clients left may take to be closed.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// This program, as it was started.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    /// The main thread has its filter, which the next program has then from the beginning.
    pub is_confined: bool,
}

impl Program {
    /// As the process was started: by an absolute path, wherever it is later.
    ///
    /// # Errors
    /// There is no telling where its file is.
    pub fn find() -> std::io::Result<Self> {
        let mut arguments = std::env::args_os();
        let name = arguments.next().unwrap_or_default();
        // A name without a folder was looked for in $PATH.
        let has_folder = name.as_bytes().contains(&b'/');
        let path = if has_folder { std::path::absolute(name)? } else { std::fs::read_link("/proc/self/exe")? };
        let arguments = arguments.filter(|argument| !argument.as_bytes().starts_with(RESUME.as_bytes())).collect();
        Ok(Self { path, arguments, is_confined: false })
    }

    /// Confines the main thread, if anybody is.
    pub fn confine(&mut self) {
        confine::enter(ThreadKind::Keeper);
        self.is_confined = confine::is_armed();
    }

    /// Has the program that is in the file now go on with everything. Returns only if it doesn't.
    pub fn replace(&self, control: &Control) {
        // The gates of programs that this process was before.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let tried = self.try_out().and_then(|()| {
            control.devices.values().for_each(Device::hold);
            let went = self.go_over(control);
            control.devices.values().for_each(Device::let_go);
            went
        });
        let Err(why) = tried;
        line(&format!("not replaced: {why}; this keeper continues"));
    }

    /// Asks the program in the file whether it could.
    fn try_out(&self) -> Result<(), String> {
        let path = self.path.display();
        let mut command = Command::new(&self.path);
        // As far as it goes without anything to go on with, it is to do the same as later.
        command.args(&self.arguments).arg(format!("{CAN_RESUME}{VERSION}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("{path} can't be started: {error}"))?;
        let has_ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).and_then(|pidfd| {
            let limit = Timespec::try_from(TRIAL_LIMIT).ok();
            poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], limit.as_ref())
        });
        if has_ended != Ok(1) {
            let _ = child.kill();
        }
        match child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{path} can't take over this keeper's state ({status})")),
            Err(error) => Err(format!("{path} can't be tried: {error}")),
        }
    }

    /// Executes it, with all that stands still.
    fn go_over(&self, control: &Control) -> Result<Infallible, String> {
        let (until, closed_until) = (now() + HOLD_LIMIT, now() + CLOSE_LIMIT);
        // A thread that hangs there is ended by nothing, and executing a program would wait for it for ever.
        let is_closing = |device: &Device| !device.has_closed(closed_until.saturating_sub(now()));
        if let Some((name, _)) = control.devices.iter().find(|(_, device)| is_closing(device)) {
            return Err(format!("{name} is still closing its former client's descriptors"));
        }
        let mut held: Vec<(&str, Held<'_>)> = Vec::new();
        for (name, device) in &control.devices {
            let one = device.held(until.saturating_sub(now())).ok_or_else(|| format!("{name} does not stand still"))?;
            held.push((name, one));
        }
        let (mut carried, mut rest) = (Carried::default(), Writer::default());
        self.save(control, &held, &mut rest, &mut carried);
        let saved = finish(&carried, rest);
        let file = memory(&saved).map_err(|error| format!("no memory for the state to hand over: {error}"))?;
        carried.0.push(file.as_fd());
        let is_kept_open = carried.0.iter().all(|fd| fcntl_setfd(fd, FdFlags::empty()).is_ok());
        let went = if is_kept_open { self.execute(&file) } else { Err("a descriptor can't be kept open".into()) };
        for fd in &carried.0 {
            let _ = fcntl_setfd(fd, FdFlags::CLOEXEC);
        }
        went
    }

    fn save<'a>(&self, control: &'a Control, held: &'a [(&str, Held<'_>)], to: &mut Writer, carried: &mut Carried<'a>) {
        to.u64(control.next_client());
        to.flag(self.is_confined);
        let names = control.store().map(Store::names).unwrap_or_default();
        to.u64(names.len() as u64);
        for (number, name) in names {
            to.u64(number.unsigned_abs().into());
            to.u64(name);
        }
        to.u64(carried.number(control.listener.as_fd()));
        to.maybe(control.daemon.as_ref(), |to, daemon| {
            to.u64(carried.number(daemon.socket.as_fd()));
            to.flag(daemon.is_known);
        });
        to.u64(held.len() as u64);
        for (name, device) in held {
            to.bytes(name.as_bytes());
            device.save(to, carried);
        }
    }

    fn execute(&self, file: &OwnedFd) -> Result<Infallible, String> {
        let resume = OsString::from(format!("{RESUME}{}", file.as_raw_fd()));
        let arguments = std::iter::once(self.path.as_os_str())
            .chain(self.arguments.iter().map(OsString::as_os_str))
            .chain([resume.as_os_str()]);
        let text = |text: &OsStr| CString::new(text.to_owned().into_vec());
        let arguments: Result<Vec<CString>, _> = arguments.map(text).collect();
        let (Ok(arguments), Ok(path)) = (arguments, text(self.path.as_os_str())) else {
            return Err("a path with a NUL in it".into());
        };
        // Unlike the standard library's it leaves signals blocked: one that comes meanwhile waits.
        nix::unistd::execv(&path, &arguments).map_err(|errno| format!("{}: {errno}", self.path.display()))
    }
}

fn memory(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let file = std::fs::File::from(memfd_create("keeper", MemfdFlags::CLOEXEC)?);
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0)?;
    Ok(file.into())
}
