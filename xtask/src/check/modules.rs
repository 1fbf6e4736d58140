//! The modules of one crate: the items, imports and paths of each.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::sources::{Source, module_files};
use super::tests_in::{after_group, attribute};
use super::tokens::{Kind, Token};

/// A path's segments.
pub type Path<'t> = Vec<&'t str>;

/// One module.
#[derive(Default)]
pub struct Module<'t> {
    /// The place of its file among the sources.
    pub file: usize,
    parent: Option<usize>,
    children: BTreeMap<&'t str, usize>,
    /// What it defines.
    items: HashSet<&'t str>,
    /// What it imports: the name here, and the path.
    imports: HashMap<&'t str, Path<'t>>,
    globs: Vec<Path<'t>>,
    /// Imports that others may use by this module's path.
    exports: BTreeSet<&'t str>,
    /// Paths in what is not an import.
    paths: BTreeSet<Path<'t>>,
    /// Words in what is not an import.
    words: HashSet<&'t str>,
    /// The types that it has an `impl` of.
    impls: BTreeSet<Path<'t>>,
}

/// The target of a path: an item of a module, or the module itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target<'t> {
    /// Its place in the list of modules.
    pub module: usize,
    pub item: Option<&'t str>,
}

/// The modules of all targets of a package. Modules of different targets don't see each other.
pub struct Modules<'t> {
    all: Vec<Module<'t>>,
}

/// Where targets of a package begin, below its folder.
const ROOTS: [&str; 2] = ["src/lib.rs", "src/main.rs"];

/// A chain of re-exports that is longer than this is taken for endless.
const MAX_HOPS: usize = 16;

impl<'t> Modules<'t> {
    /// The modules of the package in the folder `room`.
    pub fn of_room(room: &str, sources: &'t [Source<'t>]) -> Self {
        let by_path: HashMap<&str, usize> = sources.iter().enumerate().map(|(at, source)| (source.path, at)).collect();
        let is_root = |path: &str| {
            let rest = path.strip_prefix(room).and_then(|rest| rest.strip_prefix('/'));
            rest.is_some_and(|rest| ROOTS.contains(&rest) || rest.starts_with("src/bin/"))
        };
        let mut modules = Self { all: Vec::new() };
        for (file, _) in sources.iter().enumerate().filter(|(_, source)| is_root(source.path)) {
            modules.add_file(file, None, sources, &by_path);
        }
        modules
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Module<'t>)> {
        self.all.iter().enumerate()
    }

    /// One of them.
    pub fn get(&self, module: usize) -> &Module<'t> {
        &self.all[module]
    }

    fn add_file(
        &mut self,
        file: usize,
        parent: Option<usize>,
        sources: &'t [Source<'t>],
        by_path: &HashMap<&str, usize>,
    ) -> usize {
        let module = self.all.len();
        self.all.push(Module { file, parent, ..Module::default() });
        let mut outer = vec![(module, sources[file].tokens.as_slice())];
        // Modules with a block are read after what is around them.
        while let Some((module, tokens)) = outer.pop() {
            for declared in self.all[module].read(tokens) {
                let child = match declared {
                    Declared::Block { name, tokens } => {
                        self.all.push(Module { file, parent: Some(module), ..Module::default() });
                        outer.push((self.all.len() - 1, tokens));
                        (name, self.all.len() - 1)
                    }
                    Declared::File { name, given } => {
                        let files = module_files(sources[file].path, name, given);
                        let Some(file) = files.iter().find_map(|path| by_path.get(path.as_str())) else { continue };
                        (name, self.add_file(*file, Some(module), sources, by_path))
                    }
                };
                self.all[module].children.insert(child.0, child.1);
            }
        }
        module
    }

    /// Everything of this crate that a module uses, by its imports and by paths in its code. A re-export (`pub use`) of
    /// a name that the module does not use itself is left out.
    pub fn used_by(&self, module: usize) -> BTreeSet<Target<'t>> {
        let own = &self.all[module];
        let is_used = |name: &&str| !own.exports.contains(*name) || own.words.contains(*name);
        let imported = own.imports.iter().filter(|(name, _)| is_used(name)).map(|(_, path)| path);
        let mut used: BTreeSet<_> =
            imported.chain(&own.paths).filter_map(|path| self.resolve(module, path, MAX_HOPS)).collect();
        for glob in &own.globs {
            let Some(from) = self.resolve(module, glob, MAX_HOPS) else { continue };
            let named = own.words.iter().filter(|word| !own.has(word));
            used.extend(named.filter_map(|word| self.step(from.module, word, MAX_HOPS)));
        }
        used
    }

    /// The types of this crate that a module has an `impl` of.
    pub fn implemented_in(&self, module: usize) -> BTreeSet<Target<'t>> {
        let types = self.all[module].impls.iter();
        types.filter_map(|path| self.resolve(module, path, MAX_HOPS)).filter(|target| target.item.is_some()).collect()
    }

    /// The target of a path in a module; `None` when it is outside of the crate.
    fn resolve(&self, module: usize, path: &[&'t str], hops: usize) -> Option<Target<'t>> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match *first {
            "crate" => Target { module: self.root_of(module), item: None },
            "self" => Target { module, item: None },
            "super" => Target { module: self.all[module].parent?, item: None },
            name => self.step(module, name, hops)?,
        };
        while let Some((next, after)) = rest.split_first().filter(|_| at.item.is_none()) {
            at = match *next {
                "super" => Target { module: self.all[at.module].parent?, item: None },
                "self" => at,
                // An item that a macro defines.
                name => self.step(at.module, name, hops).unwrap_or(Target { module: at.module, item: Some(name) }),
            };
            rest = after;
        }
        Some(at)
    }

    /// The target of a name in a module; `None` when the module does not have it.
    fn step(&self, module: usize, name: &'t str, hops: usize) -> Option<Target<'t>> {
        let own = &self.all[module];
        if let Some(child) = own.children.get(name) {
            return Some(Target { module: *child, item: None });
        }
        if own.items.contains(name) {
            return Some(Target { module, item: Some(name) });
        }
        let hops = hops.checked_sub(1)?;
        if let Some(path) = own.imports.get(name) {
            // `use name;` and `use name::x as name;` of another crate.
            return if path[0] == name { None } else { self.resolve(module, path, hops) };
        }
        own.globs.iter().find_map(|glob| {
            let from = self.resolve(module, glob, hops)?;
            self.step(from.module, name, hops)
        })
    }

    fn root_of(&self, module: usize) -> usize {
        std::iter::successors(Some(module), |at| self.all[*at].parent).last().unwrap_or(module)
    }
}

/// A module within another one.
enum Declared<'s, 't> {
    Block { name: &'t str, tokens: &'s [Token<'t>] },
    File { name: &'t str, given: Option<&'t str> },
}

impl<'t> Module<'t> {
    fn has(&self, name: &str) -> bool {
        self.children.contains_key(name) || self.items.contains(name) || self.imports.contains_key(name)
    }

    /// Reads the module's tokens; returns the modules that it declares.
    fn read<'s>(&mut self, tokens: &'s [Token<'t>]) -> Vec<Declared<'s, 't>> {
        let mut declared = Vec::new();
        let (mut at, mut depth, mut given) = (0, 0_usize, None);
        while at < tokens.len() {
            if let Some((_, inside, end)) = attribute(tokens, at) {
                if let [path, is, value] = inside
                    && path.is("path")
                    && is.is("=")
                {
                    given = Some(value.text.trim_matches('"'));
                }
                at = end;
                continue;
            }
            let token = tokens[at];
            let after = tokens.get(at + 1);
            let name = after.filter(|after| after.is_word()).map(|after| after.text);
            match (token.kind, token.text) {
                (Kind::Word, "use") if !after.is_some_and(|after| after.is("<")) => {
                    let is_export = at > 0 && (tokens[at - 1].is("pub") || tokens[at - 1].is(")"));
                    at = self.read_use(tokens, at + 1, is_export);
                    continue;
                }
                (Kind::Word, "mod") if let Some(name) = name => {
                    at += 2;
                    if tokens.get(at).is_some_and(|token| token.is("{")) {
                        let end = after_group(tokens, at);
                        declared.push(Declared::Block { name, tokens: &tokens[at + 1..end - 1] });
                        at = end;
                    } else {
                        declared.push(Declared::File { name, given: given.take() });
                    }
                    continue;
                }
                (Kind::Word, "impl") if depth == 0 => self.impls.extend(implemented(&tokens[at + 1..])),
                (Kind::Word, "struct" | "enum" | "union" | "trait" | "type" | "fn" | "const" | "static")
                    if depth == 0 =>
                {
                    self.items.extend(name);
                }
                (Kind::Sign, "(" | "[" | "{") => depth += 1,
                (Kind::Sign, ")" | "]" | "}") => depth = depth.saturating_sub(1),
                _ => {}
            }
            if token.is_word() {
                self.words.insert(token.text);
                let is_start = at == 0 || !tokens[at - 1].is("::");
                if is_start && after.is_some_and(|after| after.is("::")) {
                    self.paths.insert(path_at(&tokens[at..]));
                }
            }
            at += 1;
        }
        declared
    }

    /// Reads the import that begins at `start`; returns where it ends.
    fn read_use(&mut self, tokens: &[Token<'t>], start: usize, is_export: bool) -> usize {
        let length = tokens[start..].iter().position(|token| token.is(";")).unwrap_or(tokens.len() - start);
        let mut leaves = Vec::new();
        import_leaves(&tokens[start..start + length], &[], &mut leaves);
        for (path, name) in leaves {
            match name {
                None => self.globs.push(path),
                Some(name) => {
                    if is_export {
                        self.exports.insert(name);
                    }
                    self.imports.insert(name, path);
                }
            }
        }
        start + length
    }
}

/// The paths of an import with the names that they get; no name: everything in it.
fn import_leaves<'t>(tokens: &[Token<'t>], before: &[&'t str], leaves: &mut Vec<(Path<'t>, Option<&'t str>)>) {
    let mut path = before.to_vec();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text {
            // `::a` is another crate.
            "::" if path.is_empty() => return,
            "::" => {}
            "*" => return leaves.push((path, None)),
            "{" => {
                let end = after_group(tokens, at);
                let (mut start, mut inner) = (at + 1, at + 1);
                while inner < end {
                    if tokens[inner].is("{") {
                        inner = after_group(tokens, inner);
                    } else if tokens[inner].is(",") || inner == end - 1 {
                        if start < inner {
                            import_leaves(&tokens[start..inner], &path, leaves);
                        }
                        (start, inner) = (inner + 1, inner + 1);
                    } else {
                        inner += 1;
                    }
                }
                return;
            }
            "as" => return leaves.extend(tokens.get(at + 1).map(|name| (path, Some(name.text)))),
            // `a::{self}` is `a`.
            "self" if !path.is_empty() => {}
            segment => path.push(segment),
        }
        at += 1;
    }
    if let Some(last) = path.last().copied() {
        leaves.push((path, Some(last)));
    }
}

/// The path that tokens begin with.
fn path_at<'t>(tokens: &[Token<'t>]) -> Path<'t> {
    let mut path = Vec::new();
    for pair in tokens.chunks(2) {
        if !pair[0].is_word() {
            break;
        }
        path.push(pair[0].text);
        if !pair.get(1).is_some_and(|sign| sign.is("::")) {
            break;
        }
    }
    path
}

/// The type that an `impl` is of, given what follows that word.
fn implemented<'t>(tokens: &[Token<'t>]) -> Option<Path<'t>> {
    let header = &tokens[..tokens.iter().position(|token| token.is("{") || token.is(";") || token.is("where"))?];
    let mut depth = 0_isize;
    let mut start = 0;
    for (at, token) in header.iter().enumerate() {
        match token.text {
            "<" => depth += 1,
            ">" => {
                depth -= 1;
                // The `impl`'s own parameters.
                if depth == 0 && header[0].is("<") && start == 0 {
                    start = at + 1;
                }
            }
            "for" if depth == 0 && !header.get(at + 1).is_some_and(|next| next.is("<")) => start = at + 1,
            _ => {}
        }
    }
    let named =
        header[start..].iter().position(|token| token.is_word() && !["dyn", "mut", "const"].contains(&token.text))?;
    Some(path_at(&header[start + named..]))
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    #[test]
    fn each_form_of_an_import_is_read() {
        let mut module = Module::default();
        module.read(&tokens("use a::{b, c::{self, d as e}, f::*}; pub(crate) use super::g; fn x() { h::i::<u8>() }"));
        let mut imports: Vec<_> = module.imports.iter().map(|(name, path)| (*name, path.join("::"))).collect();
        imports.sort();
        let expected = [("b", "a::b"), ("c", "a::c"), ("e", "a::c::d"), ("g", "super::g")];
        assert_eq!(imports, expected.map(|(name, path)| (name, path.to_owned())));
        assert_eq!(module.globs, [["a", "f"]]);
        assert_eq!(module.exports, BTreeSet::from(["g"]));
        assert_eq!(module.paths, BTreeSet::from([vec!["h", "i"]]));
        assert!(module.items.contains("x"));
    }

    #[test]
    fn the_type_of_an_impl_is_told() {
        for (text, path) in [
            ("Foo {", "Foo"),
            ("<T: A<B>> x::Foo<T> where T: C {", "x::Foo"),
            ("<'a, F: Fn(u8) -> u8> A<F> for &'a mut Foo<'a> {", "Foo"),
            ("<T> From<T> for dyn Foo where for<'a> T: B<'a> {", "Foo"),
            ("Drop for Foo { for x in y {} }", "Foo"),
        ] {
            assert_eq!(implemented(&tokens(text)).map(|path| path.join("::")).as_deref(), Some(path), "{text}");
        }
    }
}
