//! The Rust files of the repository. Each line belongs to the product, to a test or to a tool.

use std::path::Path;

use super::tests_in::{self, Split};
use super::tokens::{Token, tokens};

/// What a file's lines count as. Tests inside a file count as tests in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `crates/…/src`.
    Product,
    /// `tests/`, files of `#[cfg(test)]` modules, and the folders that `budget.toml` names.
    Test,
    /// Everything else: `xtask`, `benches/`, `examples/`.
    Tool,
}

/// A file.
pub struct Source<'t> {
    /// From the repository's root.
    pub path: &'t str,
    pub role: Role,
    /// All lines, with comments and blank ones.
    pub lines: usize,
    /// The lines of its tests; all lines of a test file.
    pub test_lines: usize,
    /// Its tokens without tests; none of a test file.
    pub tokens: Vec<Token<'t>>,
}

impl Source<'_> {
    /// The folder of its crate.
    pub fn room(&self) -> &str {
        room(self.path)
    }
}

/// The folder of the crate that a file belongs to.
fn room(path: &str) -> &str {
    ["/src/", "/tests/", "/benches/", "/examples/"]
        .iter()
        .filter_map(|part| path.find(part))
        .min()
        .map_or_else(|| path.rsplit_once('/').map_or("", |(folder, _)| folder), |end| &path[..end])
}

/// Reads files, given with their paths. Files below `test_folders` are tests, as are those below `tests/`.
pub fn sources<'t>(files: impl IntoIterator<Item = (&'t str, &'t str)>, test_folders: &[String]) -> Vec<Source<'t>> {
    let mut found = Vec::new();
    let mut test_modules = Vec::new();
    for (path, text) in files {
        let lines = text.lines().count();
        let Split { product, test_lines, test_modules: own } = tests_in::split(&tokens(text), lines);
        test_modules.extend(own.into_iter().flat_map(|(name, given)| module_files(path, name, given)));
        found.push(Source { path, role: role(path, test_folders), lines, test_lines, tokens: product });
    }
    for source in &mut found {
        // A folder of the module's own submodules, or its file.
        let is_test = |place: &String| {
            source.path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || place.ends_with('/'))
        };
        if source.role == Role::Test || test_modules.iter().any(is_test) {
            (source.role, source.test_lines) = (Role::Test, source.lines);
            source.tokens.clear();
        }
    }
    found
}

fn role(path: &str, test_folders: &[String]) -> Role {
    if path.contains("/tests/") || test_folders.iter().any(|folder| path.starts_with(folder)) {
        Role::Test
    } else if path.starts_with("crates/") && path.contains("/src/") {
        Role::Product
    } else {
        Role::Tool
    }
}

/// Where a module declared in the file `path` may be: two files and the folder of its submodules.
pub fn module_files(path: &str, name: &str, given: Option<&str>) -> Vec<String> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    if let Some(given) = given {
        return vec![plain(&format!("{folder}/{given}"))];
    }
    let own = module_folder(path);
    vec![format!("{own}/{name}.rs"), format!("{own}/{name}/mod.rs"), format!("{own}/{name}/")]
}

/// The folder where the submodules of a file are.
pub fn module_folder(path: &str) -> String {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    match file {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => Path::new(path).with_extension("").display().to_string(),
    }
}

/// A path without `..`.
fn plain(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| *part != ".") {
        if part != ".." || parts.pop().is_none() {
            parts.push(part);
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_counts_as_one_thing() {
        let files = [
            ("crates/a/b/src/lib.rs", "mod x;\n#[cfg(test)]\nmod t;\n#[cfg(test)]\nmod tests {\n}\n"),
            ("crates/a/b/src/t.rs", "mod deep;\n"),
            ("crates/a/b/src/t/deep.rs", "\n"),
            ("crates/a/b/src/tt.rs", "\n\n"),
            ("crates/a/b/tests/x.rs", "\n"),
            ("crates/a/b/benches/x.rs", "\n"),
            ("fuzz/src/lib.rs", "\n"),
            ("xtask/src/main.rs", "#[test]\nfn a() {}\n\n"),
        ];
        let found = sources(files, &["fuzz/".to_owned()]);
        let shown: Vec<_> = found.iter().map(|source| (source.role, source.lines, source.test_lines)).collect();
        use Role::{Product, Test, Tool};
        assert_eq!(
            shown,
            [
                (Product, 6, 5),
                (Test, 1, 1),
                (Test, 1, 1),
                (Product, 2, 0),
                (Test, 1, 1),
                (Tool, 1, 0),
                (Test, 1, 1),
                (Tool, 3, 2),
            ]
        );
        assert_eq!(found[2].room(), "crates/a/b");
    }

    #[test]
    fn paths_of_modules_are_those_of_rustc() {
        assert_eq!(module_files("a/src/x.rs", "y", None), ["a/src/x/y.rs", "a/src/x/y/mod.rs", "a/src/x/y/"]);
        assert_eq!(module_files("a/src/x/mod.rs", "y", None)[0], "a/src/x/y.rs");
        assert_eq!(module_files("a/src/x.rs", "y", Some("../tests/z.rs")), ["a/tests/z.rs"]);
    }
}
