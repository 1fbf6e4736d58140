//! `csi-sanity`, Kubernetes' own test of the specification, against the plugin on its socket.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::calls::block_on;
use crate::daemon::Daemon;
use crate::fake::Fake;

/// What volumes of the test are: thin, so that they have snapshots and clones.
const PARAMETERS: &str = "class: guaranteed\nlatencyTarget: 1ms\nthin: \"true\"\n";
const MUTABLE: &str = "latencyTarget: 2ms\n";

/// Only here: a call departs from the specification in an argument, a status, or when it is repeated.
#[test]
fn csi_sanity_finds_nothing() {
    let (Some(sanity), Some(daemon)) = (program(), Daemon::start()) else { return };
    let socket = daemon.home.path().join("csi.sock");
    let plugin = daemon.plugin(&Fake::default());
    let served = socket.clone();
    std::thread::spawn(move || block_on(csi::serve(plugin, &served)));
    let path = |name: &str| daemon.home.path().join(name);
    fs::write(path("class"), PARAMETERS).unwrap();
    fs::write(path("mutable"), MUTABLE).unwrap();
    let option = |name: &str, value: &Path| format!("--csi.{name}={}", value.display());
    for access in ["mount", "block"] {
        let output = Command::new(&sanity)
            .args([option("endpoint", &socket), format!("--csi.testvolumeaccesstype={access}")])
            .args([option("mountdir", &path("target")), option("stagingdir", &path("staging"))])
            .args([option("testvolumeparameters", &path("class"))])
            .args([option("testvolumemutableparameters", &path("mutable"))])
            .args(["--csi.testvolumesize=33554432", "--csi.testvolumeexpandsize=67108864"])
            .args(["--csi.testnodevolumeattachlimit=true", "--ginkgo.no-color"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let counts = said.lines().rfind(|line| line.contains("Passed")).unwrap_or("no counts");
        println!("{access}: {counts}");
        assert!(output.status.success() && counts.contains("| 0 Failed"), "{said}");
    }
}

/// The program of the version that `tests/sanity/go.mod` pins, built once.
fn program() -> Option<PathBuf> {
    if let Some(named) = env::var_os("CSI_SANITY") {
        return Some(named.into());
    }
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sanity");
    let pinned = fs::read_to_string(module.join("go.mod")).unwrap();
    let version = pinned.lines().find_map(|line| line.trim().strip_prefix("github.com/kubernetes-csi/csi-test/v5 "));
    let version = version.and_then(|version| version.split(' ').next()).unwrap();
    let home = PathBuf::from(env::var_os("HOME")?);
    let program = home.join(".cache/evenkeel").join(format!("csi-sanity-{version}"));
    if program.exists() {
        return Some(program);
    }
    let package = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity";
    let mut go = Command::new("go");
    go.args(["build", "-mod=readonly", "-o"]).arg(&program).arg(package);
    // Without the C library it runs in guests too.
    match go.current_dir(&module).envs([("GOFLAGS", "-buildvcs=false"), ("CGO_ENABLED", "0")]).status() {
        Ok(status) if status.success() => Some(program),
        failed => {
            assert!(env::var_os("CI").is_none(), "go build {package}: {failed:?}");
            eprintln!("skipped: csi-sanity can't be built, which needs Go and its modules: {failed:?}");
            None
        }
    }
}
