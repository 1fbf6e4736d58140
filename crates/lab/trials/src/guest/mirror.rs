//! Which Debian archive this machine already uses, asked of apt itself: apt then reads one-line and
//! deb822 sources alike, and no host name is ever written down here.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The archive that the guest packages come from.
#[derive(Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The part of an apt source before `dists/`, without a trailing slash.
    pub uri: String,
    /// Debian's own keys; `None` leaves apt to its trusted keys.
    pub keyring: Option<PathBuf>,
}

/// Suites that only Debian's main archive has, so that a match names that archive and not one
/// of a third party's beside it.
const DEBIAN_SUITES: [&str; 8] = ["bookworm", "trixie", "forky", "duke", "stable", "testing", "unstable", "sid"];

const KEYRINGS: [&str; 2] =
    ["/usr/share/keyrings/debian-archive-keyring.pgp", "/usr/share/keyrings/debian-archive-keyring.gpg"];

/// Finds the mirror.
///
/// # Errors
/// When apt is missing, or when its sources name no Debian archive.
pub fn find() -> Result<Mirror> {
    let output = Command::new("apt-get")
        .args(["-o", "Debug::NoLocking=true", "update", "--print-uris"])
        .output()
        .context("apt-get cannot be run, so there is nowhere to take guest packages from")?;
    let listing = String::from_utf8_lossy(&output.stdout);
    let uri = archive_in(&listing)
        .context("this machine's apt sources name no Debian archive (none has a suite such as trixie)")?;
    let keyring = KEYRINGS.iter().map(Path::new).find(|path| path.exists()).map(Path::to_path_buf);
    Ok(Mirror { uri, keyring })
}

/// The first Debian archive in the output of `apt-get update --print-uris`.
fn archive_in(listing: &str) -> Option<String> {
    listing.lines().find_map(|line| {
        let uri = line.strip_prefix('\'')?.split('\'').next()?;
        let (archive, file) = uri.split_once("/dists/")?;
        let suite = file.strip_suffix("/InRelease")?;
        DEBIAN_SUITES.contains(&suite).then(|| archive.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::archive_in;

    #[test]
    fn the_main_archive_is_told_from_its_neighbours() {
        let listing = "\
'https://tools.example/apt/dists/tools-bookworm/InRelease' a 0
'http://archive.example/debian-security/dists/bookworm-security/InRelease' b 0
'http://archive.example/debian/dists/bookworm-updates/InRelease' c 0
'http://archive.example/debian/dists/bookworm/InRelease' d 0
";
        assert_eq!(archive_in(listing).as_deref(), Some("http://archive.example/debian"));
    }

    #[test]
    fn no_debian_archive_is_no_mirror() {
        let listing = "'http://archive.example/ubuntu/dists/noble/InRelease' a 0\nnoise\n";
        assert_eq!(archive_in(listing), None);
    }
}
