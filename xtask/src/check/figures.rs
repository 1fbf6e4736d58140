//! The figures that have a budget.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;

use super::shape::{MAX_IMPL_FILES, Shape};
use super::sources::{Role, Source};
use super::{keys, threads};

/// A figure keeps this many of its contributors.
const MOST_PARTS: usize = 50;

/// One figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// Its name in `budget.toml`.
    pub name: &'static str,
    /// What is counted.
    pub what: &'static str,
    pub now: usize,
    /// Its contributors, largest first.
    pub parts: Vec<Part>,
    /// Its max is a rule for each part, not a tally to lower.
    #[serde(skip)]
    pub is_ceiling: bool,
}

/// A contributor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Part {
    pub name: String,
    pub count: usize,
}

impl Figure {
    /// A figure that is the sum of its parts.
    fn sum(name: &'static str, what: &'static str, parts: impl IntoIterator<Item = (String, usize)>) -> Self {
        let parts: Vec<_> = parts.into_iter().filter(|(_, count)| *count > 0).collect();
        let now = parts.iter().map(|(_, count)| count).sum();
        Self::new(name, what, now, parts)
    }

    fn new(name: &'static str, what: &'static str, now: usize, parts: Vec<(String, usize)>) -> Self {
        let mut parts: Vec<_> = parts.into_iter().map(|(name, count)| Part { name, count }).collect();
        parts.sort_by(|one, other| other.count.cmp(&one.count).then_with(|| one.name.cmp(&other.name)));
        parts.truncate(MOST_PARTS);
        Self { name, what, now, parts, is_ceiling: false }
    }
}

/// All figures. `crates`: how many packages there are. `units`: the compile units of each command of `make test`.
/// `words_to_mend`: the hits of `words`.
///
/// # Errors
/// When the configuration's keys can't be found.
pub fn figures(
    sources: &[Source<'_>],
    shapes: &[Shape],
    crates: usize,
    units: Vec<(String, usize)>,
    words_to_mend: usize,
) -> Result<Vec<Figure>> {
    let product = || sources.iter().filter(|source| source.role == Role::Product);
    let shipped = product().filter(|source| !source.path.starts_with("crates/lab/"));
    let schema = sources.iter().find(|source| source.path == keys::FILE).with_context(|| {
        format!("{} is gone: say in xtask/src/check/keys.rs where the configuration's keys are listed", keys::FILE)
    })?;
    let files: Vec<_> = sources.iter().map(|source| (source.path.to_owned(), source.lines)).collect();
    let longest = files.iter().map(|(_, lines)| *lines).max().unwrap_or(0);
    let circles = shapes.iter().flat_map(|shape| {
        shape.circles.iter().map(|files| (format!("{} ({})", shape.room, files.join(", ")), files.len()))
    });
    let scattered = shapes.iter().flat_map(|shape| {
        let beyond = |files: &Vec<String>| files.len().saturating_sub(MAX_IMPL_FILES);
        shape.spread.iter().map(move |(name, files)| (format!("{name} in {}", shape.room), beyond(files)))
    });
    Ok(vec![
        Figure::sum(
            "product_lines",
            "lines under crates/**/src, all but tests",
            by_room(product().map(|source| (source, source.lines - source.test_lines))),
        ),
        Figure::sum(
            "test_lines",
            "lines of test modules, tests/ and the folders that budget.toml names",
            by_room(sources.iter().map(|source| (source, source.test_lines))),
        ),
        Figure::sum(
            "tool_lines",
            "lines of xtask, benches/ and examples/",
            by_room(
                sources
                    .iter()
                    .filter(|source| source.role == Role::Tool)
                    .map(|source| (source, source.lines - source.test_lines)),
            ),
        ),
        Figure { is_ceiling: true, ..Figure::new("longest_file", "lines of a file", longest, files) },
        Figure::new("crates", "packages of the workspace", crates, Vec::new()),
        Figure::sum("units", "units of the workspace that make test compiles", units),
        Figure::sum("config_keys", "keys of the daemon's file", keys::count(&schema.tokens)?),
        Figure::sum(
            "threads",
            "places that start a thread, outside of crates/lab",
            shipped.map(|source| (source.path.to_owned(), threads::count(&source.tokens))),
        ),
        Figure::sum("files_in_circles", "files in circles of more than two that use each other", circles),
        Figure::sum("scattered_impls", "files with an impl of a type beyond the three that it may have", scattered),
        Figure::new("words_to_mend", "hits of hard-to-read wording", words_to_mend, Vec::new()),
        // Another figure is one line here and a section in budget.toml.
    ])
}

fn by_room<'s>(counts: impl Iterator<Item = (&'s Source<'s>, usize)>) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for (source, count) in counts {
        *found.entry(source.room().to_owned()).or_default() += count;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::shape::shapes;
    use super::super::sources::sources;
    use super::*;

    #[test]
    fn each_figure_counts_its_own() {
        let keys = "section! { \"Top.\" top A: Flag = \"a\", Flag; B: Flag = \"b\", Flag; }\n";
        let third = "use super::a::A;\nimpl A {}\n#[cfg(test)]\nmod tests {\n}\n";
        let files = [
            (keys::FILE, keys),
            ("crates/core/x/src/lib.rs", "mod a; mod b; mod c; mod d;\n"),
            ("crates/core/x/src/a.rs", "use super::{b::B, c::C};\npub struct A;\nimpl A {}\n"),
            ("crates/core/x/src/b.rs", "use super::a::A;\npub struct B;\nimpl A {}\n"),
            ("crates/core/x/src/c.rs", "pub use super::a::A;\npub struct C;\nimpl A { fn x() { thread::spawn(y) } }\n"),
            ("crates/core/x/src/d.rs", third),
            ("crates/lab/y/src/lib.rs", "fn x() { thread::spawn(y) }\n"),
            ("crates/core/x/tests/z.rs", "\n\n"),
            ("crates/core/x/benches/z.rs", "\n"),
        ];
        let sources = sources(files, &[]);
        let units = vec![("cargo test".to_owned(), 3), ("cargo doc".to_owned(), 4)];
        let found = figures(&sources, &shapes(&sources), 2, units, 6).unwrap();
        let shown: Vec<_> = found.iter().map(|figure| (figure.name, figure.now)).collect();
        let expected = [
            ("product_lines", 14),
            ("test_lines", 5),
            ("tool_lines", 1),
            ("longest_file", 5),
            ("crates", 2),
            ("units", 7),
            ("config_keys", 2),
            ("threads", 1),
            ("files_in_circles", 3),
            ("scattered_impls", 1),
            ("words_to_mend", 6),
        ];
        assert_eq!(shown, expected);
        assert_eq!(found[5].parts[0], Part { name: "cargo doc".into(), count: 4 });
    }
}
