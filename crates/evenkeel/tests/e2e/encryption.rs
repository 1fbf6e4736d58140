//! Encryption at rest: what lies on the drive, in the state, and what a lost host key does.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::disks::{done, refused};
use crate::guest::pattern;
use crate::harness::{Home, wait_for};

pub fn config(keys: &str) -> String {
    format!(
        "{keys}[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
         [[tenant]]\nname = \"secret\"\nsize = \"8MiB\"\nencryption = \"host\"\n\
         [[tenant]]\nname = \"plain\"\nsize = \"8MiB\"\n"
    )
}

/// How often 64 bytes that no encryption makes by chance are in a file or below a directory.
fn count(path: &Path, pattern: &[u8]) -> usize {
    if path.is_dir() {
        return fs::read_dir(path).unwrap().map(|entry| count(&entry.unwrap().path(), pattern)).sum();
    }
    if !path.is_file() {
        return 0;
    }
    fs::read(path).unwrap().windows(pattern.len()).filter(|at| *at == pattern).count()
}

pub fn host_key(home: &Home) {
    let key = home.path("host.key");
    fs::write(&key, "5a".repeat(32)).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o400)).unwrap();
}

/// Plain text on the drive, a key in the state, or garbage where the key is missing.
#[test]
fn a_drive_without_its_host_tells_nothing() {
    let home = Home::new();
    host_key(&home);
    home.configure(&config("[keys]\nhost_key = \"HOST/host.key\"\n"));
    let daemon = home.serve();
    let secret: Vec<u8> = (0..64).map(|at| 0xc3 ^ at).collect();
    let data = secret.repeat(1024);
    // Blocks of 4 KiB and of 512 bytes.
    for (disk, blocks) in [("secret", 16), ("plain", 128)] {
        let mut guest = home.attach(disk);
        guest.write(16, &data).unwrap();
        assert!(guest.read(16, blocks).unwrap() == data);
    }
    assert_eq!(done(&home, "show secret")["encryption"], "host");
    assert_eq!(done(&home, "create part --size 4MiB --encryption host --attach secret")["encryption"], "host");
    // Beside encrypted disks, what another one left is overwritten.
    done(&home, "create gone --size 4MiB --wait");
    done(&home, "delete gone --yes --wait");
    daemon.stop();
    let image = home.path("drive.img");
    assert_eq!(count(&image, &secret), 1024, "those of the other disk, so the search finds what there is");

    // The key is lost: its disk is locked, and the other one is served.
    home.configure(&config(""));
    let daemon = home.serve();
    assert_eq!(done(&home, "show secret")["state"], "locked");
    assert!(home.attach("plain").read(16, 128).unwrap() == data);
    let refused_there = UnixStream::connect(home.runtime_dir().join("secret/cntrl")).unwrap_err();
    assert_eq!(refused_there.kind(), ErrorKind::ConnectionRefused);
    let told = refused(&home, "create more --size 4MiB --encryption host");
    assert!(told.contains("disk \"more\" is to be encrypted, and this host has no key"), "{told}");
    daemon.stop();

    home.configure(&config("[keys]\nhost_key = \"HOST/host.key\"\n"));
    let daemon = home.serve();
    assert!(home.attach("secret").read(16, 16).unwrap() == data);
    // An encrypted disk leaves noise, which the next one has at once.
    done(&home, "create more --size 40MiB --encryption host");
    done(&home, "delete more --yes --wait");
    done(&home, "create other --size 40MiB --encryption host");
    daemon.stop();
}

/// An erased disk whose data comes back after a restart, or an erasure that leaves the former key in use.
#[test]
fn an_erased_disk_never_reads_as_before() {
    let home = Home::new();
    host_key(&home);
    home.configure(&config("[keys]\nhost_key = \"HOST/host.key\"\n"));
    let daemon = home.serve();
    let (first, second) = (pattern(1, 64 << 10), pattern(2, 64 << 10));
    let mut guest = home.attach("secret");
    guest.write(16, &first).unwrap();
    let told = refused(&home, "erase secret --yes");
    assert!(told.contains("\"secret\" is attached to a client"), "{told}");
    done(&home, "erase secret --yes --force");
    let noise = guest.read(16, 16).unwrap();
    assert!(noise != first && noise.iter().any(|byte| *byte != 0));
    guest.write(16, &second).unwrap();
    // Format with SES = 2.
    guest.format(2 << 9 | u32::from(guest.ns.block_bytes == 4096)).unwrap();
    let noise = guest.read(16, 16).unwrap();
    assert!(noise != second && noise.iter().any(|byte| *byte != 0));
    guest.write(16, &second).unwrap();
    drop(guest);
    // Killed.
    drop(daemon);
    let daemon = home.serve();
    assert!(home.attach("secret").read(16, 16).unwrap() == second);
    done(&home, "erase secret --yes");
    done(&home, "erase secret --yes");
    assert!(home.attach("secret").read(16, 16).unwrap() != second);
    let told = refused(&home, "erase plain --yes");
    assert!(told.contains("\"plain\" is not encrypted"), "{told}");
    let told = home.attach("plain").format(2 << 9).unwrap_err().to_string();
    assert!(told.contains("INVALID_FIELD"), "{told}");
    daemon.stop();
}

/// A tenant's key on the drive, a disk that opens with another key, or one that is served without any.
#[test]
fn a_tenants_own_key_is_in_memory_alone() {
    let home = Home::new();
    home.configure(&config("").replace("\"host\"", "\"tenant\""));
    for (name, byte) in [("own", "3a"), ("other", "3b")] {
        fs::write(home.path(name), format!("{}{}\n", byte.repeat(32), "77".repeat(32))).unwrap();
    }
    let unlock = |name: &str| format!("unlock secret --key-file {}", home.path(name).display());
    let daemon = home.serve();
    assert_eq!(done(&home, "show secret")["state"], "locked");
    assert_eq!(done(&home, &unlock("own"))["state"], "served");
    let data = pattern(1, 64 << 10);
    home.attach("secret").write(16, &data).unwrap();
    wait_for("the disk to be locked", || (done(&home, "show secret")["state"] == "locked").then_some(()));
    let told = refused(&home, &unlock("other"));
    assert!(told.contains("the key is not that of disk \"secret\""), "{told}");
    done(&home, &unlock("own"));
    assert!(home.attach("secret").read(16, 16).unwrap() == data);
    // Killed.
    drop(daemon);
    let daemon = home.serve();
    assert_eq!(done(&home, "show secret")["state"], "locked");
    done(&home, &unlock("own"));
    assert!(home.attach("secret").read(16, 16).unwrap() == data);
    wait_for("the disk to be locked", || (done(&home, "show secret")["state"] == "locked").then_some(()));
    let told = refused(&home, &format!("{} --erase", unlock("own")));
    assert!(told.contains("and erases nothing"), "{told}");
    let erased = done(&home, &format!("{} --erase", unlock("other")));
    assert_eq!(erased["state"], "served");
    assert!(home.attach("secret").read(16, 16).unwrap() != data);
    daemon.stop();
    for name in ["own", "other"] {
        fs::remove_file(home.path(name)).unwrap();
    }
    assert_eq!(count(&home.path(""), &[0x3a; 32]) + count(&home.path(""), "3a".repeat(32).as_bytes()), 0);
}

/// A key that is lost with the former host key, or that the former one still opens.
#[test]
fn another_host_key_takes_over_while_a_client_goes_on() {
    let home = Home::new();
    let keys = |digits: &[&str]| {
        let _ = fs::remove_file(home.path("host.key"));
        let lines: Vec<String> = digits.iter().map(|digits| digits.repeat(32)).collect();
        fs::write(home.path("host.key"), lines.join("\n") + "\n").unwrap();
        fs::set_permissions(home.path("host.key"), Permissions::from_mode(0o400)).unwrap();
    };
    let rewrap = format!("rewrap --host-key {}", home.path("host.key").display());
    keys(&["5a"]);
    home.configure(&config("[keys]\nhost_key = \"HOST/host.key\"\n"));
    let daemon = home.serve();
    let data = pattern(1, 64 << 10);
    let mut guest = home.attach("secret");
    guest.write(16, &data).unwrap();
    keys(&["5b"]);
    let told = refused(&home, &rewrap);
    assert!(told.contains("none of these host keys opens the key of disk \"secret\""), "{told}");
    keys(&["5b", "5a"]);
    assert_eq!([done(&home, &rewrap)["disks"].clone(), done(&home, &rewrap)["disks"].clone()], [1, 0]);
    assert!(guest.read(16, 16).unwrap() == data);
    drop(guest);
    // Killed.
    drop(daemon);
    let state_after = |digits: &[&str]| {
        keys(digits);
        let daemon = home.serve();
        let state = done(&home, "show secret")["state"].as_str().unwrap().to_owned();
        let is_data = state == "served" && home.attach("secret").read(16, 16).unwrap() == data;
        daemon.stop();
        (state, is_data)
    };
    assert_eq!(state_after(&["5a"]), ("locked".to_owned(), false));
    assert_eq!(state_after(&["5b"]), ("served".to_owned(), true));
    // A start wraps anew, too.
    assert_eq!(state_after(&["5c", "5b"]), ("served".to_owned(), true));
    assert_eq!(state_after(&["5c"]), ("served".to_owned(), true));

    // Handed over to a daemon that started without it.
    home.configure(&config(""));
    let daemon = home.serve();
    assert_eq!(done(&home, "show secret")["state"], "locked");
    done(&home, &rewrap);
    assert!(home.attach("secret").read(16, 16).unwrap() == data);
    daemon.stop();
}
