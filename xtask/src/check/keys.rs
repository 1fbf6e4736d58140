//! The number of keys of the daemon's configuration, counted in the schema of its reader.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use super::tokens::{Kind, Token};

/// Where the schema is.
pub const FILE: &str = "crates/daemon/config/src/section.rs";

/// The schema: sections with the constants that list their keys.
const SCHEMA: &str = "DAEMON";

/// The keys of each section. One that stands in several lists by being joined to them counts once. The name of a
/// section is no key; that of a list of sections is one where it stands below another heading (a tenant's `drive`).
///
/// # Errors
/// When the schema is not there: this file must then say where it went.
pub fn count(tokens: &[Token<'_>]) -> Result<Vec<(String, usize)>> {
    let Some(schema) = constant(tokens, SCHEMA) else {
        bail!(
            "{FILE} has no `const {SCHEMA}`: say in xtask/src/check/keys.rs where the configuration's keys are listed"
        );
    };
    let sections: Vec<(&str, &str)> = schema
        .windows(4)
        .filter(|window| window[0].is("(") && window[2].is(",") && window[3].is_word())
        .map(|window| (window[1].text, window[3].text))
        .collect();
    // "[tenant.demand]", quoted, is the section `demand` of a tenant.
    let heading = |label: &&str| label.trim_matches(['"', '[', ']']).rsplit('.').next().unwrap_or_default().to_owned();
    let is_list = |label: &&str| label.starts_with("\"[[");
    let labels = || sections.iter().map(|(label, _)| *label);
    let single: BTreeSet<String> = labels().filter(|label| !is_list(label)).map(|label| heading(&label)).collect();
    let lists: BTreeSet<String> = labels().filter(is_list).map(|label| heading(&label)).collect();
    let mut found = Vec::new();
    for (label, list) in sections {
        let Some(list) = constant(tokens, list) else { bail!("{FILE} has no `const {list}`, which {SCHEMA} names") };
        let keys = list.iter().filter(|token| token.kind == Kind::Literal).map(|token| token.text.trim_matches('"'));
        let is_top = !label.starts_with('"');
        let keys = keys.filter(|key| !(single.contains(*key) || is_top && lists.contains(*key))).count();
        found.push((if is_top { "the top" } else { label.trim_matches('"') }.to_owned(), keys));
    }
    Ok(found)
}

/// The value of a constant.
fn constant<'s, 't>(tokens: &'s [Token<'t>], name: &str) -> Option<&'s [Token<'t>]> {
    let start = tokens.windows(2).position(|pair| pair[0].is("const") && pair[1].is(name))?;
    let value = start + tokens[start..].iter().position(|token| token.is("="))?;
    let length = tokens[value..].iter().position(|token| token.is(";"))?;
    Some(&tokens[value..value + length])
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    const SOURCE: &str = r#"
        const DAEMON: Schema = &[(THE_TOP, TOP), ("[device]", DEVICE), ("[[drive]]", DRIVE), ("[drive.x]", X)];
        const TOP: &[&str] = &["a", "device", "drive"];
        const DEVICE: &[&str] = &["a", "b", "c"];
        const DRIVE: &[&str] = &joined::<4>(&[&["name"], DEVICE, &["x"]]);
        const X: &[&str] = &["d", "drive"];
        const OTHER: &[&str] = &["a", "b"];"#;

    #[test]
    fn each_key_counts_once_where_it_is_listed() {
        let expected = [("the top", 1), ("[device]", 3), ("[[drive]]", 1), ("[drive.x]", 2)];
        assert_eq!(count(&tokens(SOURCE)).unwrap(), expected.map(|(label, keys)| (label.to_owned(), keys)));
    }

    #[test]
    fn a_schema_that_was_moved_is_told() {
        for gone in ["DAEMON", "DEVICE"] {
            let error = count(&tokens(&SOURCE.replace(&format!("const {gone}"), "const Y"))).unwrap_err();
            assert!(error.to_string().contains(&format!("no `const {gone}`")), "{error}");
        }
    }
}
