//! Keys of disks that change while guests use them: re-encryption, and a daemon that dies amid a change.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use api::{DiskSpec, DiskState, Erasure, HostKeys, Rest, api_path};
use layout::CRASH_POINTS;

use crate::apply::listed;
use crate::crashes;
use crate::disks::{done, refused};
use crate::encryption::{config, detached, host_key};
use crate::guest::{Guest, pattern};
use crate::harness::{Home, wait_for};

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

    // Its journal is an older copy: locked, rather than some of it noise.
    done(&home, "reencrypt secret");
    half_way();
    drop(daemon);
    let journal = fs::read_dir(home.path("")).unwrap().map(|it| it.unwrap().path());
    let journal = journal.filter(|path| path.to_string_lossy().contains("reencrypt")).collect::<Vec<_>>();
    let older = fs::read(&journal[0]).unwrap();
    let daemon = home.serve();
    half_way();
    drop(daemon);
    let present = fs::read(&journal[0]).unwrap();
    fs::write(&journal[0], older).unwrap();
    let daemon = home.serve();
    assert_eq!(done(&home, "show secret")["state"], "locked");
    daemon.stop();
    fs::write(&journal[0], present).unwrap();
    let daemon = home.serve();
    assert!(is_kept(&mut home.attach("secret")));
    over();
    // It is lost. And the disk can be erased.
    done(&home, "reencrypt secret");
    half_way();
    drop(daemon);
    fs::write(&journal[0], "").unwrap();
    let daemon = home.serve();
    assert_eq!(done(&home, "show secret")["state"], "locked");
    daemon.wait_log("the journal of its re-encryption", 1);
    let told = refused(&home, "reencrypt secret");
    assert!(
        told.contains("the journal of its re-encryption") && told.contains("`evenkeel disk erase secret`"),
        "{told}"
    );
    done(&home, "erase secret --yes");
    assert_eq!((done(&home, "show secret")["state"].clone(), reencrypted_bytes(&home)), ("served".into(), None));
    // Amid another one.
    home.attach("secret").write(0, &data).unwrap();
    done(&home, "reencrypt secret");
    half_way();
    detached(&home, "secret");
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
