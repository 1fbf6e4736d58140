//! The file that keeps a layout.
//!
//! An image's layout lies beside it (`drive.img.layout.toml`), so that it moves with the image's directory and
//! is found again. A block device's lies in `state_dir`, named after the drive's own identity where the kernel
//! knows one: `/dev` names change from boot to boot. Other back ends keep nothing.
//!
//! A file is replaced whole or not at all, and never when the one on disk can't be read.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::crash;
use crate::layout::{DeviceIdentity, Layout};

/// 1024 tenants need a tenth of this.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// The last line, by which a file that was cut short is known.
const END: &str = "# end of the layout";

const HEAD: &str = "\
# Where each tenant's data lies on the drive. Evenkeel writes this file; keep it with the drive's backups.
# A tenant's range stays reserved after the tenant left the configuration; `evenkeel disk delete` frees it.
# [[tenant.more]]: where the disk goes on, once it grew to another place.
# zeroed_bytes: so much of a disk needs no zeroing any more; the tenant is served once all of it is zeroed, or, where
# there is a grows_from_bytes, with that size until then.
# [[wiping]]: what a deleted tenant left. Nobody gets it before it is overwritten, which the daemon does when it runs.
# [[noise]]: free; what an encrypted disk left, to which nobody has the key. Zeroed before an unencrypted disk gets it.
# [[clean]]: free, and known to read as zeros. A new tenant gets it at once; other free ranges are zeroed before.
# start: a mark of the image too, another one with each start; an older copy of the image is refused by it.
# formatting_to_lba_bytes: a guest's Format was cut short; its reads and writes fail until it formats again.
# key.changing: the disk is re-encrypted; the file beside this one that ends with its name says how far that is.
# [tenant.sanitize]: a guest's latest Sanitize; while it is running, what has a formatting_to_lba_bytes is erased.
# [pool]: room of thin disks, in pieces. A thin disk has no range but a map, which is in the file beside this one that
# ends with .pieces; so has each of its snapshots.
# The record of a [[namespace]] is a [[tenant]] here, too.
# To rename a tenant, stop the daemon and change the name here and in the configuration.

";

/// Why a layout file can't be used.
#[derive(Debug)]
pub enum LayoutError {
    /// It is there and can't be read as a layout; it was left alone.
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The operating system refused.
    Io {
        /// The file.
        path: PathBuf,
        /// read or write.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A layout that would lose a recorded range was refused; nothing was written.
    WouldLose {
        /// The file.
        path: PathBuf,
        /// The tenant.
        who: String,
    },
    /// The layout to be written contradicts itself; nothing was written.
    Wrong {
        /// How.
        what: String,
    },
    /// A tenant that the layout does not know, or an LBA size that is neither 512 nor 4096.
    NoSuchTenant {
        /// The name asked for.
        tenant: String,
        /// The LBA size asked for.
        lba_bytes: u32,
    },
}

impl LayoutError {
    /// What is wrong.
    pub fn what(&self) -> String {
        match self {
            Self::Damaged { path, what } => format!("the layout file {} is damaged: {what}", path.display()),
            Self::Io { path, action, source } => format!("can't {action} the layout file {}: {source}", path.display()),
            Self::WouldLose { path, who } => {
                format!("the layout file {} was changed: the range of {who} would be lost", path.display())
            }
            Self::Wrong { what } => format!("the layout would be wrong: {what}"),
            Self::NoSuchTenant { tenant, lba_bytes } => {
                format!("the layout has no tenant {tenant:?} that could have an LBA size of {lba_bytes}")
            }
        }
    }

    /// Whether only the room for it was missing.
    pub fn is_no_room(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_full(source))
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Damaged { .. } => {
                "restore it from a backup (it says where each tenant's data lies), or, if the drive holds nothing of \
                 value, move it away"
            }
            Self::Io { .. } => "check the directory's owner, mode and free space",
            Self::WouldLose { .. } => "start the daemon again, so that the file is read again; nothing was written",
            Self::Wrong { .. } => "please report this, with the layout file; nothing was written",
            Self::NoSuchTenant { .. } => "name a tenant of the configuration, and 512 or 4096",
        }
    }
}

/// Whether an error says that a file system is full, or the user's share of it.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what(), self.remedy())
    }
}

impl std::error::Error for LayoutError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A layout and the file that keeps it, if the back end keeps one.
#[derive(Debug)]
pub struct LayoutFile {
    path: Option<PathBuf>,
    layout: Option<Layout>,
    /// The file's text, as it was read or written last.
    text: String,
}

impl LayoutFile {
    /// Where the layout of an image is kept.
    pub fn beside(image: &DeviceIdentity) -> PathBuf {
        PathBuf::from(format!("{}.layout.toml", image.path))
    }

    /// Where the layout of a block device is kept.
    pub fn in_directory(state_dir: &Path, device: &DeviceIdentity) -> PathBuf {
        let identity = device.id.as_ref().unwrap_or(&device.path);
        state_dir.join(format!("layout-{}.toml", file_name_of(identity)))
    }

    /// Reads the layout at `path`; a file that is not there is an empty record.
    ///
    /// # Errors
    /// [`LayoutError::Damaged`] or [`LayoutError::Io`].
    pub fn open(path: Option<PathBuf>) -> Result<Self, LayoutError> {
        let text = path.as_deref().map(read).transpose()?.flatten();
        let layout = path.as_deref().zip(text.as_deref()).map(|(path, text)| parse(path, text)).transpose()?;
        Ok(Self { path, layout, text: text.unwrap_or_default() })
    }

    /// What was recorded.
    pub fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    /// Whether `layout` differs in nothing but the marks of a start from what was recorded.
    pub fn has_all_but_start(&self, layout: &Layout) -> bool {
        self.layout.as_ref().is_some_and(|recorded| *recorded == layout.with_start_of(recorded))
    }

    /// The file; `None` where nothing is kept.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Where the journal of a re-encryption of the disk with that serial number is kept; `None` where nothing is.
    pub fn key_journal(&self, serial: &str) -> Option<PathBuf> {
        let mut path = self.path.clone()?.into_os_string();
        path.push(format!(".reencrypt-{}", file_name_of(serial)));
        Some(path.into())
    }

    /// Where the maps of thin disks are kept; `None` where nothing is.
    pub fn pieces(&self) -> Option<PathBuf> {
        let mut path = self.path.clone()?.into_os_string();
        path.push(".pieces");
        Some(path.into())
    }

    /// Records `layout`, durably once this returns. Writes nothing if the file has it already.
    ///
    /// # Errors
    /// [`LayoutError::WouldLose`] if a range in the file is missing or elsewhere in `layout`, and what
    /// [`LayoutFile::open`] reports. The old file then stays as it is.
    pub fn save(&mut self, layout: Layout) -> Result<(), LayoutError> {
        if let Some(path) = &self.path {
            // Read again: an operator may have changed it since, and it must not be lost.
            let text = read(path)?;
            let changed = match &text {
                Some(text) if *text != self.text => Some(parse(path, text)?),
                _ => None,
            };
            let on_disk = changed.as_ref().or(self.layout.as_ref()).filter(|_| text.is_some());
            if let Some(who) = on_disk.and_then(|old| old.first_lost(&layout)) {
                return Err(LayoutError::WouldLose { path: path.clone(), who });
            }
            if on_disk == Some(&layout) {
                (self.layout, self.text) = (Some(layout), text.unwrap_or_default());
                return Ok(());
            }
        }
        self.record(layout)
    }

    fn record(&mut self, layout: Layout) -> Result<(), LayoutError> {
        // A file that the next start can't read would take every tenant down.
        layout.validate().map_err(|what| LayoutError::Wrong { what })?;
        if let Some(path) = &self.path {
            let text = render(&layout).map_err(|e| io_error(path, "write", io::Error::other(e)))?;
            crash::pass("before-write");
            replace_file(path, &text).map_err(|e| io_error(path, "write", e))?;
            crash::pass("recorded");
            self.text = text;
        }
        self.layout = Some(layout);
        Ok(())
    }

    /// Removes the file of a drive that has nobody's data, durably.
    ///
    /// # Errors
    /// The system's; it is there still.
    pub fn remove(&self) -> Result<(), LayoutError> {
        let Some(path) = &self.path else { return Ok(()) };
        // Without the layout nobody reads it.
        let _ = self.pieces().map(std::fs::remove_file);
        let removed = std::fs::remove_file(path).and_then(|()| File::open(directory_of(path))?.sync_all());
        removed.map_err(|e| io_error(path, "remove", e))
    }

    /// Records a layout from which a tenant was [withdrawn](Layout::withdraw), durably.
    ///
    /// # Errors
    /// The file can't be written; the range stays reserved.
    pub fn save_without_withdrawn(&mut self, layout: Layout) -> Result<(), LayoutError> {
        self.record(layout)
    }

    /// Takes back the range of a tenant that came to nothing: no client has ever seen it.
    ///
    /// # Errors
    /// As for [`LayoutFile::save_without_withdrawn`].
    pub fn withdraw(&mut self, name: &str) -> Result<(), LayoutError> {
        match self.layout.clone().and_then(|mut layout| layout.withdraw(name).then_some(layout)) {
            Some(layout) => self.record(layout),
            None => Ok(()),
        }
    }

    /// Records that a tenant's namespace has LBAs of `lba_bytes` (512 or 4096).
    ///
    /// # Errors
    /// [`LayoutError::NoSuchTenant`], and what [`LayoutFile::save`] reports.
    pub fn set_lba_bytes(&mut self, tenant: &str, lba_bytes: u32) -> Result<(), LayoutError> {
        match self.layout.clone().and_then(|mut layout| layout.format(tenant, lba_bytes, true).then_some(layout)) {
            Some(layout) => self.save(layout),
            None => Err(LayoutError::NoSuchTenant { tenant: tenant.to_owned(), lba_bytes }),
        }
    }
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> LayoutError {
    LayoutError::Io { path: path.to_owned(), action, source }
}

/// The file's text; `None`: it is not there.
fn read(path: &Path) -> Result<Option<String>, LayoutError> {
    // Opening a pipe without this flag would wait for a writer.
    let opened = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
    let file = match opened {
        Ok(file) if file.metadata().is_ok_and(|metadata| metadata.is_file()) => file,
        Ok(_) => return Err(LayoutError::Damaged { path: path.to_owned(), what: "it is not a regular file".into() }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error(path, "read", e)),
    };
    let damaged = |what: String| LayoutError::Damaged { path: path.to_owned(), what };
    let mut bytes = Vec::new();
    file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| io_error(path, "read", e))?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(damaged("it is far too large".into()));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| damaged("it is not a text in UTF-8".into()))
}

fn parse(path: &Path, text: &str) -> Result<Layout, LayoutError> {
    let damaged = |what: String| LayoutError::Damaged { path: path.to_owned(), what };
    if text.trim_end().lines().last() != Some(END) {
        // A file that lost its tail may still be good TOML, with fewer tenants.
        return Err(damaged(format!("its last line is not {END:?}: it was cut short")));
    }
    let layout: Layout = toml::from_str(text).map_err(|e| {
        let line =
            e.span().map_or(1, |span| text.get(..span.start).map_or(1, |before| before.matches('\n').count() + 1));
        damaged(format!("line {line}: {}", e.message()))
    })?;
    layout.validate().map_err(damaged)?;
    Ok(layout)
}

fn render(layout: &Layout) -> Result<String, toml::ser::Error> {
    Ok(format!("{HEAD}{}{END}\n", toml::to_string(layout)?))
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Has a file of `text` at `path`, whole and durably, in place of any that was there.
///
/// # Errors
/// The system's; what was there is there still.
pub fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let temp = write_temp(path, text)?;
    crash::pass("written");
    replace(&temp, path).inspect_err(|_| remove_temp(&temp))
}

/// Writes `text` beside `path`, durably.
fn write_temp(path: &Path, text: &str) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory_of(path))?;
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let temp = PathBuf::from(name);
    // A crash may have left one behind. Made anew rather than opened: what lies there could be a link.
    match std::fs::remove_file(&temp) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp)?;
    let mut write = || {
        let (first, rest) = text.as_bytes().split_at(text.len() / 2);
        file.write_all(first)?;
        crash::pass("half-written");
        file.write_all(rest)?;
        file.sync_all()
    };
    write().inspect_err(|_| remove_temp(&temp))?;
    Ok(temp)
}

/// Of what could not be written nothing stays behind; if it does, the next write removes it.
fn remove_temp(temp: &Path) {
    let _ = std::fs::remove_file(temp);
}

/// Puts `temp` in `path`'s place, durably.
fn replace(temp: &Path, path: &Path) -> io::Result<()> {
    std::fs::rename(temp, path)?;
    crash::pass("renamed");
    File::open(directory_of(path))?.sync_all()
}

/// A readable file name for a drive, with a hash so that two drives never share one.
fn file_name_of(identity: &str) -> String {
    let slug: String = identity
        .trim_matches('/')
        .chars()
        .take(80)
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') { c } else { '-' })
        .collect();
    // FNV-1a: written down here, so that no later build computes another name.
    let hash = identity
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{slug}-{:08x}", (hash >> 32) ^ (hash & 0xffff_ffff))
}

#[cfg(test)]
mod tests {
    use io_model::units::Size;

    use super::*;
    use crate::Wanted;

    fn planned() -> Layout {
        let tenants =
            ["a", "b"].map(|name| Wanted { name, size: Size(1 << 20), offset: None, lba_bytes: 512, is_thin: false });
        let device = DeviceIdentity { path: "/d".into(), size_bytes: 8 << 20, ..Default::default() };
        Layout::plan(&tenants, None, &device, None).expect("room for both").0
    }

    #[test]
    fn a_crash_before_the_rename_leaves_the_old_file() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("drive.img.layout.toml");
        let mut file = LayoutFile::open(Some(path.clone())).expect("no file yet");
        file.save(planned()).expect("saved");

        let mut changed = planned();
        assert!(changed.format("a", 4096, true));
        // The crash: the new file is written, even cut short, and never renamed.
        let temp = write_temp(&path, &render(&changed).expect("rendered")).expect("written");
        File::options().write(true).open(&temp).expect("temp").set_len(50).expect("cut");

        let mut file = LayoutFile::open(Some(path.clone())).expect("the old file");
        assert_eq!(file.layout(), Some(&planned()));
        file.save(changed.clone()).expect("the left-over is replaced");
        assert!(!temp.exists());
        assert_eq!(LayoutFile::open(Some(path)).expect("the new file").layout(), Some(&changed));
    }

    #[test]
    fn a_failed_write_leaves_nothing_behind() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("drive.img.layout.toml");
        // A file is not renamed over a directory.
        std::fs::create_dir(&path).expect("directory");
        replace_file(&path, "text").expect_err("there is a directory");
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1);
    }

    #[test]
    fn a_file_that_was_cut_anywhere_is_said_to_be_cut_short() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("drive.img.layout.toml");
        let text = render(&planned()).expect("rendered");
        for kept in [0, 1, text.len() / 3, text.len() / 2, text.len() - 3] {
            std::fs::write(&path, &text[..kept]).expect("cut");
            let refused = LayoutFile::open(Some(path.clone())).expect_err("cut").to_string();
            assert!(refused.contains("it was cut short"), "{kept}: {refused}");
        }
    }

    #[test]
    fn a_left_over_link_is_not_followed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (path, victim) = (dir.path().join("l.toml"), dir.path().join("victim"));
        std::fs::write(&victim, "precious").expect("victim");
        std::os::unix::fs::symlink(&victim, dir.path().join("l.toml.tmp")).expect("link");
        LayoutFile::open(Some(path)).expect("no file yet").save(planned()).expect("saved");
        assert_eq!(std::fs::read_to_string(victim).expect("victim"), "precious");
    }

    #[test]
    fn drives_have_file_names_of_their_own() {
        let names = ["/dev/a-b", "/dev/a/b", "/dev/a.b", "eui.0025385b71b2a3c4"].map(file_name_of);
        assert_eq!(names.iter().collect::<std::collections::HashSet<_>>().len(), names.len(), "{names:?}");
        assert_eq!(file_name_of("/dev/nvme0n1"), file_name_of("/dev/nvme0n1"));
        assert!(names.iter().all(|name| !name.contains('/')), "{names:?}");
    }
}
