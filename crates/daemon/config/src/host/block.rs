//! A look at a block device, and at what else the kernel has of it.

use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::image_id::ImageMarks;
use super::in_use::InUse;
use super::{Found, block_size, id_at, kind_of, open_unclaimed, sys_of};
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
        return Err("it is a part of a namespace, and they are for all of it".into());
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
        let marks = ImageMarks { id: id_at(&sys), start: None };
        let content = self.unknown_content(&drive, &canonical, marks.id.clone());
        let (len_bytes, content) = match content.and_then(|it| Ok(((&drive).seek(SeekFrom::End(0))?, it))) {
            Ok(found) => found,
            Err(e) => {
                sink.maybe_at(mark, format!("can't read {}: {e}", path.display()), "check the drive (`dmesg`)");
                return None;
            }
        };
        let block_bytes = block_size::of_device(&sys);
        Some(Found { path: canonical, marks, len_bytes, to_create: false, content, block_bytes })
    }
}

#[cfg(test)]
mod tests {
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
        assert!(told(&part).contains("a part of a namespace"));
    }

    #[test]
    fn whoever_names_the_character_device_is_told_the_block_device() {
        assert_eq!(block_device_of(Path::new("/dev/ng0n1")).as_deref(), Some("/dev/nvme0n1"));
        for other in ["/dev/null", "/dev/ngx", "/srv/ng0n1"] {
            assert_eq!(block_device_of(Path::new(other)), None, "{other}");
        }
    }
}
