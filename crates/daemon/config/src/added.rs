//! Drives that were added while a daemon ran: a file in the state directory has their `[[drive]]` sections.

use std::io;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::config::ADDED_FILE;
use crate::keys::STATE_DIR;
use crate::problem::ConfigErrors;
use crate::text_file::read_text;

const HEAD: &str = "# Drives that `evenkeel drive add` added. Evenkeel writes this file.\n\n";

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
        let path = state_dir.join(ADDED_FILE);
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

    /// Their names.
    pub fn names(&self) -> Vec<String> {
        let table: Table = toml::from_str(&self.sections).unwrap_or_default();
        let drives = table.get("drive").and_then(Value::as_array).into_iter().flatten();
        drives.filter_map(|drive| Some(drive.get("name")?.as_str()?.to_owned())).collect()
    }

    /// Whether one of them has that name.
    pub fn has(&self, name: &str) -> bool {
        self.names().iter().any(|its| its == name)
    }

    /// With one more.
    pub fn with(&self, section: &str) -> Self {
        Self { path: self.path.clone(), sections: format!("{}\n{section}", self.sections) }
    }

    /// Without the drive of that name.
    pub fn without(&self, name: &str) -> Self {
        let sections = retain(&self.sections, |drive| drive.get("name").and_then(Value::as_str) != Some(name));
        Self { path: self.path.clone(), sections }
    }

    /// Without those that a file declares at the same place: the file is the truth.
    pub fn not_declared(&self, text: &str) -> Self {
        Self { path: self.path.clone(), sections: not_declared(&self.sections, text) }
    }

    /// Keeps them, durably.
    ///
    /// # Errors
    /// The system's; what was kept before is there still.
    pub fn save(&self) -> io::Result<()> {
        layout::replace_file(&self.path, &format!("{HEAD}{}\n{END}\n", self.sections.trim_end()))
    }

    /// The state directory.
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Where a drive that is added keeps its layout.
    pub fn layout_file(&self, name: &str) -> PathBuf {
        self.path.with_file_name(format!("layout-of-{name}.toml"))
    }
}

/// The sections of drives that a file does not declare at the same place.
pub(crate) fn not_declared(sections: &str, text: &str) -> String {
    if sections.is_empty() {
        return String::new();
    }
    let file: Table = toml::from_str(text).unwrap_or_default();
    let declared: Vec<&Table> =
        file.get("drive").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table).collect();
    let is_same = |one: &Table, other: &Table| {
        ["name", "backend", "path", "address", "nsid", "layout_file"].iter().all(|key| one.get(*key) == other.get(*key))
    };
    retain(sections, |drive| !declared.iter().any(|other| is_same(drive, other)))
}

/// Some of the drives; the text stays as it is if that is all of them.
fn retain(sections: &str, stays: impl Fn(&Table) -> bool) -> String {
    let mut table: Table = toml::from_str(sections).unwrap_or_default();
    let Some(drives) = table.get_mut("drive").and_then(Value::as_array_mut) else { return sections.to_owned() };
    let had = drives.len();
    drives.retain(|drive| drive.as_table().is_none_or(&stays));
    match drives.len() {
        0 => String::new(),
        has if has == had => sections.to_owned(),
        // It follows a text that need not end a line.
        _ => format!("\n{table}"),
    }
}
