//! What commands print: JSON for programs, text for people.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

/// Prints `content` as one line of JSON, or else the text.
pub fn print(json: bool, content: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
    say(&if json { api::document(content)? + "\n" } else { text() })
}

/// Prints a text.
pub fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
