//! Disks from images and images from disks; and images that are hostile.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, Command, Stdio};

use rustix::fs::{CWD, FlockOperation, Mode, fcntl_lock, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::disks::{done, refused};
use crate::encryption::{config, detached, host_key};
use crate::guest::pattern;
use crate::harness::{Home, errors, evenkeel, wait_for};

const MIB: u64 = 1 << 20;

/// Bytes of a raw image that is no whole number of blocks, with holes.
const RAW_BYTES: u64 = 9 * MIB + 700;

fn raw_image(home: &Home) -> Vec<u8> {
    let file = File::create(home.path("raw.img")).unwrap();
    file.set_len(RAW_BYTES).unwrap();
    file.write_all_at(&pattern(1, 100 << 10), 512).unwrap();
    file.write_all_at(&pattern(2, MIB as usize), 4 * MIB - 4096).unwrap();
    file.write_all_at(&pattern(3, 500), RAW_BYTES - 500).unwrap();
    fs::read(home.path("raw.img")).unwrap()
}

/// All of a disk, as its guest sees it.
pub fn read(home: &Home, name: &str) -> Vec<u8> {
    let mut guest = home.attach(name);
    let count = MIB as u32 / guest.ns.block_bytes;
    let data =
        (0..guest.ns.size_bytes() / MIB).flat_map(|at| guest.read(at * u64::from(count), count).unwrap()).collect();
    drop(guest);
    detached(home, name);
    data
}

/// Data at another place, a lost tail, noise in the place of zeros, or an image with zeros in it.
#[test]
fn an_image_becomes_a_disk_and_a_disk_an_image() {
    let home = Home::new();
    host_key(&home);
    home.configure(&config("[keys]\nhost_key = \"HOST/host.key\"\n"));
    let daemon = home.serve();
    let raw = raw_image(&home);
    let expected = [&raw[..], &vec![0; (10 * MIB - RAW_BYTES) as usize]].concat();
    let at = |name: &str| home.path(name).display().to_string();
    let made = done(&home, &format!("create one --from {}", at("raw.img")));
    assert_eq!((&made["size_bytes"], &made["labels"]), (&json!(10 * MIB), &Value::Null));
    assert!(read(&home, "one") == expected);
    done(&home, &format!("export one -o {}", at("one.qcow2")));
    let told = refused(&home, &format!("export one -o {}", at("one.qcow2")));
    assert!(told.contains("exists"), "{told}");

    // On room that an encrypted disk left, with noise.
    let noise = done(&home, "create noise --size 30MiB --encryption host");
    assert_eq!(noise["encryption"], "host");
    home.attach("noise").write(0, &pattern(4, MIB as usize)).unwrap();
    detached(&home, "noise");
    done(&home, "delete noise --yes --wait");
    done(
        &home,
        &format!("create two --size 12MiB --encryption host --frontend vhost-user-blk --from {}", at("one.qcow2")),
    );
    done(&home, &format!("export two --format raw -o {}", at("two.img")));
    let two = fs::read(home.path("two.img")).unwrap();
    assert!(two[..expected.len()] == expected && two[expected.len()..].iter().all(|byte| *byte == 0));
    let blocks = fs::metadata(home.path("two.img")).unwrap().blocks() * 512;
    assert!(blocks < 2 * MIB, "{blocks} bytes of a file for 1.1 MiB of data");

    // It waits for its key, and then for the next try.
    let own = format!("create own --encryption tenant --from {}", at("raw.img"));
    let told = refused(&home, &own);
    assert!(told.contains("unlock it by `evenkeel disk unlock`"), "{told}");
    fs::write(home.path("own.key"), "c3".repeat(32) + &"5a".repeat(32)).unwrap();
    done(&home, &format!("unlock own --key-file {}", at("own.key")));
    assert_eq!(done(&home, &own)["labels"], Value::Null);
    done(&home, &format!("unlock own --key-file {}", at("own.key")));
    assert!(read(&home, "own") == expected);

    let told = refused(&home, &format!("create three --size 4MiB --from {}", at("raw.img")));
    assert!(told.contains("ask for --size 10MiB"), "{told}");
    let guest = home.attach("one");
    let told = refused(&home, &format!("export one -o {}", at("busy.img")));
    assert!(told.contains("\"one\" is attached to a client"), "{told}");
    drop(guest);
    assert!(!home.path("busy.img").exists());
    daemon.stop();
}

/// Runs `evenkeel disk create` in the background.
fn create(home: &Home, arguments: &str) -> Child {
    let mut command = evenkeel();
    command.args(["disk", "create"]).args(arguments.split_whitespace());
    command.env("EVENKEEL_SOCKET", home.runtime_dir().join("api.sock")).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Waits until an import is under way.
fn wait_for_import(home: &Home) {
    let is_attached = || {
        let listed = done(home, "list");
        listed["items"].as_array().unwrap().iter().any(|disk| disk["attached"] == true).then_some(())
    };
    wait_for("the import", is_attached);
}

/// A disk with a part of an image that a guest would take for whole; or an export that is not whole.
#[test]
fn a_copy_that_is_cut_short_leaves_nothing_that_seems_whole() {
    let home = Home::new();
    home.configure("[device]\nbackend = \"memory\"\nsize = \"256MiB\"\n[policy]\nname = \"passthrough\"\n");
    let daemon = home.serve();
    let image = home.path("image");
    fs::write(&image, pattern(5, 64 << 20)).unwrap();
    let from = format!("--from {}", image.display());
    // It would take a minute.
    let slow = format!("web {from} --rw-bandwidth 1MiB/s");
    for how in [Signal::INT, Signal::TERM] {
        let child = create(&home, &slow);
        wait_for_import(&home);
        kill_process(Pid::from_child(&child), how).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), errors(&output).contains("cancelled")), (Some(1), true), "{output:?}");
        assert_eq!(done(&home, "list")["items"], json!([]));
    }

    let mut child = create(&home, &slow);
    wait_for_import(&home);
    // A second one beside it takes nothing from it.
    let told = refused(&home, &format!("create {slow}"));
    assert!(told.contains("\"web\" is attached to a client"), "{told}");
    assert_eq!(done(&home, "show web")["attached"], true);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(done(&home, "show web")["labels"], json!({ "import_unfinished": "true" }));
    let told = refused(&home, "create web --size 64MiB --rw-bandwidth 1MiB/s");
    assert!(told.contains("web"), "{told}");
    done(&home, "set web --rw-bandwidth 1GiB/s");
    // Another image by now: nothing of the former one is left.
    let file = File::options().write(true).open(&image).unwrap();
    file.set_len(0).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(&pattern(6, 4096), 8192).unwrap();
    wait_for("the killed client's end", || (done(&home, "show web")["attached"] == false).then_some(()));
    assert_eq!(done(&home, &format!("create web {from} --rw-bandwidth 1GiB/s"))["labels"], Value::Null);
    assert!(read(&home, "web") == fs::read(&image).unwrap());
    let told = refused(&home, &format!("create web {from} --rw-bandwidth 1GiB/s"));
    assert!(told.contains("web"), "{told}");

    done(&home, "set web --rw-bandwidth 1MiB/s");
    let mut export = evenkeel();
    export.args(["disk", "export", "web", "-o"]).arg(home.path("out.qcow2")).stderr(Stdio::piped());
    let child = export.env("EVENKEEL_SOCKET", home.runtime_dir().join("api.sock")).spawn().unwrap();
    let names = || fs::read_dir(home.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    let parts = || names().iter().filter(|name| name.to_string_lossy().contains("out.qcow2")).count();
    wait_for("the export", || (parts() > 0).then_some(()));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), parts()), (Some(1), 0), "{output:?} {:?}", names());
    daemon.stop();
}

/// Files of the host in a disk, a command that hangs, memory that grows with the image; and a disk that stays behind.
#[test]
fn a_hostile_image_is_refused_without_a_trace() {
    let home = Home::new();
    home.configure(
        "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"11GiB\"\ncreate = true\n\
         [policy]\nname = \"passthrough\"\n",
    );
    let daemon = home.serve();
    let at = |name: &str| home.path(name).display().to_string();
    let from = |name: &str| format!("create made --from {}", at(name));
    let write = |name: &str, bytes: &[u8]| fs::write(home.path(name), bytes).unwrap();
    raw_image(&home);

    // The tests of the crate `images` have all that a header can say.
    let mut header = [0; 4096];
    header[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    write("qcow2", &header);
    write("vmdk", b"# Disk DescriptorFile\nversion=1\nRW 8 FLAT \"/etc/passwd\" 0\n");
    mkfifoat(CWD, home.path("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
    let locked = File::options().write(true).open(home.path("raw.img")).unwrap();
    fcntl_lock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
    for (name, expected) in [
        ("qcow2", "clusters of 2^0 bytes"),
        ("vmdk", "builds on /etc/passwd, which was not named by --backing"),
        ("pipe", "it is a pipe"),
        ("raw.img", "another process has it open for writing"),
    ] {
        let told = refused(&home, &from(name));
        assert!(told.contains(expected) && told.contains(&at(name)), "{told}");
    }
    drop(locked);
    let told = refused(&home, &format!("{} --attach web", from("raw.img")));
    assert!(told.contains("cannot be used with"), "{told}");
    // It is seen at the end only.
    write("growing", &pattern(7, 8 << 20));
    let slow = format!("made --rw-bandwidth 1MiB/s --from {}", at("growing"));
    let child = create(&home, &slow);
    wait_for_import(&home);
    File::options().append(true).open(home.path("growing")).unwrap().write_all(b"more").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(errors(&output).contains("growing: it has changed while it was read"), "{output:?}");
    assert_eq!(done(&home, "list")["items"], json!([]));

    // 10 GiB in 64 MiB of memory.
    let large = File::create(home.path("large")).unwrap();
    large.set_len(10 << 30).unwrap();
    large.write_all_at(&pattern(8, MIB as usize), (10 << 30) - MIB).unwrap();
    let limited = format!("ulimit -d 65536 && exec {} disk {}", evenkeel().get_program().display(), from("large"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &limited]).env("EVENKEEL_SOCKET", home.runtime_dir().join("api.sock"));
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut guest = home.attach("made");
    let blocks = (10 << 30) / u64::from(guest.ns.block_bytes);
    assert!(guest.read(blocks - 8, 8).unwrap().iter().any(|byte| *byte != 0));
    daemon.stop();
}
