//! The drive: a double that does what it is told, and the model of what the tenant's commands mean.

use io_model::{Command, DeviceError, IoBuf, Op, Outcome};

use super::meaning::Part;
use super::namespaces::base_of;
use super::ram::Ram;

/// A bug in the double, planted to see that the oracle sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A write goes on for one block.
    WritesTooFar,
    /// A read returns the block after.
    ReadsElsewhere,
    /// A read touches a byte of guest memory that the command did not name.
    TouchesOtherMemory,
    /// A completion comes twice.
    CompletesTwice,
    /// A completion does not come.
    LosesCompletion,
    /// Zeroes are reported and not written.
    SkipsZeroes,
}

/// What the device is to answer.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    pub outcome: Outcome,
    /// A failure comes after a part of the work; a discard zeroes.
    pub works: bool,
}

impl Answer {
    /// Success.
    pub const OK: Self = Self { outcome: Ok(()), works: true };
}

#[derive(Debug)]
pub struct Disk {
    /// The double's content: namespaces, and guards around them.
    content: Vec<u8>,
    /// What it must be.
    model: Vec<u8>,
    pub bug: Option<Bug>,
}

impl Disk {
    pub fn new(size_bytes: usize, bug: Option<Bug>) -> Self {
        let mut content = vec![0; size_bytes];
        // Each block its own, and not the same in both halves.
        for (number, half) in content.chunks_exact_mut(256).enumerate() {
            half.fill((number * 7) as u8);
        }
        Self { model: content.clone(), content, bug }
    }

    /// Does a command, and what it means on the model; compares. Returns whether a Compare is equal.
    pub fn execute(&mut self, command: &Command, buf: &IoBuf, part: &Part, answer: Answer, ram: &mut Ram) -> bool {
        self.check_same(command, part);
        if answer.outcome.is_ok() || answer.works {
            self.do_it(command, buf, answer, ram);
        }
        let equal = self.mean_it(part, answer, ram);
        // The neighbourhood at once, to know who did it; everything in `check`.
        let near = |at: u64| (at as usize).min(self.model.len());
        let around =
            near(command.offset_bytes.saturating_sub(8192))..near(command.offset_bytes + command.len_bytes + 8192);
        let same = self.content[around.clone()] == self.model[around];
        assert!(same, "after {command:?} the drive is not what {part:?} makes of it");
        equal
    }

    /// Panics if a byte of the drive is not what it must be.
    pub fn check(&self) {
        assert!(self.content == self.model, "the drive is not what the commands made of it");
    }

    /// The device command is the one that the guest's command means.
    fn check_same(&self, command: &Command, part: &Part) {
        let Command { op, offset_bytes, tenant_offset_bytes, len_bytes, fua, .. } = *command;
        let base_bytes = if op == Op::Flush { 0 } else { base_of(u32::from(command.disk) + 1) };
        assert_eq!(offset_bytes, base_bytes + tenant_offset_bytes, "{command:?}");
        let is = |expected_op, offset: u64, len: u64| (op, offset_bytes, len_bytes) == (expected_op, offset, len);
        let bytes = |pieces: &[(usize, super::ram::Piece)]| pieces.iter().map(|(_, piece)| piece.len() as u64).sum();
        let same = match part {
            Part::Read { offset, into } => is(Op::Read, *offset, bytes(into)),
            Part::Write { offset, from, fua: must } => is(Op::Write, *offset, bytes(from)) && (fua || !must),
            Part::WriteZeroes { offset, len_bytes, fua: must } => {
                is(Op::WriteZeroes, *offset, *len_bytes) && (fua || !must)
            }
            Part::Discard { offset, len_bytes } => is(Op::Discard, *offset, *len_bytes),
            Part::Flush => is(Op::Flush, 0, 0),
            Part::Compare { offset, with } => is(Op::Read, *offset, with.len() as u64),
            Part::Verify { offset, len_bytes } => is(Op::Read, *offset, *len_bytes),
            Part::Erase { offset, len_bytes } => {
                is(Op::WriteZeroes, *offset, *len_bytes) || is(Op::Write, *offset, *len_bytes)
            }
        };
        assert!(same, "{command:?} is not {part:?}");
    }

    fn do_it(&mut self, command: &Command, buf: &IoBuf, answer: Answer, ram: &Ram) {
        // Half of the work of what fails.
        let len = if answer.outcome.is_ok() { command.len_bytes } else { command.len_bytes / 1024 * 512 } as usize;
        let at = command.offset_bytes as usize;
        match command.op {
            Op::Read => {
                let at = if self.bug == Some(Bug::ReadsElsewhere) { at + 512 } else { at };
                assert_eq!(buf.copy_from(&self.content[at..at + len]), len, "nobody took memory away");
                if self.bug == Some(Bug::TouchesOtherMemory) {
                    ram.corrupt(60 * 4096 + 5);
                }
            }
            Op::Write => {
                let mut data = vec![0; command.len_bytes as usize];
                assert_eq!(buf.copy_to(&mut data), data.len(), "the buffer is shorter than the command");
                let too_far = if self.bug == Some(Bug::WritesTooFar) { 512 } else { 0 };
                self.content[at..at + len].copy_from_slice(&data[..len]);
                self.content[at + len..at + len + too_far].fill(0x77);
            }
            Op::WriteZeroes if self.bug == Some(Bug::SkipsZeroes) => {}
            Op::WriteZeroes => self.content[at..at + len].fill(0),
            Op::Discard if answer.works => self.content[at..at + len].fill(0),
            Op::Discard | Op::Flush => {}
        }
    }

    fn mean_it(&mut self, part: &Part, answer: Answer, ram: &mut Ram) -> bool {
        if answer.outcome.is_err() {
            self.mean_failure(part, ram);
            return true;
        }
        match part {
            Part::Read { offset, into } => {
                let mut at = *offset as usize;
                for (_, piece) in into {
                    ram.expect(piece, &self.model[at..at + piece.len()]);
                    at += piece.len();
                }
                // Pieces may overlap: compare once all of them are in place.
                for (_, piece) in into {
                    assert!(ram.actual(piece) == ram.expected(piece), "{part:?} returned other data");
                }
            }
            Part::Write { offset, from, .. } => {
                let mut at = *offset as usize;
                for (_, piece) in from {
                    self.model[at..at + piece.len()].copy_from_slice(ram.expected(piece));
                    at += piece.len();
                }
            }
            Part::WriteZeroes { offset, len_bytes, .. } | Part::Erase { offset, len_bytes } => {
                self.model[*offset as usize..][..*len_bytes as usize].fill(0);
            }
            Part::Discard { offset, len_bytes } if answer.works => {
                self.model[*offset as usize..][..*len_bytes as usize].fill(0);
            }
            Part::Compare { offset, with } => return self.model[*offset as usize..][..with.len()] == with[..],
            Part::Discard { .. } | Part::Flush | Part::Verify { .. } => {}
        }
        true
    }

    /// What fails may have been done in part, inside of what it names.
    fn mean_failure(&mut self, part: &Part, ram: &mut Ram) {
        let named = match part {
            Part::Write { offset, from, .. } => Some((*offset, from.iter().map(|(_, piece)| piece.len() as u64).sum())),
            Part::WriteZeroes { offset, len_bytes, .. }
            | Part::Erase { offset, len_bytes }
            | Part::Discard { offset, len_bytes } => Some((*offset, *len_bytes)),
            _ => None,
        };
        if let Some((offset, len_bytes)) = named {
            let range = offset as usize..(offset + len_bytes) as usize;
            self.model[range.clone()].copy_from_slice(&self.content[range]);
        }
        if let Part::Read { into, .. } = part {
            into.iter().for_each(|(_, piece)| ram.allow(piece));
        }
    }
}

/// Every way in which a device can fail.
pub const ERRORS: [DeviceError; 6] = [
    DeviceError::Medium,
    DeviceError::NoSpace,
    DeviceError::OutOfRange,
    DeviceError::Memory,
    DeviceError::Unsupported,
    DeviceError::Gone,
];
