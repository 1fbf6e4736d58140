//! Every kind of mistake in a configuration.

use std::path::Path;

use config::Drives;

#[test]
fn messages_are_as_written_down() {
    crate::messages::are_as_written_down("bad_configs.txt", |text| {
        let drives = Drives::parse(Path::new("ek.toml"), text, "")?;
        Ok(drives.each.into_iter().flat_map(|config| config.warnings).collect())
    });
}
