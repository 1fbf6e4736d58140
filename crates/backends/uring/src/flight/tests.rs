use std::sync::Arc;

use guest_memory::Mapping;
use io_model::{Place, TenantId};

use super::*;

fn command(op: Op, offset_bytes: u64, len_bytes: u64) -> Command {
    Place::whole_drive(TenantId(0)).command(op, offset_bytes, len_bytes)
}

fn buf(memory: &Arc<Mapping>, pieces: &[(u64, u64)]) -> IoBuf {
    let mut buf = IoBuf::default();
    pieces.iter().for_each(|&(at, len_bytes)| assert!(buf.push(memory, at, len_bytes)));
    buf
}

fn start(drive: &Opened, command: Command, buf: IoBuf) -> Result<Flight, Outcome> {
    Flight::start(Io { tag: 7, command, buf }, drive).map_err(|(_, outcome)| outcome)
}

fn memory() -> Arc<Mapping> {
    Mapping::anonymous(1 << 20).unwrap()
}

/// Asks for an entry, so that iovecs are made, and ends it with `result`.
fn step(flight: &mut Flight, drive: &Opened, result: i32) -> Next {
    let _ = flight.entry(&mut Vec::new(), drive);
    flight.step_ended(result, drive)
}

#[test]
fn short_transfers_go_on_at_a_block() {
    let (drive, memory) = (Opened::pretended(), memory());
    let mut flight = start(&drive, command(Op::Read, 4096, 8192), buf(&memory, &[(0, 8192)])).unwrap();
    assert_eq!(step(&mut flight, &drive, 4096 + 100), Next::Again);
    assert_eq!(flight.done_bytes, 4096);
    assert_eq!(step(&mut flight, &drive, 4096), Next::End(Ok(())));
}

#[test]
fn a_transfer_without_progress_ends() {
    let (drive, memory) = (Opened::pretended(), memory());
    for result in [0, 511] {
        let mut flight = start(&drive, command(Op::Write, 0, 4096), buf(&memory, &[(0, 4096)])).unwrap();
        assert_eq!(step(&mut flight, &drive, result), Next::End(Err(DeviceError::Medium)));
    }
}

#[test]
fn the_rest_of_a_list_starts_inside_of_a_segment() {
    let memory = memory();
    let buf = buf(&memory, &[(0, 512), (4096, 1024), (8192, 512)]);
    let base = buf.segments()[0].as_ptr().addr();
    let rest: Vec<_> = after(buf.segments(), 1024).map(|iovec| (iovec.base - base, iovec.len_bytes)).collect();
    assert_eq!(rest, [(4096 + 512, 512), (8192, 512)]);
}

#[test]
fn long_lists_go_in_parts() {
    let (drive, memory) = (Opened::pretended(), memory());
    let pieces: Vec<_> = (0..1500).map(|piece| (piece * 600 / 4 * 4, 512)).collect();
    let mut flight = start(&drive, command(Op::Write, 0, 1500 * 512), buf(&memory, &pieces)).unwrap();
    let mut iovecs = Vec::new();
    let _ = flight.entry(&mut iovecs, &drive);
    assert_eq!(iovecs.len(), MAX_IOVECS);
    assert_eq!(flight.step_ended(1024 * 512, &drive), Next::Again);
    let _ = flight.entry(&mut iovecs, &drive);
    assert_eq!(iovecs.len(), 1500 - MAX_IOVECS);
    assert_eq!(flight.step_ended(476 * 512, &drive), Next::End(Ok(())));
}

#[test]
fn interruptions_are_retried_and_not_for_ever() {
    let (drive, memory) = (Opened::pretended(), memory());
    let mut flight = start(&drive, command(Op::Read, 0, 512), buf(&memory, &[(0, 512)])).unwrap();
    for _ in 0..MAX_TRIES {
        assert_eq!(step(&mut flight, &drive, -libc::EINTR), Next::Again);
    }
    assert_eq!(step(&mut flight, &drive, -libc::EAGAIN), Next::End(Err(DeviceError::Gone)));
}

#[test]
fn misaligned_memory_is_bounced_in_parts() {
    let (drive, guest, own) = (Opened::pretended(), memory(), memory());
    guest.write_at(2, &[9; 4096]).unwrap();
    let mut flight = start(&drive, command(Op::Write, 0, 4096), buf(&guest, &[(2, 4096)])).unwrap();
    assert!(flight.wants_bounce());
    flight.give_bounce(buf(&own, &[(0, 3072)]));
    assert_eq!(step(&mut flight, &drive, 3072), Next::Again);
    assert_eq!(step(&mut flight, &drive, 1024), Next::End(Ok(())));
    assert_eq!(drive.bounced_bytes(), 4096);
    let mut seen = [0; 3073];
    own.read_at(0, &mut seen).unwrap();
    assert!(seen[..3072].iter().all(|&byte| byte == 9) && seen[3072] == 0);

    let mut flight = start(&drive, command(Op::Read, 0, 1024), buf(&guest, &[(8193, 512), (16385, 512)])).unwrap();
    own.write_at(0, &[5; 1024]).unwrap();
    flight.give_bounce(buf(&own, &[(0, 3072)]));
    assert_eq!(step(&mut flight, &drive, 1024), Next::End(Ok(())));
    let mut seen = [0; 514];
    guest.read_at(16384, &mut seen).unwrap();
    assert!(seen[0] == 0 && seen[1..513].iter().all(|&byte| byte == 5) && seen[513] == 0);
}

#[test]
fn zeroing_falls_back_to_writing_once_and_for_all() {
    let drive = Opened::pretended();
    let mut flight = start(&drive, command(Op::WriteZeroes, 0, 100 << 10), IoBuf::default()).unwrap();
    assert_eq!(flight.step, Step::ZeroRange);
    assert_eq!(step(&mut flight, &drive, -libc::EOPNOTSUPP), Next::Again);
    let mut iovecs = Vec::new();
    let _ = flight.entry(&mut iovecs, &drive);
    assert_eq!(iovecs.iter().map(|iovec| iovec.len_bytes).collect::<Vec<_>>(), [64 << 10, 36 << 10]);
    assert_eq!(flight.step_ended(100 << 10, &drive), Next::End(Ok(())));
    let next = start(&drive, command(Op::WriteZeroes, 0, 4096), IoBuf::default()).unwrap();
    assert_eq!(next.step, Step::WriteZeroes);
}

#[test]
fn zeroing_with_fua_is_synced() {
    let drive = Opened::pretended();
    let command = command(Op::WriteZeroes, 0, 4096).with_fua(true);
    let mut flight = start(&drive, command, IoBuf::default()).unwrap();
    assert_eq!(step(&mut flight, &drive, 0), Next::Again);
    assert_eq!(flight.step, Step::Sync);
    assert_eq!(step(&mut flight, &drive, -libc::ENOSPC), Next::End(Err(DeviceError::NoSpace)));
}

#[test]
fn discards_keep_inside_and_may_be_refused() {
    let drive = Opened::pretended();
    let whole = |command| start(&drive, command, IoBuf::default()).map(|flight| flight.command);
    assert_eq!(whole(command(Op::Discard, 100, 1500)), Ok(command(Op::Discard, 512, 1024)));
    assert_eq!(whole(command(Op::Discard, 100, 800)).unwrap_err(), Ok(()));
    let mut flight = start(&drive, command(Op::Discard, 0, 4096), IoBuf::default()).unwrap();
    assert_eq!(step(&mut flight, &drive, -libc::EOPNOTSUPP), Next::End(Ok(())));
    assert_eq!(start(&drive, command(Op::Discard, 0, 4096), IoBuf::default()).unwrap_err(), Ok(()));
}

#[test]
fn parts_of_blocks_are_refused() {
    let (drive, memory) = (Opened::pretended(), memory());
    let outcome = start(&drive, command(Op::Read, 100, 512), buf(&memory, &[(0, 512)])).unwrap_err();
    assert_eq!(outcome, Err(DeviceError::Unsupported));
}

#[test]
fn errors_reach_the_command() {
    let (drive, memory) = (Opened::pretended(), memory());
    for (errno, error) in [
        (libc::EIO, DeviceError::Medium),
        (libc::ENOSPC, DeviceError::NoSpace),
        (libc::EDQUOT, DeviceError::NoSpace),
        (libc::EFAULT, DeviceError::Memory),
        (libc::ENODEV, DeviceError::Gone),
        (libc::EINVAL, DeviceError::Unsupported),
    ] {
        let mut flight = start(&drive, command(Op::Write, 0, 512), buf(&memory, &[(0, 512)])).unwrap();
        assert_eq!(step(&mut flight, &drive, -errno), Next::End(Err(error)));
    }
}

/// A drive that gets NVMe commands.
fn passing() -> Opened {
    let mut drive = Opened::pretended();
    drive.namespace = Some(Namespace::pretended());
    drive
}

const OK: i32 = 0;

fn failed(status: Status) -> i32 {
    i32::from(status.0)
}

#[test]
fn nvme_commands_are_as_long_as_the_drive_takes_them() {
    let (drive, memory) = (passing(), memory());
    let pieces = [(0, 4096), (8192, 12_288), (32_768, 4096)];
    let mut flight = start(&drive, command(Op::Read, 4096, 20_480), buf(&memory, &pieces)).unwrap();
    let mut iovecs = Vec::new();
    let mut lengths = Vec::new();
    loop {
        assert!(matches!(flight.entry(&mut iovecs, &drive), Entry::Long(_)));
        lengths.push(iovecs.iter().map(|iovec| iovec.len_bytes).collect::<Vec<_>>());
        match flight.step_ended(OK, &drive) {
            Next::Again => {}
            Next::End(outcome) => break assert_eq!(outcome, Ok(())),
        }
    }
    assert_eq!(lengths, [vec![4096, 4096], vec![8192], vec![4096]]);

    for (op, commands) in [(Op::WriteZeroes, 3), (Op::Discard, 2)] {
        let mut flight = start(&drive, command(op, 0, 48 << 10), IoBuf::default()).unwrap();
        (1..commands).for_each(|_| assert_eq!(step(&mut flight, &drive, OK), Next::Again));
        assert_eq!(step(&mut flight, &drive, OK), Next::End(Ok(())), "{op:?}");
    }
    let mut flight =
        Flight::start(Io { tag: 7, command: Place::whole_drive(TenantId(0)).flush(), buf: IoBuf::default() }, &drive)
            .unwrap();
    assert_eq!(step(&mut flight, &drive, OK), Next::End(Ok(())));
}

#[test]
fn what_the_drive_says_is_what_the_tenant_is_told() {
    let (drive, memory) = (passing(), memory());
    let write = || start(&drive, command(Op::Write, 0, 512), buf(&memory, &[(0, 512)])).unwrap();
    for (result, error) in [
        (failed(Status::UNRECOVERED_READ.dnr()), DeviceError::Medium),
        (failed(Status::CAPACITY_EXCEEDED.dnr()), DeviceError::NoSpace),
        (failed(Status::NAMESPACE_WRITE_PROTECTED.dnr()), DeviceError::Unsupported),
        (-libc::ENODEV, DeviceError::Gone),
    ] {
        assert_eq!(step(&mut write(), &drive, result), Next::End(Err(error)));
    }
    // A drive that does not say that a retry is in vain is asked again.
    let mut flight = write();
    for _ in 0..MAX_NVME_TRIES {
        assert_eq!(step(&mut flight, &drive, failed(Status::NAMESPACE_NOT_READY)), Next::Again);
    }
    let ended = step(&mut flight, &drive, failed(Status::NAMESPACE_NOT_READY));
    assert_eq!(ended, Next::End(Err(DeviceError::Gone)));
}

#[test]
fn a_drive_without_write_zeroes_or_deallocation_is_asked_once() {
    for result in [failed(Status::INVALID_OPCODE.dnr()), -libc::EACCES] {
        let drive = passing();
        let mut flight = start(&drive, command(Op::WriteZeroes, 0, 12 << 10), IoBuf::default()).unwrap();
        assert_eq!(step(&mut flight, &drive, result), Next::Again);
        assert_eq!(flight.step, Step::WriteZeroes);
        assert_eq!([OK, OK].map(|ok| step(&mut flight, &drive, ok)), [Next::Again, Next::End(Ok(()))]);
        let mut flight = start(&drive, command(Op::Discard, 0, 4096), IoBuf::default()).unwrap();
        assert_eq!(step(&mut flight, &drive, result), Next::End(Ok(())));
        assert!(!drive.can_zero() && !drive.can_discard());
    }
}
