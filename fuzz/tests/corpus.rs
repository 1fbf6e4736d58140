//! Every input that the repository keeps for a fuzz target goes through that target's harness.

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use evenkeel_fuzz::TARGETS;

/// The names in a folder of this crate, without their extensions.
fn names_in(folder: &str) -> BTreeSet<String> {
    let name = |path: PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    inputs(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).into_iter().map(name).collect()
}

fn inputs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_target_has_a_harness_and_a_corpus_and_nothing_else_is_there() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names_in("fuzz_targets"), targets, "fuzz_targets/");
    assert_eq!(names_in("corpus"), targets, "corpus/");
    let replayed: BTreeSet<String> = REPLAYED.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(replayed, targets, "replayed below");
}

/// Replays what is kept for a target. A test for each, so that each runs in a process of its own under nextest: the
/// harnesses look at what belongs to the whole process.
fn replay(target: &str) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, run) = TARGETS.into_iter().find(|(name, _)| *name == target).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let inputs = inputs(&folder);
    assert!(!inputs.is_empty(), "{} is empty", folder.display());
    for path in inputs {
        let data = fs::read(&path).unwrap();
        assert!(catch_unwind(|| run(&data)).is_ok(), "{target} fails on {}", path.display());
    }
}

macro_rules! replays {
    ($($target:ident)*) => {
        const REPLAYED: &[&str] = &[$(stringify!($target)),*];
        mod kept_inputs_of {
            $(#[test] fn $target() { super::replay(stringify!($target)); })*
        }
    };
}

replays!(
    commands daemon drive images keeper pieces registers tenants ublk vfio_user_messages vhost_user_messages virtqueues
);
