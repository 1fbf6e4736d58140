//! The pages of `docs/recipes`, as what a test executes: their fenced blocks, in their order.
//!
//! | a fence's info string | what the block is |
//! | --- | --- |
//! | `sh` | commands that are typed on the host, as root |
//! | `sh guest` | commands that are typed in the guest |
//! | `text` | what the commands before it print; nobody runs it |
//! | any other language, and a name | the content of the file of that name |

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

/// A fenced block of a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Block {
    /// Typed on the host, as root.
    Host(String),
    /// Typed in the guest.
    Guest(String),
    /// The content of a file, and its name.
    File { name: String, text: String },
}

/// The blocks of the page `docs/recipes/NAME.md`.
///
/// # Errors
/// When there is no such page, or it has a fence that says none of the above or has no end.
pub fn read(name: &str) -> Result<Vec<Block>> {
    let path = folder().join(format!("{name}.md"));
    let page = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    blocks(&page).with_context(|| path.display().to_string())
}

/// The names of all pages, without the index.
///
/// # Errors
/// When the folder can't be read.
#[cfg(test)]
pub fn pages() -> Result<Vec<String>> {
    let files = std::fs::read_dir(folder())?.map(|file| Ok(file?.file_name().to_string_lossy().into_owned()));
    let files: Vec<String> = files.collect::<Result<_>>()?;
    let pages = files.iter().filter_map(|file| file.strip_suffix(".md")).filter(|page| *page != "README");
    Ok(pages.map(str::to_owned).collect())
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/recipes"))
}

fn blocks(page: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((line, fence)) = lines.next() {
        let Some(info) = fence.strip_prefix("```") else { continue };
        let mut text = String::new();
        loop {
            let (_, next) = lines.next().with_context(|| format!("the fence of line {} has no end", line + 1))?;
            if next == "```" {
                break;
            }
            text.push_str(next);
            text.push('\n');
        }
        match info.split_whitespace().collect::<Vec<_>>()[..] {
            ["sh"] => blocks.push(Block::Host(text)),
            ["sh", "guest"] => blocks.push(Block::Guest(text)),
            ["text"] => {}
            ["sh", ..] | [_] | [] => bail!("line {} has the fence `{info}`, which says not what to do", line + 1),
            [_, name, ..] => blocks.push(Block::File { name: name.to_owned(), text }),
        }
    }
    ensure!(!blocks.is_empty(), "it has no block that can be executed");
    Ok(blocks)
}
