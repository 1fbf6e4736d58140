//! A guest reaches its own range of the drive and nothing else.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nvme_spec::Status;
use nvme_spec::opcode::{nvm, rw};

use crate::guest::{Guest, pattern};
use crate::harness::Home;

const TENANT_BYTES: usize = 1 << 20;

fn try_everything_at(guest: &mut Guest, lba: u64, count: u32) {
    let len = u64::from(count) * u64::from(guest.ns.block_bytes);
    guest.data.write(0, &vec![0xbd; len as usize]).unwrap();
    for opc in [nvm::READ, nvm::WRITE, nvm::COMPARE] {
        assert_eq!(guest.run(guest.command(opc, lba, count), len), Err(Status::LBA_OUT_OF_RANGE), "{opc} {lba}");
    }
    for (opc, flags) in [(nvm::WRITE_ZEROES, 0), (nvm::WRITE_ZEROES, rw::DEAC), (nvm::VERIFY, 0)] {
        let mut sqe = guest.command(opc, lba, count);
        sqe.cdw12 |= flags;
        assert_eq!(guest.run(sqe, 0), Err(Status::LBA_OUT_OF_RANGE), "{opc} {lba}");
    }
    assert_eq!(guest.deallocate(lba, count), Err(Status::LBA_OUT_OF_RANGE), "{lba}");
}

#[test]
fn an_lba_beyond_the_namespace_never_reaches_the_drive() {
    let home = Home::new();
    // Three tenants side by side, the attacker in the middle.
    home.configure(
        "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"4MiB\"\ncreate = true\n\
         [[tenant]]\nname = \"before\"\nsize = \"1MiB\"\noffset = \"0\"\n\
         [[tenant]]\nname = \"bad\"\nsize = \"1MiB\"\noffset = \"1MiB\"\n\
         [[tenant]]\nname = \"after\"\nsize = \"1MiB\"\noffset = \"2MiB\"\n",
    );
    let daemon = home.serve();
    let content: Vec<Vec<u8>> = (1..=3).map(|seed| pattern(seed, TENANT_BYTES)).collect();
    for (name, content) in ["before", "bad", "after"].into_iter().zip(&content) {
        let mut guest = home.attach(name);
        guest.write(0, content).unwrap();
        guest.flush().unwrap();
    }
    let mut bad = home.attach("bad");
    let blocks = bad.ns.blocks;
    for (lba, count) in [
        (blocks, 1),
        (blocks - 1, 2),
        (blocks - 8, 16),
        (blocks + 1024, 8),
        (u64::from(u32::MAX), 8),
        (1 << 32, 8),
        (1 << 55, 8),
        // Times 512 these wrap around to somewhere on the drive.
        (u64::MAX, 1),
        (u64::MAX - 2047, 8),
        (1 << 63, 8),
    ] {
        try_everything_at(&mut bad, lba, count);
    }
    assert_eq!(bad.read(0, blocks as u32).unwrap(), content[1]);
    drop(bad);
    daemon.stop();

    let image = File::open(home.path("drive.img")).unwrap();
    for (place, content) in content.iter().enumerate() {
        let mut found = vec![0; TENANT_BYTES];
        image.read_exact_at(&mut found, (place * TENANT_BYTES) as u64).unwrap();
        assert!(found == *content, "the bytes of tenant {place} changed");
    }
    let mut rest = vec![1; TENANT_BYTES];
    image.read_exact_at(&mut rest, 3 * TENANT_BYTES as u64).unwrap();
    assert!(rest.iter().all(|byte| *byte == 0), "nobody's bytes changed");
}
