//! A look at a block device, and at what else the kernel has of it.

use std::fs::{File, read_dir};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use layout::{Layout, LayoutFile, is_mark};
use rustix::fs::OFlags;

use super::drive_mark::{self, MARK_BYTES, PREFIX};
use super::image_id::{ImageMarks, new_mark};
use super::in_use::InUse;
use super::{Content, Found, block_size, id_at, kind_of, open_unclaimed, sys_of};
use crate::config::Config;
use crate::problem::Sink;

/// What to do where a drive takes no NVMe commands.
const NO_COMMANDS: &str = "remove nvme_commands: it gets block requests then";

/// Through which character device a block device's namespace takes NVMe commands.
///
/// # Errors
/// It is a device that has none.
pub fn nvme_character_device(path: &Path) -> io::Result<PathBuf> {
    let found = character_device(&sys_of(&path.metadata()?));
    found.map_err(|why| io::Error::other(format!("{}; {NO_COMMANDS}", no_commands(path, &why))))
}

fn no_commands(path: &Path, why: &str) -> String {
    format!("{} takes no NVMe commands: {why}", path.display())
}

/// By what sysfs has of the block device, and by its name there, whatever the path was.
fn character_device(sys: &Path) -> Result<PathBuf, String> {
    if sys.join("partition").exists() {
        return Err("it is a partition, and NVMe commands are for a whole namespace".into());
    }
    let name = sys.canonicalize().ok().and_then(|device| Some(device.file_name()?.to_str()?.to_owned()));
    let rest = name.as_deref().and_then(|name| name.strip_prefix("nvme"));
    let rest = rest.ok_or_else(|| "the kernel does not drive it as an NVMe drive".to_owned())?;
    let device = PathBuf::from(format!("/dev/ng{rest}"));
    let is_there = device.metadata().is_ok_and(|found| found.file_type().is_char_device());
    is_there
        .then(|| device.clone())
        .ok_or_else(|| format!("{} is missing (Linux 5.13 or later has it)", device.display()))
}

/// The block device beside a namespace's character device, by that one's name.
fn block_device_of(path: &Path) -> Option<String> {
    let rest = path.to_str()?.strip_prefix("/dev/ng")?;
    rest.starts_with(|first: char| first.is_ascii_digit()).then(|| format!("/dev/nvme{rest}"))
}

impl Config {
    pub(super) fn check_block(
        &self,
        sink: &mut Sink<'_>,
        path: &Path,
        nvme_commands: bool,
        uses: &[InUse],
    ) -> Option<Found> {
        let mark = self.marks.path.as_ref();
        let metadata = match path.metadata() {
            Ok(metadata) => metadata,
            Err(e) => {
                sink.maybe_at(mark, format!("can't look at {}: {e}", path.display()), "`lsblk -p` lists the drives");
                return None;
            }
        };
        if !metadata.file_type().is_block_device() {
            let remedy = match block_device_of(path) {
                Some(block) => format!("write path = \"{block}\" and nvme_commands = true"),
                None if metadata.is_file() => "write backend = \"file\"".to_owned(),
                None => "`lsblk -p` lists the drives".to_owned(),
            };
            sink.maybe_at(mark, format!("{} is {}", path.display(), kind_of(&metadata)), remedy);
            return None;
        }
        let canonical = self.accessible(sink, path)?;
        let sys = sys_of(&metadata);
        if std::fs::read_to_string(sys.join("ro")).is_ok_and(|ro| ro.trim() != "0") {
            let remedy = format!(
                "allow writing (`blockdev --setrw {0}`; a loop device: `losetup` without -r), or give another drive",
                canonical.display()
            );
            sink.maybe_at(mark, format!("{} can only be read", path.display()), remedy);
            return None;
        }
        if nvme_commands {
            match character_device(&sys) {
                Ok(character_device) => drop(self.accessible(sink, &character_device)?),
                Err(why) => {
                    sink.maybe_at(mark, no_commands(path, &why), NO_COMMANDS);
                    return None;
                }
            }
        }
        let locked = uses.contains(&InUse::Locked);
        if uses.len() > usize::from(locked) {
            return None;
        }
        // O_EXCL without O_CREAT: the kernel refuses while the drive is claimed (open(2)).
        let flags = if locked { OFlags::empty() } else { OFlags::EXCL };
        let drive = match open_unclaimed(path, flags) {
            Ok(drive) => drive,
            Err(e) => {
                let what = format!("can't have {} for ourselves: {e}", path.display());
                sink.maybe_at(mark, what, "`lsblk` shows what uses it (LVM, RAID, a mount elsewhere)");
                return None;
            }
        };
        let identified = (&drive).seek(SeekFrom::End(0)).and_then(|len_bytes| {
            let identified = self.identify(&drive, &canonical, len_bytes, id_at(&sys))?;
            Ok((len_bytes, identified))
        });
        let (len_bytes, Identified { marks, content }) = match identified {
            Ok(found) => found,
            Err(e) => {
                sink.maybe_at(mark, format!("can't read {}: {e}", path.display()), "check the drive (`dmesg`)");
                return None;
            }
        };
        self.refuse_stranger(sink, &canonical, &marks)?;
        let block_bytes = block_size::of_device(&sys);
        Some(Found { path: canonical, marks, len_bytes, to_create: false, content, block_bytes })
    }
}

/// A block device's identity and data.
pub(super) struct Identified {
    pub marks: ImageMarks,
    pub content: Option<Content>,
}

impl Config {
    /// Says which drive this is, and what it holds unless that does not matter.
    pub(super) fn identify(
        &self,
        drive: &File,
        path: &Path,
        len_bytes: u64,
        known_to_kernel: Option<String>,
    ) -> io::Result<Identified> {
        let id = self.find_mark(drive, path, len_bytes, known_to_kernel.as_ref()).or(known_to_kernel);
        let content = self.unknown_content(drive, path, id.clone())?;
        let marks = self.marks_of(id, path, len_bytes, content.as_ref());
        Ok(Identified { marks, content })
    }

    /// The identity that a drive has, else a new mark, which [`Prepared::commit`](crate::Prepared::commit) writes. A
    /// drive with data, or with a layout that knows of no mark, has no room for one.
    pub(super) fn marks_of(
        &self,
        id: Option<String>,
        path: &Path,
        len_bytes: u64,
        content: Option<&Content>,
    ) -> ImageMarks {
        let is_markable = || content.is_none() && self.has_room(len_bytes) && !self.has_layout(path, None);
        let new = || is_markable().then(new_mark).flatten().map(|mark| PREFIX.to_owned() + &mark);
        let is_new = id.is_none();
        let id = id.or_else(new);
        ImageMarks { is_new: is_new && id.is_some(), id, start: None }
    }

    /// Whether the disks leave room for a mark.
    fn has_room(&self, len_bytes: u64) -> bool {
        let disks_bytes = self.device.size.map_or(MARK_BYTES, |size| size.0);
        len_bytes >= disks_bytes.saturating_add(MARK_BYTES)
    }

    /// The mark behind the disks, as its layout says where that is. What looks like a mark of which there is no layout
    /// may be a tenant's data; it counts where no layout of the drive is found by another identity.
    pub(super) fn find_mark(
        &self,
        drive: &File,
        path: &Path,
        len_bytes: u64,
        known_to_kernel: Option<&String>,
    ) -> Option<String> {
        let mut recorded = self.layouts().filter_map(|layout| {
            let device = layout.device();
            let id = device.id.as_deref().filter(|_| device.is_mark())?;
            (drive_mark::read(drive, device.size_bytes)? == id).then(|| id.to_owned())
        });
        recorded.next().or_else(|| {
            let last = (len_bytes - len_bytes % MARK_BYTES).checked_sub(MARK_BYTES);
            let behind = self.device.size.map(|size| size.0);
            let has_other = self.has_layout(path, known_to_kernel.cloned());
            [last, behind].into_iter().flatten().filter(|_| !has_other).find_map(|at| drive_mark::read(drive, at))
        })
    }

    /// The layouts of this host's drives.
    fn layouts(&self) -> impl Iterator<Item = Layout> + use<> {
        let named = self.device.layout_file.clone();
        let entries = read_dir(&self.state_dir).into_iter().flatten().flatten();
        let is_layout = |name: &str| name.starts_with("layout-") && name.ends_with(".toml");
        let others = entries.filter(move |entry| entry.file_name().to_str().is_some_and(is_layout));
        let paths = named.into_iter().chain(others.map(|entry| entry.path()));
        paths.filter_map(|path| LayoutFile::open(Some(path)).ok()?.layout().cloned())
    }

    /// Refuses a drive that has no layout under a path whose layout is of a marked drive: it may have taken that one's
    /// name. `None`: it was refused.
    pub(super) fn refuse_stranger(&self, sink: &mut Sink<'_>, path: &Path, marks: &ImageMarks) -> Option<()> {
        let is_its_own = |id: &String| !is_mark(Some(id)) || self.is_known(path, Some(id.clone()));
        if marks.id.as_ref().is_some_and(is_its_own) {
            return Some(());
        }
        let is_former = |layout: &Layout| {
            let device = layout.device();
            Path::new(&device.path) == path && device.is_mark() && device.id != marks.id
        };
        let Some(former) = self.layouts().find(is_former) else { return Some(()) };
        let what = format!(
            "{} is not the drive that was served under this path before: that one has {} on it",
            path.display(),
            former.device().id.as_deref().unwrap_or_default(),
        );
        let remedy = format!(
            "give the path of that drive (`lsblk -p`); to serve this one as a new drive, add --discard-content {}",
            self.device.name
        );
        sink.maybe_at(self.marks.path.as_ref(), what, remedy);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use layout::{DeviceIdentity, Wanted};

    use super::*;

    #[test]
    fn what_takes_no_nvme_commands_is_told_why() {
        let sys = tempfile::tempdir().expect("a folder");
        let device = |name: &str| {
            let device = sys.path().join(name);
            std::fs::create_dir(&device).expect("a folder");
            device
        };
        let told = |device: &Path| character_device(device).expect_err("there is no such drive");
        assert!(told(&device("vda")).contains("not drive it as an NVMe drive"));
        let missing = told(&device("nvme4097n1"));
        assert!(missing.contains("/dev/ng4097n1 is missing"), "{missing}");
        let part = device("nvme4097n1p2");
        std::fs::write(part.join("partition"), "2").expect("a file");
        assert!(told(&part).contains("it is a partition"));
    }

    #[test]
    fn whoever_names_the_character_device_is_told_the_block_device() {
        assert_eq!(block_device_of(Path::new("/dev/ng0n1")).as_deref(), Some("/dev/nvme0n1"));
        for other in ["/dev/null", "/dev/ngx", "/srv/ng0n1"] {
            assert_eq!(block_device_of(Path::new(other)), None, "{other}");
        }
    }

    const DRIVE_BYTES: u64 = 1 << 20;

    fn drive(dir: &Path, name: &str) -> (std::path::PathBuf, File) {
        let path = dir.join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        file.set_len(DRIVE_BYTES).expect("its size");
        (path, file)
    }

    fn config(dir: &Path, path: &Path) -> Config {
        let text = format!(
            "state_dir = {dir:?}\n[device]\nbackend = \"block\"\npath = {path:?}\n[policy]\nname = \"passthrough\"\n"
        );
        Config::parse(Path::new("ek.toml"), &text).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Records a layout, as a start does.
    fn serve(config: &Config, path: &Path, drive: &File, id: String, size_bytes: u64) {
        drive_mark::keep(drive, size_bytes, &id).expect("a mark");
        let path = path.display().to_string();
        let device = DeviceIdentity { path, id: Some(id), size_bytes, ..Default::default() };
        let wanted = Wanted {
            name: "db",
            size: io_model::units::Size(size_bytes),
            offset: None,
            lba_bytes: 512,
            is_thin: false,
        };
        let (layout, _) = Layout::plan(&[wanted], None, &device, None).unwrap_or_else(|_| panic!("a layout"));
        let mut file = LayoutFile::open(config.layout_path(&device)).expect("no file");
        file.save(layout).expect("a file");
    }

    /// Only here: a drive that another one's layout is applied to, or that its own is not found for.
    #[test]
    fn a_drive_is_known_by_its_mark_wherever_it_is_and_however_it_grew() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, file) = drive(dir.path(), "loop0");
        let ours = config(dir.path(), &path);
        let new = ours.identify(&file, &path, DRIVE_BYTES, None).expect("readable").marks;
        assert!(is_mark(new.id.as_deref()) && new.is_new);
        let id = new.id.clone().expect("a mark");
        serve(&ours, &path, &file, id.clone(), DRIVE_BYTES - MARK_BYTES);

        // Under another name, and grown: of that, only the layout knows where the mark is.
        for len_bytes in [DRIVE_BYTES, 2 * DRIVE_BYTES] {
            file.set_len(len_bytes).expect("its size");
            let moved = config(dir.path(), Path::new("/dev/loop7"));
            let known = moved.identify(&file, Path::new("/dev/loop7"), len_bytes, None).expect("readable").marks;
            assert_eq!(known.id.as_ref(), Some(&id), "{len_bytes}");
        }

        // Another one that took its name.
        let (other, stranger) = drive(dir.path(), "other");
        for is_refused in [true, false] {
            let mut ours = config(dir.path(), &path);
            ours.device.discard_content = !is_refused;
            let marks = ours.identify(&stranger, &path, DRIVE_BYTES, None).expect("readable").marks;
            assert_ne!(marks.id.as_ref(), Some(&id));
            let mut sink = Sink::new(&ours.text);
            assert_eq!(ours.refuse_stranger(&mut sink, &path, &marks).is_none(), is_refused, "{other:?}");
        }
    }

    /// Only here: a tenant whose disk ends at the drive's end takes the drive's layout away by writing a mark there.
    #[test]
    fn a_mark_in_a_tenants_disk_is_data() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, file) = drive(dir.path(), "nvme0n1");
        let ours = config(dir.path(), &path);
        let wwid = || Some("eui.0025".to_owned());
        let device = DeviceIdentity {
            path: path.display().to_string(),
            id: wwid(),
            size_bytes: DRIVE_BYTES,
            ..Default::default()
        };
        let wanted = Wanted {
            name: "db",
            size: io_model::units::Size(DRIVE_BYTES),
            offset: None,
            lba_bytes: 512,
            is_thin: false,
        };
        let (layout, _) = Layout::plan(&[wanted], None, &device, None).unwrap_or_else(|_| panic!("a layout"));
        LayoutFile::open(ours.layout_path(&device)).expect("no file").save(layout).expect("a file");
        drive_mark::keep(&file, DRIVE_BYTES - MARK_BYTES, "mark-00112233445566778899aabbccddeeff").expect("a mark");
        let marks = ours.identify(&file, &path, DRIVE_BYTES, wwid()).expect("readable").marks;
        assert_eq!(marks.id, wwid());
    }

    #[test]
    fn a_drive_with_data_or_without_room_gets_no_mark() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, file) = drive(dir.path(), "loop0");
        let mut ours = config(dir.path(), &path);
        ours.device.size = Some(io_model::units::Size(DRIVE_BYTES));
        assert_eq!(ours.identify(&file, &path, DRIVE_BYTES, None).expect("readable").marks.id, None);
        ours.device.size = None;
        file.write_all_at(b"data", 123).expect("data");
        let found = ours.identify(&file, &path, DRIVE_BYTES, None).expect("readable");
        assert_eq!((found.marks.id, found.content.map(|content| content.at_bytes)), (None, Some(123)));
    }
}
