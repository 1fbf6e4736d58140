//! The report's files.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::Report;

/// The directory that the report goes to.
#[derive(Debug)]
pub struct Output {
    dir: PathBuf,
}

/// It can't be written.
#[derive(Debug, thiserror::Error)]
#[error("can't write the report to {}: {reason}", path.display())]
pub struct OutputError {
    path: PathBuf,
    reason: io::Error,
}

impl Output {
    /// Makes the directory where it is missing, and tries whether it can be written: better now than when all
    /// the experiments are done.
    pub fn prepare(dir: &Path) -> Result<Self, OutputError> {
        let output = Self { dir: dir.to_owned() };
        fs::create_dir_all(dir).map_err(|reason| output.error(dir, reason))?;
        let probe = dir.join(".report.probe");
        File::create(&probe).and_then(|_| fs::remove_file(&probe)).map_err(|reason| output.error(dir, reason))?;
        Ok(output)
    }

    /// Writes `report.html`, `report.md`, `report.json` and `report.csv`; returns where they are, in that order. A
    /// reader sees each file as it was or whole, never half of it.
    pub fn write(&self, report: &Report) -> Result<[PathBuf; 4], OutputError> {
        Ok([
            self.replace("report.html", &report.html())?,
            self.replace("report.md", &report.markdown())?,
            self.replace("report.json", &report.json())?,
            self.replace("report.csv", &report.csv())?,
        ])
    }

    fn replace(&self, name: &str, text: &str) -> Result<PathBuf, OutputError> {
        let (path, new) = (self.dir.join(name), self.dir.join(format!(".{name}.new")));
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().map_err(|reason| {
            // Best effort: the error to tell is the first one.
            let _ = fs::remove_file(&new);
            self.error(&path, reason)
        })?;
        Ok(path)
    }

    fn error(&self, path: &Path, reason: io::Error) -> OutputError {
        OutputError { path: path.to_owned(), reason }
    }
}
