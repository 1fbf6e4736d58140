//! What was measured up to now, in a file beside the output.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use calibrate::{Effort, Seen, Stage};
use serde::{Deserialize, Serialize};

use super::Refused;
use super::target::Target;

/// Changes with what [`Seen`] holds.
const VERSION: u32 = 1;

/// A state is some kilobytes.
const MAX_BYTES: u64 = 16 << 20;

/// What a state belongs to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    version: u32,
    drive: String,
    size_bytes: u64,
    block_bytes: u64,
    overwrite: Option<(u64, u64)>,
    effort: Effort,
}

impl Identity {
    /// Of a calibration that is about to begin.
    pub fn new(target: &Target, overwrite: Option<(u64, u64)>, effort: Effort) -> Self {
        let Target { size_bytes, block_bytes, .. } = *target;
        Self { version: VERSION, drive: target.identity.clone(), size_bytes, block_bytes, overwrite, effort }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    identity: Identity,
    elapsed_ns: u64,
    seen: Seen,
}

/// The state of one calibration.
pub struct State {
    path: PathBuf,
    identity: Identity,
    elapsed_ns: u64,
    /// What was measured.
    pub seen: Seen,
}

impl State {
    /// The state beside `output`, empty if there is none.
    ///
    /// # Errors
    /// It is damaged, or another calibration's.
    pub fn open(output: &Path, identity: Identity) -> Result<Self> {
        let mut name = output.file_name().map(OsString::from).unwrap_or_default();
        name.push(".state");
        let path = output.with_file_name(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self { path, identity, elapsed_ns: 0, seen: Seen::default() });
            }
            Err(error) => return Err(error).with_context(|| format!("can't read {}", path.display())),
        };
        let mut text = String::new();
        let read = file.take(MAX_BYTES).read_to_string(&mut text).map_err(|error| error.to_string());
        let kept = read.and_then(|_| serde_json::from_str::<Kept>(&text).map_err(|error| error.to_string()));
        let kept = kept.map_err(|error| {
            let what = format!("{} is not the state of a calibration: {error}", path.display());
            Refused::new(what, format!("to begin anew, remove it: rm {}", path.display()))
        })?;
        if kept.identity != identity {
            let what = format!(
                "{} belongs to a calibration of {}{}",
                path.display(),
                kept.identity.drive,
                if kept.identity.drive == identity.drive { " with other settings" } else { "" }
            );
            let remedy = "give that calibration's options, choose another --output, or remove it to begin anew";
            return Err(Refused::new(what, remedy).into());
        }
        Ok(Self { path, identity, elapsed_ns: kept.elapsed_ns, seen: kept.seen })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How long it has measured, all runs together.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.elapsed_ns)
    }

    /// Stages that are over.
    pub fn stages_done(&self) -> usize {
        Stage::READING.iter().chain(&Stage::WRITING).filter(|stage| stage.is_done(&self.seen)).count()
    }

    /// Takes over what was measured.
    pub fn keep(&mut self, seen: &Seen, elapsed: Duration) {
        self.seen = seen.clone();
        self.elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Writes it.
    ///
    /// # Errors
    /// There is no room, or no right to.
    pub fn save(&self) -> Result<()> {
        let kept = Kept { identity: self.identity.clone(), elapsed_ns: self.elapsed_ns, seen: self.seen.clone() };
        replace(&self.path, &serde_json::to_string(&kept)?)
    }

    /// It is not needed any more.
    pub fn remove(&self) {
        // A file that can't be removed is reported at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().map(OsString::from).unwrap_or_default();
    name.push(".new");
    path.with_file_name(name)
}

/// Writes a file beside `path`, durably. Nothing stays of one that could not be written.
fn write_beside(path: &Path, text: &str) -> Result<PathBuf> {
    let new = beside(path);
    let written =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&new).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
    if let Err(error) = written {
        let _ = fs::remove_file(&new);
        return Err(error).with_context(|| format!("can't write {}", path.display()));
    }
    Ok(new)
}

/// All of the new text or all of the old one.
fn replace(path: &Path, text: &str) -> Result<()> {
    let new = write_beside(path, text)?;
    fs::rename(&new, path).with_context(|| format!("can't write {}", path.display()))
}

/// Writes a file that must not be there yet.
///
/// # Errors
/// It is, or there is no room, or no right to.
pub fn write_new(path: &Path, text: &str) -> Result<()> {
    let new = write_beside(path, text)?;
    // A link, unlike a renaming, never takes another file's place.
    let linked = fs::hard_link(&new, path).with_context(|| format!("can't write {}", path.display()));
    let _ = fs::remove_file(&new);
    linked
}
