//! A new disk with an image's data.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use api::{Deletion, Disk, DiskPatch, DiskSpec, DiskState, Problem, Rest};
use images::{ImageFormat, Source};
use io_model::units::Size;

use super::stop::Stop;
use super::{attach, copy, problem};
use crate::disk::options::in_options;
use crate::progress::show_zeroing;

/// How long the daemon may take to flush what was written.
const DETACH_LIMIT: Duration = Duration::from_secs(60);

/// How often to look whether it has.
const PERIOD: Duration = Duration::from_millis(20);

/// The label of a disk whose import has not ended.
const UNFINISHED: &str = "import_unfinished";

/// The image to fill a new disk with.
#[derive(Debug, Clone, clap::Args)]
pub struct ImageArgs {
    /// Fill the disk with this image: raw, qcow2 or VMDK. Without --size it is as large as the image
    #[arg(long, value_name = "IMAGE", conflicts_with = "attach")]
    from: Option<PathBuf>,

    /// The image's format [default: found out from its first bytes]
    #[arg(long, value_enum, requires = "from")]
    image_format: Option<ImageFormat>,

    /// A file that the image builds on, or that has a part of its data. Others are never opened
    #[arg(long, value_name = "FILE", requires = "from")]
    backing: Vec<PathBuf>,
}

/// An opened image, and what it is called.
pub struct Image {
    source: Source,
    path: PathBuf,
}

impl ImageArgs {
    /// Opens the image, if there is to be one.
    ///
    /// # Errors
    /// It is no image, in use, or builds on others that were not named.
    pub fn open(self) -> Result<Option<Image>> {
        let Some(path) = self.from else { return Ok(None) };
        let source = Source::open(&path, self.image_format, &self.backing).map_err(problem)?;
        Ok(Some(Image { source, path }))
    }
}

impl Image {
    /// Creates a disk, and fills it. A disk that was left by an import that was killed is filled from the start.
    ///
    /// # Errors
    /// The daemon refused the disk, or the image can't be read, or a signal came: the disk is removed again.
    pub fn create(&self, daemon: &Rest, mut spec: DiskSpec) -> Result<Disk> {
        spec.size = self.disk_size(&spec.size)?;
        spec.labels.insert(UNFINISHED.to_owned(), "true".to_owned());
        let stop = Stop::watch()?;
        let (disk, is_new) = in_options(daemon.create_or_find(&spec))?;
        let name = disk.name.clone();
        let mut was_attached = false;
        let filled = self.fill(daemon, disk, is_new, &stop, &mut was_attached);
        if filled.is_err()
            && let Err(why) = remove(daemon, &name, was_attached)
        {
            eprintln!("warning: {name} stays as it is: {why:#}");
        }
        filled
    }

    /// The size of a disk that holds it, as `--size` has it.
    fn disk_size(&self, asked: &str) -> Result<String> {
        let size_bytes = self.source.size_bytes();
        let needed = size_bytes.div_ceil(1 << 20);
        if asked.is_empty() {
            return Ok(format!("{needed}MiB"));
        }
        let has: Size = asked.parse().map_err(anyhow::Error::msg)?;
        if has.0 < size_bytes {
            let title = format!("the image {} has {}, and the disk {has}", self.path.display(), Size(size_bytes));
            return Err(Problem::new(400, "image-too-large", title, format!("ask for --size {needed}MiB")).into());
        }
        Ok(asked.to_owned())
    }

    fn fill(&self, daemon: &Rest, mut disk: Disk, is_new: bool, stop: &Stop, was_attached: &mut bool) -> Result<Disk> {
        while disk.state == DiskState::Zeroing {
            stop.check()?;
            disk = show_zeroing(daemon, disk)?;
        }
        let mut attached = attach(&disk, stop)?;
        *was_attached = true;
        // An encrypted disk may have noise where nothing was written, and a former try may have written anything.
        if disk.encryption.is_some() || !is_new {
            attached.zero(disk.size_bytes)?;
        }
        copy::import(&self.source, &mut attached, &disk.name, stop)?;
        attached.close()?;
        self.source.refuse_change().map_err(problem)?;
        wait_until_detached(daemon, &disk.name)?;
        let whole = DiskSpec { labels: [(UNFINISHED.to_owned(), "none".to_owned())].into(), ..DiskSpec::default() };
        in_options(daemon.change(&disk.name, &DiskPatch::of(&whole).with_none_as_null()))
    }
}

/// Deletes a disk that holds a part of an image only. One that waits for its key stays for the next try, and one that
/// another client or another import has by now is left alone.
fn remove(daemon: &Rest, name: &str, was_attached: bool) -> Result<()> {
    if was_attached {
        wait_until_detached(daemon, name)?;
    }
    let disk = daemon.disk(name)?;
    ensure!(was_attached || disk.state != DiskState::Locked, "it waits for its key");
    ensure!(!disk.attached, "another client is attached");
    ensure!(disk.labels.contains_key(UNFINISHED), "another import has finished");
    daemon.delete(name, Deletion::default()).map(drop)
}

/// The daemon flushes what a client wrote once the client has left.
fn wait_until_detached(daemon: &Rest, name: &str) -> Result<()> {
    let deadline = Instant::now() + DETACH_LIMIT;
    while daemon.disk(name).with_context(|| format!("can't look after {name:?}"))?.attached {
        if Instant::now() > deadline {
            bail!("disk {name:?} is still attached after {} s", DETACH_LIMIT.as_secs());
        }
        std::thread::sleep(PERIOD);
    }
    Ok(())
}
