//! Packs the guest's file system: a cpio archive in the `newc` format that the kernel unpacks into
//! its root. It stays uncompressed: under emulation, unpacking costs more than loading.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Where Debian keeps amd64 libraries, relative to a root.
pub const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Debian's program loader, relative to a root.
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";

/// Programs that run in the guest besides those of busybox.
const PROGRAMS: [&str; 7] = [
    "usr/bin/fio",
    "usr/bin/fallocate",
    "usr/sbin/blkdiscard",
    "usr/sbin/cryptsetup",
    "usr/sbin/e2fsck",
    "usr/sbin/mke2fs",
    "usr/sbin/nvme",
];

/// What the tests need and Debian's cloud kernel has not built in. `usr/sbin/load-modules` loads them by name.
const MODULES: [&str; 12] = [
    "drivers/md/dm-mod",
    "drivers/md/dm-crypt",
    "crypto/xts",
    "drivers/block/virtio_blk",
    "drivers/block/loop",
    "drivers/block/null_blk/null_blk",
    "drivers/block/ublk_drv",
    "virt/lib/irqbypass",
    "drivers/vfio/vfio",
    "drivers/vfio/vfio_iommu_type1",
    "drivers/vfio/pci/vfio-pci-core",
    "drivers/vfio/pci/vfio-pci",
];

const FOLDERS: [&str; 13] =
    ["bin", "dev", "etc", "lib/modules", "lib64", "mnt", "proc", "run", "sys", "tmp", "usr/bin", "usr/sbin", LIBRARIES];

const KIND_DIR: u32 = 0o040_000;
const KIND_FILE: u32 = 0o100_000;
const KIND_SYMLINK: u32 = 0o120_000;

/// A cpio archive being written.
pub struct Archive<W> {
    out: W,
    size_bytes: usize,
    entries: u32,
}

impl<W: Write> Archive<W> {
    /// Starts an archive.
    pub fn new(out: W) -> Self {
        Self { out, size_bytes: 0, entries: 0 }
    }

    /// Adds a folder and, before it, the folders above it.
    pub fn folder(&mut self, path: &str) -> io::Result<()> {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        for end in ends {
            self.entry(&path[..end], KIND_DIR | 0o755, &[])?;
        }
        Ok(())
    }

    /// Adds an executable file.
    pub fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.entry(path, KIND_FILE | 0o755, content)
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, KIND_SYMLINK | 0o777, target.as_bytes())
    }

    /// Ends the archive and gives its writer back.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entries += 1;
        let size = u32::try_from(content.len()).map_err(io::Error::other)?;
        // Magic, inode, mode, uid, gid, links, mtime, size, device and rdev numbers,
        // length of the name with its NUL, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, path.len() as u32 + 1, 0];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        header.push_str(path);
        header.push('\0');
        self.padded(header.as_bytes())?;
        self.padded(content)
    }

    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.size_bytes += bytes.len();
        let padding = self.size_bytes.next_multiple_of(4) - self.size_bytes;
        self.size_bytes += padding;
        self.out.write_all(&[0; 3][..padding])
    }
}

/// Writes the guest's programs, the libraries that they need and kernel modules, taken from the unpacked `root`.
///
/// # Errors
/// When one of these is not in `root`.
pub fn write_userland(root: &Path, to: &Path) -> Result<()> {
    let mut archive = Archive::new(io::BufWriter::new(fs::File::create(to)?));
    for folder in FOLDERS {
        archive.folder(folder)?;
    }
    let busybox = fs::read(root.join("usr/bin/busybox")).context("busybox-static")?;
    archive.file("bin/busybox", &busybox)?;
    archive.symlink("bin/sh", "busybox")?;
    archive.file("lib64/ld-linux-x86-64.so.2", &fs::read(root.join(LOADER))?)?;

    let mut libraries = BTreeMap::new();
    for program in PROGRAMS {
        archive.file(program, &fs::read(root.join(program)).context(program)?)?;
        libraries.extend(libraries_of(root, program)?);
    }
    for (name, path) in libraries {
        archive.file(&format!("{LIBRARIES}/{name}"), &fs::read(&path)?)?;
    }
    let modules = modules_in(root)?;
    for module in MODULES {
        let name = module.rsplit('/').next().unwrap_or(module);
        let content = fs::read(modules.join(format!("{module}.ko.xz"))).context(module)?;
        archive.file(&format!("lib/modules/{name}.ko.xz"), &content)?;
    }
    archive.finish()?.flush()?;
    Ok(())
}

/// The folder of the modules of the one kernel in `root`.
fn modules_in(root: &Path) -> Result<PathBuf> {
    let kernels = fs::read_dir(root.join("usr/lib/modules")).context("the kernel's modules")?;
    let kernel = kernels.flatten().next().context("the kernel package holds no modules")?;
    Ok(kernel.path().join("kernel"))
}

/// The libraries that `program` loads, by name, as the root's own loader finds them.
pub fn libraries_of(root: &Path, program: &str) -> Result<Vec<(String, PathBuf)>> {
    let libraries = root.join(LIBRARIES);
    // fio links Ceph's client, which keeps a library in a folder of its own.
    let search = format!("{0}:{0}/ceph", libraries.display());
    let output = Command::new(root.join(LOADER))
        .env_clear()
        .args(["--library-path", &search, "--list"])
        .arg(root.join(program))
        .output()
        .context("running the guest's loader")?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let listing = String::from_utf8_lossy(&output.stdout);
    Ok(listing
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.trim().split_once(" => ")?;
            let path = rest.split(" (").next()?;
            Some((name.to_owned(), PathBuf::from(path)))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn entries_are_aligned_and_ended() {
        let mut archive = Archive::new(Vec::new());
        archive.folder("a/b").unwrap();
        archive.file("a/b/c", b"12345").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8(bytes).unwrap();
        // Each header starts on a multiple of four: a, a/b, a/b/c and the trailer.
        let starts: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(starts.len(), 4);
        assert!(starts.iter().all(|at| at % 4 == 0), "{starts:?}");
        assert!(text.contains("a/b/c\0"));
        assert!(text.contains("TRAILER!!!\0"));
    }
}
