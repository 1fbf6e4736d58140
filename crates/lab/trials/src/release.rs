//! `cargo xtask release`: what a release consists of, in one folder.
//!
//! Packages for Debian 12 and 13, the programs without symbols, their debug files, a bill of materials (SPDX 2.3), and
//! SHA-256 sums of all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::guest::daemon;
use crate::package::{self, Effort, PROGRAMS, root, said};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The packages of the programs, in their order.
const CRATES: [&str; 3] = ["evenkeel", "evenkeeld", "keeper"];
/// A suffix of the package's version for each Debian. Their `~` sorts before a package of Debian's own.
const SUITES: [&str; 2] = ["~deb12u1", "~deb13u1"];
/// That of Debian 12 (bookworm).
const NEWEST_GLIBC: (u32, u32) = (2, 36);
/// What a stripped program may have.
const MOST_BYTES: u64 = 12 << 20;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where to; what is there is removed
    #[arg(long, value_name = "DIR", default_value = "target/release-files")]
    out: PathBuf,
}

/// Builds everything and writes it.
///
/// # Errors
/// When a tool is missing, something can't be built, or a program is too large or needs a newer C library.
pub fn run(options: &Options) -> Result<()> {
    package::find_cargo_deb()?;
    let packages = CRATES.map(|name| ["--package", name]).concat();
    let programs = daemon::build(daemon::Profile::Release, &packages)?;
    let out = std::path::absolute(&options.out)?;
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    fs::create_dir_all(&out)?;
    package::stage(&programs)?;
    for program in PROGRAMS {
        let staged = root().join("target/package").join(program);
        hold_to_limits(program, &staged)?;
        let debug = out.join(format!("{program}.debug"));
        said(Command::new("objcopy").arg("--only-keep-debug").arg(programs.join(program)).arg(&debug))?;
        said(Command::new("objcopy").arg(format!("--add-gnu-debuglink={}", debug.display())).arg(&staged))?;
        fs::copy(&staged, out.join(program))?;
    }
    for suite in SUITES {
        package::pack(Some(&format!("{VERSION}-1{suite}")), &out, Effort::Small)?;
    }
    fs::write(out.join(format!("evenkeel-{VERSION}.spdx.json")), format!("{:#}\n", bill_of_materials()?))?;
    let sums = said(Command::new("sh").args(["-c", "sha256sum *"]).current_dir(&out))?;
    fs::write(out.join("SHA256SUMS"), &sums)?;
    println!("release: {}\n{sums}", out.display());
    Ok(())
}

/// Refuses a program that is too large, or that Debian 12 can't run.
fn hold_to_limits(program: &str, path: &Path) -> Result<()> {
    let len_bytes = fs::metadata(path)?.len();
    let (major, minor) = newest_glibc(&said(Command::new("objdump").arg("-T").arg(path))?);
    println!("{program}: {len_bytes} bytes, glibc {major}.{minor}");
    ensure!(len_bytes <= MOST_BYTES, "{program} has {len_bytes} bytes, more than {MOST_BYTES}: see [profile.release]");
    ensure!(
        (major, minor) <= NEWEST_GLIBC,
        "{program} needs glibc {major}.{minor}, Debian 12 has {}.{}: build on Debian 12",
        NEWEST_GLIBC.0,
        NEWEST_GLIBC.1
    );
    Ok(())
}

/// The newest version of the C library that a table of dynamic symbols names.
fn newest_glibc(symbols: &str) -> (u32, u32) {
    let version = |text: &str| {
        let digits = text.split(|it: char| !it.is_ascii_digit() && it != '.').next()?;
        let mut parts = digits.split('.').map(|part| part.parse().ok());
        Some((parts.next()??, parts.next()??))
    };
    symbols.split("GLIBC_").skip(1).filter_map(version).max().unwrap_or_default()
}

/// A crate's name, version and licence.
type Component = [String; 3];

/// The programs and all crates that are linked into them.
fn bill_of_materials() -> Result<Value> {
    let lock = fs::read_to_string(root().join("Cargo.lock"))?;
    let mut linked = Vec::new();
    for name in CRATES {
        let tree = ["tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}|{l}"];
        let tree = said(package::cargo().args(tree).args(["--package", name]).current_dir(root()))?;
        linked.push(tree.lines().map(component).collect::<Result<Vec<_>>>()?);
    }
    let git = |arguments: &[&str]| {
        said(Command::new("git").args(arguments).env("TZ", "UTC").current_dir(root()))
            .map(|text| text.trim().to_owned())
    };
    let created = git(&["log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%cd"])?;
    spdx(&linked, &checksums(&lock)?, &created, &git(&["rev-parse", "HEAD"])?)
}

/// A line of `cargo tree`: `name v1.2.3 (path)|licence (*)`.
fn component(line: &str) -> Result<Component> {
    let (package, licence) = line.split_once('|').context(line.to_owned())?;
    let (name, version) = package.split_once(" v").context(line.to_owned())?;
    let version = version.split(' ').next().unwrap_or(version);
    let licence = licence.trim_end_matches(" (*)");
    ensure!(!licence.is_empty(), "{name} names no licence");
    // The form before SPDX.
    Ok([name.to_owned(), version.to_owned(), licence.replace('/', " OR ")])
}

/// The checksums of Cargo.lock by name and version; crates of the workspace have none.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = lock.parse()?;
    let packages = lock.get("package").and_then(toml::Value::as_array).context("Cargo.lock has no packages")?;
    let text = |package: &toml::Value, key| Some(package.get(key)?.as_str()?.to_owned());
    let sum = |package| Some(((text(package, "name")?, text(package, "version")?), text(package, "checksum")?));
    Ok(packages.iter().filter_map(sum).collect())
}

fn id([name, version, _]: &Component) -> String {
    format!("SPDXRef-{name}-{version}").replace(['_', '+'], "-")
}

fn spdx_package(component: &Component, checksums: &BTreeMap<(String, String), String>) -> Value {
    let [name, version, licence] = component;
    let checksum = checksums.get(&(name.clone(), version.clone()));
    let list = |entry: Option<Value>| Value::from_iter(entry);
    json!({
        "SPDXID": id(component),
        "name": name,
        "versionInfo": version,
        "licenseDeclared": licence,
        "licenseConcluded": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "filesAnalyzed": false,
        // The purl names the registry by its type.
        "downloadLocation": "NOASSERTION",
        "checksums": list(checksum.map(|sum| json!({ "algorithm": "SHA256", "checksumValue": sum }))),
        "externalRefs": list(checksum.map(|_| json!({
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": format!("pkg:cargo/{name}@{version}"),
        }))),
    })
}

/// The document: `linked` has one list for each program, with its own crate first.
fn spdx(
    linked: &[Vec<Component>],
    checksums: &BTreeMap<(String, String), String>,
    created: &str,
    commit: &str,
) -> Result<Value> {
    let (mut packages, mut relations) = (BTreeMap::new(), BTreeSet::new());
    for components in linked {
        let program = id(components.first().context("a program is a crate too")?);
        relations.insert(["SPDXRef-DOCUMENT".to_owned(), "DESCRIBES".to_owned(), program.clone()]);
        for component in components {
            if id(component) != program {
                relations.insert([program.clone(), "STATIC_LINK".to_owned(), id(component)]);
            }
            packages.insert(id(component), spdx_package(component, checksums));
        }
    }
    let relation = |[from, kind, to]: &[String; 3]| {
        json!({
            "spdxElementId": from,
            "relationshipType": kind,
            "relatedSpdxElement": to,
        })
    };
    Ok(json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("evenkeel-{VERSION}"),
        "documentNamespace": format!("https://evenkeel.invalid/spdx/{VERSION}-{commit}"),
        "creationInfo": { "created": created, "creators": ["Tool: cargo xtask release"] },
        "packages": packages.into_values().collect::<Vec<_>>(),
        "relationships": relations.iter().map(relation).collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_glibc_is_found() {
        let symbols = "0 DF *UND* 0 (GLIBC_2.34) start\n0 DF *UND* 0 (GLIBC_2.4) a\n0 *UND* 0 (GLIBC_2.2.5) b";
        assert_eq!(newest_glibc(symbols), (2, 34));
        assert!(newest_glibc("GLIBC_2.38) strlcpy") > NEWEST_GLIBC);
        assert_eq!(newest_glibc("no symbols"), (0, 0));
    }

    #[test]
    fn the_bill_names_each_linked_crate_with_its_licence_and_checksum() {
        let tree = "evenkeeld v0.1.0 (/clone/evenkeeld)|Apache-2.0\nbitflags v1.3.2|MIT/Apache-2.0 (*)\n\
            bitflags v1.3.2|MIT/Apache-2.0";
        let linked: Vec<Component> = tree.lines().map(|line| component(line).expect("a crate")).collect();
        let sums = checksums("[[package]]\nname = \"bitflags\"\nversion = \"1.3.2\"\nchecksum = \"ab\"").expect("TOML");
        let bill = spdx(&[linked], &sums, "2026-01-02T03:04:05Z", "c0ffee").expect("a document");
        let [ours, other] = [&bill["packages"][1], &bill["packages"][0]];
        assert_eq!([&ours["name"], &ours["checksums"]], [&json!("evenkeeld"), &json!([])]);
        assert_eq!(other["externalRefs"][0]["referenceLocator"], "pkg:cargo/bitflags@1.3.2");
        assert_eq!(other["licenseDeclared"], "MIT OR Apache-2.0");
        assert_eq!(other["checksums"], json!([{ "algorithm": "SHA256", "checksumValue": "ab" }]));
        assert_eq!(bill["packages"].as_array().map(Vec::len), Some(2));
        assert_eq!(
            bill["relationships"],
            json!([
                { "spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                  "relatedSpdxElement": ours["SPDXID"] },
                { "spdxElementId": ours["SPDXID"], "relationshipType": "STATIC_LINK",
                  "relatedSpdxElement": other["SPDXID"] },
            ])
        );
    }

    #[test]
    fn a_crate_without_a_licence_is_refused() {
        assert!(component("secret v1.0.0|").expect_err("refused").to_string().contains("secret names no licence"));
    }
}
