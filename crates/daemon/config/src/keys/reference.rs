//! The reference of all keys: what a document of it says, in whatever form.

use super::{
    Row, any_policy, api, daemon, demand, device, drive, drr, fair, group, host_keys, lpns, namespace, pollers, tenant,
    top, wrr,
};

/// Headings, what they stand under, and their keys.
const SECTIONS: &[(&str, &str, &[&dyn Row])] = &[
    ("The top", "Above all headings.", top::ROWS),
    ("`[daemon]`", "", daemon::ROWS),
    ("`[api]`", "", api::ROWS),
    ("`[keys]`", "", host_keys::ROWS),
    ("`[device]`", "", device::ROWS),
    ("`[[drive]]`", "All keys of `[device]`, and these.", drive::ROWS),
    ("`[policy]`", "Also `[drive.policy]`.", any_policy::ROWS),
    ("`[policy]` with `name = \"lpns\"`", "", lpns::ROWS),
    ("`[policy]` with `name = \"fair\"`", "Latencies are set together or not at all.", fair::ROWS),
    ("`[policy]` with `name = \"wrr\"`", "", wrr::ROWS),
    ("`[policy]` with `name = \"drr\"`", "", drr::ROWS),
    ("`[pollers]`", "Also `[drive.pollers]`.", pollers::ROWS),
    ("`[[group]]`", "For all disks together whose `group` is its name.", group::ROWS),
    ("`[[tenant]]`", "", tenant::ROWS),
    ("`[tenant.demand]`", "Below its `[[tenant]]`.", demand::ROWS),
    ("`[[namespace]]`", "", namespace::ROWS),
];

/// A key's name, and its values, default, changes and purpose in words.
pub type SettingLine = (&'static str, [String; 4]);

/// Each section: its heading, a remark or nothing, and its keys. Backquotes mark literal text.
pub fn sections() -> impl Iterator<Item = (&'static str, &'static str, Vec<SettingLine>)> {
    let lines = |rows: &[&dyn Row]| rows.iter().map(|row| (row.name(), row.cells())).collect();
    SECTIONS.iter().map(move |&(heading, about, rows)| (heading, about, lines(rows)))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    const HEAD: &str = "\
# The keys of the daemon's file

Generated from `crates/daemon/config/src/keys`; change it there. [CONFIGURATION.md](../CONFIGURATION.md) says what they
are for.

- Sizes: `\"16GiB\"` (steps of 1024), `\"1TB\"` (steps of 1000), `4096` (bytes). Times: `\"50us\"`, `\"10ms\"`.
- The column *changes* says when [`evenkeel apply`](../CONFIGURATION.md#changing-a-daemon-that-runs) changes a key: at
  once, also under a client; without a client; or with the next start of the daemon.
";

    fn document() -> String {
        let mut text = HEAD.to_owned();
        for (heading, about, lines) in sections() {
            // Writing to a text can't fail.
            let _ = write!(text, "\n## {heading}\n\n");
            if !about.is_empty() {
                let _ = write!(text, "{about}\n\n");
            }
            text += "| key | values | default | changes | |\n| --- | --- | --- | --- | --- |\n";
            for (name, cells) in lines {
                let _ = writeln!(text, "| `{name}` | {} |", cells.join(" | "));
            }
        }
        text
    }

    /// The copy in the repository is current. Run with `UPDATE=1` to write it.
    #[test]
    fn the_reference_is_the_one_that_is_kept() {
        let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference/settings.md");
        let now = document();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(kept, &now).expect("the reference can be written");
        }
        assert_eq!(std::fs::read_to_string(kept).unwrap_or_default(), now, "run this test with UPDATE=1");
    }
}
