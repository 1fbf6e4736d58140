//! What a descriptor asks for, checked. It is the kernel's; nothing is believed all the same.

use io_model::{Command, Op, Place};

use crate::shape::Shape;
use crate::spec::{IO_F_FUA, IoDesc, SECTOR_BYTES, io_op};

/// Why a request fails, as an error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejected(pub i32);

/// The command that a descriptor asks for, of a disk that is `size_bytes` long.
///
/// # Errors
/// An operation that nobody offered, a range that is not whole blocks inside of the disk, more data than a buffer
/// holds, a write to what is read-only.
pub fn translate(desc: &IoDesc, shape: &Shape, place: &Place, size_bytes: u64) -> Result<Command, Rejected> {
    let op = match desc.op_flags & 0xff {
        io_op::READ => Op::Read,
        io_op::WRITE => Op::Write,
        io_op::FLUSH => return Ok(place.flush()),
        io_op::DISCARD if shape.discard => Op::Discard,
        io_op::WRITE_ZEROES => Op::WriteZeroes,
        _ => return Err(Rejected(libc::EOPNOTSUPP)),
    };
    if shape.read_only && op != Op::Read {
        return Err(Rejected(libc::EPERM));
    }
    let invalid = Rejected(libc::EIO);
    let offset_bytes = desc.start_sector.checked_mul(SECTOR_BYTES).ok_or(invalid)?;
    let len_bytes = u64::from(desc.nr_sectors) * SECTOR_BYTES;
    let end_bytes = offset_bytes.checked_add(len_bytes).ok_or(invalid)?;
    // A power of two.
    let mask = u64::from(shape.block_bytes) - 1;
    let has_data = op.has_data();
    let is_too_long = has_data && len_bytes > u64::from(Shape::MAX_IO_BYTES);
    if len_bytes == 0 || (offset_bytes | len_bytes) & mask != 0 || end_bytes > size_bytes || is_too_long {
        return Err(invalid);
    }
    let fua = desc.op_flags & IO_F_FUA != 0 && matches!(op, Op::Write | Op::WriteZeroes);
    Ok(place.command(op, offset_bytes, len_bytes).with_fua(fua))
}

#[cfg(test)]
mod tests {
    use io_model::TenantId;

    use super::*;

    const SIZE_BYTES: u64 = 1 << 20;

    fn shape() -> Shape {
        Shape {
            size_bytes: SIZE_BYTES,
            block_bytes: 4096,
            queues: 1,
            depth: 8,
            read_only: false,
            discard: true,
            write_cache: true,
        }
    }

    fn of(op_flags: u32, start_sector: u64, nr_sectors: u32, shape: &Shape) -> Result<Command, Rejected> {
        let desc = IoDesc { op_flags, nr_sectors, start_sector, addr: 0 };
        translate(&desc, shape, &Place::whole_drive(TenantId(3)), SIZE_BYTES)
    }

    #[test]
    fn every_operation_becomes_its_command() {
        let place = Place::whole_drive(TenantId(3));
        let shape = shape();
        assert_eq!(of(io_op::READ, 8, 16, &shape), Ok(place.command(Op::Read, 4096, 8192)));
        let write = place.command(Op::Write, 0, 4096);
        assert_eq!(of(io_op::WRITE, 0, 8, &shape), Ok(write));
        assert_eq!(of(io_op::WRITE | IO_F_FUA, 0, 8, &shape), Ok(write.with_fua(true)));
        assert_eq!(of(io_op::FLUSH, u64::MAX, 7, &shape), Ok(place.flush()));
        let whole = (SIZE_BYTES / SECTOR_BYTES) as u32;
        assert_eq!(of(io_op::DISCARD, 0, whole, &shape), Ok(place.command(Op::Discard, 0, SIZE_BYTES)));
        assert_eq!(of(io_op::WRITE_ZEROES, 0, whole, &shape), Ok(place.command(Op::WriteZeroes, 0, SIZE_BYTES)));
    }

    #[test]
    fn what_is_not_inside_or_not_offered_fails() {
        let invalid = Err(Rejected(libc::EIO));
        let sectors = SIZE_BYTES / SECTOR_BYTES;
        for (start, count) in
            [(sectors, 8), (sectors - 8, 16), (4, 8), (0, 4), (0, 0), (u64::MAX / 512, 8), (1 << 60, 8)]
        {
            assert_eq!(of(io_op::READ, start, count, &shape()), invalid, "{start} {count}");
        }
        assert_eq!(of(io_op::WRITE, 0, Shape::MAX_IO_BYTES / 512 + 8, &shape()), invalid, "longer than its buffer");
        let unsupported = Err(Rejected(libc::EOPNOTSUPP));
        assert_eq!(of(4, 0, 8, &shape()), unsupported);
        assert_eq!(of(io_op::DISCARD, 0, 8, &Shape { discard: false, ..shape() }), unsupported);
        let read_only = Shape { read_only: true, ..shape() };
        assert_eq!(of(io_op::WRITE, 0, 8, &read_only), Err(Rejected(libc::EPERM)));
        assert!(of(io_op::READ, 0, 8, &read_only).is_ok());
    }
}
