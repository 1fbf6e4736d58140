//! Every kind of mistake in a configuration.

#[path = "common/messages.rs"]
mod messages;

use std::path::Path;

use config::Config;

#[test]
fn messages_are_as_written_down() {
    messages::are_as_written_down("bad_configs.txt", |text| {
        Config::parse(Path::new("ek.toml"), text).map(|config| config.warnings)
    });
}
