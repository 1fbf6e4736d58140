//! One command's way through the kernel.

use guest_memory::{IoBuf, Segment};
use io_model::{Command, DeviceError, Io, Op, Outcome};
use io_uring::{opcode, squeue, types};
use nvme_driver::{Status, outcome};
use nvme_spec::data::DsmRange;
use rustix::io::Errno;

use crate::drive::Opened;
use crate::errno::{device_error, is_lacking, is_transient};
use crate::kernel_ring::Entry;
use crate::nvme::{Data, Namespace};

/// Most segments that one readv or writev takes.
const MAX_IOVECS: usize = 1024;

/// Most bytes that one read or write moves; the kernel's own limit is just below 2 GiB.
const MAX_MOVE_BYTES: u64 = 1 << 30;

/// Most bytes that a poller moves itself, of a file in memory: it does nothing else for about 15 µs. What is longer,
/// the kernel's threads share out.
const MOST_AT_ONCE_BYTES: u64 = 64 << 10;

/// Retries of a request that is interrupted again and again, before the device counts as gone.
const MAX_TRIES: u16 = 10_000;

/// How often an NVMe command is sent again that the drive failed without saying that this would be in vain: as often as
/// the kernel's driver does so for a block device's requests.
const MAX_NVME_TRIES: u16 = 5;

const ZEROES_BYTES: usize = 64 << 10;

/// What is written where a drive can't zero a range by itself. Never written to.
#[repr(align(4096))]
struct Zeroes([u8; ZEROES_BYTES]);

static ZEROES: Zeroes = Zeroes([0; ZEROES_BYTES]);

/// The zeros, for writing them without a ring.
pub(crate) fn zeroes() -> &'static [u8] {
    &ZEROES.0
}

/// Laid out as the kernel's `struct iovec`; numbers, so that it is `Send`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Iovec {
    base: usize,
    len_bytes: usize,
}

#[cfg(test)]
impl Iovec {
    pub(crate) fn of(base: usize, len_bytes: usize) -> Self {
        Self { base, len_bytes }
    }
}

/// What the kernel does for the command now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Data straight from or to guest memory.
    Move,
    /// Data through the bounce buffer, one buffer at a time.
    Bounce,
    ZeroRange,
    WriteZeroes,
    Punch,
    Sync,
}

/// What to do after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Submit [`Flight::entry`] again.
    Again,
    /// The command ended.
    End(Outcome),
}

/// A command that was started. It owns everything that the kernel may touch for it.
#[derive(Debug)]
pub(crate) struct Flight {
    io: Io,
    /// What is done of it is `done_bytes`, from its start. Its offset is in the file.
    command: Command,
    /// The file's number.
    file: types::Fixed,
    step: Step,
    done_bytes: u64,
    /// How much of an NVMe command's data is under way: it moves all of that or fails.
    piece_bytes: u64,
    /// What an NVMe command discards: its data.
    range: DsmRange,
    bounce: Option<IoBuf>,
    tries: u16,
}

impl Flight {
    /// Starts a command, or says how it ended already.
    pub(crate) fn start(io: Io, drive: &Opened) -> Result<Self, (Io, Outcome)> {
        if let Err(error) = io.check(drive.size_bytes) {
            return Err((io, Err(error)));
        }
        let mut command = io.command;
        let (file, within_bytes) = drive.files.locate(command.offset_bytes);
        if drive.files.descriptor(file).is_none() {
            return Err((io, Err(DeviceError::OutOfRange)));
        }
        command.offset_bytes = within_bytes;
        if command.op == Op::Discard {
            // Advice: what is not whole blocks is left out.
            let end = (command.offset_bytes + command.len_bytes) & !(drive.block_bytes - 1);
            let skipped_bytes = command.offset_bytes.next_multiple_of(drive.block_bytes) - command.offset_bytes;
            command.offset_bytes += skipped_bytes;
            command.tenant_offset_bytes += skipped_bytes;
            command.len_bytes = end.saturating_sub(command.offset_bytes);
        }
        if command.len_bytes == 0 && command.op != Op::Flush || command.op == Op::Discard && !drive.can_discard() {
            return Err((io, Ok(())));
        }
        if (command.offset_bytes | command.len_bytes) & (drive.block_bytes - 1) != 0 {
            return Err((io, Err(DeviceError::Unsupported)));
        }
        let step = match command.op {
            Op::Read | Op::Write if is_aligned(&io.buf, drive) => Step::Move,
            Op::Read | Op::Write => Step::Bounce,
            Op::Flush => Step::Sync,
            Op::WriteZeroes if drive.can_zero() => Step::ZeroRange,
            Op::WriteZeroes => Step::WriteZeroes,
            Op::Discard => Step::Punch,
        };
        Ok(Self {
            io,
            command,
            file: types::Fixed(file),
            step,
            done_bytes: 0,
            piece_bytes: 0,
            range: DsmRange::default(),
            bounce: None,
            tries: 0,
        })
    }

    /// What it was started for.
    pub(crate) fn command(&self) -> &Command {
        &self.io.command
    }

    /// Whether it can't go on without a bounce buffer; see [`Flight::give_bounce`].
    pub(crate) fn wants_bounce(&self) -> bool {
        self.step == Step::Bounce && self.bounce.is_none()
    }

    /// Gives it a buffer of one segment, aligned and a multiple of the drive's blocks.
    pub(crate) fn give_bounce(&mut self, bounce: IoBuf) {
        self.bounce = Some(bounce);
    }

    /// Ends it: the request, and the bounce buffer if it had one.
    pub(crate) fn end(self) -> (Io, Option<IoBuf>) {
        (self.io, self.bounce)
    }

    /// Whether [`Flight::move_at_once`] is how it goes on.
    pub(crate) fn moves_at_once(&self, drive: &Opened) -> bool {
        drive.in_memory && self.step == Step::Move && self.command.len_bytes <= MOST_AT_ONCE_BYTES
    }

    /// Moves its data without a ring: a system call for each command, which costs less than half of what it costs to
    /// have a thread of the kernel's do the same copy (`docs/decisions/0026-io-uring-what-helps.md`).
    pub(crate) fn move_at_once(&mut self, iovecs: &mut Vec<Iovec>, drive: &Opened) -> Outcome {
        loop {
            iovecs.clear();
            iovecs.extend(after(self.io.buf.segments(), self.done_bytes).take(MAX_IOVECS));
            let (fd, all, count) = (
                drive.files.descriptor(self.file.0).unwrap_or(-1),
                iovecs.as_ptr().cast(),
                iovecs.len() as libc::c_int,
            );
            let offset_bytes = (self.command.offset_bytes + self.done_bytes) as libc::off_t;
            // SAFETY: `iovecs` names parts of guest memory whose mapping the command's IoBuf pins, and both outlive
            // the call.
            let bytes = unsafe {
                match self.command.op {
                    Op::Read => libc::preadv2(fd, all, count, offset_bytes, 0),
                    _ => libc::pwritev2(fd, all, count, offset_bytes, self.write_flags()),
                }
            };
            let failed = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            let result = i32::try_from(bytes).ok().filter(|bytes| *bytes >= 0).unwrap_or_else(|| -failed());
            if let Next::End(outcome) = self.step_ended(result, drive) {
                return outcome;
            }
        }
    }

    /// The submission for the current step. It points into guest memory, the bounce buffer, `iovecs` and the flight:
    /// until it completes, the flight must stay where it is and `iovecs` unchanged.
    pub(crate) fn entry(&mut self, iovecs: &mut Vec<Iovec>, drive: &Opened) -> Entry {
        let offset_bytes = self.command.offset_bytes + self.done_bytes;
        let left_bytes = self.command.len_bytes - self.done_bytes;
        if let Some(namespace) = &drive.namespace {
            return self.nvme_entry(iovecs, offset_bytes, left_bytes, namespace, drive);
        }
        let entry = match self.step {
            Step::Move => self.move_entry(iovecs, offset_bytes, left_bytes),
            Step::Bounce => match self.fill_bounce(left_bytes, drive) {
                Some((data, len_bytes)) => self.plain(data, len_bytes as u32, offset_bytes),
                None => no_bounce(),
            },
            Step::WriteZeroes => {
                name_zeroes(iovecs, left_bytes);
                self.vectored(iovecs.as_ptr().cast(), iovecs.len(), offset_bytes)
            }
            Step::ZeroRange => self.fallocate(libc::FALLOC_FL_ZERO_RANGE, offset_bytes, left_bytes),
            Step::Punch => self.fallocate(libc::FALLOC_FL_PUNCH_HOLE, offset_bytes, left_bytes),
            Step::Sync => opcode::Fsync::new(self.file).flags(types::FsyncFlags::DATASYNC).build(),
        };
        Entry::Short(entry)
    }

    /// The entry of an NVMe command, limited to what the drive takes at once.
    fn nvme_entry(
        &mut self,
        iovecs: &mut Vec<Iovec>,
        offset_bytes: u64,
        left_bytes: u64,
        namespace: &Namespace,
        drive: &Opened,
    ) -> Entry {
        let (is_write, fua) = (self.command.op != Op::Read, self.command.fua);
        let piece_bytes = match self.step {
            Step::Move | Step::Bounce | Step::WriteZeroes => namespace.moved_bytes(left_bytes),
            Step::ZeroRange => namespace.zeroed_bytes(left_bytes),
            Step::Punch => namespace.discarded_bytes(left_bytes),
            Step::Sync => 0,
        };
        self.piece_bytes = piece_bytes;
        let passed = match self.step {
            Step::Move | Step::WriteZeroes => {
                if self.step == Step::Move {
                    iovecs.clear();
                    iovecs.extend(after(self.io.buf.segments(), self.done_bytes).take(MAX_IOVECS));
                } else {
                    name_zeroes(iovecs, piece_bytes);
                }
                self.piece_bytes = cut(iovecs, piece_bytes);
                let data = match iovecs[..] {
                    [one] => Data::One(one.base),
                    _ => Data::List(iovecs),
                };
                namespace.transfer(is_write, fua, offset_bytes, self.piece_bytes, data)
            }
            Step::Bounce => match self.fill_bounce(piece_bytes, drive) {
                Some((data, len_bytes)) => {
                    self.piece_bytes = len_bytes;
                    namespace.transfer(is_write, fua, offset_bytes, len_bytes, Data::One(data.addr()))
                }
                None => return Entry::Short(no_bounce()),
            },
            Step::ZeroRange => namespace.zeroing(fua, offset_bytes, piece_bytes),
            Step::Punch => namespace.discard(offset_bytes, piece_bytes, &mut self.range),
            Step::Sync => namespace.flush(),
        };
        Entry::Long(passed.entry())
    }

    fn move_entry(&self, iovecs: &mut Vec<Iovec>, offset_bytes: u64, left_bytes: u64) -> squeue::Entry {
        match self.io.buf.segments() {
            [one] => {
                // In bounds: the request's length is the buffer's, and what is done is less.
                let data = one.as_ptr().wrapping_add(self.done_bytes as usize);
                self.plain(data, left_bytes.min(MAX_MOVE_BYTES) as u32, offset_bytes)
            }
            all if self.done_bytes == 0 && all.len() <= MAX_IOVECS => {
                self.vectored(all.as_ptr().cast(), all.len(), offset_bytes)
            }
            all => {
                iovecs.clear();
                iovecs.extend(after(all, self.done_bytes).take(MAX_IOVECS));
                self.vectored(iovecs.as_ptr().cast(), iovecs.len(), offset_bytes)
            }
        }
    }

    /// Puts what is to be written into the bounce buffer; the memory that is moved, and how much of it.
    fn fill_bounce(&self, left_bytes: u64, drive: &Opened) -> Option<(*mut u8, u64)> {
        let [chunk] = self.bounce.as_ref()?.segments() else { return None };
        let len_bytes = left_bytes.min(chunk.len_bytes() as u64);
        if self.command.op == Op::Write {
            drive.count_bounced(len_bytes);
            copy(self.io.buf.segments(), self.done_bytes, chunk, len_bytes, false);
        }
        Some((chunk.as_ptr(), len_bytes))
    }

    fn plain(&self, data: *mut u8, len_bytes: u32, offset_bytes: u64) -> squeue::Entry {
        match self.command.op {
            Op::Read => opcode::Read::new(self.file, data, len_bytes).offset(offset_bytes).build(),
            _ => {
                opcode::Write::new(self.file, data, len_bytes).offset(offset_bytes).rw_flags(self.write_flags()).build()
            }
        }
    }

    fn vectored(&self, iovecs: *const libc::iovec, count: usize, offset_bytes: u64) -> squeue::Entry {
        match self.command.op {
            Op::Read => opcode::Readv::new(self.file, iovecs, count as u32).offset(offset_bytes).build(),
            _ => opcode::Writev::new(self.file, iovecs, count as u32)
                .offset(offset_bytes)
                .rw_flags(self.write_flags())
                .build(),
        }
    }

    fn fallocate(&self, mode: i32, offset_bytes: u64, len_bytes: u64) -> squeue::Entry {
        opcode::Fallocate::new(self.file, len_bytes).offset(offset_bytes).mode(mode | libc::FALLOC_FL_KEEP_SIZE).build()
    }

    fn write_flags(&self) -> i32 {
        if self.command.fua { libc::RWF_DSYNC } else { 0 }
    }

    /// Takes in how the step ended: bytes, of an NVMe command its status, or a negative error number.
    pub(crate) fn step_ended(&mut self, result: i32, drive: &Opened) -> Next {
        let Ok(bytes) = u64::try_from(result) else {
            return self.step_failed(Errno::from_raw_os_error(result.saturating_neg()), drive);
        };
        if drive.namespace.is_some() {
            return self.nvme_ended(Status(bytes as u16), drive);
        }
        match self.step {
            Step::Sync | Step::Punch => Next::End(Ok(())),
            Step::ZeroRange if self.command.fua => {
                self.step = Step::Sync;
                Next::Again
            }
            Step::ZeroRange => Next::End(Ok(())),
            Step::Move | Step::Bounce | Step::WriteZeroes => self.moved(bytes, drive),
        }
    }

    fn nvme_ended(&mut self, status: Status, drive: &Opened) -> Next {
        match outcome(status) {
            Ok(()) if self.step == Step::Sync => Next::End(Ok(())),
            Ok(()) => self.moved(self.piece_bytes, drive),
            Err(DeviceError::Unsupported) if matches!(self.step, Step::ZeroRange | Step::Punch) => {
                self.step_failed(Errno::OPNOTSUPP, drive)
            }
            Err(_) if status.0 & Status::DNR == 0 && self.tries < MAX_NVME_TRIES => {
                self.tries += 1;
                Next::Again
            }
            Err(error) => Next::End(Err(error)),
        }
    }

    fn moved(&mut self, bytes: u64, drive: &Opened) -> Next {
        // A part of a block counts for nothing: the rest must start at a block again.
        let left_bytes = self.command.len_bytes - self.done_bytes;
        let whole = bytes.min(left_bytes) & !(drive.block_bytes - 1);
        if whole == 0 {
            // The file was cut shorter behind our back.
            return Next::End(Err(DeviceError::Medium));
        }
        if self.step == Step::Bounce
            && self.command.op == Op::Read
            && let Some([chunk]) = self.bounce.as_ref().map(IoBuf::segments)
        {
            drive.count_bounced(whole);
            copy(self.io.buf.segments(), self.done_bytes, chunk, whole, true);
        }
        self.done_bytes += whole;
        if self.done_bytes == self.command.len_bytes { Next::End(Ok(())) } else { Next::Again }
    }

    fn step_failed(&mut self, errno: Errno, drive: &Opened) -> Next {
        if is_transient(errno) && self.tries < MAX_TRIES {
            self.tries += 1;
            return Next::Again;
        }
        match self.step {
            Step::ZeroRange if is_lacking(errno) || is_denied(errno, drive) => {
                drive.never_zero_again();
                self.step = Step::WriteZeroes;
                Next::Again
            }
            Step::Punch if is_lacking(errno) || is_denied(errno, drive) => {
                drive.never_discard_again();
                Next::End(Ok(()))
            }
            _ if is_transient(errno) => Next::End(Err(DeviceError::Gone)),
            _ => Next::End(Err(device_error(errno))),
        }
    }
}

/// Whether the kernel does not pass such a command on for us.
fn is_denied(errno: Errno, drive: &Opened) -> bool {
    errno == Errno::ACCESS && drive.namespace.is_some()
}

/// Not reached: the ring gives a buffer before it asks. It is restricted to other entries, which ends it.
fn no_bounce() -> squeue::Entry {
    opcode::Nop::new().build()
}

/// A list of `len_bytes` of zeros, or as many as one list has.
fn name_zeroes(iovecs: &mut Vec<Iovec>, len_bytes: u64) {
    iovecs.clear();
    iovecs.extend((0..len_bytes).step_by(ZEROES_BYTES).take(MAX_IOVECS).map(|at| Iovec {
        base: (&raw const ZEROES.0).addr(),
        len_bytes: (len_bytes - at).min(ZEROES_BYTES as u64) as usize,
    }));
}

/// Cuts a list to `len_bytes`; returns how many it has.
fn cut(iovecs: &mut Vec<Iovec>, len_bytes: u64) -> u64 {
    let mut kept_bytes = 0;
    for at in 0..iovecs.len() {
        let iovec = &mut iovecs[at];
        iovec.len_bytes = (iovec.len_bytes as u64).min(len_bytes - kept_bytes) as usize;
        kept_bytes += iovec.len_bytes as u64;
        if kept_bytes == len_bytes {
            iovecs.truncate(at + 1);
            break;
        }
    }
    kept_bytes
}

fn is_aligned(buf: &IoBuf, drive: &Opened) -> bool {
    let (address_mask, len_mask) = (drive.memory_align - 1, drive.block_bytes - 1);
    buf.segments()
        .iter()
        .all(|segment| segment.as_ptr().addr() as u64 & address_mask == 0 && segment.len_bytes() as u64 & len_mask == 0)
}

/// The segments without their first `skip_bytes`.
fn after(segments: &[Segment], mut skip_bytes: u64) -> impl Iterator<Item = Iovec> {
    segments.iter().filter_map(move |segment| {
        let skip = (segment.len_bytes() as u64).min(skip_bytes) as usize;
        skip_bytes -= skip as u64;
        let rest = Iovec { base: segment.as_ptr().addr() + skip, len_bytes: segment.len_bytes() - skip };
        (rest.len_bytes > 0).then_some(rest)
    })
}

/// Copies `len_bytes` between the segments, from `skip_bytes` on, and the start of `chunk`; as much as both
/// hold. `to_segments` tells the direction.
fn copy(segments: &[Segment], skip_bytes: u64, chunk: &Segment, len_bytes: u64, to_segments: bool) {
    let mut left = chunk.len_bytes().min(len_bytes as usize);
    let mut at = chunk.as_ptr();
    for Iovec { base, len_bytes } in after(segments, skip_bytes) {
        let (n, segment) = (len_bytes.min(left), std::ptr::with_exposed_provenance_mut(base));
        let (from, to) = if to_segments { (at, segment) } else { (segment, at) };
        // SAFETY: `segment` starts `n` bytes or more inside of a segment whose mapping the command's IoBuf
        // pins; `at` and `n` stay inside of `chunk`, pinned likewise. `copy` allows them to overlap.
        unsafe { std::ptr::copy(from, to, n) };
        at = at.wrapping_add(n);
        left -= n;
    }
}

#[cfg(test)]
mod tests;
