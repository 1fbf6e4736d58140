//! What is product must run without the laboratory and without what is for tests: no crate of the product reaches one
//! of those through what it links. Read from the manifests, so that a new crate falls under the rule by its folder.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use toml::{Table, Value};

/// Folders of crates, by the names in their manifests' paths.
const PRODUCT: [&str; 4] = ["crates/core/", "crates/frontends/", "crates/backends/", "crates/daemon/"];
const LABORATORY: &str = "crates/lab/";

/// Crates in the product's folders that are for tests.
const TEST_SUPPORT: [&str; 3] =
    ["crates/backends/conformance/", "crates/backends/fake-device/", "crates/backends/wrappers/"];

/// What a manifest says that a crate links; its tests and benchmarks may use anything.
const LINKED: [&str; 2] = ["dependencies", "build-dependencies"];

/// A crate of the workspace.
struct Package {
    /// Its manifest, from the repository's root.
    manifest: String,
    /// Packages that it links, of the workspace and others.
    links: Vec<String>,
}

impl Package {
    /// What the product may not link it for. `None`: it may.
    fn kind_kept_out(&self) -> Option<&'static str> {
        if self.manifest.starts_with(LABORATORY) {
            return Some("the laboratory");
        }
        TEST_SUPPORT.iter().any(|folder| self.manifest.starts_with(folder)).then_some("what is for tests")
    }

    fn is_product(&self) -> bool {
        self.kind_kept_out().is_none() && PRODUCT.iter().any(|room| self.manifest.starts_with(room))
    }
}

/// Offences of the workspace with the root manifest `root`, given all manifests with their paths.
///
/// # Errors
/// When a manifest can't be read.
pub fn offences<'a>(root: &str, manifests: impl IntoIterator<Item = (&'a Path, &'a str)>) -> Result<Vec<String>> {
    let root: Table = root.parse().context("Cargo.toml")?;
    let shared = table_in(&root, &["workspace", "dependencies"]);
    let mut packages = BTreeMap::new();
    for (path, text) in manifests {
        let path = path.display().to_string();
        let manifest: Table = text.parse().with_context(|| path.clone())?;
        let Some(name) = manifest.get("package").and_then(|package| package.get("name")?.as_str()) else { continue };
        let links = links_of(&manifest, &shared);
        packages.insert(name.to_owned(), Package { manifest: path, links });
    }
    let product = packages.iter().filter(|(_, package)| package.is_product());
    Ok(product
        .filter_map(|(name, package)| {
            let (kind, chain) = path_out_of_product(&packages, name)?;
            Some(format!("{}: is product and links {kind}: {}", package.manifest, chain.join(" -> ")))
        })
        .collect())
}

/// The shortest chain of packages from `start` to one that is kept out of the product, and that one's kind.
fn path_out_of_product<'a>(
    packages: &'a BTreeMap<String, Package>,
    start: &'a str,
) -> Option<(&'static str, Vec<&'a str>)> {
    let mut chains = vec![vec![start]];
    let mut seen = vec![start];
    while !chains.is_empty() {
        let mut longer = Vec::new();
        for chain in chains {
            let Some(package) = chain.last().and_then(|last| packages.get(*last)) else { continue };
            if let Some(kind) = package.kind_kept_out() {
                return Some((kind, chain));
            }
            for link in &package.links {
                if !seen.contains(&link.as_str()) {
                    seen.push(link);
                    longer.push([chain.clone(), vec![link]].concat());
                }
            }
        }
        chains = longer;
    }
    None
}

/// The packages that a manifest links, on any target.
fn links_of(manifest: &Table, shared: &Table) -> Vec<String> {
    let targets = table_in(manifest, &["target"]);
    let scopes = targets.values().filter_map(Value::as_table).chain([manifest]);
    scopes
        .flat_map(|scope| LINKED.map(|kind| table_in(scope, &[kind])))
        .flatten()
        .map(|(key, dependency)| package_name(&key, &dependency, shared))
        .collect()
}

/// The package behind a dependency's key, which may be another name for it, here or in the workspace's own table.
fn package_name(key: &str, dependency: &Value, shared: &Table) -> String {
    let inherits = dependency.get("workspace").and_then(Value::as_bool) == Some(true);
    let of = if inherits { shared.get(key) } else { Some(dependency) };
    of.and_then(|dependency| dependency.get("package")?.as_str()).unwrap_or(key).to_owned()
}

/// The table at a path of keys; empty where there is none.
fn table_in(table: &Table, path: &[&str]) -> Table {
    let mut found = Some(table);
    for key in path {
        found = found.and_then(|table| table.get(*key)?.as_table());
    }
    found.cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str =
        "[workspace.dependencies]\nwind = { package = \"sim\", path = \"crates/lab/sim\" }\nserde = \"1\"";

    /// The offences of a program in `crates/daemon` that depends on `poller`, which says `of_poller`.
    fn offences_with(of_poller: &str) -> Vec<String> {
        let poller = format!("[package]\nname = \"poller\"\n{of_poller}");
        let manifests = [
            (
                "crates/daemon/program/Cargo.toml",
                "[package]\nname = \"program\"\n[dependencies]\npoller.workspace = true",
            ),
            ("crates/core/poller/Cargo.toml", &poller),
            ("crates/lab/sim/Cargo.toml", "[package]\nname = \"sim\"\n[dependencies]\npoller = \"1\""),
            ("crates/backends/wrappers/Cargo.toml", "[package]\nname = \"backend-wrappers\""),
            ("crates/tool/Cargo.toml", "[package]\nname = \"tool\"\n[dependencies]\nsim = { path = \"../lab/sim\" }"),
        ];
        offences(ROOT, manifests.map(|(path, text)| (Path::new(path), text))).unwrap()
    }

    #[test]
    fn a_way_to_the_laboratory_is_found_however_it_is_written() {
        for of_poller in [
            "[dependencies]\nsim = { path = \"../../lab/sim\" }",
            "[dependencies]\nwind.workspace = true",
            "[dependencies]\nx = { package = \"sim\", path = \"../../lab/sim\", optional = true }",
            "[build-dependencies]\nsim.workspace = true",
            "[target.'cfg(unix)'.dependencies]\nwind = { workspace = true }",
        ] {
            let found = offences_with(of_poller);
            assert_eq!(found.len(), 2, "{of_poller}: {found:?}");
            assert!(found[1].ends_with("laboratory: program -> poller -> sim"), "{found:?}");
        }
    }

    #[test]
    fn what_is_for_tests_is_not_linked_either() {
        let found = offences_with("[dependencies]\nbackend-wrappers = { path = \"../../backends/wrappers\" }");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with("links what is for tests: poller -> backend-wrappers"), "{found:?}");
    }

    #[test]
    fn tests_and_tools_may_use_it() {
        for of_poller in [
            "",
            "[dev-dependencies]\nsim.workspace = true",
            "[dev-dependencies]\nbackend-wrappers.workspace = true",
            "[dependencies]\nserde.workspace = true",
        ] {
            assert_eq!(offences_with(of_poller), Vec::<String>::new(), "{of_poller}");
        }
    }
}
