//! A host of our own: its block devices are numbers, and its mounts a list.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use api::Disk;
use csi::{Content, FileSystem, Host, Mount, Usage};

/// What is known of a block device.
#[derive(Debug, Clone, Copy, Default)]
pub struct Device {
    pub bytes: u64,
    pub file_system: Option<FileSystem>,
    /// How often a file system was made on it.
    pub formats: u32,
    /// Bytes that the file system fills.
    pub filled: u64,
}

#[derive(Debug, Default)]
struct State {
    devices: BTreeMap<PathBuf, Device>,
    mounts: Vec<Mount>,
    lacks_devices: bool,
}

/// The host, to give away and to look at.
#[derive(Debug, Clone, Default)]
pub struct Fake(Arc<Mutex<State>>);

impl Fake {
    pub fn device_of(&self, disk: &str) -> Device {
        self.with(|state| state.devices.get(&node(disk)).copied().unwrap_or_default())
    }

    /// As a host whose kernel lacks the driver ublk.
    pub fn without_devices() -> Self {
        let host = Self::default();
        host.with(|state| state.lacks_devices = true);
        host
    }

    pub fn mount_count(&self) -> usize {
        self.with(|state| state.mounts.len())
    }

    pub fn is_read_only(&self, target: &Path) -> Option<bool> {
        self.with(|state| state.mounts.iter().rfind(|mount| mount.target == target).map(|mount| mount.read_only))
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap())
    }

    fn on_device<T>(&self, device: &Path, act: impl FnOnce(&mut Device) -> T) -> io::Result<T> {
        let nothing = || io::Error::other(format!("{} is no device", device.display()));
        self.with(|state| state.devices.get_mut(device).map(act)).ok_or_else(nothing)
    }
}

fn node(disk: &str) -> PathBuf {
    Path::new("/dev").join(disk)
}

impl Host for Fake {
    fn has_devices(&self) -> bool {
        self.with(|state| !state.lacks_devices)
    }

    fn device(&self, disk: &Disk) -> io::Result<PathBuf> {
        let node = node(&disk.name);
        self.with(|state| state.devices.entry(node.clone()).or_default().bytes = disk.size_bytes);
        Ok(node)
    }

    fn device_bytes(&self, device: &Path) -> io::Result<u64> {
        let source = self.with(|state| state.mounts.iter().find(|it| it.target == device).map(|it| it.source.clone()));
        self.on_device(&source.unwrap_or_else(|| device.to_owned()), |device| device.bytes)
    }

    fn content(&self, device: &Path) -> io::Result<Content> {
        self.on_device(device, |device| device.file_system.map_or(Content::Nothing, Content::Of))
    }

    fn format(&self, device: &Path, file_system: FileSystem) -> io::Result<()> {
        self.on_device(device, |device| {
            device.formats += 1;
            device.filled = device.bytes;
            device.file_system = Some(file_system);
        })
    }

    fn grow(&self, device: &Path, _: &Path, _: FileSystem) -> io::Result<()> {
        self.on_device(device, |device| device.filled = device.bytes)
    }

    fn mounts(&self) -> io::Result<Vec<Mount>> {
        Ok(self.with(|state| state.mounts.clone()))
    }

    fn mount(&self, device: &Path, target: &Path, file_system: FileSystem, _: &[String]) -> io::Result<()> {
        let kind = file_system.name().to_owned();
        let (root, target, source) = (PathBuf::from("/"), target.to_owned(), device.to_owned());
        self.with(|state| state.mounts.push(Mount { root, target, kind, source, read_only: false }));
        Ok(())
    }

    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
        self.with(|state| {
            let found = state.mounts.iter().rfind(|mount| mount.target == source).cloned();
            let kind = "devtmpfs".to_owned();
            let root = Path::new("/").join(source.file_name().unwrap());
            let device = Mount { root, target: target.to_owned(), kind, source: source.to_owned(), read_only };
            let seen = found.map(|found| Mount { target: target.to_owned(), read_only, ..found });
            state.mounts.push(seen.unwrap_or(device));
        });
        Ok(())
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        self.with(|state| {
            let at = state.mounts.iter().rposition(|mount| mount.target == target);
            at.map(|at| state.mounts.remove(at)).map(|_| ()).ok_or_else(|| io::Error::other("not mounted"))
        })
    }

    fn usage(&self, _: &Path) -> io::Result<Usage> {
        Ok(Usage { total_bytes: 100, available_bytes: 60, used_bytes: 40, total_inodes: 10, free_inodes: 9 })
    }
}
