//! The tests inside a file: items under `#[test]`, `#[cfg(test)]` or `#[cfg(all(test, …))]`.

use super::tokens::{Kind, Token};

/// A file without its tests.
pub struct Split<'a> {
    /// All other tokens.
    pub product: Vec<Token<'a>>,
    /// The number of lines of the tests.
    pub test_lines: usize,
    /// Test modules in files of their own: the name, and the path where `#[path]` gives one.
    pub test_modules: Vec<(&'a str, Option<&'a str>)>,
}

/// Splits a file of `lines` lines.
pub fn split<'a>(tokens: &[Token<'a>], lines: usize) -> Split<'a> {
    let mut found = Split { product: Vec::with_capacity(tokens.len()), test_lines: 0, test_modules: Vec::new() };
    let mut at = 0;
    while at < tokens.len() {
        let Some((is_whole_file, attribute, end)) = attribute(tokens, at) else {
            found.product.push(tokens[at]);
            at += 1;
            continue;
        };
        if !is_test(attribute) {
            found.product.extend(&tokens[at..end]);
            at = end;
            continue;
        }
        if is_whole_file {
            return Split { product: Vec::new(), test_lines: lines, ..found };
        }
        let item = item_end(tokens, end);
        found.test_modules.extend(module_of(&tokens[at..item]));
        found.test_lines += tokens[item - 1].line - tokens[at].line + 1;
        at = item;
    }
    found
}

/// The attribute at a place: whether it is the file's (`#![…]`), what is between its brackets, and where it ends.
pub fn attribute<'t, 'a>(tokens: &'t [Token<'a>], at: usize) -> Option<(bool, &'t [Token<'a>], usize)> {
    if !tokens[at].is("#") {
        return None;
    }
    let is_inner = tokens.get(at + 1)?.is("!");
    let open = at + 1 + usize::from(is_inner);
    if !tokens.get(open)?.is("[") {
        return None;
    }
    let end = after_group(tokens, open);
    Some((is_inner, &tokens[open + 1..(end - 1).max(open + 1)], end))
}

/// The place behind the bracket that closes the one at `open`.
pub fn after_group(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match (token.kind, token.text) {
            (Kind::Sign, "(" | "[" | "{") => depth += 1,
            (Kind::Sign, ")" | "]" | "}") => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

fn is_test(attribute: &[Token<'_>]) -> bool {
    let texts: Vec<&str> = attribute.iter().map(|token| token.text).collect();
    match texts.as_slice() {
        ["test"] | ["cfg", "(", "test", ")"] => true,
        // `test` as one of the conditions themselves, not inside another bracket.
        ["cfg", "(", "all", "(", conditions @ .., ")", ")"] => {
            let mut depth = 0_isize;
            let mut is_alone = true;
            for (at, text) in conditions.iter().enumerate() {
                match *text {
                    "(" => depth += 1,
                    ")" => depth -= 1,
                    "test" if depth == 0 && is_alone && conditions.get(at + 1).is_none_or(|next| *next == ",") => {
                        return true;
                    }
                    _ => {}
                }
                is_alone = *text == ",";
            }
            false
        }
        _ => false,
    }
}

/// The place behind the item (or field, or statement) that begins at `start`, perhaps with more attributes.
fn item_end(tokens: &[Token<'_>], start: usize) -> usize {
    let mut at = start;
    while let Some((_, _, end)) = tokens.get(at).and_then(|_| attribute(tokens, at)) {
        at = end;
    }
    let mut word = at;
    if tokens.get(word).is_some_and(|token| token.is("pub")) {
        word += 1;
        if tokens.get(word).is_some_and(|token| token.is("(")) {
            word = after_group(tokens, word);
        }
    }
    let text_at = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let has_block = match text_at(word) {
        "const" => matches!(text_at(word + 1), "fn" | "unsafe" | "async" | "extern"),
        "fn" | "mod" | "impl" | "struct" | "enum" | "union" | "trait" | "unsafe" | "extern" | "async"
        | "macro_rules" => true,
        _ => false,
    };
    let is_declaration = matches!(text_at(word), "use" | "const" | "static" | "type" | "let");
    while at < tokens.len() {
        match (tokens[at].kind, tokens[at].text) {
            (Kind::Sign, ";") => return at + 1,
            (Kind::Sign, ",") if !has_block && !is_declaration => return at + 1,
            (Kind::Sign, ")" | "]" | "}") => return at,
            (Kind::Sign, open @ ("(" | "[" | "{")) => {
                at = after_group(tokens, at);
                if open == "{" && has_block {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    at
}

/// The module that an item is, where it has a file of its own.
fn module_of<'a>(item: &[Token<'a>]) -> Option<(&'a str, Option<&'a str>)> {
    let [.., keyword, name, end] = item else { return None };
    if !keyword.is("mod") || !end.is(";") {
        return None;
    }
    let path = item.windows(3).find(|window| window[0].is("path") && window[1].is("=")).map(|window| window[2].text);
    Some((name.text, path.map(|path| path.trim_matches('"'))))
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    /// What is left of a text, and how many of its lines are tests.
    fn left_of(text: &str) -> (String, usize) {
        let found = split(&tokens(text), text.lines().count());
        (found.product.iter().map(|token| token.text).collect::<Vec<_>>().join(" "), found.test_lines)
    }

    #[test]
    fn each_kind_of_test_is_seen() {
        for (text, left, lines) in [
            ("a\n#[cfg(test)]\nmod tests {\n  fn x() { [1] }\n}\nb", "a b", 4),
            ("#[test]\n#[ignore]\nfn x<A, B>() -> [u8; 2] {\n}\nb", "b", 4),
            ("#[cfg(all(test, debug_assertions))]\nconst A: [u8; 2] = B { c };\nb", "b", 2),
            ("#[cfg(test)]\nuse a::{b, c};\nb", "b", 2),
            ("#[cfg(test)]\npub(crate) const fn a() {}\nb", "b", 2),
            ("struct A {\n#[cfg(test)]\na: u8,\nb: u8 }", "struct A { b : u8 }", 2),
            ("fn a() { #[cfg(test)]\nb(c, d);\ne }", "fn a ( ) { e }", 2),
            ("#![cfg(test)]\na\nb", "", 3),
        ] {
            assert_eq!(left_of(text), (left.to_owned(), lines), "{text}");
        }
    }

    #[test]
    fn what_is_built_without_tests_too_is_product() {
        for text in [
            "# [ cfg ( any ( test , feature = \"x\" ) ) ] mod a ;",
            "# [ cfg ( not ( test ) ) ] mod a ;",
            "# [ cfg ( all ( not ( test ) , unix ) ) ] mod a ;",
            "# [ derive ( Debug ) ] struct A ;",
        ] {
            assert_eq!(left_of(text), (text.to_owned(), 0));
        }
    }

    #[test]
    fn test_modules_in_files_are_told() {
        let text = "#[cfg(test)]\nmod a;\n#[cfg(test)]\n#[path = \"x/y.rs\"]\npub mod b;\n#[cfg(test)]\nmod c {}";
        assert_eq!(split(&tokens(text), 7).test_modules, [("a", None), ("b", Some("x/y.rs"))]);
    }
}
