//! The compile units of the workspace in `make test`: those of cargo's unit graph, for each cargo command that it runs.
//!
//! A unit that two commands share counts once. Builds that a test starts are not counted.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

/// The options of cargo's commands that decide what is built. Those in the second list have a value.
const FLAGS: [&str; 9] = [
    "--workspace",
    "--all-targets",
    "--release",
    "--all-features",
    "--no-default-features",
    "--no-deps",
    "--lib",
    "--bins",
    "--tests",
];
const VALUES: [&str; 9] =
    ["--package", "-p", "--exclude", "--features", "-F", "--bin", "--test", "--target", "--profile"];

/// The build that a command line starts.
#[derive(Debug, PartialEq, Eq)]
struct Build {
    /// Cargo's arguments for its graph.
    arguments: Vec<String>,
    /// No other command can use its results (clippy).
    is_apart: bool,
    has_doctests: bool,
}

/// Cargo's graph.
#[derive(Deserialize)]
struct Graph {
    units: Vec<Unit>,
}

#[derive(Deserialize)]
struct Unit {
    pkg_id: String,
    target: Value,
    profile: Value,
    platform: Value,
    mode: String,
    features: Vec<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    index: usize,
}

/// The number of units that each command line adds to those before it. A command line is the words after `cargo`.
///
/// # Errors
/// When a command is not known here, or cargo fails.
pub fn count(commands: &[Vec<String>], aliases: &toml::Table) -> Result<Vec<(String, usize)>> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for command in commands {
        let Some(build) = build(command, aliases)? else { continue };
        let graph: Graph = serde_json::from_str(&graph(&build.arguments)?).context("cargo's unit graph")?;
        let names = identities(&graph.units, build.is_apart);
        let is_ours = |unit: &Unit| unit.pkg_id.starts_with("path+") && (build.has_doctests || unit.mode != "doctest");
        let new = graph.units.iter().zip(names).filter(|(unit, name)| is_ours(unit) && seen.insert(*name)).count();
        if new > 0 {
            found.push((format!("cargo {}", command.join(" ")), new));
        }
    }
    Ok(found)
}

/// The cargo commands that `make TARGET` runs, from a dry run of make.
///
/// # Errors
/// When make fails.
pub fn commands_of_make(target: &str) -> Result<Vec<Vec<String>>> {
    // The numbers must be the same in CI, and inside of another make.
    let arguments = ["--dry-run", "--no-print-directory", target, "CARGO=cargo", "CI=true"];
    let output = Command::new("make").args(arguments).env_remove("MAKEFLAGS").env_remove("MFLAGS").output();
    let output = output.context("make")?;
    if !output.status.success() {
        bail!("make --dry-run {target}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(cargo_commands(&String::from_utf8_lossy(&output.stdout)))
}

/// The cargo commands of a script, without variables in front.
fn cargo_commands(script: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for part in script.split(['\n', ';', '|', '&', '>']) {
        let is_variable = |word: &String| word.split_once('=').is_some_and(|(name, _)| !name.starts_with('-'));
        let mut words = shell_words(part).into_iter().skip_while(is_variable);
        if words.next().is_some_and(|program| program == "cargo") {
            found.push(words.collect());
        }
    }
    found
}

/// Splits at blanks outside of quotes.
fn shell_words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for character in text.chars() {
        match (character, quote) {
            ('"' | '\'', None) => quote = Some(character),
            (_, Some(open)) if open == character => quote = None,
            (_, None) if character.is_whitespace() => words.push(std::mem::take(&mut word)),
            _ => word.push(character),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// The build that a command line starts; `None` when it builds nothing.
fn build(command: &[String], aliases: &toml::Table) -> Result<Option<Build>> {
    let words = command.iter().map(String::as_str).filter(|word| !word.starts_with('+'));
    let words: Vec<&str> = words.take_while(|word| *word != "--").collect();
    let Some((&subcommand, rest)) = words.split_first() else { return Ok(None) };
    let subcommand = match subcommand {
        "fmt" | "fuzz" | "clean" | "install" => return Ok(None),
        "nextest" if rest.first() != Some(&"run") => return Ok(None),
        "clippy" | "check" => "check",
        "build" | "run" | "b" | "r" => "build",
        "test" | "t" | "nextest" => "test",
        "bench" => "bench",
        "doc" => "doc",
        other => {
            let Some(alias) = aliases.get(other).and_then(words_of) else {
                bail!("cargo {other}: say in xtask/src/check/units.rs what it builds");
            };
            // What follows the alias's own `--` is its program's.
            let alias: Vec<String> = alias.into_iter().chain(rest.iter().map(|word| (*word).to_owned())).collect();
            return build(&alias, &toml::Table::new());
        }
    };
    let is_nextest = words[0] == "nextest";
    let mut arguments = vec![subcommand.to_owned()];
    let mut rest = rest.iter().copied();
    while let Some(word) = rest.next() {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        // Nextest's profile is another thing, and it has cargo's under this name.
        let name = match name {
            "--profile" if is_nextest => continue,
            "--cargo-profile" => "--profile",
            name => name,
        };
        if FLAGS.contains(&name) {
            arguments.push(name.to_owned());
        } else if VALUES.contains(&name) {
            let Some(value) = value.or_else(|| rest.next()) else { bail!("{name} has no value in {command:?}") };
            arguments.extend([name.to_owned(), value.to_owned()]);
        }
    }
    Ok(Some(Build { arguments, is_apart: words[0] == "clippy", has_doctests: !is_nextest }))
}

/// Cargo's graph of a command, as JSON.
fn graph(arguments: &[String]) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // The graph has no stable option yet.
    command.args(arguments).args(["--unit-graph", "-Z", "unstable-options"]).env("RUSTC_BOOTSTRAP", "1");
    let output = command.output().context("cargo")?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("cargo {} --unit-graph: {error}", arguments.join(" "));
    }
    String::from_utf8(output.stdout).context("cargo's unit graph")
}

/// A hash for each unit, of its own settings and of those of all its dependencies.
fn identities(units: &[Unit], is_apart: bool) -> Vec<u64> {
    let mut known = vec![None; units.len()];
    (0..units.len()).map(|at| identity(units, at, is_apart, &mut known)).collect()
}

fn identity(units: &[Unit], at: usize, is_apart: bool, known: &mut [Option<u64>]) -> u64 {
    if let Some(known) = known[at] {
        return known;
    }
    let unit = &units[at];
    let mut hasher = DefaultHasher::new();
    let is_apart_itself = is_apart && unit.pkg_id.starts_with("path+");
    (&unit.pkg_id, &unit.mode, &unit.features, is_apart_itself).hash(&mut hasher);
    (unit.target.to_string(), unit.platform.to_string()).hash(&mut hasher);
    // Profiles with the same settings are one, whatever their names.
    for (setting, value) in unit.profile.as_object().into_iter().flatten().filter(|(setting, _)| *setting != "name") {
        (setting, value.to_string()).hash(&mut hasher);
    }
    for dependency in &unit.dependencies {
        identity(units, dependency.index, is_apart, known).hash(&mut hasher);
    }
    *known[at].insert(hasher.finish())
}

/// An alias of cargo's configuration: a text or a list.
fn words_of(alias: &toml::Value) -> Option<Vec<String>> {
    match alias {
        toml::Value::String(text) => Some(text.split_whitespace().map(str::to_owned).collect()),
        toml::Value::Array(words) => words.iter().map(|word| word.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn cargo_commands_are_found_in_what_make_says() {
        let script = "cargo fmt --all\nFLAGS=\"-D warnings\" A=1 cargo doc --quiet\necho cargo is here\nmake x\n\
            cargo nextest --version >/dev/null 2>&1 || cargo install cargo-nextest\n";
        let found = ["fmt --all", "doc --quiet", "nextest --version", "install cargo-nextest"];
        assert_eq!(cargo_commands(script), found.map(words));
    }

    #[test]
    fn each_command_is_asked_for_its_graph() {
        let aliases = "xtask = \"run --quiet --package xtask --\"\nguests = [\"run\", \"-p\", \"guests\", \"--\"]";
        let aliases = aliases.parse().unwrap();
        for (line, asked) in [
            ("clippy --workspace --all-targets --quiet -- -D warnings", Some("check --workspace --all-targets")),
            ("+nightly doc --workspace --no-deps --quiet", Some("doc --workspace --no-deps")),
            ("build --release --package a -p b", Some("build --release --package a -p b")),
            ("nextest run --workspace --profile ci --cargo-profile=x", Some("test --workspace --profile x")),
            ("xtask guest-test --release", Some("build --package xtask")),
            ("guests --package x", Some("build -p guests")),
            ("nextest --version", None),
            ("fmt --all --check", None),
        ] {
            let build = build(&words(line), &aliases).unwrap();
            assert_eq!(build.map(|build| build.arguments), asked.map(words), "{line}");
        }
        assert!(build(&words("unheard-of"), &aliases).is_err());
    }

    /// A library, with a feature or none, and a program that uses it, by a profile with this name.
    fn units(feature: &str, profile: &str) -> Vec<Unit> {
        let unit = |name: &str, features: &str, dependencies: &str| {
            format!(
                r#"{{"pkg_id": "path+{name}", "target": 0, "profile": {{"name": "{profile}", "lto": 0}},
                    "platform": null, "mode": "build", "features": [{features}], "dependencies": [{dependencies}]}}"#
            )
        };
        let library = unit("library", feature, "");
        let program = unit("program", "", r#"{"index": 0}"#);
        serde_json::from_str(&format!("[{library}, {program}]")).unwrap()
    }

    #[test]
    fn what_differs_anywhere_below_is_another_unit() {
        let plain = identities(&units("", "dev"), false);
        assert_eq!(plain, identities(&units("", "test"), false));
        for others in [identities(&units("\"x\"", "dev"), false), identities(&units("", "dev"), true)] {
            assert!(plain.iter().zip(&others).all(|(one, other)| one != other));
        }
    }
}
