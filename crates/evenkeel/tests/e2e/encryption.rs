//! Encryption at rest: what lies on the drive, in the state, and what a lost host key does.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::disks::{done, refused};
use crate::harness::Home;

fn config(keys: &str) -> String {
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

/// Plain text on the drive, a key in the state, or garbage where the key is missing.
#[test]
fn a_drive_without_its_host_tells_nothing() {
    let home = Home::new();
    let key = home.host().join("host.key");
    fs::write(&key, "5a".repeat(32)).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o400)).unwrap();
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
    daemon.stop();
    let image = home.host().join("drive.img");
    assert_eq!(count(&image, &secret), 1024, "those of the other disk, so the search finds what there is");

    // The key is lost: its disk is locked, and the other one is served.
    home.configure(&config(""));
    let daemon = home.serve();
    assert_eq!(done(&home, "show secret")["locked"], true);
    assert!(home.attach("plain").read(16, 128).unwrap() == data);
    assert!(home.attach("secret").read(16, 16).is_err());
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
