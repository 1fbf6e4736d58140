//! A drive that is held while it erases itself, one that can't, and one that may make zeros by itself.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Output;

use api::{Drive, Problem, Rest, SanitizeStep, api_path};
use layout::CRASH_POINTS;

use crate::crashes::at_each_passing;
use crate::disks::{done, is_served, refused};
use crate::drives::LoopDevice;
use crate::guest::pattern;
use crate::harness::{Home, errors, evenkeel, wait_for};

const MIB: u64 = 1 << 20;

const CONFIG: &str = "[[drive]]\nname = \"fast\"\nbackend = \"file\"\npath = \"HOST/fast.img\"\nsize = \"32MiB\"\n\
                      create = true\n\
                      [[drive]]\nname = \"big\"\nbackend = \"file\"\npath = \"HOST/big.img\"\nsize = \"64MiB\"\n\
                      create = true\n\
                      [policy]\nname = \"passthrough\"\n\
                      [[tenant]]\nname = \"db\"\ndrive = \"big\"\nsize = \"8MiB\"\n";

fn rest(home: &Home) -> Rest {
    Rest::new(api_path(&home.runtime_dir()))
}

fn fast(home: &Home) -> Drive {
    rest(home).drives().unwrap().into_iter().find(|drive| drive.name == "fast").unwrap()
}

fn problem(step: anyhow::Result<Drive>) -> Problem {
    step.unwrap_err().downcast::<Problem>().unwrap()
}

fn drive(home: &Home, arguments: &str) -> Output {
    let mut command = evenkeel();
    command.arg("drive").args(arguments.split_whitespace()).env("EVENKEEL_SOCKET", api_path(&home.runtime_dir()));
    command.output().unwrap()
}

fn drive_fails(home: &Home, arguments: &str) -> String {
    let output = drive(home, arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    errors(&output)
}

#[test]
fn what_can_t_erase_itself_is_refused_and_nothing_is_held() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let told = drive_fails(&home, "sanitize fast --yes");
    assert!(told.contains("drive \"fast\" can't erase itself: its back end is \"file\", no NVMe drive"), "{told}");
    assert!(told.contains("what deleted disks leave is overwritten anyway"), "{told}");
    let told = drive_fails(&home, "sanitize fats --yes");
    assert!(told.contains("there is no drive \"fats\""), "{told}");
    let told = problem(rest(&home).sanitize("big", SanitizeStep::Begins));
    assert_eq!((told.code.as_str(), told.title.as_str()), ("not-empty", "drive \"big\" has disks: db"));
    assert!(rest(&home).drives().unwrap().iter().all(|drive| !drive.sanitizing));
    daemon.stop();

    let image = home.path("disk.img");
    std::fs::File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    let Some(device) = LoopDevice::over(&image, 512) else { return };
    home.configure(&format!(
        "[[drive]]\nname = \"fast\"\nbackend = \"block\"\npath = {:?}\n[policy]\nname = \"passthrough\"\n",
        device.0
    ));
    let daemon = home.serve();
    let told = drive_fails(&home, "sanitize fast --yes");
    assert!(told.contains("is no NVMe drive") && !fast(&home).sanitizing, "{told}");
    daemon.stop();
}

#[test]
fn a_drive_is_held_over_a_kill_until_it_is_sanitized() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    done(&home, "create old --size 8MiB --drive fast");
    wait_for("the disk", || is_served(&home, "old"));
    home.attach("old").write(0, &pattern(1, 4096)).unwrap();
    let told = problem(rest(&home).sanitize("fast", SanitizeStep::Begins));
    assert_eq!(told.title, "drive \"fast\" has disks: old");
    done(&home, "delete old --yes --force --wait");
    daemon.stop();
    // As it is where the drive is told to erase itself before the wiper has come that far.
    let path = home.path("fast.img.layout.toml");
    let layout = std::fs::read_to_string(&path).unwrap();
    let (head, _) = layout.split_once("\n[[clean]]").unwrap();
    let wiping =
        format!("\n[[wiping]]\nformer = \"old\"\noffset_bytes = 0\nsize_bytes = {}\nwiped_bytes = 0\n", 8 * MIB);
    let held = head.replacen("version = 2\n", "version = 2\nsanitizing = true\n", 1);
    std::fs::write(&path, format!("{held}{wiping}# end of the layout\n")).unwrap();
    let secret = pattern(1, 4096);
    OpenOptions::new().write(true).open(home.path("fast.img")).unwrap().write_all_at(&secret, 0).unwrap();

    for _ in 0..2 {
        // Killed in between.
        let daemon = home.serve();
        let log = daemon.log();
        assert!(log.contains("drive \"fast\" is being sanitized, and has no disks until then"), "{log}");
        let it = fast(&home);
        assert_eq!((it.sanitizing, it.free_bytes, it.wiping_bytes), (true, 0, 8 * MIB));
        let list = String::from_utf8(drive(&home, "list").stdout).unwrap();
        assert!(list.lines().any(|line| line.starts_with("fast ") && line.ends_with("sanitizing")), "{list}");
        let told = refused(&home, "create new --size 4MiB --drive fast");
        assert!(told.contains("drive \"fast\" is being sanitized"), "{told}");
        drop(daemon);
    }
    let daemon = home.serve();
    // It would have the least left over.
    done(&home, "create placed --size 30MiB");
    assert_eq!(done(&home, "show placed")["drive"], "big");
    // Nothing was sent to it meanwhile, the wiper's zeros neither.
    assert_eq!(std::fs::read(home.path("fast.img")).unwrap()[..4096], secret);
    let ended = rest(&home).sanitize("fast", SanitizeStep::Ended).unwrap();
    assert_eq!((ended.sanitizing, ended.free_bytes, ended.wiping_bytes), (false, 32 * MIB, 0));
    assert!(rest(&home).operations().unwrap().is_empty());
    // The same once more.
    assert_eq!(rest(&home).sanitize("fast", SanitizeStep::Ended).unwrap(), ended);
    // What a drive reads as then is its own affair: a new disk is zeroed.
    done(&home, "create new --size 4MiB --drive fast");
    wait_for("the disk", || is_served(&home, "new"));
    assert_eq!(home.attach("new").read(0, 8).unwrap(), vec![0; 4096]);
    let events = rest(&home).events(api::EventsAfter::default()).unwrap().events;
    assert!(events.iter().any(|event| event.kind == api::EventKind::DriveSanitized), "{events:?}");
    daemon.stop();
}

#[test]
fn what_is_given_up_is_overwritten() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    done(&home, "create old --size 16MiB --drive fast");
    wait_for("the disk", || is_served(&home, "old"));
    let secret = pattern(1, 4096);
    home.attach("old").write(0, &secret).unwrap();
    done(&home, "delete old --yes --force");
    // While the wiper is at it, or done.
    let begin = || match rest(&home).sanitize("fast", SanitizeStep::Begins) {
        Ok(drive) => Some(drive),
        Err(error) => {
            assert_eq!(error.downcast_ref::<Problem>().map(|it| it.code.as_str()), Some("not-quiet"), "{error}");
            None
        }
    };
    let held = wait_for("the wiper to leave", begin);
    assert!(held.sanitizing && held.free_bytes == 0);
    let output = drive(&home, "sanitize fast --give-up");
    assert!(output.status.success(), "{output:?}");
    assert!(!fast(&home).sanitizing);
    wait_for("the wiper", || (fast(&home).free_bytes == 32 * MIB).then_some(()));
    let image = std::fs::read(home.path("fast.img")).unwrap();
    assert!(!image.chunks(512).any(|sector| secret.chunks(512).any(|piece| piece == sector)));
    daemon.stop();
}

#[test]
fn a_kill_at_any_point_leaves_it_held_or_not() {
    use SanitizeStep::{Begins, Ended, GivenUp};
    for (point, name) in CRASH_POINTS.iter().enumerate() {
        let crashes = at_each_passing(point, |at| {
            let home = Home::new();
            home.configure(CONFIG);
            home.serve().stop();
            let daemon = home.try_serve(&home.config(), &[("EVENKEELD_CRASH_AT", at)]).ok();
            let mut states = [false, false];
            let mut steps = [Begins, Ended, Begins, GivenUp].into_iter();
            let died = daemon.is_none()
                || steps.any(|step| {
                    states = [states[1], step == Begins];
                    rest(&home).sanitize("fast", step).is_err()
                });
            drop(daemon);
            died.then(|| {
                let daemon = home.serve();
                assert!(states.contains(&fast(&home).sanitizing), "{at}: {states:?}");
                rest(&home).sanitize("fast", GivenUp).unwrap();
                done(&home, "create new --size 4MiB --drive fast");
                wait_for("the disk", || is_served(&home, "new"));
                assert_eq!(home.attach("new").read(0, 8).unwrap(), vec![0; 4096], "{at}");
                daemon.stop();
            })
        });
        assert!(crashes >= 4, "{crashes} crashes only at {name}");
    }
}

#[test]
fn a_block_device_that_may_makes_zeros_by_itself() {
    let home = Home::new();
    let image = home.path("disk.img");
    std::fs::File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    let Some(device) = LoopDevice::over(&image, 512) else { return };
    home.configure(&format!(
        "[device]\nbackend = \"block\"\npath = {:?}\nwipe = \"write-zeroes\"\n[policy]\nname = \"passthrough\"\n",
        device.0
    ));
    let daemon = home.serve();
    done(&home, "create old --size 8MiB");
    wait_for("the disk", || is_served(&home, "old"));
    let secret = pattern(3, MIB as usize);
    let mut guest = home.attach("old");
    (0..8).for_each(|at| guest.write(at * MIB / 512, &secret).unwrap());
    guest.flush().unwrap();
    drop(guest);
    assert!(std::fs::read(&image).unwrap().windows(512).step_by(512).any(|sector| *sector == secret[..512]));
    done(&home, "delete old --yes --force --wait");
    let left = std::fs::read(&image).unwrap();
    assert!(!left.chunks(512).any(|sector| secret.chunks(512).any(|piece| piece == sector)));
    // The drive was told, and nothing was written in its place.
    daemon.wait_log("are wiped, and free", 1);
    let log = daemon.log();
    assert!(!log.contains("does not make zeros"), "{log}");
    daemon.stop();
}
