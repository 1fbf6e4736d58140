//! Plain English: phrases that comments, documents and help texts of clean rooms must not have.
//!
//! Such a phrase stands where a sentence has lost its noun. A room is clean once its comments were reworded, and stays
//! clean. Hits elsewhere are counted, and the count may only fall.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Folders and files without a hit, as prefixes of paths. The list only grows.
const CLEAN: [&str; 9] = [
    "CONTRIBUTING.md",
    "crates/backends/",
    "crates/core/",
    "crates/daemon/",
    "crates/evenkeel/",
    "crates/frontends/",
    "crates/lab/",
    "fuzz/",
    "xtask/",
];

/// Phrases that are hits anywhere in a text, in lower case.
const ANYWHERE: [&str; 15] = [
    "who is",
    "who are",
    "who was",
    "who were",
    "who has",
    "who have",
    "who had",
    "so many",
    "so-manieth",
    "that of such",
    "such a one",
    "whoever",
    "nobody but",
    "somebody",
    "what it had",
];

/// Phrases that are hits as the first words of a comment or paragraph, in lower case.
const OPENINGS: [&str; 5] = ["the same", "one that", "who", "whose", "whom"];

/// A hit: its line, from 1, and the phrase.
type Hit = (usize, &'static str);

/// An offence for each hit inside of a clean room.
///
/// # Errors
/// Git does not list the files of `root`.
pub fn offences(root: &Path) -> Result<Vec<String>> {
    let files = files(root)?;
    let mut offences = Vec::new();
    for room in CLEAN.iter().filter(|room| !files.iter().any(|path| path.starts_with(**room))) {
        offences.push(format!("{room}: not there any more; take it off the list in {}", file!()));
    }
    for path in files.iter().filter(|path| is_clean(path)) {
        let Ok(text) = std::fs::read_to_string(root.join(path)) else { continue };
        let told = |(line, phrase): &Hit| format!("{path}:{line}: \"{phrase}\": say which noun is meant");
        offences.extend(hits_in(path, &text).iter().map(told));
    }
    Ok(offences)
}

/// The number of hits outside of clean rooms. 0 if git does not list the files of `root`.
pub fn count(root: &Path) -> usize {
    let files = files(root).unwrap_or_default();
    let hits = |path: &String| {
        let text = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        hits_in(path, &text).len()
    };
    files.iter().filter(|path| !is_clean(path)).map(hits).sum()
}

/// The files that git knows below `root`, relative to it.
fn files(root: &Path) -> Result<Vec<String>> {
    let args = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").current_dir(root).args(args).output().context("git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

fn is_clean(path: &str) -> bool {
    CLEAN.iter().any(|room| path.starts_with(room))
}

fn hits_in(path: &str, text: &str) -> Vec<Hit> {
    let paragraphs = match Path::new(path).extension().and_then(|ext| ext.to_str()) {
        Some("rs") => paragraphs_of_rust(text),
        Some("md") => paragraphs_of_markdown(text),
        _ => return Vec::new(),
    };
    paragraphs.iter().flat_map(Paragraph::hits).collect()
}

/// Consecutive lines of prose.
#[derive(Default)]
struct Paragraph {
    /// In lower case, joined by spaces.
    text: String,
    /// Where each line begins in `text`, with its number.
    lines: Vec<(usize, usize)>,
}

impl Paragraph {
    fn push(&mut self, number: usize, line: &str) {
        self.lines.push((self.text.len(), number));
        self.text.push_str(&line.trim().to_lowercase());
        self.text.push(' ');
    }

    fn hits(&self) -> Vec<Hit> {
        let mut hits: Vec<Hit> = Vec::new();
        for phrase in ANYWHERE {
            let found = self.text.match_indices(phrase).filter(|(at, _)| self.is_whole(*at, phrase));
            hits.extend(found.map(|(at, _)| (self.line_at(at), phrase)));
        }
        let opening = OPENINGS.into_iter().find(|phrase| self.text.starts_with(phrase) && self.is_whole(0, phrase));
        hits.extend(opening.map(|phrase| (self.line_at(0), phrase)));
        hits
    }

    /// Whether the phrase begins and ends at a word's border.
    fn is_whole(&self, at: usize, phrase: &str) -> bool {
        let is_letter = |it: char| it.is_alphanumeric() || it == '_';
        let before = self.text[..at].chars().next_back();
        let after = self.text[at + phrase.len()..].chars().next();
        !before.is_some_and(is_letter) && !after.is_some_and(is_letter)
    }

    fn line_at(&self, at: usize) -> usize {
        self.lines.iter().rev().find(|(start, _)| *start <= at).map_or(0, |(_, number)| *number)
    }
}

/// Comments, and string literals of help texts. A comment ends at other code, and at an empty line of it.
fn paragraphs_of_rust(text: &str) -> Vec<Paragraph> {
    let (mut all, mut current, mut is_help) = (Vec::new(), Paragraph::default(), false);
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim();
        is_help |= ["help = \"", "about = \"", "HELP: &str = \""].iter().any(|start| line.contains(start));
        let prose = match trimmed.strip_prefix("//") {
            Some(comment) => comment.trim_start_matches(['/', '!']),
            None if is_help => trimmed,
            None => trailing_comment(line),
        };
        if prose.trim().is_empty() || !trimmed.starts_with("//") && !is_help {
            all.push(std::mem::take(&mut current));
        }
        if !prose.trim().is_empty() {
            current.push(number, prose);
        }
        is_help &= !["\"", "\";", "\",", "\")]"].iter().any(|end| trimmed.len() > 3 && trimmed.ends_with(end));
    }
    all.push(current);
    all
}

/// The comment behind a line's code.
fn trailing_comment(line: &str) -> &str {
    let comments = line.match_indices(" // ").map(|(at, _)| line.split_at(at));
    let mut outside_of_strings = comments.filter(|(code, _)| quotes(code).is_multiple_of(2));
    outside_of_strings.next().map_or("", |(_, comment)| comment.trim_start_matches([' ', '/']))
}

fn quotes(code: &str) -> usize {
    code.matches('"').count() - code.matches("\\\"").count()
}

/// Everything but code: blocks between fences, and spans between backticks.
fn paragraphs_of_markdown(text: &str) -> Vec<Paragraph> {
    let (mut all, mut current, mut is_code) = (Vec::new(), Paragraph::default(), false);
    for (number, line) in (1..).zip(text.lines()) {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if is_fence || is_code || line.trim().is_empty() {
            all.push(std::mem::take(&mut current));
        } else {
            let prose: Vec<&str> = line.split('`').step_by(2).collect();
            current.push(number, &prose.join("`"));
        }
    }
    all.push(current);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phrase_is_found() {
        for phrase in ANYWHERE {
            let text = format!("fn f() {{}}\n\n/// It waits.\n/// A tenant, {phrase} behind.\nfn g() {{}}\n");
            assert_eq!(hits_in("a.rs", &text), [(4, phrase)]);
        }
        for phrase in OPENINGS {
            assert_eq!(hits_in("a.rs", &format!("    // {phrase} here.\n")), [(1, phrase)]);
            assert_eq!(hits_in("a.md", &format!("# A\n\n{phrase} there.\n")), [(3, phrase)]);
            assert_eq!(hits_in("a.rs", &format!("// Of a tenant, {phrase} here.\n")), []);
        }
    }

    #[test]
    fn a_phrase_is_found_wherever_prose_is() {
        assert_eq!(hits_in("a.rs", "//! There are so\n//! many.\n"), [(1, "so many")]);
        assert_eq!(hits_in("a.rs", "let a = 1; // For whoever asks.\n"), [(1, "whoever")]);
        assert_eq!(hits_in("a.rs", "#[command(about = \"For whoever asks\")]\n"), [(1, "whoever")]);
        assert_eq!(hits_in("a.rs", "const HELP: &str = \"\\\nSo many\nof them\n\";\nlet a = b;\n"), [(2, "so many")]);
    }

    #[test]
    fn code_names_and_parts_of_words_are_no_prose() {
        assert_eq!(hits_in("a.rs", "let whoever = \"so many // who is\";\n/// So manyfold, a somebody_else.\n"), []);
        assert_eq!(hits_in("a.md", "`so many`\n\n```text\nwhoever\n```\n"), []);
        assert_eq!(hits_in("a.toml", "# So many.\n"), []);
    }
}
