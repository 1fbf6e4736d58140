//! `evenkeel calibrate`: what it does to a drive, what it refuses, and that it goes on.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use ssd_model::Profile;

use crate::harness::{Home, errors, evenkeel, run, wait_for};
use crate::json::{self, Prints};

const MIB: usize = 1 << 20;

fn calibrate(arguments: &[&str]) -> Output {
    run(&[&["calibrate"], arguments].concat())
}

/// A file that has no holes and differs everywhere.
fn image(home: &Home, mib: usize) -> Vec<u8> {
    let content: Vec<u8> =
        (0..mib * MIB / 4).flat_map(|word| (word as u32).wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
    fs::write(home.path("drive.img"), &content).unwrap();
    content
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", errors(output));
    json::read(Prints::Thing, str::from_utf8(&output.stdout).unwrap())
}

#[test]
fn a_model_is_measured_and_its_profile_is_accepted() {
    let home = Home::new();
    let device = "[device]\nbackend = \"model\"\nsize = \"64MiB\"\nprofile = \"PROFILE\"\n[[tenant]]\nname = \"a\"\n\
                  size = \"4MiB\"\n";
    let config = home.configure(&device.replace("PROFILE", "p5800x"));
    let profile = home.path("mine.toml");
    let output = calibrate(&[text(&config), "--quick", "--json", "--output", text(&profile)]);
    let report = report(&output);
    assert!(errors(&output).contains("Will measure the drive model of p5800x, 64MiB."), "{}", errors(&output));
    assert_eq!(report["profile"], text(&profile));
    assert!(report["took_ms"].as_u64().unwrap() > 0);
    let units = report["parameters"].as_array().unwrap().iter().find(|row| row["name"] == "units").unwrap();
    assert!(units["value"].as_str().unwrap().parse::<u32>().unwrap() >= 1 && !units["source"].is_null(), "{units}");
    assert!(report["loads"].as_array().unwrap().len() >= 40, "reads, writes and both, by size and depth");
    assert!(!home.path("mine.toml.state").exists(), "nothing is left to go on with");
    let written = fs::read_to_string(&profile).unwrap();
    assert!(written.contains("name = \"mine\"") && written.contains("95 % confidence interval"), "{written}");
    let cipher = Profile::from_toml(&written).unwrap().cipher.unwrap();
    assert!(0 < cipher.sector_512_ns && cipher.sector_512_ns < cipher.sector_4096_ns, "{cipher:?}");
    let config = home.configure(&device.replace("PROFILE", text(&profile)));
    let output = run(&["check", text(&config)]);
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
fn without_a_range_a_file_is_only_read_and_with_one_nothing_else_is_written() {
    let home = Home::new();
    let content = image(&home, 48);
    let path = home.path("drive.img");
    let output = calibrate(&["--path", text(&path), "--quick", "--json", "--output", text(&home.path("read.toml"))]);
    assert!(errors(&output).contains("Only reads."), "{}", errors(&output));
    let read_only = report(&output);
    assert!(fs::read(&path).unwrap() == content, "a byte changed");
    let kind = read_only["parameters"].as_array().unwrap().iter().find(|row| row["name"] == "writes.kind").unwrap();
    assert!(kind["source"]["assumed"].as_str().unwrap().contains("--overwrite"), "{kind}");
    let output = calibrate(&[
        "--path",
        text(&path),
        "--quick",
        "--json",
        "--yes",
        "--overwrite",
        "16MiB:16MiB",
        "--output",
        text(&home.path("written.toml")),
    ]);
    assert!(errors(&output).contains("OVERWRITES 16MiB from 16MiB on"), "{}", errors(&output));
    report(&output);
    let now = fs::read(&path).unwrap();
    assert_eq!(now.len(), content.len());
    assert!(now[..16 * MIB] == content[..16 * MIB] && now[32 * MIB..] == content[32 * MIB..], "outside of the range");
    assert!(now[16 * MIB..32 * MIB] != content[16 * MIB..32 * MIB], "the range");
}

#[test]
fn what_it_can_not_or_should_not_do_is_refused_before_anything_happens() {
    let home = Home::new();
    image(&home, 32);
    let (path, output) = (home.path("drive.img"), home.path("out.toml"));
    fs::write(home.path("small.img"), [1; 4096]).unwrap();
    fs::write(home.path("there.toml"), "mine").unwrap();
    fs::write(home.path("broken.toml.state"), "{\"identity\":").unwrap();
    fs::write(home.path("other.toml.state"), "{}").unwrap();
    let (path, small, host) = (text(&path), home.path("small.img"), home.path(""));
    let missing = home.path("missing.img");
    let broken = home.path("broken.toml");
    let there = home.path("there.toml");
    let nowhere = home.path("nowhere/out.toml");
    let claimed = home.configure(
        "[device]\nbackend = \"nvme\"\naddress = \"0000:1f:1f.7\"\n[[tenant]]\nname = \"a\"\nsize = \"4MiB\"\n\
         offset = \"0\"\n",
    );
    let before = home.listing();
    let cases: &[(&[&str], &str, &str)] = &[
        (&["--path", path, "--output", text(&there)], "there.toml exists", "choose another --output"),
        (&["--path", text(&missing)], "can't look at", "lsblk"),
        (&["--path", "0000:1f:1f.7"], "there is no PCI device 0000:1f:1f.7", "evenkeel drive list"),
        (&[text(&claimed)], "drive 0000:1f:1f.7 can't be measured", "evenkeel drive list"),
        (&["--path", text(&host)], "neither a file nor a block device", "lsblk"),
        (&["--path", text(&small)], "too little to measure", "16MiB"),
        (&["--path", path, "--overwrite", "16MiB:32MiB", "--yes"], "ends outside of", "make it shorter"),
        (&["--path", path, "--overwrite", "16EiB:16MiB", "--yes"], "--overwrite", ""),
        (&["--path", path, "--overwrite", "1KiB:16MiB", "--yes"], "not in whole blocks", "4KiB"),
        (&["--path", path, "--overwrite", "0:1MiB", "--yes"], "too short", "16MiB"),
        (&["--path", path, "--overwrite", "0:16MiB"], "no confirmation", "--yes"),
        (&["--path", path, "--overwrite", "all"], "OFFSET:LENGTH", ""),
        (&["--path", path, "--output", text(&broken)], "not the state of a calibration", "rm "),
        (&[], "<CONFIG", ""),
    ];
    for (arguments, what, remedy) in cases {
        let mut arguments = arguments.to_vec();
        if !arguments.contains(&"--output") {
            arguments.extend(["--output", text(&output)]);
        }
        let output = calibrate(&arguments);
        let shown = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {shown}");
        assert!(shown.contains(what) && shown.contains(remedy), "{arguments:?}: {shown}");
        assert!(output.stdout.is_empty());
    }
    let output = calibrate(&["--path", path, "--output", text(&nowhere)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("can't write") && errors(&output).contains("nowhere"), "{}", errors(&output));
    assert_eq!(home.listing(), before, "nothing changed");
}

#[test]
fn a_drive_that_a_daemon_serves_is_refused() {
    let home = Home::new();
    image(&home, 32);
    home.configure(
        "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\n[[tenant]]\nname = \"a\"\nsize = \"4MiB\"\n\
         offset = \"0\"\n",
    );
    let daemon = home.serve();
    let output = calibrate(&["--path", text(&home.path("drive.img")), "--output", text(&home.path("out.toml"))]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("is in use by another process"), "{}", errors(&output));
    assert!(errors(&output).contains("stop the other daemon"), "{}", errors(&output));
    daemon.stop();
}

#[test]
fn interrupted_it_goes_on_with_the_same_settings_only() {
    let home = Home::new();
    let config = home.configure(
        "[device]\nbackend = \"model\"\nsize = \"64MiB\"\nprofile = \"pm1735\"\n[[tenant]]\nname = \"a\"\n\
         size = \"4MiB\"\n",
    );
    let (profile, state) = (home.path("mine.toml"), home.path("mine.toml.state"));
    let arguments = ["calibrate", text(&config), "--quick", "--json", "--output", text(&profile)];
    let child = evenkeel().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("the first stage", || fs::read_to_string(&state).ok().filter(|state| state.contains("small_spacing")));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    assert!(
        errors(&output).contains("interrupted;") && errors(&output).contains("run the same command to continue"),
        "{}",
        errors(&output)
    );
    assert!(!profile.exists());
    let other = calibrate(&[text(&config), "--output", text(&profile)]);
    assert_eq!(other.status.code(), Some(2), "not quick any more: {}", errors(&other));
    assert!(errors(&other).contains("with other settings"), "{}", errors(&other));
    let output = run(&arguments);
    assert!(errors(&output).contains("Goes on with"), "{}", errors(&output));
    report(&output);
    assert!(profile.exists() && !state.exists());
}
