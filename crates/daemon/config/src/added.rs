//! Drives that were added while a daemon ran: a file in the state directory has their `[[drive]]` sections.

use std::io;
use std::path::{Path, PathBuf};

use toml::Table;

use crate::check::STATE_DIR;
use crate::config::read_text;
use crate::problem::ConfigErrors;

const HEAD: &str = "# Drives that `evenkeel drive add` added. Evenkeel writes this file.\n\n";

/// In the state directory.
pub(crate) const FILE_NAME: &str = "drives.toml";

/// The last line, by which a file that was cut short is known.
const END: &str = "# end of the drives";

/// The sections of all of them, and where they are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedDrives {
    path: PathBuf,
    sections: String,
}

impl AddedDrives {
    /// Those that belong to a configuration of this text.
    ///
    /// # Errors
    /// They are there and can't be read.
    pub fn find(text: &str) -> Result<Self, ConfigErrors> {
        // What is wrong with the text is told by who checks it.
        let table: Table = toml::from_str(text).unwrap_or_default();
        let named = table.get("state_dir").and_then(toml::Value::as_str);
        Self::in_directory(Path::new(named.unwrap_or(STATE_DIR)))
    }

    /// Those of a state directory.
    ///
    /// # Errors
    /// As [`AddedDrives::find`].
    pub fn in_directory(state_dir: &Path) -> Result<Self, ConfigErrors> {
        let path = state_dir.join(FILE_NAME);
        if !path.exists() {
            return Ok(Self { path, sections: String::new() });
        }
        let text = read_text(&path, "the file of the drives that were added")?;
        let Some(sections) = text.trim_end().strip_suffix(END) else {
            let what = format!("its last line is not {END:?}: it was cut short");
            let remedy = "restore it from a backup, or remove it and add the drives again";
            return Err(ConfigErrors::one(&path, what, remedy));
        };
        Ok(Self { sections: sections.strip_prefix(HEAD).unwrap_or(sections).to_owned(), path })
    }

    /// As a part of a configuration, to follow the rest of it.
    pub fn sections(&self) -> &str {
        &self.sections
    }

    /// With one more.
    pub fn with(&self, section: &str) -> Self {
        Self { path: self.path.clone(), sections: format!("{}\n{section}", self.sections) }
    }

    /// Without the drive of that name.
    pub fn without(&self, name: &str) -> Self {
        let mut table: Table = toml::from_str(&self.sections).unwrap_or_default();
        if let Some(drives) = table.get_mut("drive").and_then(toml::Value::as_array_mut) {
            drives.retain(|drive| drive.get("name").and_then(toml::Value::as_str) != Some(name));
        }
        let is_empty = table.get("drive").and_then(toml::Value::as_array).is_none_or(Vec::is_empty);
        let sections = if is_empty { String::new() } else { format!("\n{table}") };
        Self { path: self.path.clone(), sections }
    }

    /// Keeps them, durably.
    ///
    /// # Errors
    /// The system's; what was kept before is there still.
    pub fn save(&self) -> io::Result<()> {
        layout::replace_file(&self.path, &format!("{HEAD}{}\n{END}\n", self.sections.trim_end()))
    }

    /// Where a drive that is added keeps its layout.
    pub fn layout_file(&self, name: &str) -> PathBuf {
        self.path.with_file_name(format!("layout-of-{name}.toml"))
    }
}
