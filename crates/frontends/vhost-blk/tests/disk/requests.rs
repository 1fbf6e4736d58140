//! Requests of every type, in every framing.

use io_model::{DeviceError, Op};
use vhost_blk::DiskConfig;

use crate::guest::*;

const FRAMINGS: [Framing; 3] = [Framing::Direct, Framing::Indirect, Framing::Odd];

#[test]
fn what_is_written_is_read() {
    for framing in FRAMINGS {
        let mut world = World::ready();
        for (sector, len_bytes) in [(0, 512), (8, 4096), (3, 8192), (SIZE_BYTES / 512 - 1, 512)] {
            let data = pattern(sector, len_bytes);
            let written = world.one(&Request::write(sector, &data), framing);
            assert_eq!((written.status, written.written), (OK, 1), "{framing:?}");
            let read = world.one(&Request::read(sector, len_bytes as u32), framing);
            assert_eq!((read.status, read.written), (OK, len_bytes as u32 + 1), "{framing:?}");
            assert_eq!(read.data, data);
            let at = (BASE_BYTES + sector * 512) as usize;
            assert_eq!(world.drive.content[at..at + len_bytes], data);
        }
        assert!(world.drive.guards_are_whole());
        assert_eq!(world.queues.take_fault(), None);
        assert_eq!(world.queues.stats().requests, 8);
    }
}

#[test]
fn ranges_outside_of_the_disk_fail_alone() {
    let mut world = World::ready();
    let sectors = SIZE_BYTES / 512;
    for sector in [sectors, sectors - 7, u64::MAX, u64::MAX / 512, 1 << 55] {
        for request in [Request::write(sector, &[1; 4096]), Request::read(sector, 4096)] {
            let done = world.one(&request, Framing::Direct);
            let written = if request.kind == IN { 0 } else { 1 };
            assert_eq!((done.status, done.written), (IOERR, written), "{request:?}");
        }
        for kind in [DISCARD, WRITE_ZEROES] {
            assert_eq!(world.one(&Request::ranges(kind, &[(sector, 8, 0)]), Framing::Direct).status, IOERR);
        }
    }
    assert!(world.drive.seen.is_empty());
    assert_eq!(world.queues.stats().rejected, 20);
    assert_eq!(world.one(&Request::read(0, 512), Framing::Direct).status, OK);
}

#[test]
fn a_disk_that_grew_is_read_and_written_up_to_its_new_end() {
    let mut world = World::new(DiskConfig { size_bytes: SIZE_BYTES / 2, ..config() }, 64, u64::MAX);
    let sectors = SIZE_BYTES / 512;
    let last = Request::write(sectors / 2 - 4, &[7; 4096]);
    assert_eq!(world.one(&last, Framing::Direct).status, IOERR);
    for refused in [SIZE_BYTES + 1, 0, u64::MAX - 511] {
        assert!(world.queues.disk().grow(refused).is_err());
    }
    world.queues.disk().grow(SIZE_BYTES).unwrap();
    // Never back.
    world.queues.disk().grow(SIZE_BYTES / 2).unwrap();
    assert_eq!(world.queues.disk().config_space()[..8], sectors.to_le_bytes());
    assert_eq!(world.one(&last, Framing::Direct).status, OK);
    assert_eq!(world.one(&Request::read(sectors - 1, 512), Framing::Direct).status, OK);
    assert_eq!(world.one(&Request::read(sectors, 512), Framing::Direct).status, IOERR);
    assert!(world.drive.guards_are_whole());
}

#[test]
fn requests_are_whole_blocks() {
    let mut world = World::new(DiskConfig { block_bytes: 4096, ..config() }, 64, u64::MAX);
    assert_eq!(world.one(&Request::read(8, 4096), Framing::Direct).status, OK);
    for (sector, len_bytes) in [(1, 4096), (8, 512), (8, 4097), (8, 1)] {
        assert_eq!(world.one(&Request::read(sector, len_bytes), Framing::Direct).status, IOERR);
    }
    assert_eq!(world.one(&Request::ranges(DISCARD, &[(8, 1, 0)]), Framing::Direct).status, IOERR);
}

/// Only here: a firmware that negotiated neither SIZE_MAX nor SEG_MAX can't load a large kernel in one request.
#[test]
fn a_request_may_be_as_long_as_its_chain() {
    // A large disk, and a chain whose descriptors all name the same memory.
    let mut world = World::new(DiskConfig { size_bytes: 8 << 30, ..config() }, 512, u64::MAX);
    let mut ask = |lengths: &[u32]| {
        let at = world.driver.buffers(0);
        world.ram.write(at, &[0; 16]);
        world.ram.put_desc(world.driver.ring.desc_at(0), Desc { address: at, len_bytes: 16, flags: NEXT, next: 1 });
        for (n, len_bytes) in (1..).zip(lengths) {
            let desc = Desc { address: RAM + (32 << 20), len_bytes: *len_bytes, flags: NEXT | WRITE, next: n + 1 };
            world.ram.put_desc(world.driver.ring.desc_at(n), desc);
        }
        let status_at = Desc { address: at + 16, len_bytes: 1, flags: WRITE, next: 0 };
        world.ram.put_desc(world.driver.ring.desc_at(lengths.len() as u16 + 1), status_at);
        world.driver.offer(&world.ram, 0);
        assert_eq!(world.fetch(), 1);
        if let Some((token, command, buf)) = world.in_flight.pop() {
            assert_eq!(command.len_bytes, lengths.iter().map(|it| u64::from(*it)).sum::<u64>());
            io_model::Source::complete(&mut world.queues, token, Ok(()), buf);
        }
        io_model::Source::notify(&mut world.queues);
        world.ram.read(at + 16, 1)[0]
    };
    const MIB: u32 = 1 << 20;
    assert_eq!(ask(&[(128 << 10) + 512; 126]), OK);
    assert_eq!(ask(&[25 * MIB; 3]), OK);
    assert_eq!(ask(&[&[16 * MIB; 255][..], &[16 * MIB - 512]].concat()), OK);
    // Its length could not be told in the used ring.
    assert_eq!(ask(&[16 * MIB; 256]), IOERR);
}

#[test]
fn the_serial_number_is_told() {
    let mut world = World::ready();
    let mut serial = b"EK0001".to_vec();
    serial.resize(20, 0);
    for framing in FRAMINGS {
        let done = world.one(&Request::other(GET_ID, 20), framing);
        assert_eq!((done.status, done.written, &done.data), (OK, 21, &serial), "{framing:?}");
    }
    let short = world.one(&Request::other(GET_ID, 4), Framing::Direct);
    assert_eq!((short.status, short.written, &short.data[..]), (OK, 5, &b"EK00"[..]));
    let long = world.one(&Request::other(GET_ID, 100), Framing::Direct);
    assert_eq!((long.status, long.written, &long.data[..20]), (OK, 20, &serial[..]));
}

#[test]
fn unknown_types_are_unsupported() {
    let mut world = World::ready();
    for kind in [2, 3, 5, 7, 9, 10, 12, 14, 16, 0x8000_0000, u32::MAX] {
        let done = world.one(&Request::other(kind, 0), Framing::Direct);
        assert_eq!((done.status, done.written), (UNSUPP, 1), "type {kind}");
    }
    let mut world = World::new(DiskConfig { discard: false, ..config() }, 64, u64::MAX);
    assert_eq!(world.one(&Request::ranges(DISCARD, &[(0, 8, 0)]), Framing::Direct).status, UNSUPP);
}

#[test]
fn a_read_only_disk_refuses_to_change() {
    let mut world = World::new(DiskConfig { read_only: true, ..config() }, 64, u64::MAX);
    for request in [
        Request::write(0, &[1; 512]),
        Request::ranges(DISCARD, &[(0, 8, 0)]),
        Request::ranges(WRITE_ZEROES, &[(0, 8, 0)]),
    ] {
        assert_eq!(world.one(&request, Framing::Direct).status, IOERR);
    }
    assert_eq!(world.one(&Request::read(0, 512), Framing::Direct).status, OK);
    assert_eq!(world.one(&Request::other(FLUSH, 0), Framing::Direct).status, OK);
}

#[test]
fn each_range_is_one_command() {
    for (kind, op) in [(DISCARD, Op::Discard), (WRITE_ZEROES, Op::WriteZeroes)] {
        let mut world = World::ready();
        world.one(&Request::write(0, &pattern(1, 8192)), Framing::Direct);
        world.drive.seen.clear();
        // The empty one is nothing to do.
        let ranges = [(0, 2, 0), (7, 0, 0), (4, 1, 0), (6, 2, 0)];
        let done = world.one(&Request::ranges(kind, &ranges), Framing::Odd);
        assert_eq!((done.status, done.written), (OK, 1));
        let seen: Vec<_> = world.drive.seen.iter().map(|c| (c.op, c.offset_bytes - BASE_BYTES, c.len_bytes)).collect();
        assert_eq!(seen, [(op, 0, 1024), (op, 2048, 512), (op, 3072, 1024)]);
        let read = world.one(&Request::read(0, 8192), Framing::Direct).data;
        assert!(read[..1024].iter().all(|byte| *byte == 0));
        assert_eq!(read[1024..2048], pattern(1, 8192)[1024..2048]);
        assert_eq!(world.one(&Request::ranges(kind, &[(0, 0, 0)]), Framing::Direct).status, OK);
    }
}

#[test]
fn ranges_are_fetched_one_by_one() {
    let mut world = World::ready();
    world.submit(&Request::ranges(DISCARD, &[(0, 1, 0), (1, 1, 0), (2, 1, 0)]), Framing::Direct);
    world.submit(&Request::read(0, 512), Framing::Direct);
    use io_model::{Fetch, Source};
    let mut backlogs = Vec::new();
    loop {
        backlogs.push(world.queues.backlog(VQ));
        match world.queues.fetch(VQ) {
            Fetch::Command(command, buf, token) => world.in_flight.push((token, command, buf)),
            other => {
                assert!(matches!(other, Fetch::Empty));
                break;
            }
        }
    }
    assert_eq!(backlogs, [2, 3, 2, 1, 0]);
    // The second part fails: so does the request, and only when its last part is back.
    let parts: Vec<_> = world.in_flight.drain(..).collect();
    for (n, (token, _, buf)) in parts.into_iter().enumerate() {
        let outcome = if n == 1 { Err(DeviceError::Medium) } else { Ok(()) };
        world.queues.complete(token, outcome, buf);
        world.queues.notify();
        let done: Vec<u8> = world.driver.completions(&world.ram).iter().map(|done| done.status).collect();
        assert_eq!(done, [&[][..], &[], &[IOERR], &[OK]][n]);
    }
}

#[test]
fn bad_ranges_fail_as_a_whole() {
    let mut world = World::ready();
    let many = [(0, 1, 0); 33];
    let most = [(0, 1, 0); 32];
    for (kind, ranges, status) in [
        (DISCARD, &many[..], IOERR),
        (DISCARD, &[], IOERR),
        (DISCARD, &[(0, 1, 0), (SIZE_BYTES / 512, 1, 0)], IOERR),
        (DISCARD, &[(0, 1, 0), (0, 1, 1)], UNSUPP),
        (WRITE_ZEROES, &[(0, 1, 2)], UNSUPP),
        (WRITE_ZEROES, &[(0, u32::MAX, 0)], IOERR),
    ] {
        assert_eq!(world.one(&Request::ranges(kind, ranges), Framing::Direct).status, status, "{kind} {ranges:?}");
    }
    let mut odd = Request::ranges(DISCARD, &[(0, 1, 0)]);
    odd.out.push(0);
    assert_eq!(world.one(&odd, Framing::Direct).status, IOERR);
    assert!(world.drive.seen.is_empty());
    assert_eq!(world.one(&Request::ranges(WRITE_ZEROES, &[(0, 1, 1)]), Framing::Direct).status, OK);
    assert_eq!(world.one(&Request::ranges(DISCARD, &most), Framing::Direct).status, OK);
    assert_eq!(world.drive.seen.len(), 33);
}

#[test]
fn the_write_cache_decides_about_fua() {
    let fua = |world: &mut World| {
        world.one(&Request::write(0, &[1; 512]), Framing::Direct);
        world.one(&Request::ranges(WRITE_ZEROES, &[(0, 1, 0)]), Framing::Direct);
        let fua: Vec<bool> = world.drive.seen.iter().map(|command| command.fua).collect();
        world.drive.seen.clear();
        assert_eq!(fua[0], fua[1]);
        fua[0]
    };
    let mut world = World::ready();
    assert!(!fua(&mut world));
    assert_eq!(world.queues.disk().write_config(32, &[0], FEATURE_CONFIG_WCE), Ok(true));
    assert!(fua(&mut world), "the driver turned the cache off");
    world.queues.disk().reset();
    assert!(!fua(&mut world));
    // A flush after the cache was turned off still has to write back what came before.
    world.queues.disk().write_config(32, &[0], FEATURE_CONFIG_WCE).expect("writable");
    world.one(&Request::other(FLUSH, 0), Framing::Direct);
    assert_eq!(world.drive.seen[0].op, Op::Flush);

    let neither = !(FEATURE_FLUSH | FEATURE_CONFIG_WCE);
    assert!(fua(&mut World::new(config(), 64, neither)), "a driver that can't flush");
    assert!(!fua(&mut World::new(config(), 64, neither | FEATURE_FLUSH)));
    assert!(!fua(&mut World::new(config(), 64, neither | FEATURE_CONFIG_WCE)));

    let mut world = World::new(DiskConfig { write_cache: false, ..config() }, 64, u64::MAX);
    assert!(!fua(&mut world), "no cache, nothing to force");
    assert_eq!(world.one(&Request::other(FLUSH, 0), Framing::Direct).status, OK);
    assert!(world.drive.seen.is_empty());
}

#[test]
fn errors_of_the_drive_have_a_status() {
    let mut world = World::ready();
    for (error, status) in [
        (DeviceError::Medium, IOERR),
        (DeviceError::NoSpace, IOERR),
        (DeviceError::OutOfRange, IOERR),
        (DeviceError::Memory, IOERR),
        (DeviceError::Gone, IOERR),
        (DeviceError::Unsupported, UNSUPP),
    ] {
        world.drive.fail = Some(error);
        let done = world.one(&Request::read(0, 512), Framing::Direct);
        assert_eq!((done.status, done.written), (status, 0), "{error:?}");
    }
}

#[test]
fn an_empty_transfer_does_nothing() {
    let mut world = World::ready();
    for kind in [IN, OUT] {
        let done = world.one(&Request::other(kind, 0), Framing::Direct);
        assert_eq!((done.status, done.written), (OK, 1));
    }
    assert!(world.drive.seen.is_empty());
}
