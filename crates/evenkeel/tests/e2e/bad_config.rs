//! What an operator gets wrong: one error that names the line and the remedy, exit code 2, nothing touched.

use std::os::unix::net::UnixListener;
use std::process::Output;

use crate::guest::pattern;
use crate::harness::{Home, errors, evenkeel, run};

const FILE: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
                    [policy]\nname = \"lpns\"\n[[tenant]]\nname = \"a\"\nsize = \"16MiB\"\n";

/// Checks that the program refused: the error's first line ends a path with `line` and has every text of `says`.
fn expect_refusal(output: &Output, line: &str, says: &[&str]) {
    let errors = errors(output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    let told = without_program(&errors);
    assert!(!told.contains("evenkeel: ") && !told.contains("evenkeeld: "), "one error: {errors}");
    let first = told.lines().next().unwrap();
    assert!(first.starts_with('/') && first.contains(line), "{line} in {first}");
    for text in says {
        assert!(errors.contains(text), "{text:?} in {errors}");
    }
    assert!(output.stdout.is_empty(), "{output:?}");
}

/// What the command line or the daemon says behind its own name.
fn without_program(errors: &str) -> &str {
    let told = errors.strip_prefix("evenkeel: ").or_else(|| errors.strip_prefix("evenkeeld: "));
    told.unwrap_or_else(|| panic!("who says {errors:?}?"))
}

/// `check` and `serve` must refuse with the same words, and touch nothing.
fn both_refuse(text: &str, line: &str, says: &[&str]) {
    let home = Home::new();
    home.configure(text);
    std::fs::write(home.path("small.img"), pattern(1, 1 << 20)).unwrap();
    let before = home.listing();
    let config = home.config();
    let [check, serve] = ["check", "serve"].map(|command| run(&[command, config.to_str().unwrap()]));
    expect_refusal(&check, line, says);
    expect_refusal(&serve, line, says);
    assert_eq!(without_program(&errors(&check)), without_program(&errors(&serve)));
    assert_eq!(home.listing(), before);
}

#[test]
fn more_than_the_drive_has() {
    let small = FILE.replace("drive.img", "small.img");
    both_refuse(&small, "ek.toml:6:", &["has 1MiB", "lower size, or grow it: truncate -s"]);
    // More tenants than room, on a drive whose size only the machine knows.
    let tenants = small.replace("size = \"64MiB\"\ncreate = true\n", "");
    both_refuse(&tenants, "ek.toml:10:", &["no room for tenant \"a\"", "make it smaller"]);
    // Each of its own threads takes two queues at least; a modelled drive has 128.
    let threads = "frontend = \"vhost-user-blk\"\nthreads = \"dedicated\"\n";
    let each = (0..72).map(|at| format!("[[tenant]]\nname = \"t{at}\"\nsize = \"1MiB\"\n{threads}"));
    let many = format!("[device]\nbackend = \"model\"\nsize = \"72MiB\"\n{}", each.collect::<String>());
    let says = ["I/O queues, and the drive model grants 128", "each of its 72 pollers takes 2: have 64 at most"];
    both_refuse(&many, "ek.toml:3:", &says);
    let model = "[device]\nbackend = \"model\"\nsize = \"1MiB\"\n[[tenant]]\nname = \"a\"\nsize = \"2MiB\"\n";
    both_refuse(model, "ek.toml:5:", &["ask for 2MiB in all, the device has 1MiB", "make tenants smaller"]);
}

#[test]
fn more_than_the_machine_has() {
    for backend in ["memory", "model"] {
        let home = Home::new();
        let device = format!("[device]\nbackend = \"{backend}\"\nsize = \"4096TiB\"\n");
        let config = home.configure(&format!("{device}[[tenant]]\nname = \"a\"\nsize = \"1MiB\"\n"));
        let output = run(&["serve", config.to_str().unwrap()]);
        expect_refusal(&output, "ek.toml:5:8", &["can't have 4096TiB of memory", "lower size"]);
        assert!(home.listing().is_empty());
    }
}

#[test]
fn two_tenants_on_one_range() {
    let text = format!("{FILE}offset = \"0\"\n[[tenant]]\nname = \"b\"\nsize = \"16MiB\"\noffset = \"8MiB\"\n");
    both_refuse(&text, "ek.toml:17:", &["\"a\"", "\"b\""]);
}

#[test]
fn a_key_that_is_not_known() {
    both_refuse(&format!("{FILE}wieght = 3\n"), "ek.toml:13:1", &["unknown key", "did you mean `weight`?"]);
}

#[test]
fn a_drive_file_that_is_missing() {
    let text = FILE.replace("create = true\n", "");
    both_refuse(&text, "ek.toml:5:", &["does not exist", "create = true", "truncate -s"]);
    both_refuse(&FILE.replace("HOST/", "HOST/no/"), "ek.toml:5:", &["does not exist", "mkdir -p"]);
}

#[test]
fn a_configuration_that_is_missing() {
    for command in ["check", "serve"] {
        let output = run(&[command, "/nowhere/ek.toml"]);
        expect_refusal(&output, "/nowhere/ek.toml", &["No such file"]);
    }
}

#[test]
fn something_else_where_a_socket_belongs() {
    let home = Home::new();
    home.configure(FILE);
    std::fs::create_dir_all(home.path("run/a")).unwrap();
    std::fs::write(home.path("run/a/cntrl"), "precious").unwrap();
    let before = home.listing();
    for command in ["check", "serve"] {
        let output = run(&[command, home.config().to_str().unwrap()]);
        expect_refusal(&output, "ek.toml:1:", &["run/a/cntrl is in the way", "remove it"]);
    }
    assert_eq!(home.listing(), before);
}

#[test]
fn a_socket_that_a_daemon_serves() {
    let home = Home::new();
    home.configure(FILE);
    let daemon = home.serve();
    // Another drive, which must not come to be.
    let other = FILE.replace("drive.img", "other.img");
    let other = home.write_config("other.toml", &format!("runtime_dir = \"HOST/run\"\n{other}"));
    let before = home.listing();
    let output = evenkeel().arg("serve").arg(&other).output().unwrap();
    expect_refusal(&output, "other.toml:1:", &["run/api.sock is in use", "stop that daemon"]);
    // It may be checked while the daemon runs, and says so.
    let output = evenkeel().arg("check").arg(&other).output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("is in use: a daemon serves it"));
    assert_eq!(home.listing(), before);
    assert!(!daemon.log().contains("attached"), "its tenants were left in peace");
    daemon.stop();
}

#[test]
fn a_tenants_socket_that_another_program_serves() {
    let home = Home::new();
    home.configure(FILE);
    std::fs::create_dir_all(home.path("run/a")).unwrap();
    let _listener = UnixListener::bind(home.path("run/a/cntrl")).unwrap();
    let before = home.listing();
    let output = run(&["serve", home.config().to_str().unwrap()]);
    expect_refusal(&output, "ek.toml:1:", &["run/a/cntrl is in use", "choose another runtime_dir"]);
    assert_eq!(home.listing(), before);
}

#[test]
fn a_drive_that_a_daemon_serves() {
    let home = Home::new();
    home.configure(FILE);
    let daemon = home.serve();
    let mut guest = home.attach("a");
    guest.write(0, &pattern(1, 4096)).unwrap();
    let other =
        home.write_config("other.toml", &format!("runtime_dir = \"HOST/run2\"\n{}", FILE.replace("\"a\"", "\"b\"")));
    let before = home.listing();
    let output = evenkeel().arg("serve").arg(&other).output().unwrap();
    expect_refusal(&output, "other.toml:4:", &["drive.img is in use", "stop the other daemon"]);
    let output = evenkeel().arg("check").arg(&other).output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("drive.img is in use"));
    assert_eq!(home.listing(), before);
    assert_eq!(guest.read(0, 8).unwrap(), pattern(1, 4096));
    drop(guest);
    daemon.stop();
}

#[test]
fn check_changes_nothing_and_agrees_with_serve() {
    let home = Home::new();
    home.configure(FILE);
    let before = home.listing();
    let output = run(&["check", "--json", home.config().to_str().unwrap()]);
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(home.listing(), before);
    let checked: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let daemon = home.serve();
    for part in ["device", "policy", "pollers", "tenants", "free_bytes", "layout_file", "changes"] {
        assert_eq!(daemon.ready["drives"][0][part], checked["items"][0][part], "{part}");
    }
    daemon.stop();
}

#[test]
fn a_load_that_can_not_be() {
    let home = Home::new();
    home.configure("[device]\nbackend = \"memory\"\nsize = \"4MiB\"\n[[tenant]]\nname = \"a\"\nsize = \"4MiB\"\n");
    let daemon = home.serve();
    let socket = home.runtime_dir().join("a");
    for (arguments, says) in [
        (&["--bs", "1000"][..], "not a multiple"),
        (&["--size", "1g"], "beyond the drive"),
        (&["--bs", "4q"], "expected a size"),
        (&["--numjobs", "0"], "at least 1"),
    ] {
        let output = evenkeel().arg("load").arg(&socket).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(errors(&output).contains(says), "{says}: {}", errors(&output));
    }
    daemon.stop();
    let output = evenkeel().arg("load").arg(&socket).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("is the daemon running"), "{}", errors(&output));
}
