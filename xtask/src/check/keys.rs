//! The number of keys of the daemon's configuration, counted in the table of them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use super::tokens::{Kind, Token};

/// Where the table is.
pub const FILE: &str = "crates/daemon/config/src/keys/mod.rs";

/// The keys of each section: rows of `section! { "…" … }`, such as `ID: Type = "name", values, …`. A key that several
/// tables of one section have counts once, and the name of a section is no key.
///
/// # Errors
/// When no table is there: this file must then say where it went.
pub fn count(tokens: &[Token<'_>]) -> Result<Vec<(String, usize)>> {
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut section = "";
    for window in tokens.windows(4) {
        if window[0].is("section") && window[1].is("!") && window[3].kind == Kind::Literal {
            // "`[policy]` of `lpns`." is a part of [policy].
            section = window[3].text.trim_matches('"').split('`').nth(1).unwrap_or("the top");
        }
        let is_row = window[0].is("=") && window[1].kind == Kind::Literal && window[2].is(",");
        if is_row && !window[3].text.starts_with("SECTION") {
            found.entry(section).or_default().insert(window[1].text);
        }
    }
    ensure!(!found.is_empty(), "{FILE} has no rows: say in xtask/src/check/keys.rs where the configuration's keys are");
    Ok(found.into_iter().map(|(section, keys)| (section.to_owned(), keys.len())).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    const SOURCE: &str = r#"
        section! { "Above all." top
            A: Flag = "a", Flag, Is(true), "x"; P: Apart = "p", SECTION, NONE, "y"; }
        section! { "`[p]`." p N: Word<T<u8>> = "name", Word(W), Is(W), "x"; B: Flag = "b", Flag, Is(true), "z"; }
        section! { "`[p]` of `q`." q B: Flag = "b", Flag, Is(true), "x"; C: Flag = "c", Flag, Is(true), "x"; }
        const D: &str = "d";"#;

    #[test]
    fn each_key_counts_once_in_its_section() {
        let expected = [("[p]", 3), ("the top", 1)];
        assert_eq!(count(&tokens(SOURCE)).unwrap(), expected.map(|(label, keys)| (label.to_owned(), keys)));
    }

    #[test]
    fn a_table_that_was_moved_is_told() {
        assert!(count(&tokens("const A: &str = \"a\";")).unwrap_err().to_string().contains(FILE));
    }
}
