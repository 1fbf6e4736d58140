//! What is wrong with a file, where, and what to do about it.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A place in a file: what an editor jumps to, and the line to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// How many characters of the line are meant; at least 1.
    pub width: usize,
    /// The line itself, without its end; empty where it is too long to show.
    pub excerpt: String,
}

/// One thing that is wrong, or that an operator should know, and its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where in the file; `None` where no single line is to blame.
    pub place: Option<Place>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

/// Everything that is wrong with one file, in the file's order. Shown as `file:line:column: what; remedy`,
/// each followed by its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The file's name, as given.
    pub file: PathBuf,
    /// At least one.
    pub problems: Vec<Problem>,
}

impl ConfigErrors {
    /// A file with one problem and no line to blame.
    pub fn one(file: &Path, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        let problem = Problem { place: None, what: what.into(), remedy: remedy.into() };
        Self { file: file.to_owned(), problems: vec![problem] }
    }

    /// Adds another remedy to each problem.
    pub(crate) fn or(mut self, remedy: &str) -> Self {
        self.problems.iter_mut().for_each(|problem| problem.remedy += remedy);
        self
    }
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}", problem.in_file(&self.file))?;
        }
        Ok(())
    }
}

impl Problem {
    /// The problem as a person reads it, with the file's name before the line.
    pub fn in_file(&self, file: &Path) -> String {
        let mut text = file.display().to_string();
        if let Some(place) = &self.place {
            text += &format!(":{}:{}", place.line, place.column);
        }
        text += &format!(": {}; {}", self.what, self.remedy);
        if let Some(place) = self.place.as_ref().filter(|place| !place.excerpt.is_empty()) {
            let number = place.line.to_string();
            let gutter = " ".repeat(number.len());
            let indent: String =
                place.excerpt.chars().take(place.column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
            text += &format!("\n {number} | {}\n {gutter} | {indent}{}", place.excerpt, "^".repeat(place.width));
        }
        text
    }
}

/// The mark of what stands in no file, such as a disk that the API created.
pub(crate) const OUTSIDE: Range<usize> = usize::MAX..usize::MAX;

/// A file's text, to turn byte spans into places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Its name, as given.
    pub file: PathBuf,
    /// All of it.
    pub text: String,
}

impl Text {
    /// As [`place`](Self::place); `None` for a span outside of the text.
    pub fn find(&self, span: &Range<usize>) -> Option<Place> {
        (span.start <= self.text.len()).then(|| self.place(span))
    }

    /// The line and column of a span of bytes.
    pub fn place(&self, span: &Range<usize>) -> Place {
        let start = floor_char_boundary(&self.text, span.start);
        let before = &self.text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line_text = self.text[line_start..].lines().next().unwrap_or("");
        let column = self.text[line_start..start].chars().count() + 1;
        let spanned = self.text[start..floor_char_boundary(&self.text, span.end.max(start))].chars();
        let on_line = spanned.take_while(|c| *c != '\n' && *c != '\r').count();
        Place {
            line: before.matches('\n').count() + 1,
            column,
            width: on_line.max(1),
            // A line is shown, not reproduced: control characters must not reach a terminal.
            excerpt: line_text
                .chars()
                .take_while(|_| line_text.len() <= EXCERPT_MAX_BYTES)
                .map(|c| if c.is_control() && c != '\t' { '?' } else { c })
                .collect(),
        }
    }

    /// The line number of a byte, from 1.
    pub fn line(&self, at: usize) -> usize {
        self.place(&(at..at)).line
    }
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Longer lines are not shown: nobody wrote them by hand.
const EXCERPT_MAX_BYTES: usize = 240;

/// More problems than this are counted, not told: the first ones help, and a hostile file must not cost memory.
const TOLD_MAX: usize = 100;

/// Where checks put what they find.
pub struct Sink<'t> {
    /// What is read.
    pub text: &'t Text,
    found: Vec<(usize, Problem)>,
    untold: usize,
}

impl<'t> Sink<'t> {
    /// Nothing found yet.
    pub fn new(text: &'t Text) -> Self {
        Self { text, found: Vec::new(), untold: 0 }
    }

    /// A problem with the text at `span`.
    pub fn at(&mut self, span: &Range<usize>, what: impl Into<String>, remedy: impl Into<String>) {
        if self.found.len() >= TOLD_MAX {
            self.untold += 1;
            return;
        }
        let place = self.text.find(span);
        self.found.push((span.start, Problem { place, what: what.into(), remedy: remedy.into() }));
    }

    /// A problem with the file as a whole.
    pub fn whole(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.found.push((0, Problem { place: None, what: what.into(), remedy: remedy.into() }));
    }

    /// A problem at `span` where there is one, else with the file as a whole.
    pub fn maybe_at(&mut self, span: Option<&Range<usize>>, what: impl Into<String>, remedy: impl Into<String>) {
        match span {
            Some(span) => self.at(span, what, remedy),
            None => self.whole(what, remedy),
        }
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// What was found, in the file's order.
    pub fn into_problems(mut self) -> Vec<Problem> {
        self.found.sort_by_key(|(at, _)| *at);
        let mut problems: Vec<Problem> = self.found.into_iter().map(|(_, problem)| problem).collect();
        if self.untold > 0 {
            let what = format!("{} more problems", self.untold);
            problems.push(Problem { place: None, what, remedy: "fix these first".into() });
        }
        problems
    }

    /// All problems as an error, if there are any.
    pub fn finish(self) -> Result<(), ConfigErrors> {
        if self.is_empty() {
            return Ok(());
        }
        Err(ConfigErrors { file: self.text.file.clone(), problems: self.into_problems() })
    }
}
