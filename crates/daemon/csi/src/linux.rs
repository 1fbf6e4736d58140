//! The host as it is: the kernel's list of mounts, and the programs of util-linux, e2fsprogs and xfsprogs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use api::Disk;

use crate::host::{Content, FileSystem, Host, Mount, Usage};

/// Exit status of `blkid` where it finds nothing.
const NOTHING_FOUND: i32 = 2;
/// Exit status of `blkid` where it finds several things that exclude each other.
const AMBIVALENT: i32 = 8;
/// What the kernel's driver ublk is asked by.
const CONTROL: &str = "/dev/ublk-control";
/// A program's own words, as far as they go into a status: gRPC keeps them in a header.
const MAX_WORDS_LEN: usize = 500;

/// The host that the plugin runs on. Mounts need root.
#[derive(Debug, Clone, Copy, Default)]
pub struct Linux;

impl Host for Linux {
    fn has_devices(&self) -> bool {
        Path::new(CONTROL).exists()
    }

    /// Follows the disk's link. The daemon makes the link and must not be able to name another drive of the host: only
    /// a device of the driver ublk is found.
    fn device(&self, disk: &Disk) -> io::Result<PathBuf> {
        let link = disk.socket.as_deref().ok_or_else(|| io::Error::other("the disk has no block device"))?;
        let node = fs::canonicalize(link).map_err(|error| about(link, &error))?;
        let number = node.to_str().and_then(|path| path.strip_prefix("/dev/ublkb"));
        let is_ublk = number.is_some_and(|number| number.parse::<u32>().is_ok());
        if !is_ublk || !fs::metadata(&node)?.file_type().is_block_device() {
            return Err(io::Error::other(format!("{link} leads to {}, no block device of ublk", node.display())));
        }
        Ok(node)
    }

    fn device_bytes(&self, device: &Path) -> io::Result<u64> {
        File::open(device)?.seek(SeekFrom::End(0))
    }

    fn content(&self, device: &Path) -> io::Result<Content> {
        let output = start(Command::new("blkid").args(["-p", "-o", "export"]).arg(device))?;
        match output.status.code() {
            Some(0) => Ok(content(&String::from_utf8_lossy(&output.stdout))),
            Some(NOTHING_FOUND) => Ok(Content::Nothing),
            Some(AMBIVALENT) => Ok(Content::Other("several things at once".to_owned())),
            _ => Err(failed("blkid", &output)),
        }
    }

    fn format(&self, device: &Path, file_system: FileSystem) -> io::Result<()> {
        // A new disk reads as zeros: nothing is there to discard.
        match file_system {
            FileSystem::Ext4 => run(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-E", "nodiscard"]).arg(device)),
            FileSystem::Xfs => run(Command::new("mkfs.xfs").args(["-q", "-K"]).arg(device)),
        }
    }

    fn grow(&self, device: &Path, mounted_at: &Path, file_system: FileSystem) -> io::Result<()> {
        match file_system {
            FileSystem::Ext4 => run(Command::new("resize2fs").arg(device)),
            FileSystem::Xfs => run(Command::new("xfs_growfs").arg(mounted_at)),
        }
    }

    fn mounts(&self) -> io::Result<Vec<Mount>> {
        Ok(fs::read_to_string("/proc/self/mountinfo")?.lines().filter_map(mount).collect())
    }

    fn mount(&self, device: &Path, target: &Path, file_system: FileSystem, options: &[String]) -> io::Result<()> {
        let mut command = Command::new("mount");
        command.args(["-t", file_system.name()]);
        if !options.is_empty() {
            command.args(["-o", &options.join(",")]);
        }
        run(command.arg("--").arg(device).arg(target))
    }

    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
        run(Command::new("mount").args(["-o", "bind", "--"]).arg(source).arg(target))?;
        if !read_only {
            return Ok(());
        }
        // With both paths, no file of the host is asked for options.
        let locked = run(Command::new("mount").args(["-o", "remount,bind,ro", "--"]).arg(source).arg(target));
        // A pod must not write to it meanwhile.
        locked.or_else(|error| self.unmount(target).and(Err(error)))
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        run(Command::new("umount").arg("--").arg(target))
    }

    fn usage(&self, path: &Path) -> io::Result<Usage> {
        let told = rustix::fs::statvfs(path)?;
        Ok(Usage {
            total_bytes: told.f_blocks * told.f_frsize,
            available_bytes: told.f_bavail * told.f_frsize,
            used_bytes: told.f_blocks.saturating_sub(told.f_bfree) * told.f_frsize,
            total_inodes: told.f_files,
            free_inodes: told.f_ffree,
        })
    }
}

/// What `blkid -o export` printed: lines `KEY=value`.
fn content(printed: &str) -> Content {
    let find = |wanted: &str| printed.lines().find_map(|line| line.strip_prefix(wanted)?.strip_prefix('='));
    match (find("TYPE"), find("PTTYPE")) {
        (Some(kind), _) => FileSystem::named(kind).map_or_else(|| Content::Other(kind.to_owned()), Content::Of),
        (None, Some(table)) => Content::Other(format!("partitions ({table})")),
        (None, None) => Content::Other("something unknown".to_owned()),
    }
}

/// A line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (root, target, options) = (before.next()?, before.next()?, before.next()?);
    let mut after = after.split(' ');
    let (kind, source) = (after.next()?.to_owned(), after.next()?);
    let read_only = options.split(',').any(|option| option == "ro");
    Some(Mount { root: path(root), target: path(target), kind, source: path(source), read_only })
}

/// A path in that file, in which `\040` and such stand for spaces, tabs, line feeds and backslashes.
fn path(written: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(written.len());
    let mut rest = written.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| others.get(..3)).flatten();
        let octal = octal.and_then(|octal| u8::from_str_radix(std::str::from_utf8(octal).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &others[3..] } else { others };
    }
    std::ffi::OsString::from_vec(bytes).into()
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = start(command)?;
    if output.status.success() { Ok(()) } else { Err(failed(&name_of(command), &output)) }
}

fn start(command: &mut Command) -> io::Result<Output> {
    let name = name_of(command);
    let output = command.env("LC_ALL", "C").stdin(Stdio::null()).output();
    output.map_err(|error| io::Error::new(error.kind(), format!("{name} can't be started: {error}")))
}

fn name_of(command: &Command) -> String {
    OsStr::to_string_lossy(command.get_program()).into_owned()
}

fn failed(name: &str, output: &Output) -> io::Error {
    let words: String = String::from_utf8_lossy(&output.stderr).trim().chars().take(MAX_WORDS_LEN).collect();
    io::Error::other(format!("{name} failed ({}): {}", output.status, words.replace('\n', "; ")))
}

fn about(path: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only here: a mount at a path with a space is not found again, so that it is mounted twice.
    #[test]
    fn mounts_are_read_as_the_kernel_writes_them() {
        let line = r"68 29 259:3 / /var/lib/my\040pods/x ro,relatime shared:7 master:2 - ext4 /dev/ublkb0 rw,discard";
        let found = mount(line).expect("a mount");
        assert_eq!(found.target, Path::new("/var/lib/my pods/x"));
        assert!(found.read_only && found.is_of(Path::new("/dev/ublkb0")));
        assert!(!found.is_of(Path::new("/dev/ublkb1")));
        let node = mount("70 29 0:5 /ublkb1 /pods/y rw,nosuid - devtmpfs udev rw,size=4k").expect("a mount");
        assert!(node.is_of(Path::new("/dev/ublkb1")) && !node.is_of(Path::new("/dev/ublkb0")) && !node.read_only);
        assert_eq!(mount("nothing"), None);
    }

    /// Only here: a disk with another file system or with partitions counts as empty, and is formatted.
    #[test]
    fn what_a_device_holds_is_told() {
        let ext4 = "DEVNAME=/dev/ublkb0\nUUID=1\nBLOCK_SIZE=4096\nTYPE=ext4\nUSAGE=filesystem\n";
        assert_eq!(content(ext4), Content::Of(FileSystem::Ext4));
        assert_eq!(content("TYPE=crypto_LUKS\n"), Content::Other("crypto_LUKS".to_owned()));
        assert_eq!(content("PTUUID=1\nPTTYPE=gpt\n"), Content::Other("partitions (gpt)".to_owned()));
        assert_ne!(content(""), Content::Nothing);
    }
}
