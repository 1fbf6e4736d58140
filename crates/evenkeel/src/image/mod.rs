//! Copies between disks and image files.
//!
//! | module | what |
//! | --- | --- |
//! | `import` | a new disk with an image's data |
//! | `attached` | a disk of the daemon, attached as its client |
//! | `copy` | all that is not zeros, from one to the other |
//! | `stop` | signals that cancel |
//!
//! Images are read here, by the operator's process, and never by the daemon: a hostile image finds no drive, no key and
//! no other tenant. The data goes to the disk as a guest's would, under the disk's own terms.

mod attached;
mod copy;
mod import;
mod stop;

use std::path::Path;

use anyhow::{Context, Result};
use api::{Disk, DiskState, Problem};
use images::{ImageError, ImageFormat, Sink};

use self::attached::Attached;
pub use self::import::ImageArgs;
use self::stop::Stop;

/// Writes a disk to a new file.
///
/// # Errors
/// The disk is attached elsewhere or gone; the file is there already, or can't be written; a signal came.
pub fn export(disk: &Disk, format: ImageFormat, to: &Path) -> Result<()> {
    let stop = Stop::watch()?;
    let mut attached = attach(disk, &stop)?;
    let sink = Sink::create(to, format, disk.size_bytes).map_err(problem)?;
    copy::export(&mut attached, disk.size_bytes, &sink, &disk.name, &stop)?;
    attached.close()?;
    sink.finish().map_err(problem)
}

fn attach(disk: &Disk, stop: &Stop) -> Result<Attached> {
    let name = &disk.name;
    if disk.state != DiskState::Served {
        let title = format!("disk {name:?} is {}, and can't be attached", disk.state.name());
        let remedy = match disk.state {
            DiskState::Locked => "unlock it by `evenkeel disk unlock`, and run the command again",
            _ => "wait until `evenkeel disk show` says that it is served",
        };
        return Err(Problem::new(409, "not-served", title, remedy).into());
    }
    let Some(socket) = &disk.socket else {
        let remedy = "attach it to a tenant, and copy the data in that guest";
        let title = format!("{name:?} is a namespace, and has no socket of its own");
        return Err(Problem::new(400, "no-socket", title, remedy).into());
    };
    if disk.attached {
        let title = format!("{name:?} is attached to a client, and what it holds may change meanwhile");
        return Err(Problem::new(409, "attached", title, "shut its guest down, or unplug the disk").into());
    }
    Attached::open(Path::new(socket), stop).with_context(|| format!("can't attach disk {name:?}"))
}

fn problem(ImageError { title, remedy }: ImageError) -> anyhow::Error {
    Problem::new(400, "image", title, remedy).into()
}
