//! What a request means (5.2.6), checked and turned into device commands.

use guest_memory::{GuestMemory, IoBuf};
use io_model::{Command, DeviceError, Op, Place};

use crate::chain::Chain;
use crate::config::{DiskConfig, MAX_DISCARD_SECTORS, MAX_RANGES, MAX_REQUEST_BYTES, MAX_ZEROES_SECTORS, SERIAL_BYTES};
use crate::disk::Disk;
use crate::spec::SECTOR_BYTES;
use crate::spec::request::{DISCARD, FLUSH, GET_ID, HEADER_BYTES, IN, OUT, RANGE_BYTES, UNMAP, WRITE_ZEROES};

/// How a request ended, as its last byte says (5.2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

impl From<DeviceError> for Status {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Unsupported => Self::Unsupported,
            DeviceError::Medium
            | DeviceError::NoSpace
            | DeviceError::OutOfRange
            | DeviceError::Memory
            | DeviceError::Gone => Self::IoError,
        }
    }
}

/// A request that passed its checks.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// One device command; where its data lies was added to the caller's buffer.
    Device(Command),
    /// Several device commands, one for each range; they are where the caller wanted them.
    Ranges,
    /// Nothing to do. `written` bytes were written, from the first that the device may write.
    Done { written: u32 },
}

/// Buffers with long segment lists that are kept for reuse, so that a request does not allocate.
#[derive(Debug, Default)]
pub(crate) struct Pool(Vec<IoBuf>);

impl Pool {
    const MAX: usize = 256;

    /// A buffer; one without lists if one segment will do.
    #[inline]
    pub fn take(&mut self, plain: bool) -> IoBuf {
        if plain { IoBuf::default() } else { self.0.pop().unwrap_or_default() }
    }

    /// Takes a buffer back, and keeps its lists.
    #[inline]
    pub fn give(&mut self, mut buf: IoBuf, memory: &mut GuestMemory) {
        memory.release(&mut buf);
        if buf.has_spill() && self.0.len() < Self::MAX {
            self.0.push(buf);
        }
    }
}

/// What the device is still to do for a request with ranges.
#[derive(Debug)]
pub(crate) struct Ranges {
    op: Op,
    fua: bool,
    /// Offset in the disk and length in bytes.
    ranges: [(u64, u64); MAX_RANGES],
    next: u8,
    end: u8,
}

impl Ranges {
    pub const NONE: Self = Self { op: Op::Discard, fua: false, ranges: [(0, 0); MAX_RANGES], next: 0, end: 0 };

    /// Commands not handed out yet.
    #[inline]
    pub fn left(&self) -> u16 {
        u16::from(self.end - self.next)
    }

    pub fn next_command(&mut self, place: &Place) -> Option<Command> {
        let (offset_bytes, len_bytes) = *self.ranges[..usize::from(self.end)].get(usize::from(self.next))?;
        self.next += 1;
        Some(place.command(self.op, offset_bytes, len_bytes).with_fua(self.fua))
    }
}

/// What a request is checked against.
pub(crate) struct Rules<'a> {
    pub disk: &'a Disk,
    /// Every write must be durable when it completes, whatever the configuration space says.
    pub writethrough: bool,
}

impl Rules<'_> {
    fn config(&self) -> &DiskConfig {
        self.disk.config()
    }

    /// 5.2.6.2: a driver that knows neither flushes nor the write cache expects stable writes, and so does one that
    /// turned the cache off.
    #[inline]
    fn fua(&self) -> bool {
        self.config().write_cache && (self.writethrough || !self.disk.writeback())
    }

    /// Checks a request, which has a status byte. Where its data lies goes to `buf`, which is empty, its ranges to
    /// `ranges`, where none may be left.
    #[inline]
    pub fn admit(
        &self,
        chain: &Chain,
        memory: &mut GuestMemory,
        buf: &mut IoBuf,
        ranges: &mut Ranges,
    ) -> Result<Admitted, Status> {
        if chain.disordered {
            return Err(Status::IoError);
        }
        let header = u128::from_le_bytes(chain.header(memory).ok_or(Status::IoError)?);
        let (kind, sector) = (header as u32, (header >> 64) as u64);
        match kind {
            IN => self.transfer(Op::Read, sector, chain, memory, buf),
            OUT if self.config().read_only => Err(Status::IoError),
            OUT => self.transfer(Op::Write, sector, chain, memory, buf),
            // Also with the write cache off: a write of before may still be in it.
            FLUSH if self.config().write_cache => Ok(Admitted::Device(self.config().place.flush())),
            FLUSH => Ok(Admitted::Done { written: 0 }),
            GET_ID => self.identify(chain, memory),
            DISCARD | WRITE_ZEROES if self.config().read_only => Err(Status::IoError),
            DISCARD if self.config().discard => self.ranges(Op::Discard, chain, memory, ranges),
            WRITE_ZEROES => self.ranges(Op::WriteZeroes, chain, memory, ranges),
            _ => Err(Status::Unsupported),
        }
    }

    #[inline]
    fn transfer(
        &self,
        op: Op,
        sector: u64,
        chain: &Chain,
        memory: &mut GuestMemory,
        buf: &mut IoBuf,
    ) -> Result<Admitted, Status> {
        let len_bytes = match op {
            Op::Read => chain.write_bytes - 1,
            _ => chain.read_bytes - HEADER_BYTES,
        };
        if len_bytes > MAX_REQUEST_BYTES {
            return Err(Status::IoError);
        }
        let (offset_bytes, len_bytes) = self.disk.range(sector, len_bytes).ok_or(Status::IoError)?;
        if len_bytes == 0 {
            return Ok(Admitted::Done { written: 0 });
        }
        let added = match op {
            Op::Read => chain.data_in(memory, len_bytes, buf),
            _ => chain.data_out(memory, HEADER_BYTES, buf),
        };
        added.map_err(|_| Status::IoError)?;
        let command = self.config().place.command(op, offset_bytes, len_bytes);
        Ok(Admitted::Device(command.with_fua(op == Op::Write && self.fua())))
    }

    fn identify(&self, chain: &Chain, memory: &mut GuestMemory) -> Result<Admitted, Status> {
        let len_bytes = (chain.write_bytes - 1).min(SERIAL_BYTES as u64);
        let mut buf = IoBuf::default();
        chain.data_in(memory, len_bytes, &mut buf).map_err(|_| Status::IoError)?;
        let copied = buf.copy_from(&self.disk.serial());
        if copied as u64 == len_bytes { Ok(Admitted::Done { written: len_bytes as u32 }) } else { Err(Status::IoError) }
    }

    /// Reads and checks all ranges before the first leaves (5.2.6.2).
    fn ranges(&self, op: Op, chain: &Chain, memory: &mut GuestMemory, out: &mut Ranges) -> Result<Admitted, Status> {
        let data_bytes = chain.read_bytes - HEADER_BYTES;
        let count = data_bytes / RANGE_BYTES as u64;
        if count == 0 || count > MAX_RANGES as u64 || !data_bytes.is_multiple_of(RANGE_BYTES as u64) {
            return Err(Status::IoError);
        }
        let mut raw = [[0; RANGE_BYTES]; MAX_RANGES];
        let raw = &mut raw[..count as usize];
        if !chain.read(memory, HEADER_BYTES, raw.as_flattened_mut()) {
            return Err(Status::IoError);
        }
        let (max_sectors, known_flags, fua) = match op {
            Op::Discard => (MAX_DISCARD_SECTORS, 0, false),
            // The flag is a permission; the drive decides.
            _ => (MAX_ZEROES_SECTORS, UNMAP, self.fua()),
        };
        let mut end = 0;
        for raw in raw {
            let raw = u128::from_le_bytes(*raw);
            let (sector, sectors, flags) = (raw as u64, (raw >> 64) as u32, (raw >> 96) as u32);
            if flags & !known_flags != 0 {
                return Err(Status::Unsupported);
            }
            let len_bytes = u64::from(sectors) * SECTOR_BYTES;
            let range = self.disk.range(sector, len_bytes).filter(|_| sectors <= max_sectors);
            let range = range.ok_or(Status::IoError)?;
            if sectors > 0 {
                out.ranges[usize::from(end)] = range;
                end += 1;
            }
        }
        if end == 0 {
            return Ok(Admitted::Done { written: 0 });
        }
        (out.op, out.fua, out.next, out.end) = (op, fua, 0, end);
        Ok(Admitted::Ranges)
    }
}
