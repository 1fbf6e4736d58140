//! Rust source as tokens, without comments. The counts need no more, so there is no parser.

/// A kind of token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A name, keyword or number.
    Word,
    /// A string or character.
    Literal,
    /// `'a`.
    Lifetime,
    /// `::`, `->` and `=>` are one sign each, any other sign is one character.
    Sign,
}

/// One token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    pub kind: Kind,
    /// As written.
    pub text: &'a str,
    /// Counted from 0.
    pub line: usize,
}

impl Token<'_> {
    /// Whether this is the word or sign `text`.
    pub fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Sign) && self.text == text
    }

    /// Whether this is a name, keyword or number.
    pub fn is_word(&self) -> bool {
        self.kind == Kind::Word
    }
}

/// The tokens of a file. Text that is not Rust gives some tokens too, never a panic.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 0);
    while let Some(first) = text[at..].chars().next() {
        let (kind, length) = next(&text[at..], first);
        let token = &text[at..at + length];
        if let Some(kind) = kind {
            found.push(Token { kind, text: token, line });
        }
        line += token.matches('\n').count();
        at += length;
    }
    found
}

/// The kind (none for blanks and comments) and the length of what `text` begins with.
fn next(text: &str, first: char) -> (Option<Kind>, usize) {
    if first.is_whitespace() {
        return (None, text.len() - text.trim_start().len());
    }
    if text.starts_with("//") {
        return (None, text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return (None, block_comment(text));
    }
    if first == '"' {
        return (Some(Kind::Literal), quoted(text, 1, '"'));
    }
    if first == '\'' {
        return quote(text);
    }
    if first.is_alphanumeric() || first == '_' {
        return word(text);
    }
    let is_double = ["::", "->", "=>"].into_iter().any(|sign| text.starts_with(sign));
    (Some(Kind::Sign), if is_double { 2 } else { first.len_utf8() })
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of a literal that ends with `end`, with escapes, whose content begins at `start`.
fn quoted(text: &str, start: usize, end: char) -> usize {
    let mut characters = text[start..].char_indices();
    while let Some((at, character)) = characters.next() {
        if character == '\\' {
            characters.next();
        } else if character == end {
            return start + at + end.len_utf8();
        }
    }
    text.len()
}

/// A character or a lifetime.
fn quote(text: &str) -> (Option<Kind>, usize) {
    let mut rest = text[1..].chars();
    match (rest.next(), rest.next()) {
        (Some(content), Some('\'')) if content != '\\' => (Some(Kind::Literal), 2 + content.len_utf8()),
        (Some(content), _) if content.is_alphanumeric() || content == '_' => {
            (Some(Kind::Lifetime), 1 + name(&text[1..]))
        }
        _ => (Some(Kind::Literal), quoted(text, 1, '\'')),
    }
}

/// A name, keyword or number; or a literal with a prefix (`r#"…"#`, `b'x'`, `c"…"`).
fn word(text: &str) -> (Option<Kind>, usize) {
    let length = name(text);
    let (prefix, rest) = text.split_at(length);
    match prefix {
        "b" if rest.starts_with('\'') => return (Some(Kind::Literal), quoted(text, 2, '\'')),
        "b" | "c" if rest.starts_with('"') => return (Some(Kind::Literal), quoted(text, 2, '"')),
        "r" | "br" | "cr" => {
            let hashes = rest.len() - rest.trim_start_matches('#').len();
            if rest[hashes..].starts_with('"') {
                let end = format!("\"{}", "#".repeat(hashes));
                let start = length + hashes + 1;
                return (Some(Kind::Literal), text[start..].find(&end).map_or(text.len(), |at| start + at + end.len()));
            }
            if hashes == 1 {
                return (Some(Kind::Word), length + 1 + name(&rest[1..]));
            }
        }
        _ => {}
    }
    (Some(Kind::Word), length)
}

/// The length of the name or number that `text` begins with.
fn name(text: &str) -> usize {
    text.find(|character: char| !character.is_alphanumeric() && character != '_').unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_are_left_out_wherever_they_stand() {
        assert_eq!(texts("a // b\n/* c /* d */ e */ f /// g"), ["a", "f"]);
        assert_eq!(texts(r#""// no comment" b"#), [r#""// no comment""#, "b"]);
    }

    #[test]
    fn literals_are_one_token() {
        let source = r####"r#"a " b"# b'\'' '"' b"\"" c"x" '\u{1f600}' 'é' "\\" r"\" end"####;
        let found = tokens(source);
        assert_eq!(found.len(), 10, "{found:?}");
        assert!(found[..9].iter().all(|token| token.kind == Kind::Literal), "{found:?}");
        assert!(found[9].is("end"));
    }

    #[test]
    fn lifetimes_are_no_characters() {
        let found = tokens("&'a str, 'static, 'x'");
        assert_eq!(found.iter().filter(|token| token.kind == Kind::Lifetime).count(), 2);
        assert_eq!(found.last().map(|token| token.kind), Some(Kind::Literal));
    }

    #[test]
    fn signs_and_lines_are_told() {
        assert_eq!(texts("a::b->c=>d>>e r#use"), ["a", "::", "b", "->", "c", "=>", "d", ">", ">", "e", "r#use"]);
        assert_eq!(tokens("a\n\"\n\"\nb").iter().map(|token| token.line).collect::<Vec<_>>(), [0, 1, 3]);
    }

    #[test]
    fn text_that_ends_early_is_read_to_its_end() {
        for source in ["\"", "'", "r#\"", "/*", "b'", "'\\", "r#"] {
            assert!(tokens(source).len() <= 2, "{source}");
        }
    }
}
