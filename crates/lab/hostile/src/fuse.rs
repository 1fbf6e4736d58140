//! A file whose file system never answers: FUSE (linux/fuse.h, protocol 7.31) by hand, as much as opening a file takes.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use test_clients::nvme::Nvme;
use test_clients::vfio::dma_map;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;

const ROOT: u64 = 1;
const FILE: u64 = 2;
const REQUEST_BYTES: usize = 1 << 17;
const HEADER_BYTES: usize = 40;
/// FUSE_WRITE and our own are not larger.
const MAX_WRITE_BYTES: u32 = 1 << 16;

/// A file system with a file whose `fstatfs` and `close` wait for us, for everybody but ourselves. Dropping this ends
/// the wait, with an error.
///
/// We hold the file open for moments only: a process that is killed closes its files before it lets go of the file
/// system, and would wait for itself for ever.
pub struct Stuck {
    /// By its path alone: closing it asks nobody.
    root: OwnedFd,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Stuck {
    /// Mounts at `mount_point`, and takes the mount away again: what was opened there stays.
    ///
    /// # Errors
    /// FUSE file systems can't be mounted here.
    pub fn mount(mount_point: &Path) -> io::Result<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        fs::create_dir_all(mount_point)?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options)?;
        mount("hostile", mount_point, "fuse", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())?;
        let root = open(mount_point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        // A lazy one: nothing is left in the mount table, whatever happens to us.
        unmount(mount_point, UnmountFlags::DETACH)?;
        let root = root?;
        let stop = Arc::<AtomicBool>::default();
        let told_to_stop = Arc::clone(&stop);
        let server = std::thread::Builder::new().name("fuse".into()).spawn(move || serve(device, &told_to_stop))?;
        Ok(Self { root, stop, server: Some(server) })
    }

    /// Opens the file, has it sent with a message, and closes our own.
    ///
    /// # Errors
    /// Those of opening and sending.
    pub fn hand_over(&self, send: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        let file = openat(&self.root, "file", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        send(file.as_fd())
    }

    /// Leaves the file with the process that receives for `client`'s controller.
    ///
    /// # Errors
    /// As [`Stuck::hand_over`].
    pub fn leave_with(&self, client: &Nvme) -> io::Result<()> {
        self.hand_over(|fd| client.client.send(&dma_map(1, 3, 0, 1 << 40, 4096), &[fd]))
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        // The file system ends with its server, and with it everybody's wait.
        self.stop.store(true, Relaxed);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn serve(mut device: File, stop: &AtomicBool) {
    let mut request = vec![0; REQUEST_BYTES];
    let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    while !stop.load(Relaxed) {
        match poll(&mut [PollFd::new(&device, PollFlags::IN)], Some(&pause)) {
            Ok(0) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        // Fails when the file system is gone.
        let Ok(len) = device.read(&mut request) else { return };
        if let Some(reply) = answer(&request[..len]) {
            // An interrupted request takes no answer.
            let _ = device.write(&reply);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// What a request gets, if anything.
fn answer(request: &[u8]) -> Option<Vec<u8>> {
    if request.len() < HEADER_BYTES {
        return None;
    }
    let (opcode, unique) = (word(request, 4), &request[8..16]);
    let node = u64::from(word(request, 16));
    let (errno, body) = match opcode {
        FLUSH | STATFS if Path::new(&format!("/proc/self/task/{}", word(request, 32))).exists() => (0, Vec::new()),
        FLUSH | STATFS | RELEASE | FORGET => return None,
        INIT => {
            let numbers = [7, 31, MAX_WRITE_BYTES, 0, 12 | 9 << 16, MAX_WRITE_BYTES, 1];
            let mut body: Vec<u8> = numbers.into_iter().flat_map(u32::to_le_bytes).collect();
            body.resize(64, 0);
            (0, body)
        }
        LOOKUP => (0, [longs(&[FILE, 0, 1, 1, 0]), attributes(FILE)].concat()),
        GETATTR => (0, [longs(&[1, 0]), attributes(node)].concat()),
        OPEN => (0, longs(&[1, 0])),
        _ => (-38_i32, Vec::new()),
    };
    let len = 16 + body.len() as u32;
    Some([&len.to_le_bytes()[..], &errno.to_le_bytes(), unique, &body].concat())
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

/// A directory, or a file of 4096 bytes.
fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = if node == ROOT { 0o40777 } else { 0o100_666 };
    let words: Vec<u8> = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    [longs(&[node, 4096, 8, 0, 0, 0]), words].concat()
}
