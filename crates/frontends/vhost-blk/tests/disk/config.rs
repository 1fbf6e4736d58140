//! Features and the configuration space.

use io_model::Place;
use vhost_blk::{CONFIG_BYTES, ConfigError, Disk, DiskConfig, ReadOnlyField};

use crate::guest::{FEATURE_CONFIG_WCE, PLACE, SIZE_BYTES, config};

const RO: u64 = 1 << 5;
const DISCARD: u64 = 1 << 13;
const WRITE_ZEROES: u64 = 1 << 14;

fn disk(config: DiskConfig) -> Disk {
    Disk::new(config).expect("a good configuration")
}

#[test]
fn features_follow_the_configuration() {
    // SIZE_MAX, SEG_MAX, BLK_SIZE, FLUSH, TOPOLOGY, CONFIG_WCE, MQ; INDIRECT_DESC, EVENT_IDX, VERSION_1.
    let always = [1, 2, 6, 9, 10, 11, 12, 28, 29, 32].iter().map(|bit| 1_u64 << bit).sum::<u64>();
    assert_eq!(disk(config()).features(), always | DISCARD | WRITE_ZEROES);
    assert_eq!(disk(DiskConfig { discard: false, ..config() }).features(), always | WRITE_ZEROES);
    assert_eq!(disk(DiskConfig { read_only: true, ..config() }).features(), always | RO);
}

#[test]
fn the_configuration_space_is_as_specified() {
    let space = disk(DiskConfig { block_bytes: 4096, queues: 3, ..config() }).config_space();
    let le = |range: std::ops::Range<usize>| space[range].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    assert_eq!(space.len(), CONFIG_BYTES);
    assert_eq!(le(0..8), SIZE_BYTES / 512, "capacity");
    assert_eq!((le(8..12), le(12..16)), (128 << 10, 126), "size_max, seg_max");
    assert_eq!(le(16..20), 0, "geometry");
    assert_eq!(le(20..24), 4096, "blk_size");
    assert_eq!((le(24..25), le(25..26), le(26..28), le(28..32)), (0, 0, 1, 0), "topology");
    assert_eq!((le(32..33), le(34..36)), (1, 3), "writeback, num_queues");
    assert_eq!((le(36..40), le(40..44), le(44..48)), (1 << 21, 32, 8), "discard");
    assert_eq!((le(48..52), le(52..56), le(56..57)), (1 << 17, 32, 1), "write zeroes");
    let space = disk(config()).config_space();
    assert_eq!(space[24..28], [3, 0, 8, 0], "eight blocks of 512 bytes in a page");
    let space = disk(DiskConfig { discard: false, write_cache: false, ..config() }).config_space();
    assert_eq!((space[32], space[36], space[56]), (0, 0, 0));
}

#[test]
fn only_writeback_can_be_written() {
    let disk = disk(config());
    assert_eq!(disk.write_config(32, &[1], FEATURE_CONFIG_WCE), Ok(false));
    assert_eq!(disk.write_config(32, &[0], FEATURE_CONFIG_WCE), Ok(true));
    assert!(!disk.writeback() && disk.config_space()[32] == 0);
    for (offset, bytes, features) in [
        (32, &[1][..], 0),
        (32, &[2], FEATURE_CONFIG_WCE),
        (32, &[1, 0], FEATURE_CONFIG_WCE),
        (31, &[0, 1], FEATURE_CONFIG_WCE),
        (0, &[0], FEATURE_CONFIG_WCE),
        (usize::MAX, &[0], FEATURE_CONFIG_WCE),
        (32, &[], FEATURE_CONFIG_WCE),
    ] {
        let refused = Err(ReadOnlyField { offset, len_bytes: bytes.len() });
        assert_eq!(disk.write_config(offset, bytes, features), refused);
    }
    assert!(!disk.writeback());
    disk.reset();
    assert!(disk.writeback());
}

#[test]
fn bad_configurations_are_refused() {
    let at = |base_bytes| Place { base_bytes, ..PLACE };
    for (config, error) in [
        (DiskConfig { serial: "x".repeat(21), ..config() }, ConfigError::Serial),
        (DiskConfig { serial: "ü".into(), ..config() }, ConfigError::Serial),
        (DiskConfig { block_bytes: 1024, ..config() }, ConfigError::BlockBytes),
        (DiskConfig { queues: 0, ..config() }, ConfigError::Queues { most: 64 }),
        (DiskConfig { queues: 65, ..config() }, ConfigError::Queues { most: 64 }),
        (DiskConfig { queues: 43, by_priority: true, ..config() }, ConfigError::Queues { most: 42 }),
        (DiskConfig { size_bytes: 0, ..config() }, ConfigError::Place),
        (DiskConfig { size_bytes: 511, ..config() }, ConfigError::Place),
        (DiskConfig { place: at(1), ..config() }, ConfigError::Place),
        (DiskConfig { place: at(u64::MAX - 511), ..config() }, ConfigError::Place),
    ] {
        assert_eq!(Disk::new(config).err(), Some(error));
    }
}
