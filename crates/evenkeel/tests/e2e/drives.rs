//! Every back end serves I/O through the binary.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::disks::{done, refused};
use crate::drive_errors::SmallDisk;
use crate::guest::pattern;
use crate::harness::{Home, errors, run};
use crate::several_drives::ask;

const TENANTS: &str = "[policy]\nname = \"lpns\"\n\
                       [[tenant]]\nname = \"db\"\nsize = \"8MiB\"\nclass = \"guaranteed\"\nlatency_target = \"10ms\"\n\
                       [[tenant]]\nname = \"batch\"\nsize = \"8MiB\"\n";

/// Two tenants write, read back and trim at the same time.
fn two_tenants_verify(home: &Home) {
    let job = "--rw randrw --bssplit 4k/50:64k/50 --iodepth 16 --verify";
    let loads = ["db", "batch"].map(|tenant| home.load(tenant, job));
    for load in loads {
        let report = load.expect_clean();
        assert!(report["jobs"][0]["verify"]["checked_blocks"].as_u64().unwrap() > 0, "{report}");
    }
    home.load("batch", "--rw trim --bs 64k --iodepth 8").expect_clean();
}

fn serves(device: &str) {
    let home = Home::new();
    home.configure(&format!("[device]\n{device}\n{TENANTS}"));
    let daemon = home.serve();
    two_tenants_verify(&home);
    daemon.stop();
}

#[test]
fn memory() {
    serves("backend = \"memory\"\nsize = \"16MiB\"");
}

#[test]
fn the_drive_model() {
    serves("backend = \"model\"\nsize = \"16MiB\"\nprofile = \"p5800x\"");
    serves("backend = \"model\"\nsize = \"16MiB\"\nprofile = \"pm1735\"");
}

#[test]
fn a_file() {
    serves("backend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"16MiB\"\ncreate = true");
}

#[test]
fn null_completes_everything_and_keeps_nothing() {
    let home = Home::new();
    home.configure(&format!("[device]\nbackend = \"null\"\nsize = \"16MiB\"\n{TENANTS}"));
    let daemon = home.serve();
    for tenant in ["db", "batch"] {
        let report = home.load(tenant, "--rw randrw --bs 4k --iodepth 32 --numjobs 2").expect_clean();
        assert_eq!(report["jobs"][0]["total_err"], 0);
    }
    home.load("batch", "--rw randtrim --bs 4k").expect_clean();
    daemon.stop();
}

/// A loop device over a file; detached when dropped.
pub struct LoopDevice(pub PathBuf);

impl LoopDevice {
    /// `None`: this machine gives none, and the reason was printed.
    pub fn over(file: &Path, sector_bytes: u32) -> Option<Self> {
        let output = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &sector_bytes.to_string()])
            .arg(file)
            .output();
        match output {
            Ok(output) if output.status.success() => {
                Some(Self(String::from_utf8(output.stdout).unwrap().trim().into()))
            }
            Ok(output) => {
                eprintln!("SKIPPED: no loop device: {}", errors(&output).trim());
                None
            }
            Err(error) => {
                eprintln!("SKIPPED: losetup can't be run: {error}");
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

fn a_block_device(sector_bytes: u32) {
    let home = Home::new();
    let image = home.path("disk.img");
    std::fs::File::create(&image).unwrap().set_len(20 << 20).unwrap();
    let Some(device) = LoopDevice::over(&image, sector_bytes) else { return };
    let text = format!("[device]\nbackend = \"block\"\npath = {:?}\n{TENANTS}", device.0);
    let file = home.configure(&text);
    let check = |more: &[&str]| run(&[&["check", file.to_str().unwrap()], more].concat());
    // A loop device has no identity: its mark is made by the first start, and behind the disks.
    let json = check(&["--json"]);
    let told: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let drive = &told["items"][0];
    assert_eq!(
        (&drive["device"]["id"], &drive["device"]["to_mark"]),
        (&serde_json::Value::Null, &true.into()),
        "{told}"
    );
    assert_eq!(json.stdout, check(&["--json"]).stdout, "each look says the same");
    let shown = String::from_utf8(check(&[]).stdout).unwrap();
    assert!(shown.contains("`evenkeel serve` puts a mark on it"), "{shown}");
    let daemon = home.serve();
    assert_eq!(daemon.ready["drives"][0]["device"]["size_bytes"], (20 << 20) - 4096);
    two_tenants_verify(&home);
    let mut guest = home.attach("db");
    assert_eq!(guest.ns.block_bytes, sector_bytes);
    guest.write(0, &pattern(5, 65536)).unwrap();
    guest.flush().unwrap();
    drop(guest);

    // Nobody else gets the drive meanwhile.
    let other =
        home.write_config("other.toml", &format!("runtime_dir = \"HOST/run2\"\nstate_dir = \"HOST/state\"\n{text}"));
    let output = run(&["serve", other.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("is in use"), "{}", errors(&output));
    daemon.stop();
    let told: serde_json::Value = serde_json::from_slice(&check(&["--json"]).stdout).unwrap();
    let drive = &told["items"][0];
    assert!(drive["device"]["id"].is_string() && drive["device"]["to_mark"] == false, "{told}");
    assert!(drive["layout_file"].is_string(), "{told}");

    let names = std::fs::read_dir(home.path("state")).unwrap().map(|entry| entry.unwrap().file_name());
    let layouts = names.filter(|name| name.to_string_lossy().starts_with("layout-")).count();
    assert_eq!(layouts, 1, "the layout lies in state_dir");
    // The other order of tenants: each keeps its place.
    let (head, tenants) = text.split_once("[[tenant]]").unwrap();
    let (db, batch) = tenants.split_once("[[tenant]]").unwrap();
    home.configure(&format!("{head}[[tenant]]{batch}[[tenant]]{db}"));
    let daemon = home.serve();
    assert_eq!(home.attach("db").read(0, 65536 / sector_bytes).unwrap(), pattern(5, 65536));

    // Killed at work and started again at once: the kernel may still be taking its rings apart.
    let load = home.load("batch", "--rw write --bs 64k --iodepth 32 --runtime 10m");
    daemon.wait_log("batch: a client attached", 1);
    drop(daemon);
    assert_eq!(load.end().0, Some(1));
    let daemon = home.serve();
    assert_eq!(home.attach("db").read(0, 65536 / sector_bytes).unwrap(), pattern(5, 65536));
    daemon.stop();

    let blockdev = |how: &str| assert!(Command::new("blockdev").arg(how).arg(&device.0).status().unwrap().success());
    blockdev("--setro");
    let told = errors(&run(&["check", home.config().to_str().unwrap()]));
    assert!(told.contains("can only be read") && told.contains("blockdev --setrw"), "{told}");
    blockdev("--setrw");
}

#[test]
fn a_block_device_with_sectors_of_512() {
    a_block_device(512);
}

#[test]
fn a_block_device_with_sectors_of_4096() {
    a_block_device(4096);
}

/// Only here: the daemon zeroes a file system that begins beyond the part that was looked at.
#[test]
fn a_drive_that_holds_data_is_never_taken_as_empty() {
    const LEN_BYTES: u64 = 1 << 30;
    let home = Home::new();
    let image = home.path("disk.img");
    std::fs::File::create(&image).unwrap().set_len(LEN_BYTES).unwrap();
    let Some(device) = LoopDevice::over(&image, 512) else { return };
    let at = device.0.to_str().unwrap();
    let file = std::fs::File::options().read(true).write(true).open(at).unwrap();
    let own = format!("[device]\nbackend = \"block\"\npath = {at:?}\n{TENANTS}");
    let own =
        home.write_config("own.toml", &format!("runtime_dir = \"HOST/run2\"\nstate_dir = \"HOST/state2\"\n{own}"));
    let own = own.to_str().unwrap();
    home.configure(&format!("[device]\nbackend = \"memory\"\nsize = \"16MiB\"\n{TENANTS}"));
    let daemon = home.serve();
    let add = ["drive", "add", "new", "--backend", "block", "--path", at];
    for (offset_bytes, data, kind) in [
        (0x1_0040, b"_BHRfS_M".to_vec(), "a Btrfs file system at byte 65600"),
        (LEN_BYTES - 512, b"EFI PART".to_vec(), "the copy of a GPT partition table"),
        (LEN_BYTES / 2, vec![7; 1 << 20], "holds data at byte "),
    ] {
        file.write_all_at(&data, offset_bytes).unwrap();
        for output in [run(&["check", own]), run(&["serve", own]), ask(&home, &add)] {
            let told = errors(&output);
            assert_eq!(output.status.code(), Some(2), "{told}");
            assert!(told.contains(kind) && told.contains("add --discard-content "), "{told}");
        }
        let mut found = vec![0; data.len()];
        file.read_exact_at(&mut found, offset_bytes).unwrap();
        assert_eq!(found, data);
        file.write_all_at(&vec![0; data.len()], offset_bytes).unwrap();
    }
    file.write_all_at(b"_BHRfS_M", 0x1_0040).unwrap();
    let told = errors(&run(&["check", own, "--discard-content", "sda"]));
    assert!(told.contains("--discard-content sda names no drive; the file's drives are: device"), "{told}");
    let told = errors(&ask(&home, &[&add[..], &["--discard-content", "device"]].concat()));
    assert!(told.contains("names another drive than new; write --discard-content new"), "{told}");
    assert!(run(&["check", own, "--discard-content", "device"]).status.success());
    // What disks are made of is zeroed first, as ever.
    let output = ask(&home, &[&add[..], &["--discard-content", "new"]].concat());
    assert!(output.status.success(), "{}", errors(&output));
    done(&home, "create a --size 8MiB --drive new --wait");
    assert!(home.attach("a").read(0, 2048).unwrap().iter().all(|byte| *byte == 0));
    daemon.stop();
}

#[test]
fn no_disk_has_smaller_blocks_than_its_drive() {
    let home = Home::new();
    let image = home.path("disk.img");
    std::fs::File::create(&image).unwrap().set_len(20 << 20).unwrap();
    let Some(device) = LoopDevice::over(&image, 4096) else { return };
    let drive = format!("[device]\nbackend = \"block\"\npath = {:?}\n[policy]\nname = \"passthrough\"\n", device.0);
    let tenant = |keys: &str| home.configure(&format!("{drive}[[tenant]]\nname = \"a\"\nsize = \"4MiB\"\n{keys}"));
    let both_refuse = |says: [&str; 3]| {
        for command in ["check", "serve"] {
            let output = run(&[command, home.config().to_str().unwrap()]);
            let told = errors(&output);
            assert_eq!(output.status.code(), Some(2), "{command}: {told}");
            says.iter().for_each(|part| assert!(told.contains(part), "{command}: {part}: {told}"));
        }
    };
    tenant("lba_size = 512\n");
    both_refuse(["ek.toml:", "tenant \"a\" is to have lba_size = 512", "write lba_size = 4096, or leave it out"]);

    home.configure(&drive);
    let daemon = home.serve();
    let told = refused(&home, "create b --size 4MiB --lba-size 512");
    assert!(told.contains("tenant \"b\" is to have --lba-size 512"), "{told}");
    assert_eq!(done(&home, "create b --size 4MiB")["lba_bytes"], 4096);
    daemon.stop();

    let sectors_of = |bytes: &str| {
        let set = Command::new("losetup").args(["--sector-size", bytes]).arg(&device.0).status().unwrap();
        assert!(set.success());
    };
    sectors_of("512");
    tenant("lba_size = 512\n");
    let daemon = home.serve();
    assert_eq!(home.attach("a").ns.block_bytes, 512);
    daemon.stop();
    sectors_of("4096");
    for keys in ["lba_size = 512\n", ""] {
        tenant(keys);
        both_refuse(["tenant \"a\" has blocks of 512 bytes", "none smaller than 4096", "move the drive's data back"]);
    }
}

#[test]
fn check_knows_the_blocks_of_an_image_that_is_to_be_made() {
    let home = Home::new();
    let Some(_disk) = SmallDisk::mount(&home.path("mount")) else { return };
    let image = "[device]\nbackend = \"file\"\npath = \"HOST/mount/drive.img\"\nsize = \"4MiB\"\ncreate = true\n";
    home.configure(&format!("{image}[policy]\nname = \"passthrough\"\n[[tenant]]\nname = \"a\"\nsize = \"2MiB\"\n"));
    let output = run(&["check", home.config().to_str().unwrap(), "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!home.path("mount/drive.img").exists());
    let daemon = home.serve();
    assert_eq!(told["items"][0]["tenants"][0]["lba_bytes"], home.attach("a").ns.block_bytes, "{told}");
    daemon.stop();
}
