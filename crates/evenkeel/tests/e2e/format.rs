//! A guest formats its namespace: the daemon must remember.

use std::fs;
use std::mem::offset_of;

use nvme_driver::Data;
use nvme_spec::identify::{IDENTIFY_BYTES, cns};
use nvme_spec::namespace::IdentifyNamespace;
use nvme_spec::opcode::admin;
use nvme_spec::{Sqe, Status};

use crate::guest::{Guest, pattern};
use crate::harness::{Home, wait_for};

const CONFIG: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
                      [policy]\nname = \"passthrough\"\n\
                      [[tenant]]\nname = \"a\"\nsize = \"16MiB\"\n\
                      [[tenant]]\nname = \"b\"\nsize = \"16MiB\"\n";

#[test]
fn a_format_outlives_the_daemon() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let neighbours = pattern(1, 65536);
    let mut b = home.attach("b");
    b.write(8, &neighbours).unwrap();

    let mut a = home.attach("a");
    assert_eq!((a.ns.block_bytes, a.ns.size_bytes()), (512, 16 << 20));
    a.write(0, &pattern(2, 65536)).unwrap();
    a.format(1).unwrap();
    a.ns = a.controller.first_namespace().unwrap();
    assert_eq!((a.ns.block_bytes, a.ns.size_bytes()), (4096, 16 << 20));
    // What was there is gone, and what is written now is there.
    assert!(a.read(0, 16).unwrap().iter().all(|byte| *byte == 0));
    a.write(1, &pattern(3, 4096)).unwrap();
    drop((a, b));
    daemon.stop();

    let layout: toml::Table = fs::read_to_string(home.path("drive.img.layout.toml")).unwrap().parse().unwrap();
    let lba_bytes =
        |index: usize| (layout["tenant"][index]["name"].clone(), layout["tenant"][index]["lba_bytes"].clone());
    assert_eq!([lba_bytes(0), lba_bytes(1)], [("a".into(), 4096.into()), ("b".into(), 512.into())]);

    let daemon = home.serve();
    let (mut a, mut b) = (home.attach("a"), home.attach("b"));
    assert_eq!((a.ns.block_bytes, b.ns.block_bytes), (4096, 512));
    assert_eq!(a.read(1, 1).unwrap(), pattern(3, 4096));
    assert_eq!(b.read(8, 128).unwrap(), neighbours);
    drop((a, b));
    daemon.stop();
}

/// What the layout says of the tenants.
fn layout(home: &Home) -> String {
    fs::read_to_string(home.path("drive.img.layout.toml")).unwrap()
}

#[test]
fn a_format_that_completed_outlives_a_kill() {
    let home = Home::new();
    home.configure(CONFIG);
    for (lbaf, lba_bytes) in [(1, 4096), (0, 512), (1, 4096)] {
        let daemon = home.serve();
        home.attach("a").format(lbaf).unwrap();
        // Killed.
        drop(daemon);
        assert!(
            layout(&home).contains(&format!("lba_bytes = {lba_bytes}"))
                && !layout(&home).contains("formatting_to_lba_bytes =")
        );
        let daemon = home.serve();
        let mut a = home.attach("a");
        assert_eq!((a.ns.block_bytes, a.ns.size_bytes()), (lba_bytes, 16 << 20));
        assert!(a.read(0, 1).unwrap().iter().all(|byte| *byte == 0));
        drop(a);
        daemon.stop();
    }
}

#[test]
fn a_format_that_was_killed_is_seen_until_it_is_done_again() {
    let home = Home::new();
    // The first 64 MiB are erased at once. The rest waits for minutes.
    let tenants = "[[tenant]]\nname = \"a\"\nsize = \"192MiB\"\nw_bandwidth = \"1MiB/s\"\n\
                   [[tenant]]\nname = \"b\"\nsize = \"16MiB\"\n";
    let device = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"256MiB\"\ncreate = true\n";
    home.configure(&format!("{device}[policy]\nname = \"passthrough\"\n{tenants}"));
    let daemon = home.serve();
    let (neighbours, mut b) = (pattern(1, 65536), home.attach("b"));
    b.write(8, &neighbours).unwrap();
    let mut a = home.attach("a");
    a.write(0, &pattern(2, 4096)).unwrap();
    // It goes on waiting for its answer.
    std::thread::spawn(move || a.format(1));
    wait_for("the mark", || layout(&home).contains("formatting_to_lba_bytes = 4096").then_some(()));
    drop(daemon);
    assert!(layout(&home).contains("formatting_to_lba_bytes = 4096"));
    drop(b);

    home.configure(&format!(
        "{device}[policy]\nname = \"passthrough\"\n{}",
        tenants.replace("w_bandwidth = \"1MiB/s\"\n", "")
    ));
    let daemon = home.serve();
    daemon.wait_log("a: a Format was cut short; reads and writes fail until its guest formats it again", 1);
    let (mut a, mut b) = (home.attach("a"), home.attach("b"));
    assert_eq!((progress(&mut a), progress(&mut b)), (0x80 | 100, 0x80));
    assert_eq!(a.read(0, 1), Err(Status::NAMESPACE_NOT_READY));
    assert_eq!(a.write(0, &pattern(3, 4096)), Err(Status::NAMESPACE_NOT_READY));
    assert_eq!(b.read(8, 128).unwrap(), neighbours);
    a.format(1).unwrap();
    a.ns = a.controller.first_namespace().unwrap();
    assert_eq!((a.ns.block_bytes, progress(&mut a)), (4096, 0x80));
    assert!(a.read(0, 256).unwrap().iter().all(|byte| *byte == 0));
    a.write(1, &pattern(3, 4096)).unwrap();
    drop((a, b));
    daemon.stop();
    assert!(!layout(&home).contains("formatting_to_lba_bytes ="));
}

/// Identify Namespace's format progress indicator.
fn progress(guest: &mut Guest) -> u8 {
    let data = Data { iova: guest.data.iova(), len_bytes: IDENTIFY_BYTES as u64 };
    let sqe = Sqe { opc: admin::IDENTIFY, nsid: 1, cdw10: cns::NAMESPACE.into(), ..Sqe::default() };
    guest.controller.admin().run("Identify", sqe, Some(data)).unwrap();
    let mut answer = [0; IDENTIFY_BYTES];
    guest.data.read(0, &mut answer).unwrap();
    answer[offset_of!(IdentifyNamespace, fpi)]
}
