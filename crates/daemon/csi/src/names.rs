//! Names of the plugin, and of disks and snapshots, made from the names that Kubernetes gives.

use sha2::{Digest, Sha256};
use tonic::Status;

/// The plugin's name in the cluster: `provisioner` of StorageClasses, and the name of the CSIDriver.
pub const DRIVER: &str = "csi.evenkeel.io";

/// Label of nodes that names the node: a volume stays where its disk is.
pub const TOPOLOGY: &str = "csi.evenkeel.io/node";

/// Label of the disks that this plugin made. Its value is the volume's name as it was given.
pub const MARK: &str = "pv";

/// The longest name of a disk.
const MAX_NAME_LEN: usize = 63;
/// The longest value of a label, which keeps the given name.
const MAX_GIVEN_LEN: usize = 253;
/// Bytes of the hash in a made name: 64 bits, so that two of a million names meet once in 40 million tries.
const HASH_BYTES: usize = 8;

/// The name of the disk or snapshot for a given name. A name that a disk can have stays as it is. Of others a part
/// stays, with a hash of the whole.
///
/// # Errors
/// `INVALID_ARGUMENT`: the name is empty, longer than 253 bytes, or has control characters.
pub fn made_of(given: &str) -> Result<String, Status> {
    if given.is_empty() {
        return Err(Status::invalid_argument("name is missing"));
    }
    if given.len() > MAX_GIVEN_LEN || given.chars().any(char::is_control) {
        let words = format!("a name has at most {MAX_GIVEN_LEN} bytes and no control characters");
        return Err(Status::invalid_argument(words));
    }
    if is_name(given) {
        return Ok(given.to_owned());
    }
    let hash = Sha256::digest(given.as_bytes());
    let hash: String = hash.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let lower = given.chars().map(|c| c.to_ascii_lowercase());
    let kept = lower.map(|c| if u8::try_from(c).is_ok_and(is_of_names) { c } else { '-' });
    let kept: String = kept.take(MAX_NAME_LEN - hash.len() - 1).collect();
    Ok(format!("{}-{hash}", kept.trim_start_matches(['-', '_'])).trim_start_matches('-').to_owned())
}

/// Whether a disk or snapshot can have this name.
pub fn is_name(name: &str) -> bool {
    let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    starts_well && name.len() <= MAX_NAME_LEN && name.bytes().all(is_of_names)
}

fn is_of_names(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Only here: two volumes share a disk, or a disk's name is one that the daemon refuses.
    #[test]
    fn names_of_all_kinds_become_different_names_of_disks() {
        let long = ["x".repeat(63), "x".repeat(64), "x".repeat(250), format!("{}y", "x".repeat(249))];
        let odd =
            ["pvc-1", "PVC-1", "pvc/1", "pvc 1", "../pvc", "größe", "@", "a@b", "-a", "_a", "--"].map(str::to_owned);
        let given: Vec<String> = long.into_iter().chain(odd).collect();
        let made: BTreeSet<String> = given.iter().map(|name| made_of(name).expect("a name")).collect();
        assert_eq!(made.len(), given.len(), "{made:?}");
        assert!(made.iter().all(|name| is_name(name)), "{made:?}");
        assert_eq!(made_of("pvc-1").expect("a name"), "pvc-1");
        for bad in [String::new(), "x".repeat(254), "a\nb".to_owned()] {
            assert!(made_of(&bad).is_err(), "{bad:?}");
        }
    }
}
