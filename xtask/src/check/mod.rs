//! The repository polices itself: rules that no compiler knows.

mod dependencies;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A file that grows past this is a room with two purposes.
const MAX_LINES: usize = 600;

/// `rustfmt` holds code to this width, but neither comments nor what has a long string in it.
const MAX_COLUMNS: usize = 120;

/// Rooms that may use `unsafe`, each block with its invariant.
const UNSAFE_ROOMS: [&str; 6] = [
    "crates/core/guest-memory/",
    "crates/frontends/eventfd/",
    "crates/frontends/ublk/",
    "crates/backends/nvme-driver/",
    "crates/backends/uring/",
    "crates/daemon/confine/",
];

/// Runs every rule over the files that git knows; prints each offence with its place.
pub fn run() -> Result<()> {
    let (mut offences, mut manifests) = (Vec::new(), Vec::new());
    for path in tracked()? {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        if path.extension().is_some_and(|ext| ext == "rs") {
            rust_rules(&path, &text, &mut offences);
        }
        text_rules(&path, &text, &mut offences);
        if path.extension().is_some_and(|ext| ext == "md") {
            link_rules(&path, &text, &mut offences);
        }
        if path.ends_with("Cargo.toml") {
            manifests.push((path, text));
        }
    }
    let root = std::fs::read_to_string("Cargo.toml").context("Cargo.toml")?;
    let manifests = manifests.iter().map(|(path, text)| (path.as_path(), text.as_str()));
    offences.extend(dependencies::offences(&root, manifests)?);
    offences.extend(words::offences(Path::new("."))?);
    for offence in &offences {
        eprintln!("{offence}");
    }
    if !offences.is_empty() {
        bail!("{} offences against the repository's rules", offences.len());
    }
    println!("repository rules: ok");
    Ok(())
}

fn tracked() -> Result<Vec<PathBuf>> {
    let args = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(args).output().context("git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect())
}

fn rust_rules(path: &Path, text: &str, offences: &mut Vec<String>) {
    let shown = path.display().to_string();
    let lines = text.lines().count();
    if lines > MAX_LINES {
        offences.push(format!("{shown}: {lines} lines; split it, {MAX_LINES} is the limit"));
    }
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
            ("a/src/b.rs", "\n".repeat(MAX_LINES + 1), "split it"),
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
