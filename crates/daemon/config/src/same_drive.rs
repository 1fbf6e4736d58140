//! One drive that is found twice: by a second path of a block device, or as the same namespace of a second controller
//! (a virtual function). Each of the two would have a layout of its own, and tenants would overwrite each other.

use layout::DeviceIdentity;

use crate::config::{Backend, Config};

/// Which of other drives a drive is, by what both say who they are. An image's copies have its mark too: its path alone
/// counts.
pub fn same_drive<'o>(
    config: &Config,
    device: &DeviceIdentity,
    others: impl IntoIterator<Item = (&'o Config, &'o DeviceIdentity)>,
) -> Option<&'o Config> {
    let id = device.id.as_deref().filter(|_| says_who_it_is(config))?;
    let is_same = |(other, its): &(&Config, &DeviceIdentity)| {
        says_who_it_is(other) && its.id.as_deref().is_some_and(|its| is_in(id, its) || is_in(its, id))
    };
    others.into_iter().find(is_same).map(|(other, _)| other)
}

/// What is wrong with two such drives, and what to do.
pub fn is_same_drive_as(config: &Config, device: &DeviceIdentity, other: &Config) -> (String, String) {
    let label = |config: &Config| {
        let place = config.device.backend.place().unwrap_or_default();
        format!("drive {:?} ({})", config.device.name, place.display())
    };
    let id = device.id.as_deref().unwrap_or_default();
    let what = format!("{} is {} already: both are {id}", label(config), label(other));
    let or_another = match config.device.backend {
        Backend::Nvme { .. } => ", or give each a namespace of its own: `nsid` says which one is meant",
        _ => "",
    };
    (what, format!("remove one of the two{or_another}"))
}

fn says_who_it_is(config: &Config) -> bool {
    matches!(config.device.backend, Backend::Block { .. } | Backend::Nvme { .. })
}

/// Whether it is the drive of that name, or a partition of it.
fn is_in(id: &str, whole: &str) -> bool {
    id.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with("-part"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::drives::Drives;

    #[test]
    fn a_drive_is_found_again_by_what_it_says_of_itself_and_an_image_is_not() {
        let text = "[[drive]]\nname = \"a\"\nbackend = \"nvme\"\naddress = \"0000:03:00.1\"\n\
                    [[drive]]\nname = \"b\"\nbackend = \"nvme\"\naddress = \"0000:03:00.2\"\n\
                    [[drive]]\nname = \"sda\"\nbackend = \"block\"\npath = \"/dev/sda\"\n\
                    [[drive]]\nname = \"image\"\nbackend = \"file\"\npath = \"/srv/a.img\"\n\
                    [policy]\nname = \"passthrough\"\n";
        let drives = Drives::parse(Path::new("ek.toml"), text, "").unwrap_or_else(|e| panic!("{e}"));
        let says = |id: &str| DeviceIdentity { id: Some(id.to_owned()), size_bytes: 1 << 30, ..Default::default() };
        let [a, b, block, image] = &drives.each[..] else { panic!("{} drives", drives.each.len()) };
        let found = |config, id: &str, other, its: &str| {
            same_drive(config, &says(id), [(other, &says(its))]).map(|other| other.device.name.clone())
        };
        assert_eq!(found(b, "nvme-S1-1", a, "nvme-S1-1").as_deref(), Some("a"));
        assert_eq!(found(b, "nvme-S1-2", a, "nvme-S1-1"), None, "another namespace");
        assert_eq!(found(b, "nvme-S1-11", a, "nvme-S1-1"), None, "another namespace");
        assert_eq!(found(block, "naa.1-part2", block, "naa.1").as_deref(), Some("sda"), "a part of it");
        assert_eq!(found(block, "naa.1", block, "naa.1-part2").as_deref(), Some("sda"), "all of it");
        assert_eq!(found(block, "naa.1-part1", block, "naa.1-part2"), None);
        assert_eq!(found(image, "naa.1", image, "naa.1"), None, "a copy");
        let nobody = DeviceIdentity::default();
        assert!(same_drive(b, &nobody, [(a, &nobody)]).is_none(), "none says who it is");

        let (what, remedy) = is_same_drive_as(b, &says("nvme-S1-1"), a);
        let told = "drive \"b\" (0000:03:00.2) is drive \"a\" (0000:03:00.1) already: both are nvme-S1-1";
        assert_eq!(what, told);
        assert!(remedy.starts_with("remove one of the two, or"), "{remedy}");
    }
}
