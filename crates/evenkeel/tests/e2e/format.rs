//! A guest formats its namespace: the daemon must remember.

use crate::guest::pattern;
use crate::harness::Home;

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

    let layout: toml::Table = std::fs::read_to_string(home.path("drive.img.layout.toml")).unwrap().parse().unwrap();
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
