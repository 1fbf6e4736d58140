//! The process that makes, starts and deletes block devices, with the rights that this takes.
//!
//! It trusts the daemon as far as it goes: that touches no device but those that carry Evenkeel's mark, makes no name
//! outside of `/dev/evenkeel`, and opens nothing but `/dev/ublkcN`.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use bytemuck::{bytes_of, pod_read_unaligned};

use crate::control::{CONTROL_PATH, Control};
use crate::helper::{DIRECTORY, MAGIC};
use crate::message::{Answer, Request, TEXT_BYTES, receive, send, verb};
use crate::shape::Shape;
use crate::spec::{DevInfo, Params, feature, state};

/// How long a former server may take to be gone.
const FORMER_LIMIT: Duration = Duration::from_secs(8);

/// Between two looks at what nobody announces.
const PAUSE: Duration = Duration::from_millis(10);

/// What a device must be able to do.
const FEATURES: u64 = feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;

/// Disks whose devices are being deleted.
#[derive(Default)]
struct Deleting {
    marks: Mutex<HashSet<u64>>,
    changed: Condvar,
}

impl Deleting {
    fn lock(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begins(&self, mark: u64) {
        self.lock().insert(mark);
    }

    fn ends(&self, mark: u64) {
        self.lock().remove(&mark);
        self.changed.notify_all();
    }

    fn wait_for(&self, mark: u64) {
        let marks = self.lock();
        let _ = self.changed.wait_timeout_while(marks, FORMER_LIMIT, |marks| marks.contains(&mark));
    }
}

/// Why something was not done, in words for the operator.
struct Failed(i32, String);

impl Failed {
    fn new(what: &str, error: &io::Error, remedy: &str) -> Self {
        let end = if remedy.is_empty() { String::new() } else { format!("; {remedy}") };
        Self(error.raw_os_error().unwrap_or(libc::EIO), format!("{what}: {error}{end}"))
    }
}

/// Serves the daemon that has the other end of `socket`, until it ends. Each request has a thread: some wait for a
/// device's users.
pub fn serve(socket: impl AsFd) {
    let deleting = Arc::new(Deleting::default());
    let mut buffer = [0; size_of::<Request>()];
    while let Ok((len @ 1.., reply)) = receive(&socket, &mut buffer) {
        if len != buffer.len() {
            continue;
        }
        let request: Request = pod_read_unaligned(&buffer);
        if request.verb == verb::DELETE {
            deleting.begins(request.mark);
        }
        let deleting = Arc::clone(&deleting);
        let work = move || {
            let done = answer(&request, &deleting);
            if request.verb == verb::DELETE {
                deleting.ends(request.mark);
            }
            let Some(reply) = reply else { return };
            let (answer, text, file) = match done {
                Ok((answer, file)) => (answer, String::new(), file),
                Err(Failed(errno, text)) => (Answer { errno, ..Answer::default() }, text, None),
            };
            let text = &text.as_bytes()[..text.len().min(TEXT_BYTES)];
            // The asking thread may have given up.
            let _ = send(&reply, [bytes_of(&answer), text], file.as_ref().map(AsFd::as_fd));
        };
        // Without a thread the reply's socket closes, which is an answer.
        let _ = Builder::new().name("request".into()).spawn(work);
    }
}

fn answer(request: &Request, deleting: &Deleting) -> Result<(Answer, Option<OwnedFd>), Failed> {
    let name = name_of(request).ok_or_else(|| Failed(libc::EINVAL, "no name of a disk".to_owned()))?;
    if request.mark & (0xffff << 48) != MAGIC {
        return Err(Failed(libc::EINVAL, "no mark of a disk".to_owned()));
    }
    let mut control = open_control()?;
    if request.verb == verb::OPEN {
        deleting.wait_for(request.mark);
        return open(&mut control, request, name);
    }
    let id = request.dev_id;
    let info = control.info(id).ok().filter(|info| info.ublksrv_flags == request.mark);
    let vanished = || Failed(libc::ENODEV, format!("{name}: its device /dev/ublkb{id} was deleted"));
    let info = info.ok_or_else(vanished)?;
    let mut answer = Answer { dev_id: id, ..Answer::default() };
    match request.verb {
        verb::START => start(&mut control, request, name)?,
        verb::DELETE => delete(&mut control, name, &info)?,
        verb::PART if is_open(id) => answer.is_open = 1,
        verb::PART => delete(&mut control, name, &info)?,
        verb::IS_OPEN => answer.is_open = is_open(id).into(),
        _ => return Err(Failed(libc::EINVAL, "no such request".to_owned())),
    }
    Ok((answer, None))
}

/// The name, if a disk can have it: nothing of a path.
fn name_of(request: &Request) -> Option<&str> {
    let name = std::str::from_utf8(request.name.get(..usize::from(request.name_len))?).ok()?;
    let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    (!name.is_empty() && name.chars().all(is_good)).then_some(name)
}

fn open_control() -> Result<Control, Failed> {
    let mut control = Control::open().map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => "load the driver: `modprobe ublk_drv`, and start the daemon again",
            io::ErrorKind::PermissionDenied => "start the daemon as root, with CAP_SYS_ADMIN",
            _ => "see `dmesg`",
        };
        Failed::new(&format!("can't open {CONTROL_PATH}"), &error, remedy)
    })?;
    match control.features() {
        Ok(features) if features & FEATURES == FEATURES => Ok(control),
        Ok(_) | Err(_) => {
            let text = "this kernel's ublk driver is too old: it can't say that devices outlive their server; \
                        use Linux 6.5 or later";
            Err(Failed(libc::EOPNOTSUPP, text.to_owned()))
        }
    }
}

/// All devices of the driver, by number.
fn numbers() -> Vec<u32> {
    let entries = std::fs::read_dir("/sys/class/ublk-char").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok()).collect()
}

fn find(control: &mut Control, mark: u64) -> Option<DevInfo> {
    numbers().into_iter().filter_map(|id| control.info(id).ok()).find(|info| info.ublksrv_flags == mark)
}

fn open(control: &mut Control, request: &Request, name: &str) -> Result<(Answer, Option<OwnedFd>), Failed> {
    refuse_taken_name(control, request.mark, name)?;
    let deadline = Instant::now() + FORMER_LIMIT;
    while let Some(info) = find(control, request.mark) {
        let id = info.dev_id;
        let is_late = Instant::now() > deadline;
        match info.state {
            // Its server ended before it was started, or it was stopped.
            state::DEAD => delete(control, name, &info)?,
            state::QUIESCED => match recover(control, request, name, &info) {
                Ok(Some(recovered)) => return Ok(recovered),
                Ok(None) => {}
                Err(Failed(libc::EBUSY, _)) if !is_late => std::thread::sleep(PAUSE),
                Err(failed) => return Err(failed),
            },
            _ if is_late => {
                let pid = info.ublksrv_pid;
                let what = format!("{name}: process {pid} serves its device /dev/ublkb{id}; end that process first");
                return Err(Failed(libc::EBUSY, what));
            }
            _ => std::thread::sleep(PAUSE),
        }
    }
    make(control, request, name)
}

/// Two daemons may have disks of one name; only one of them has the path.
fn refuse_taken_name(control: &mut Control, mark: u64, name: &str) -> Result<(), Failed> {
    let Some(id) = linked(name) else { return Ok(()) };
    match control.info(id) {
        Ok(info) if info.ublksrv_flags != mark && info.state != state::DEAD => {
            let what = format!("{} is /dev/ublkb{id}, which is no device of this disk", link(name).display());
            Err(Failed(libc::EEXIST, format!("{what}; stop the daemon that serves it, or give the disk another name")))
        }
        _ => Ok(()),
    }
}

/// Takes over what an earlier daemon left. `None`: it was deleted, since it was not as it is to be.
fn recover(
    control: &mut Control,
    request: &Request,
    name: &str,
    info: &DevInfo,
) -> Result<Option<(Answer, Option<OwnedFd>)>, Failed> {
    let id = info.dev_id;
    let failed = |error: &io::Error| Failed::new(&format!("{name}: can't take over /dev/ublkb{id}"), error, "");
    let params = control.params(id).map_err(|error| failed(&error))?;
    if !is_as_wanted(request, info, &params) {
        if !is_open(id) {
            return delete(control, name, info).map(|()| None);
        }
        let was = differs(request, info).unwrap_or_else(|| "other settings".to_owned());
        let what = format!("{name}: its device /dev/ublkb{id} is open, and was made with {was}");
        let remedy = "write the former ones again, or close it (`umount`), and start the daemon again";
        return Err(Failed(libc::EADDRINUSE, format!("{what}; {remedy}")));
    }
    match control.begin_recovery(id) {
        Ok(()) => {}
        // A server that took it over ended before it served any queue: it is as it was.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        Err(error) => return Err(failed(&error)),
    }
    let file = open_char(id).map_err(|error| failed(&error))?;
    let answer = Answer {
        dev_id: id,
        queues: info.nr_hw_queues,
        is_recovered: 1,
        dev_sectors: params.dev_sectors,
        ..Answer::default()
    };
    Ok(Some((answer, Some(file))))
}

/// Which of the usual settings a device has otherwise than wanted, in words.
fn differs(request: &Request, info: &DevInfo) -> Option<String> {
    // The driver gives no more queues than there are CPUs.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (has, queues) = (info.nr_hw_queues, request.queues);
    let is_clamped = has < queues && usize::from(has) >= cpus;
    if has != queues && !is_clamped {
        return Some(format!("queues = {has}, not {queues}"));
    }
    let (has, depth) = (info.queue_depth, request.depth);
    (has != depth).then(|| format!("queue_depth = {has}, not {depth}"))
}

/// Whether a device that is there can be what is wanted. It may be shorter: a disk grows.
fn is_as_wanted(request: &Request, info: &DevInfo, params: &Params) -> bool {
    let wanted = request.params;
    differs(request, info).is_none()
        && info.max_io_buf_bytes == Shape::MAX_IO_BYTES
        && params.dev_sectors <= wanted.dev_sectors
        && Params { types: wanted.types, len: wanted.len, dev_sectors: wanted.dev_sectors, pad: 0, ..*params } == wanted
}

fn make(control: &mut Control, request: &Request, name: &str) -> Result<(Answer, Option<OwnedFd>), Failed> {
    let what = format!("{name}: can't make a block device");
    let info = DevInfo {
        nr_hw_queues: request.queues,
        queue_depth: request.depth,
        max_io_buf_bytes: Shape::MAX_IO_BYTES,
        dev_id: u32::MAX,
        flags: FEATURES | feature::CMD_IOCTL_ENCODE,
        ublksrv_flags: request.mark,
        ..DevInfo::default()
    };
    let info = control.add(info).map_err(|error| {
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM) => "start the daemon as root, with CAP_SYS_ADMIN",
            Some(libc::ENOSPC) => "all numbers are taken (`ls /dev/ublkc*`): delete unused devices",
            Some(libc::ENOMEM) => "the kernel has no memory left: use fewer `queues`",
            _ => "see `dmesg`",
        };
        Failed::new(&what, &error, remedy)
    })?;
    let id = info.dev_id;
    let rest = control.set_params(id, request.params).and_then(|()| open_char(id));
    match rest {
        Ok(file) => {
            let (queues, dev_sectors) = (info.nr_hw_queues, request.params.dev_sectors);
            Ok((Answer { dev_id: id, queues, dev_sectors, ..Answer::default() }, Some(file)))
        }
        Err(error) => {
            let _ = control.delete(id);
            Err(Failed::new(&what, &error, "see `dmesg`"))
        }
    }
}

fn open_char(id: u32) -> io::Result<OwnedFd> {
    Ok(OpenOptions::new().read(true).write(true).open(format!("/dev/ublkc{id}"))?.into())
}

fn start(control: &mut Control, request: &Request, name: &str) -> Result<(), Failed> {
    let (id, pid) = (request.dev_id, request.pid);
    // First: udev asks for the name as soon as the device appears.
    set_link(name, id).map_err(|error| {
        let what = format!("can't make {}, a link to /dev/ublkb{id}", link(name).display());
        Failed::new(&what, &error, &format!("see to {DIRECTORY}"))
    })?;
    let started = if request.is_recovered != 0 { control.end_recovery(id, pid) } else { control.start(id, pid) };
    started.map_err(|error| {
        if request.is_recovered == 0 {
            let _ = std::fs::remove_file(link(name));
        }
        Failed::new(&format!("{name}: can't start /dev/ublkb{id}"), &error, "see `dmesg`")
    })
}

/// Works for an open device, too: its users get errors.
fn delete(control: &mut Control, name: &str, info: &DevInfo) -> Result<(), Failed> {
    let id = info.dev_id;
    if linked(name) == Some(id) {
        let _ = std::fs::remove_file(link(name));
    }
    let deleted = control.stop(id).and_then(|()| control.delete(id));
    match deleted {
        Err(error) if error.raw_os_error() != Some(libc::ENODEV) => {
            Err(Failed::new(&format!("{name}: can't delete /dev/ublkb{id}"), &error, "see `dmesg`"))
        }
        _ => Ok(()),
    }
}

fn link(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

/// The device that has a disk's name.
fn linked(name: &str) -> Option<u32> {
    std::fs::read_link(link(name)).ok()?.to_str()?.strip_prefix("../ublkb")?.parse().ok()
}

/// Replaces the link in one step: a reader finds the old one or the new one.
fn set_link(name: &str, id: u32) -> io::Result<()> {
    std::fs::create_dir_all(DIRECTORY)?;
    let new = Path::new(DIRECTORY).join(format!(".{name}.new"));
    let _ = std::fs::remove_file(&new);
    symlink(format!("../ublkb{id}"), &new)?;
    std::fs::rename(&new, link(name))
}

/// Whether a file system, another device or a process has it open.
fn is_open(id: u32) -> bool {
    let path = format!("/dev/ublkb{id}");
    // Those that want it for themselves: mounts, swap, LVM, RAID.
    let exclusively = OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK).open(&path);
    let device = match exclusively.as_ref().map(File::metadata) {
        Ok(Ok(device)) => device.rdev(),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return true,
        _ => return false,
    };
    drop(exclusively);
    let is_it = |path: PathBuf| {
        let found = std::fs::metadata(path);
        found.is_ok_and(|found| found.file_type().is_block_device() && found.rdev() == device)
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let files = processes.filter_map(|process| std::fs::read_dir(process.path().join("fd")).ok());
    files.flatten().flatten().any(|file| is_it(file.path()))
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::*;

    #[test]
    fn the_setting_that_a_device_has_otherwise_is_named() {
        let differs = |nr_hw_queues: u16, queues: u16, depth: u16| {
            let info = DevInfo { nr_hw_queues, queue_depth: 64, ..DevInfo::default() };
            differs(&Request { queues, depth, ..Request::zeroed() }, &info)
        };
        assert_eq!(differs(4, 2, 64).as_deref(), Some("queues = 4, not 2"));
        assert_eq!(differs(2, 2, 128).as_deref(), Some("queue_depth = 64, not 128"));
        assert_eq!((differs(2, 2, 64), differs(u16::MAX - 1, u16::MAX, 64)), (None, None), "as many as there are CPUs");
    }
}
