//! What goes wrong with the drive reaches the tenant that it happened to, by its NVMe name, and no other.

use std::path::{Path, PathBuf};
use std::process::Command;

use nvme_spec::Status;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::guest::pattern;
use crate::harness::{Home, errors, run};

const CONFIG: &str = "[device]\nbackend = \"file\"\npath = \"HOST/mount/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
                      [policy]\nname = \"passthrough\"\n\
                      [[tenant]]\nname = \"greedy\"\nsize = \"32MiB\"\n\
                      [[tenant]]\nname = \"modest\"\nsize = \"16MiB\"\n";
const MIB: usize = 1 << 20;

/// A small file system; unmounted when dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`: this machine lets us mount nothing, and the reason was printed.
    pub fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        match Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "evenkeel-test"]).arg(at).output() {
            Ok(output) if output.status.success() => Some(Self(at.to_owned())),
            Ok(output) => {
                eprintln!("SKIPPED: can't mount a small file system: {}", errors(&output).trim());
                None
            }
            Err(error) => {
                eprintln!("SKIPPED: mount can't be run: {error}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn drive_errors(home: &Home) -> [u64; 2] {
    let runtime_dir = home.runtime_dir();
    let output = run(&["stats", "--once", "--json", "--interval", "0", "--runtime-dir", runtime_dir.to_str().unwrap()]);
    let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    [0, 1].map(|tenant: usize| stats["tenants"][tenant]["errors"].as_u64().unwrap())
}

#[test]
fn a_full_file_system() {
    let home = Home::new();
    let Some(_disk) = SmallDisk::mount(&home.path("mount")) else { return };
    home.configure(CONFIG);
    let daemon = home.serve();
    assert!(daemon.log().contains("can grow by 64MiB, its file system has 8MiB left"), "{}", daemon.log());
    let (mut greedy, mut modest) = (home.attach("greedy"), home.attach("modest"));
    // On tmpfs blocks are larger.
    let mib = (MIB / greedy.ns.block_bytes as usize) as u32;
    let place = |number: u64| number * u64::from(mib);
    modest.write(0, &pattern(1, MIB)).unwrap();
    let written = (0..32).take_while(|number| greedy.write(place(*number), &pattern(2, MIB)).is_ok()).count() as u64;
    assert!((4..8).contains(&written), "{written} MiB fitted");
    assert_eq!(greedy.write(place(written), &pattern(2, MIB)), Err(Status::CAPACITY_EXCEEDED));
    // What has its place can be read and overwritten; what has none reads as zeros.
    assert_eq!(modest.read(0, mib).unwrap(), pattern(1, MIB));
    modest.write(0, &pattern(3, MIB)).unwrap();
    modest.flush().unwrap();
    assert_eq!(greedy.read(0, mib).unwrap(), pattern(2, MIB));
    assert!(greedy.read(place(31), mib).unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(drive_errors(&home), [2, 0]);
    // Room that one tenant gives back, another may take.
    greedy.deallocate(0, 2 * mib).unwrap();
    modest.write(place(1), &pattern(4, MIB)).unwrap();
    assert_eq!(modest.read(place(1), mib).unwrap(), pattern(4, MIB));
    drop((greedy, modest));
    daemon.stop();
}

/// Only here: the kernel ends the daemon by SIGXFSZ for a write beyond its limit.
#[test]
fn a_limit_on_the_size_of_files() {
    let home = Home::new();
    home.configure(&CONFIG.replace("mount/", ""));
    let daemon = home.serve();
    let (mut greedy, mut modest) = (home.attach("greedy"), home.attach("modest"));
    let limit = Rlimit { current: Some(40 * MIB as u64), maximum: None };
    prlimit(Pid::from_raw(daemon.id() as i32), Resource::Fsize, limit).unwrap();
    // The second tenant's first block lies at 32 MiB.
    modest.write(0, &pattern(1, MIB)).unwrap();
    assert_eq!(modest.write(9 * 2048, &pattern(2, MIB)), Err(Status::CAPACITY_EXCEEDED));
    greedy.write(0, &pattern(3, MIB)).unwrap();
    assert_eq!(modest.read(0, 2048).unwrap(), pattern(1, MIB));
    assert_eq!(drive_errors(&home), [0, 1]);
    drop((greedy, modest));
    daemon.stop();
}

#[test]
fn a_drive_that_lost_its_end() {
    let home = Home::new();
    home.configure(&CONFIG.replace("mount/", ""));
    let daemon = home.serve();
    let (mut greedy, mut modest) = (home.attach("greedy"), home.attach("modest"));
    greedy.write(0, &pattern(1, MIB)).unwrap();
    modest.write(0, &pattern(2, MIB)).unwrap();
    // Someone truncates the image in the middle of the second tenant's first megabyte.
    let image = std::fs::File::options().write(true).open(home.path("drive.img")).unwrap();
    image.set_len((32 * MIB + MIB / 2) as u64).unwrap();
    assert_eq!(modest.read(0, 1024).unwrap(), pattern(2, MIB)[..MIB / 2]);
    assert_eq!(modest.read(1024, 1024), Err(Status::UNRECOVERED_READ));
    assert_eq!(modest.read(0, 2048), Err(Status::UNRECOVERED_READ));
    assert_eq!(greedy.read(0, 2048).unwrap(), pattern(1, MIB));
    assert_eq!(drive_errors(&home), [0, 2]);
    drop((greedy, modest));
    daemon.stop();
}
