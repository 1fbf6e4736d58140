//! Translates the daemon's errors from configuration keys to command-line options.

use std::collections::BTreeSet;

use anyhow::{Error, Result};
use api::{DiskSpec, Problem};
use clap::Args;

/// Translates an error: `latency_target = "50us"` becomes `--latency-target 50us`.
pub fn in_options<T>(done: Result<T>) -> Result<T> {
    done.map_err(|error| match error.downcast::<Problem>() {
        Ok(problem) => {
            let keys = keys();
            let said = |text: &String| rewrite(text, &keys);
            let details = problem.details.iter().map(said).collect();
            Error::new(Problem { title: said(&problem.title), remedy: said(&problem.remedy), details, ..problem })
        }
        Err(error) => error,
    })
}

/// The keys as the file spells them.
fn keys() -> BTreeSet<String> {
    let options = DiskSpec::augment_args(clap::Command::new("disk"));
    let long = options.get_arguments().filter_map(|option| option.get_long());
    long.map(|long| long.replace('-', "_")).collect()
}

fn rewrite(text: &str, keys: &BTreeSet<String>) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/' | '.');
    let (mut said, mut rest) = (String::new(), text);
    while let Some(start) = rest.find(is_part) {
        let (before, word_on) = rest.split_at(start);
        let (word, after) = word_on.split_at(word_on.find(|c| !is_part(c)).unwrap_or(word_on.len()));
        said += before;
        rest = after;
        match option(word, before, after, keys) {
            Some((option, left)) => {
                said += &option;
                rest = left;
            }
            None => said += word,
        }
    }
    said + rest
}

/// The option for a word, with the value that follows it, and the rest of the text. `None`: the word is not a key.
fn option<'t>(word: &str, before: &str, after: &'t str, keys: &BTreeSet<String>) -> Option<(String, &'t str)> {
    // In quotes it is a name or a value.
    if !keys.contains(word) || before.ends_with('"') {
        return None;
    }
    let option = format!("--{}", word.replace('_', "-"));
    if let Some((value, left)) = after.strip_prefix(" = ").and_then(value) {
        return Some(match value {
            "true" => (option, left),
            "false" => (option + "=false", left),
            _ => (format!("{option} {value}"), left),
        });
    }
    // Other keys are ordinary words, too.
    (before.ends_with('`') || word.contains('_')).then_some((option, after))
}

/// A TOML value in a shell's spelling, and the rest of the text.
fn value(text: &str) -> Option<(&str, &str)> {
    if let Some((value, _)) = text.strip_prefix('"').and_then(|quoted| quoted.split_once('"')) {
        let (quoted, left) = text.split_at(value.len() + 2);
        return Some((if value.contains(char::is_whitespace) { quoted } else { value }, left));
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_options_where_it_named_keys() {
        let problem = Problem::new(
            422,
            "invalid",
            "`doorbells` in tenant \"weight\" does not apply: it has latency_target 20us; tenant \"max_maps\" has none",
            "write latency_target = \"8.6us\" or more, or frontend = \"vfio-user\"; or weight = 3, overcommit = true \
             or read_only = false; the size and the weight stay: see `evenkeel disk set`, run/socket_user",
        );
        let refused = in_options::<()>(Err(Error::new(problem))).expect_err("a refusal");
        let problem = refused.downcast_ref::<Problem>().expect("of the daemon");
        assert_eq!(
            problem.title,
            "`--doorbells` in tenant \"weight\" does not apply: it has --latency-target 20us; tenant \"max_maps\" has \
             none"
        );
        assert_eq!(
            problem.remedy,
            "write --latency-target 8.6us or more, or --frontend vfio-user; or --weight 3, --overcommit or \
             --read-only=false; the size and the weight stay: see `evenkeel disk set`, run/socket_user"
        );
    }

    #[test]
    fn another_error_is_as_it_was() {
        let error = in_options::<()>(Err(Error::msg("no `weight`"))).expect_err("an error");
        assert_eq!(error.to_string(), "no `weight`");
    }
}
