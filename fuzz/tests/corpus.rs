//! Every input that the repository keeps for a fuzz target goes through that target's harness.

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

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
}

/// One after the other: the harnesses look at what belongs to the whole process.
#[test]
fn every_kept_input_passes() {
    for (target, run) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        let inputs = inputs(&folder);
        assert!(!inputs.is_empty(), "{} is empty", folder.display());
        for path in inputs {
            let data = fs::read(&path).unwrap();
            assert!(catch_unwind(|| run(&data)).is_ok(), "{target} fails on {}", path.display());
        }
    }
}
