//! A range that an operator freed: the next tenant finds zeros there.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Stdio;

use crate::guest::{DATA_BYTES, pattern};
use crate::harness::{Home, evenkeel, wait_for};

const TENANT_BYTES: usize = 8 << 20;
const BLOCKS: u64 = DATA_BYTES as u64 / 512;
const TRANSFERS: u64 = (TENANT_BYTES / DATA_BYTES) as u64;

fn configure(home: &Home, tenants: [&str; 2]) {
    let device = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"16MiB\"\ncreate = true\n\
                  [policy]\nname = \"passthrough\"\n";
    let tenant = |name: &str| format!("[[tenant]]\nname = \"{name}\"\nsize = \"8MiB\"\n");
    home.configure(&format!("{device}{}{}", tenant(tenants[0]), tenant(tenants[1])));
}

fn layout(home: &Home) -> String {
    fs::read_to_string(home.path("drive.img.layout.toml")).unwrap()
}

/// Changes the layout file as an operator would.
fn edit(home: &Home, change: impl Fn(String) -> String) {
    fs::write(home.path("drive.img.layout.toml"), change(layout(home))).unwrap();
}

/// Removes a tenant's block.
fn free(home: &Home, name: &str) {
    edit(home, |text| {
        let start = text.find(&format!("[[tenant]]\nname = \"{name}\"")).unwrap();
        let end = text[start + 1..].find("[[tenant]]").map_or(text.find("# end of").unwrap(), |at| start + 1 + at);
        format!("{}{}", &text[..start], &text[end..])
    });
}

/// Tenants `a` and `b` were served and wrote all that they have. Then `a` left.
fn used() -> Home {
    let home = Home::new();
    configure(&home, ["a", "b"]);
    let daemon = home.serve();
    assert!(!layout(&home).contains("zeroed_bytes ="), "a new image is empty");
    assert!(fs::metadata(home.path("drive.img")).unwrap().blocks() < 64);
    for name in ["a", "b"] {
        let mut guest = home.attach(name);
        (0..TRANSFERS).for_each(|at| guest.write(at * BLOCKS, &pattern(at, DATA_BYTES)).unwrap());
        guest.flush().unwrap();
    }
    daemon.stop();
    configure(&home, ["new", "b"]);
    free(&home, "a");
    home
}

fn offset_bytes(home: &Home, name: &str) -> i64 {
    let layout: toml::Table = layout(home).parse().unwrap();
    let tenants = layout["tenant"].as_array().unwrap();
    tenants.iter().find(|tenant| tenant["name"].as_str() == Some(name)).unwrap()["offset_bytes"].as_integer().unwrap()
}

/// `new` has the range that was `a`'s, and its first `kept` transfers are `a`'s data; `b` has all that it wrote.
fn assert_zeroed(home: &Home, kept: u64) {
    assert!(!layout(home).contains("zeroed_bytes ="), "{}", layout(home));
    assert_eq!(offset_bytes(home, "new"), 0);
    let (mut new, mut b) = (home.attach("new"), home.attach("b"));
    for at in 0..TRANSFERS {
        let expected = if at < kept { pattern(at, DATA_BYTES) } else { vec![0; DATA_BYTES] };
        assert!(new.read(at * BLOCKS, BLOCKS as u32).unwrap() == expected, "MiB {at}");
        assert!(b.read(at * BLOCKS, BLOCKS as u32).unwrap() == pattern(at, DATA_BYTES), "MiB {at} of b");
    }
}

#[test]
fn the_next_tenant_finds_zeros() {
    let home = used();
    let daemon = home.serve();
    assert_zeroed(&home, 0);
    daemon.stop();
    let mut content = vec![1; TENANT_BYTES];
    File::open(home.path("drive.img")).unwrap().read_exact_at(&mut content, 0).unwrap();
    assert!(content.iter().all(|byte| *byte == 0));
}

/// Killed as soon as the new range is recorded, wherever it is then.
#[test]
fn a_killed_daemon_goes_on_at_the_next_start() {
    for _ in 0..8 {
        let home = used();
        let mut child =
            evenkeel().arg("serve").arg(home.config()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for("the new range", || layout(&home).contains("\"new\"").then_some(()));
        child.kill().unwrap();
        child.wait().unwrap();
        let daemon = home.serve();
        assert_zeroed(&home, 0);
        daemon.stop();
    }
}

/// The record that a daemon leaves that was killed after so much.
#[test]
fn what_is_zeroed_already_is_not_zeroed_again() {
    for done in [0, 3] {
        let home = used();
        edit(&home, |text| {
            let range = format!("offset_bytes = 0\nsize_bytes = {TENANT_BYTES}\nlba_bytes = 512\n");
            let zeroed = format!("zeroed_bytes = {}\n", done * DATA_BYTES);
            let block = format!("\n[[tenant]]\nname = \"new\"\n{range}{zeroed}");
            text.replacen("\n[[tenant]]\n", &format!("{block}\n[[tenant]]\n"), 1)
        });
        let daemon = home.serve();
        assert_zeroed(&home, done as u64);
        daemon.stop();
    }
}

#[test]
fn an_image_whose_data_is_imported_keeps_it() {
    let home = used();
    fs::remove_file(home.path("drive.img.layout.toml")).unwrap();
    home.configure(
        "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\n[policy]\nname = \"passthrough\"\n\
         [[tenant]]\nname = \"new\"\nsize = \"8MiB\"\noffset = \"0\"\n\
         [[tenant]]\nname = \"b\"\nsize = \"8MiB\"\noffset = \"8MiB\"\n",
    );
    let daemon = home.serve();
    assert_zeroed(&home, TRANSFERS);
    daemon.stop();
}
