//! Which guest tests a change calls for, beyond the daily ones.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::tests::{ALL, BY_PATH};

/// Names of the tests that the paths changed since `since` call for; prints them with the paths.
///
/// Without `since` that is where HEAD left its upstream, or HEAD's parent if it has not; changes that are not
/// committed count too. Nothing is called for outside of a git repository.
///
/// # Errors
/// When git does not know `since`.
pub fn called_for(since: Option<&str>) -> Result<Vec<&'static str>> {
    let base = match since {
        Some(since) => since.to_owned(),
        None => match base() {
            Some(base) => base,
            None => {
                println!("No commit to compare with: no guest tests beyond the daily ones.");
                return Ok(Vec::new());
            }
        },
    };
    let tracked = git(&["diff", "--name-only", &base]).with_context(|| format!("changes since {base}"))?;
    let changed = format!("{tracked}\n{}", git(&["ls-files", "--others", "--exclude-standard"])?);
    let mut called: Vec<&str> = Vec::new();
    for (paths, parts) in BY_PATH {
        let Some(path) = changed.lines().find(|path| paths.iter().any(|start| path.starts_with(start))) else {
            continue;
        };
        let names: Vec<&str> = tests_named(parts).filter(|name| !called.contains(name)).collect();
        println!("{path} changed since {:.10}, so also: {}", base, names.join(", "));
        called.extend(names);
    }
    Ok(called)
}

/// Tests beyond the daily ones with one of these parts in their names.
fn tests_named(parts: &'static [&str]) -> impl Iterator<Item = &'static str> {
    let others = ALL.iter().filter(|test| !test.is_daily);
    others.map(|test| test.name).filter(move |name| parts.iter().any(|part| name.contains(part)))
}

fn base() -> Option<String> {
    let head = git(&["rev-parse", "HEAD"]).ok()?;
    let upstream = git(&["merge-base", "HEAD", "@{upstream}"]).ok().filter(|base| *base != head);
    upstream.or_else(|| git(&["rev-parse", "HEAD^"]).ok())
}

/// What git prints, without the last line's end.
fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").args(arguments).output().context("git can't be run")?;
    ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A renamed test would leave a change without its tests.
    #[test]
    fn each_part_names_a_test() {
        for part in BY_PATH.iter().flat_map(|(_, parts)| *parts) {
            assert!(ALL.iter().any(|test| test.name.contains(part)), "{part}");
        }
    }
}
