//! Files that people write.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use io_model::units::Size;

use crate::problem::ConfigErrors;

/// A file is a few lines for each tenant; much more is some other file.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// The text of a file, if it is one that a person may have written.
///
/// # Errors
/// It can't be read, is too large, or is no UTF-8. `what` names it in messages: "a configuration file".
pub fn read_text(path: &Path, what: &str) -> Result<String, ConfigErrors> {
    read_opened(File::open(path), path, what)
}

/// As [`read_text`], of a file that is open. `path` is its name for messages.
///
/// # Errors
/// As [`read_text`].
pub fn read_opened(file: std::io::Result<File>, path: &Path, what: &str) -> Result<String, ConfigErrors> {
    let mut bytes = Vec::new();
    if let Err(e) = file.and_then(|file| file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes)) {
        let remedy = format!("give the path of {what} that this user may read");
        return Err(ConfigErrors::one(path, format!("can't be read: {e}"), remedy));
    }
    if bytes.len() as u64 > FILE_MAX_BYTES {
        let what = format!("give the path of {what}");
        return Err(ConfigErrors::one(path, format!("is larger than {}", Size(FILE_MAX_BYTES)), what));
    }
    String::from_utf8(bytes).map_err(|_| ConfigErrors::one(path, "is not a text in UTF-8", "save it as UTF-8"))
}
