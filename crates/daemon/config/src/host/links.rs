//! Links on the way to a file: who could have put them there.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Links on one way; the kernel follows as many (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Whether every directory on the way to `path` is root's and nobody else may write to it, so that no other user could
/// have put a link there. The file itself may be anybody's, or missing.
pub(super) fn only_root_leads_to(path: &Path) -> bool {
    let Ok(absolute) = std::path::absolute(path) else { return false };
    let mut at = PathBuf::from("/");
    let mut left = components_backwards(&absolute);
    let mut links = 0;
    while let Some(name) = left.pop() {
        if !is_roots_alone(&at) {
            return false;
        }
        if name == Path::new("..") {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        match next.read_link() {
            Ok(target) => {
                links += 1;
                if links > MAX_LINKS {
                    return false;
                }
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                left.extend(components_backwards(&target));
            }
            // It is no link, or is not there.
            Err(_) => at = next,
        }
    }
    true
}

fn is_roots_alone(directory: &Path) -> bool {
    match directory.symlink_metadata() {
        Ok(found) => found.is_dir() && found.uid() == 0 && found.mode() & 0o022 == 0,
        // Only those who may write to the directory above can make it.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn components_backwards(path: &Path) -> Vec<PathBuf> {
    let named = |part: Component<'_>| match part {
        Component::Normal(_) | Component::ParentDir => Some(PathBuf::from(part.as_os_str())),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    /// Root's own directory, away from `/tmp`, to which everybody may write.
    fn roots_own() -> Option<tempfile::TempDir> {
        let directory = tempfile::tempdir_in("/run").ok()?;
        only_root_leads_to(&directory.path().join("x")).then_some(directory)
    }

    /// Only here: a link of the account's leads root to a file of root's.
    #[test]
    fn a_way_that_others_could_lead_elsewhere_is_known() {
        let Some(directory) = roots_own() else {
            println!("skipped: only root has a directory of root's own");
            return;
        };
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("own")).expect("made");
        fs::create_dir_all(at("theirs/root")).expect("made");
        chown(at("theirs"), Some(4001), None).expect("given away");
        symlink("own", at("link")).expect("linked");
        symlink("theirs", at("away")).expect("linked");
        symlink(at("own"), at("theirs/back")).expect("linked");
        symlink("loop", at("loop")).expect("linked");
        for good in ["own/f", "own", "link/f", "own/../own/f", "missing/f", "theirs"] {
            assert!(only_root_leads_to(&at(good)), "{good}");
        }
        for bad in ["theirs/f", "theirs/root/f", "away/f", "theirs/back/f", "theirs/back", "loop", "theirs/../own/f"] {
            assert!(!only_root_leads_to(&at(bad)), "{bad}");
        }
        for mode in [0o775, 0o757, 0o1777] {
            fs::set_permissions(at("own"), Permissions::from_mode(mode)).expect("changed");
            assert!(!only_root_leads_to(&at("link/f")), "{mode:o}");
        }
    }
}
