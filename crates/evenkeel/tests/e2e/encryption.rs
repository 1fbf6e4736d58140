//! Encryption at rest: what lies on the drive, in the state, and what a lost host key does.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use api::{DiskSpec, DiskState, Erasure, HostKeys, Rest, api_path};
use layout::CRASH_POINTS;

use crate::apply::listed;
use crate::crashes;
use crate::disks::{done, refused};
use crate::guest::{Guest, pattern};
use crate::harness::{Home, wait_for};

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

fn host_key(home: &Home) {
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

    home.configure(&config("[keys]\nkey_command = [\"/bin/cat\", \"HOST/host.key\"]\n"));
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

/// How far the re-encryption of "secret" is, in bytes. `None`: it is over.
fn reencrypted_bytes(home: &Home) -> Option<u64> {
    let operations = listed(home, &["operations", "--json"]);
    let its = operations.iter().find(|it| it["kind"] == "reencrypt" && it["disk"] == "secret")?;
    assert_ne!(its["state"], "failed", "{its}");
    its["done_bytes"].as_u64()
}

/// A disk with two keys that a guest, a kill, a stop or an erasure meets half-way.
#[test]
fn a_disk_gets_another_key_under_its_guest_and_over_kills() {
    let home = Home::new();
    host_key(&home);
    let keys = "[keys]\nhost_key = \"HOST/host.key\"\n";
    let sized = config(keys).replace("size = \"64MiB\"", "size = \"160MiB\"");
    home.configure(&sized.replace("name = \"secret\"", "name = \"declared\""));
    let daemon = home.serve();
    done(&home, "create secret --size 128MiB --encryption host --wait");
    let data = pattern(1, 64 << 10);
    let places = [0, 5000, 16000, 32752];
    let mut guest = home.attach("secret");
    places.iter().for_each(|at| guest.write(*at, &data).unwrap());
    let is_kept = |guest: &mut Guest| places.iter().all(|at| guest.read(*at, 16).unwrap() == data);
    drop(guest);
    let half_way = || {
        wait_for("the middle of the disk", || {
            let bytes = reencrypted_bytes(&home).expect("it is not over yet");
            (bytes > 16 << 20).then_some(())
        });
    };
    let over = || wait_for("its end", || reencrypted_bytes(&home).is_none().then_some(()));
    let image = || fs::read(home.path("drive.img")).unwrap();

    // Under a guest that verifies what it reads.
    let load = home.load("secret", "--rw randrw --bs 16k --iodepth 8 --offset 70M --size 32M --verify --runtime 60s");
    wait_for("the guest", || (done(&home, "show secret")["attached"] == true).then_some(()));
    let before = image();
    done(&home, "reencrypt secret");
    let told = refused(&home, "reencrypt secret");
    assert!(told.contains("disk \"secret\" is being re-encrypted"), "{told}");
    let told = refused(&home, "grow secret --size 130MiB");
    assert!(told.contains("disk \"secret\" is being re-encrypted"), "{told}");
    over();
    load.stop();
    let after = image();
    let sectors = || before.chunks(4096).zip(after.chunks(4096));
    let same = sectors().filter(|(one, other)| one == other && one.iter().any(|byte| *byte != 0)).count();
    assert_eq!(same, 0, "sectors that have their former key");
    assert!(sectors().any(|(one, other)| one == other), "sectors that were empty");
    assert!(is_kept(&mut home.attach("secret")));

    // Killed, and stopped.
    done(&home, "reencrypt secret");
    half_way();
    drop(daemon);
    let daemon = home.serve();
    assert!(is_kept(&mut home.attach("secret")));
    half_way();
    daemon.stop();
    let daemon = home.serve();
    over();
    assert!(is_kept(&mut home.attach("secret")));
    assert_eq!(
        fs::read_dir(home.path(""))
            .unwrap()
            .filter(|it| { it.as_ref().unwrap().file_name().to_string_lossy().contains("reencrypt") })
            .count(),
        0,
        "no journal stays"
    );

    done(&home, "create part --size 4MiB --encryption host --attach secret");
    done(&home, "reencrypt part --wait");

    // Its journal is lost: locked, rather than half of it noise. And it can be erased.
    done(&home, "reencrypt secret");
    half_way();
    drop(daemon);
    let journal = fs::read_dir(home.path("")).unwrap().map(|it| it.unwrap().path());
    let journal = journal.filter(|path| path.to_string_lossy().contains("reencrypt")).collect::<Vec<_>>();
    fs::write(&journal[0], "").unwrap();
    let daemon = home.serve();
    assert_eq!(done(&home, "show secret")["state"], "locked");
    daemon.wait_log("the journal of its re-encryption", 1);
    done(&home, "erase secret --yes");
    assert_eq!((done(&home, "show secret")["state"].clone(), reencrypted_bytes(&home)), ("served".into(), None));
    // Amid another one.
    home.attach("secret").write(0, &data).unwrap();
    done(&home, "reencrypt secret");
    half_way();
    done(&home, "erase secret --yes");
    assert_eq!(reencrypted_bytes(&home), None);
    let noise = home.attach("secret").read(0, 16).unwrap();
    assert!(noise != data && noise.iter().any(|byte| *byte != 0));
    daemon.stop();
}

/// What becomes of an encrypted disk, one after the other.
#[derive(Clone, Copy)]
enum Step {
    Create,
    Reencrypt,
    Rewrap,
    Erase,
}

/// A key that is lost, or a former one that is still there, where the daemon dies amid the layout's record of it.
#[test]
fn a_daemon_that_dies_amid_a_change_of_keys_leaves_one_key() {
    let data = pattern(1, 64 << 10);
    let run = |home: &Home, step: Step| -> anyhow::Result<()> {
        let rest = Rest::new(api_path(&home.runtime_dir()));
        match step {
            Step::Create => {
                let encryption = Some("host".to_owned());
                let size = "2MiB".to_owned();
                rest.create(&DiskSpec { name: "made".into(), size, encryption, ..DiskSpec::default() })?;
                home.attach("made").write(16, &data).unwrap();
            }
            Step::Reencrypt => drop(rest.reencrypt("made")?),
            Step::Rewrap => {
                let lines = format!("{}\n{}\n", "5b".repeat(32), "5a".repeat(32));
                fs::set_permissions(home.path("host.key"), Permissions::from_mode(0o600))?;
                fs::write(home.path("host.key"), &lines)?;
                drop(rest.host_keys(&HostKeys { lines })?);
            }
            Step::Erase => drop(rest.erase("made", Erasure { force: true })?),
        }
        crashes::wait_until_nothing_is_left(&rest)
    };
    let steps = [Step::Create, Step::Reencrypt, Step::Rewrap, Step::Erase];
    // How many steps were done.
    let trial = |at: &str| {
        let home = Home::new();
        host_key(&home);
        home.configure(&config("[keys]\nhost_key = \"HOST/host.key\"\n"));
        let died =
            crashes::run_until_it_dies(&home, at, &steps, |_, done: &mut usize| *done += 1, |it| run(&home, it))?;
        let daemon = home.serve();
        let rest = Rest::new(api_path(&home.runtime_dir()));
        crashes::wait_until_nothing_is_left(&rest).unwrap();
        let made = rest.disks().unwrap().into_iter().find(|disk| disk.name == "made");
        assert!(made.is_some() || died[0] == 0, "{at}: the disk is lost");
        if let Some(made) = made {
            assert_eq!(made.state, DiskState::Served, "{at}");
            let mut guest = home.attach("made");
            let (read, may_be_erased) = (guest.read(16, 16).unwrap(), died[1] == 4);
            let was_written = died[0] >= 1;
            assert!(read == data || may_be_erased || !was_written, "{at}: its data is lost");
            guest.write(16, &data).unwrap();
            assert!(guest.read(16, 16).unwrap() == data, "{at}");
        }
        daemon.stop();
        Some(())
    };
    let deaths: usize = (0..CRASH_POINTS.len()).map(|point| crashes::at_each_passing(point, trial)).sum();
    // The start, a new disk, both ends of a re-encryption, another host key, an erasure.
    assert!(deaths >= 6 * CRASH_POINTS.len(), "{deaths} deaths only");
}
