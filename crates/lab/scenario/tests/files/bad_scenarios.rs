//! Every kind of mistake in a scenario.

use std::path::Path;

use scenario::Scenario;

#[test]
fn messages_are_as_written_down() {
    crate::messages::are_as_written_down("bad_scenarios.txt", |text| {
        Scenario::parse(Path::new("ek.toml"), text).map(|scenario| scenario.warnings)
    });
}
