//! The shape of a crate: circles of files that use each other, and types with an `impl` in many files.
//!
//! A file uses another one of its crate where it imports an item from it or names one by a path. A re-export is
//! followed to the file that defines the item. `mod x;` is no use, nor is `pub use` of what the file does not name.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::Modules;
use super::sources::{Role, Source};

/// Two files may use each other, as a module and its only submodule do.
const MAX_CIRCLE: usize = 2;

/// A type may have an `impl` in this many files.
pub(super) const MAX_IMPL_FILES: usize = 3;

/// The shape of one crate.
pub struct Shape {
    /// The crate's folder.
    pub room: String,
    /// Circles of too many files, largest first: their paths below the crate's `src`.
    pub circles: Vec<Vec<String>>,
    /// Types with an `impl` in too many files.
    pub spread: Vec<(String, Vec<String>)>,
}

impl Shape {
    /// Whether it has no circle and no spread type.
    pub fn is_clean(&self) -> bool {
        self.circles.is_empty() && self.spread.is_empty()
    }

    /// A sentence for each circle and each spread type.
    pub fn faults(&self) -> Vec<String> {
        let circles = self.circles.iter().map(|files| {
            format!("{}: {} files use each other in a circle: {}", self.room, files.len(), files.join(", "))
        });
        let spread = self.spread.iter().map(|(name, files)| {
            format!(
                "{}: `{name}` has an impl in {} files, {MAX_IMPL_FILES} is the limit: {}",
                self.room,
                files.len(),
                files.join(", ")
            )
        });
        circles.chain(spread).collect()
    }
}

/// The shapes of all crates of the product.
pub fn shapes(sources: &[Source<'_>]) -> Vec<Shape> {
    let product = sources.iter().filter(|source| source.role == Role::Product);
    let rooms: BTreeSet<&str> = product.map(Source::room).collect();
    rooms.into_iter().map(|room| shape(room, sources)).collect()
}

fn shape(room: &str, sources: &[Source<'_>]) -> Shape {
    let modules = Modules::of_room(room, sources);
    let mut arrows: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut impls: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
    for (at, module) in modules.iter() {
        let used = modules.used_by(at).into_iter().map(|target| modules.get(target.module).file);
        arrows.entry(module.file).or_default().extend(used.filter(|file| *file != module.file));
        for target in modules.implemented_in(at) {
            impls.entry(target).or_default().insert(module.file);
        }
    }
    let names = |files: &mut dyn Iterator<Item = usize>| -> Vec<String> {
        let short = |file: usize| {
            let path = sources[file].path.strip_prefix(room).unwrap_or(sources[file].path);
            path.trim_start_matches('/').trim_start_matches("src/").to_owned()
        };
        files.map(short).collect()
    };
    let mut circles: Vec<_> = circles(&arrows).into_iter().map(|files| names(&mut files.into_iter())).collect();
    circles.sort_by_key(|files| std::cmp::Reverse(files.len()));
    let spread = impls.into_iter().filter(|(_, files)| files.len() > MAX_IMPL_FILES);
    let mut spread: Vec<_> = spread
        .map(|(target, files)| (target.item.unwrap_or_default().to_owned(), names(&mut files.into_iter())))
        .collect();
    spread.sort_by_key(|(_, files)| std::cmp::Reverse(files.len()));
    Shape { room: room.to_owned(), circles, spread }
}

/// The sets of more than [`MAX_CIRCLE`] files in which each reaches each other one by arrows.
fn circles(arrows: &BTreeMap<usize, BTreeSet<usize>>) -> Vec<BTreeSet<usize>> {
    let reached: BTreeMap<usize, BTreeSet<usize>> =
        arrows.keys().map(|start| (*start, reached_from(*start, arrows))).collect();
    let mut found = BTreeSet::new();
    for (file, there) in &reached {
        let mutual = there.iter().filter(|other| reached.get(other).is_some_and(|back| back.contains(file)));
        let circle: BTreeSet<usize> = mutual.copied().collect();
        if circle.len() > MAX_CIRCLE {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

fn reached_from(start: usize, arrows: &BTreeMap<usize, BTreeSet<usize>>) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open = vec![start];
    while let Some(at) = open.pop() {
        open.extend(arrows.get(&at).into_iter().flatten().filter(|next| found.insert(**next)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::sources::sources;
    use super::*;

    /// The faults of a crate with these files below `src`.
    fn faults_of(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| (format!("crates/a/b/src/{path}"), *text)).collect();
        let sources = sources(files.iter().map(|(path, text)| (path.as_str(), *text)), &[]);
        shapes(&sources).iter().flat_map(Shape::faults).collect()
    }

    const ROOT: &str = "mod a; mod b; mod c; pub use a::A;";

    #[test]
    fn a_circle_of_three_files_is_seen_however_it_is_written() {
        for (a, b, c) in [
            ("use crate::b::B; pub struct A;", "use crate::c::C; pub struct B;", "use crate::a::A; pub struct C;"),
            (
                "use super::b; fn x() -> b::B {} pub struct A;",
                "fn x(c: super::c::C) {} pub struct B;",
                "use crate::*; pub struct C(A);",
            ),
            (
                "use crate::{b::{B as X}}; pub struct A;",
                "use crate::c::*; pub struct B(C);",
                "use crate::A; pub struct C;",
            ),
        ] {
            let found = faults_of(&[("lib.rs", ROOT), ("a.rs", a), ("b.rs", b), ("c.rs", c)]);
            assert_eq!(found, ["crates/a/b: 3 files use each other in a circle: a.rs, b.rs, c.rs"], "{a}");
        }
    }

    #[test]
    fn a_module_and_its_submodules_make_a_circle_where_both_use_the_other() {
        let submodule = "use super::Shared; pub struct Own;";
        let found = faults_of(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod b; mod c; use b::Own; use c::Own as Other; struct Shared(Own, Other);"),
            ("a/b.rs", submodule),
            ("a/c.rs", submodule),
        ]);
        assert_eq!(found, ["crates/a/b: 3 files use each other in a circle: a/mod.rs, a/b.rs, a/c.rs"]);
    }

    #[test]
    fn what_is_no_circle_passes() {
        for (a, b, c) in [
            // Two files.
            ("use crate::b::B; pub struct A;", "use crate::A; pub struct B;", "use crate::A;"),
            // The way back is in tests, in a comment, in a text.
            (
                "use crate::b::B; pub struct A;",
                "use crate::c::C; pub struct B;",
                "// crate::a::A\npub struct C(&\"crate::a::A\");\n#[cfg(test)]\nmod tests { use crate::a::A; }",
            ),
            // Another crate that is called as a module here.
            ("use crate::b::B; pub struct A;", "use crate::c::C; pub struct B;", "use ::a::A; pub struct C;"),
        ] {
            assert_eq!(
                faults_of(&[("lib.rs", ROOT), ("a.rs", a), ("b.rs", b), ("c.rs", c)]),
                Vec::<String>::new(),
                "{c}"
            );
        }
    }

    #[test]
    fn an_impl_in_a_fourth_file_is_seen() {
        let own = "use crate::a::A; impl A { fn x() {} }";
        let files = |last: &'static str| {
            let root = "mod a; mod b; mod c; mod d;";
            faults_of(&[
                ("lib.rs", root),
                ("a.rs", "pub struct A; impl A {}"),
                ("b.rs", own),
                ("c.rs", own),
                ("d.rs", last),
            ])
        };
        assert_eq!(
            files("impl<T> From<T> for super::a::A {}"),
            ["crates/a/b: `A` has an impl in 4 files, 3 is the limit: a.rs, b.rs, c.rs, d.rs"]
        );
        // Another type with the same name, and a type of another crate.
        assert_eq!(files("struct A; impl A {} impl Drop for x::A {}"), Vec::<String>::new());
    }
}
