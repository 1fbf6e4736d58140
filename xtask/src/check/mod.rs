//! The repository polices itself: rules that no compiler knows.

mod budget;
mod dependencies;
mod figures;
mod keys;
mod modules;
mod shape;
mod sources;
mod tests_in;
mod threads;
mod tokens;
mod units;
mod words;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;

use budget::{Budget, Findings, thousands};
use figures::Figure;

/// Options of the check.
#[derive(Debug, Args)]
pub struct Options {
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
}

/// `rustfmt` holds code to this width, but neither comments nor what has a long string in it.
const MAX_COLUMNS: usize = 120;

/// Rooms that may use `unsafe`, each block with its invariant.
const UNSAFE_ROOMS: [&str; 7] = [
    "crates/core/guest-memory/",
    "crates/frontends/eventfd/",
    "crates/frontends/ublk/",
    "crates/backends/fake-device/",
    "crates/backends/nvme-driver/",
    "crates/backends/uring/",
    "crates/daemon/confine/",
];

/// Runs every rule over the files that git knows, and compares the repository's figures with `budget.toml`. Prints the
/// figures, and each offence with its place.
pub fn run(options: &Options) -> Result<()> {
    let files = tracked()?;
    let mut offences = Vec::new();
    for (path, text) in &files {
        let path = Path::new(path);
        if path.extension().is_some_and(|ext| ext == "rs") {
            rust_rules(path, text, &mut offences);
        }
        text_rules(path, text, &mut offences);
        if path.extension().is_some_and(|ext| ext == "md") {
            link_rules(path, text, &mut offences);
        }
    }
    offences.extend(dependencies::offences(text_of(&files, "Cargo.toml")?, manifests(&files))?);
    let budget = Budget::read(text_of(&files, "budget.toml")?)?;
    let (figures, found) = measure(&files, &budget)?;
    offences.extend(found.offences);
    offences.extend(words::offences(Path::new("."))?);
    if options.json {
        let shown = json!({ "figures": with_max(&figures, &budget), "notes": found.notes, "offences": offences });
        println!("{shown:#}");
    } else {
        print!("{}", table(&figures, &budget));
        found.notes.iter().for_each(|note| println!("{note}"));
    }
    for offence in &offences {
        eprintln!("{offence}");
    }
    if !offences.is_empty() {
        bail!("{} offences against the repository's rules", offences.len());
    }
    if !options.json {
        println!("repository rules: ok");
    }
    Ok(())
}

/// The figures of the repository, and their comparison with the budget.
fn measure(files: &[(String, String)], budget: &Budget) -> Result<(Vec<Figure>, Findings)> {
    let rust = files.iter().filter(|(path, _)| path.ends_with(".rs"));
    let rust = rust.map(|(path, text)| (path.as_str(), text.as_str()));
    let sources = sources::sources(rust, &budget.test_folders);
    let shapes = shape::shapes(&sources);
    let crates = manifests(files).filter(|(_, text)| text.lines().any(|line| line == "[package]")).count();
    let settings: toml::Table = text_of(files, ".cargo/config.toml")?.parse().context(".cargo/config.toml")?;
    let aliases = settings.get("alias").and_then(toml::Value::as_table).cloned().unwrap_or_default();
    let units = units::count(&units::commands_of_make("test")?, &aliases)?;
    let figures = figures::figures(&sources, &shapes, crates, units, words::count(Path::new(".")))?;
    let found = budget.compare(&figures, &shapes);
    Ok((figures, found))
}

fn table(figures: &[Figure], budget: &Budget) -> String {
    let row = |name: &str, now: &str, max: &str, what: &str| format!("{name:<17} {now:>8} {max:>8}  {what}\n");
    let rows = figures.iter().map(|figure| {
        let max = budget.max(figure.name).map_or("-".to_owned(), thousands);
        row(figure.name, &thousands(figure.now), &max, figure.what)
    });
    row("figure", "now", "max", "what") + &rows.collect::<String>()
}

fn with_max(figures: &[Figure], budget: &Budget) -> Vec<serde_json::Value> {
    let whole = |figure: &Figure| {
        let Figure { name, what, now, parts, .. } = figure;
        json!({ "name": name, "what": what, "now": now, "max": budget.max(name), "parts": parts })
    };
    figures.iter().map(whole).collect()
}

/// The files that git knows and that are text, with their paths.
fn tracked() -> Result<Vec<(String, String)>> {
    let args = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(args).output().context("git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let paths = String::from_utf8_lossy(&output.stdout);
    Ok(paths.lines().filter_map(|path| Some((path.to_owned(), std::fs::read_to_string(path).ok()?))).collect())
}

fn text_of<'f>(files: &'f [(String, String)], wanted: &str) -> Result<&'f str> {
    let found = files.iter().find(|(path, _)| path == wanted);
    found.map(|(_, text)| text.as_str()).with_context(|| format!("{wanted} is not there"))
}

fn manifests(files: &[(String, String)]) -> impl Iterator<Item = (&Path, &str)> {
    let named = files.iter().map(|(path, text)| (Path::new(path), text.as_str()));
    named.filter(|(path, _)| path.ends_with("Cargo.toml"))
}

fn rust_rules(path: &Path, text: &str, offences: &mut Vec<String>) {
    let shown = path.display().to_string();
    let crate_root = shown.ends_with("src/lib.rs") || shown.ends_with("src/main.rs");
    let may_be_unsafe = UNSAFE_ROOMS.iter().any(|room| shown.starts_with(room));
    let fuzz_target = shown.starts_with("fuzz/");
    if crate_root && !may_be_unsafe && !fuzz_target && !text.contains("#![forbid(unsafe_code)]") {
        offences.push(format!("{shown}: missing #![forbid(unsafe_code)]"));
    }
    for (number, line) in text.lines().enumerate() {
        // A table's row is one line.
        let is_row = ["//! |", "/// |"].into_iter().any(|row| line.trim_start().starts_with(row));
        if !is_row && line.chars().count() > MAX_COLUMNS {
            offences.push(format!("{shown}:{}: a line wider than {MAX_COLUMNS} columns", number + 1));
        }
    }
    if crate_root && !text.starts_with("//! ") {
        offences.push(format!("{shown}: a crate starts with what it is for (//! …)"));
    }
}

fn text_rules(path: &Path, text: &str, offences: &mut Vec<String>) {
    // Spelled in halves, so that this file does not offend against itself.
    let forbidden = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
        concat!("/wo", "rk/"),
        concat!("crates", ".io"),
        concat!("deb.deb", "ian.org"),
    ];
    for (number, line) in text.lines().enumerate() {
        for word in forbidden {
            // The lock file names the registry by design of cargo.
            if line.contains(word) && path.extension().is_none_or(|ext| ext != "lock") {
                offences.push(format!("{}:{}: '{word}' does not belong here", path.display(), number + 1));
            }
        }
    }
}

/// A document's links into the repository lead somewhere.
fn link_rules(path: &Path, text: &str, offences: &mut Vec<String>) {
    let directory = path.parent().unwrap_or(Path::new(""));
    for (number, line) in text.lines().enumerate() {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for target in targets.filter(|target| !target.is_empty() && !target.contains("://")) {
            if !directory.join(target).exists() {
                offences.push(format!("{}:{}: {target} is not there", path.display(), number + 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences_of(path: &str, text: &str) -> Vec<String> {
        let mut offences = Vec::new();
        rust_rules(Path::new(path), text, &mut offences);
        text_rules(Path::new(path), text, &mut offences);
        link_rules(Path::new(path), text, &mut offences);
        offences
    }

    #[test]
    fn what_breaks_no_rule_passes() {
        assert_eq!(offences_of("a/src/lib.rs", "//! Why.\n#![forbid(unsafe_code)]\n"), Vec::<String>::new());
        assert_eq!(offences_of("crates/backends/uring/src/lib.rs", "//! Why.\n"), Vec::<String>::new());
    }

    #[test]
    fn each_rule_is_seen_broken() {
        for (path, text, told) in [
            ("a/src/main.rs", "//! Why.\n".into(), "forbid(unsafe_code)"),
            ("a/src/lib.rs", "#![forbid(unsafe_code)]\n".into(), "what it is for"),
            ("notes.md", concat!("a TO", "DO").into(), "does not belong here"),
            ("a/src/b.rs", format!("    /// {}\n", "x".repeat(MAX_COLUMNS - 7)), "wider than"),
            ("a/src/b.rs", format!("const A: &str = {:?};\n", "x".repeat(MAX_COLUMNS)), "wider than"),
            ("notes.md", "[a](src/main.rs), [b](nowhere/b.rs#L1)".into(), "nowhere/b.rs is not there"),
        ] {
            let found = offences_of(path, &text);
            assert!(found.len() == 1 && found[0].contains(told), "{told}: {found:?}");
        }
    }
}
