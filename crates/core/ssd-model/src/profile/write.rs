//! A profile as TOML text, with every parameter's basis.

use std::fmt::Write;

use super::Profile;

/// The tables of a profile besides its top level, in the order of the built-in files.
const TABLES: [&str; 5] = ["writes", "nand", "weights", "gc", "cipher"];

pub(super) fn toml(profile: &Profile, heading: &str) -> String {
    let mut out = String::new();
    for line in heading.lines() {
        // Nothing in a comment may end it.
        out += format!("# {}", line.replace(char::is_control, " ")).trim_end();
        out.push('\n');
    }
    out += &format!("\nname = {}\ndescription = {}\n\n", quoted(&profile.name), quoted(&profile.description));
    let parameters = profile.parameters();
    let (top, nested): (Vec<_>, Vec<_>) = parameters.iter().partition(|(name, _)| !name.contains('.'));
    top.iter().for_each(|(name, value)| line(&mut out, name, value));
    for table in TABLES {
        let prefix = format!("{table}.");
        let mut rows = nested.iter().filter_map(|(name, value)| Some((name.strip_prefix(&*prefix)?, value))).peekable();
        if rows.peek().is_some() {
            out += &format!("\n[{table}]\n");
            rows.for_each(|(name, value)| line(&mut out, name, value));
        }
    }
    if !profile.basis.is_empty() {
        out += "\n[basis]\n";
        for basis in profile.basis.iter() {
            out += &format!("{} = {}\n", basis.parameter, quoted(&basis.text));
        }
    }
    out
}

fn line(out: &mut String, name: &str, value: &str) {
    let is_bare = value == "true" || value == "false" || value.parse::<u64>().is_ok();
    let value = if is_bare { value.to_owned() } else { quoted(value) };
    *out += &format!("{name} = {value}\n");
}

/// A basic string (TOML 1.0, "String").
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => _ = write!(out, "\\u{:04X}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
