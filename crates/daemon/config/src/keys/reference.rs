//! The reference of all keys, as a document.

use std::fmt::Write;

use super::{
    Row, any_policy, api, daemon, demand, device, drive, drr, fair, lpns, namespace, pollers, tenant, top, wrr,
};

const HEAD: &str = "\
# The keys of the daemon's file

Generated from `crates/daemon/config/src/keys`; change it there. [CONFIGURATION.md](../CONFIGURATION.md) says what they
are for.

- Sizes: `\"16GiB\"` (steps of 1024), `\"1TB\"` (steps of 1000), `4096` (bytes). Times: `\"50us\"`, `\"10ms\"`.
- The column *changes* says when [`evenkeel apply`](../CONFIGURATION.md#changing-a-daemon-that-runs) changes a key: at
  once, also under a client; without a client; or with the next start of the daemon.
";

/// Headings, what they stand under, and their keys.
const SECTIONS: &[(&str, &str, &[&dyn Row])] = &[
    ("The top", "Above all headings.", top::ROWS),
    ("`[daemon]`", "", daemon::ROWS),
    ("`[api]`", "", api::ROWS),
    ("`[device]`", "", device::ROWS),
    ("`[[drive]]`", "All keys of `[device]`, and these.", drive::ROWS),
    ("`[policy]`", "Also `[drive.policy]`.", any_policy::ROWS),
    ("`[policy]` with `name = \"lpns\"`", "", lpns::ROWS),
    ("`[policy]` with `name = \"fair\"`", "Latencies are set together or not at all.", fair::ROWS),
    ("`[policy]` with `name = \"wrr\"`", "", wrr::ROWS),
    ("`[policy]` with `name = \"drr\"`", "", drr::ROWS),
    ("`[pollers]`", "Also `[drive.pollers]`.", pollers::ROWS),
    ("`[[tenant]]`", "", tenant::ROWS),
    ("`[tenant.demand]`", "Below its `[[tenant]]`.", demand::ROWS),
    ("`[[namespace]]`", "", namespace::ROWS),
];

/// The document.
pub fn document() -> String {
    let mut text = HEAD.to_owned();
    for (heading, about, rows) in SECTIONS {
        // Writing to a text can't fail.
        let _ = write!(text, "\n## {heading}\n\n");
        if !about.is_empty() {
            let _ = write!(text, "{about}\n\n");
        }
        text += "| key | values | default | changes | |\n| --- | --- | --- | --- | --- |\n";
        for row in *rows {
            let _ = writeln!(text, "| `{}` | {} |", row.name(), row.cells().join(" | "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    /// The copy in the repository is current. Run with `UPDATE=1` to write it.
    #[test]
    fn the_reference_is_the_one_that_is_kept() {
        let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference/settings.md");
        let now = super::document();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(kept, &now).expect("the reference can be written");
        }
        assert_eq!(std::fs::read_to_string(kept).unwrap_or_default(), now, "run this test with UPDATE=1");
    }
}
