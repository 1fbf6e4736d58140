//! Gives a disk another key while guests use it, as a tenant among the others: the policy divides the drive between it
//! and them.
//!
//! It goes through the disk in windows. Guests' commands to the present window wait ([`HeldRange`]). What the drive
//! holds there is written to a journal first, so a daemon that is killed leaves a window that the next one can restore.
//! Then the window is read by the former key and written by the next one. A window is released once the journal says
//! that it is done. Sectors of zeros stay as they are: they read as zeros under any key.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use guest_memory::{MappedU32, Mapping, MemoryListener};
use io_model::{DeviceError, Extents, Fetch, HeldRange, IoBuf, Op, Outcome, Place, Source, TenantId, Token};
use keys::{Position, WINDOW_BYTES};

use super::FrontEnd;

/// Bytes of a command: as much as every policy lets through at once.
const CHUNK_BYTES: u64 = 128 << 10;

/// Its only queue.
const VQ: u16 = 1;

/// Its disks: the same range of the drive, by one key, by the other one, and as the drive has it.
pub const BY_FORMER: u16 = 0;
/// See [`BY_FORMER`].
pub const BY_NEXT: u16 = 1;
/// See [`BY_FORMER`].
pub const RAW: u16 = 2;

/// What is wanted of others. None of the calls may wait.
pub enum Wish {
    /// Write a position to the journal, and answer by an [`Order`].
    Record(Position),
    /// All of the disk has the next key, and the journal says so.
    Done,
    /// It can't go on: the drive or the journal failed.
    Failed(String),
}

/// Takes wishes.
pub type OnWish = Box<dyn Fn(Wish) + Send>;

/// What it is told.
pub enum Order {
    /// Begin where the job's position is.
    Begin,
    /// The last [`Wish::Record`] is durable, or why not.
    Recorded(Result<(), String>),
}

/// What is done with the present window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Commands in flight to it end.
    Quiet,
    /// Its ciphertext is read.
    ReadRaw,
    /// That is being written to the journal.
    Record,
    /// Ciphertext from a former daemon's journal is written back.
    Restore,
    /// That becomes durable.
    FlushRestored,
    Read,
    Write,
    Flush,
    /// A position without a window is being written to the journal: then nothing is held.
    RecordEnd,
    /// There is nothing more to do.
    Over,
}

/// The re-encryption of one disk, at its poller.
pub struct Reencrypter {
    place: Place,
    extents: Extents,
    size_bytes: u64,
    sector_bytes: u64,
    held: Arc<HeldRange>,
    /// A window as the drive has it, and its data.
    memory: Arc<Mapping>,
    is_mapped: bool,
    phase: Phase,
    /// The present window, from the disk's start.
    window: Range<u64>,
    /// Of each of its sectors: it is not all zeros on the drive.
    has_data: Vec<bool>,
    /// Up to where the phase has handed out commands, from the window's start.
    next_bytes: u64,
    in_flight: u32,
    error: Option<DeviceError>,
    is_leaving: bool,
    /// What the journal of a former daemon has of the first window.
    former: Vec<u8>,
    on_wish: OnWish,
}

/// What is re-encrypted.
pub struct Job {
    /// The re-encrypter's own tenant.
    pub id: TenantId,
    /// Where the disk lies.
    pub extents: Extents,
    /// Its size.
    pub size_bytes: u64,
    /// 512 or 4096.
    pub sector_bytes: u32,
    /// Keeps guests' commands away from the window.
    pub held: Arc<HeldRange>,
    /// How far a former daemon came.
    pub position: Position,
}

impl Reencrypter {
    /// Does nothing before it is told to.
    ///
    /// # Errors
    /// There is no memory for a window.
    pub fn new(job: Job, on_wish: OnWish) -> Result<Self> {
        let Job { id, extents, size_bytes, sector_bytes, held, position } = job;
        let memory = Mapping::anonymous(2 * WINDOW_BYTES as usize)?;
        let Position { start_bytes, former } = position;
        Ok(Self {
            place: Place::whole_drive(id),
            extents,
            size_bytes,
            sector_bytes: sector_bytes.into(),
            held,
            memory,
            is_mapped: false,
            phase: Phase::Over,
            window: start_bytes..start_bytes + former.len() as u64,
            has_data: Vec::with_capacity(WINDOW_BYTES as usize / 512),
            next_bytes: 0,
            in_flight: 0,
            error: None,
            is_leaving: false,
            former,
            on_wish,
        })
    }

    /// Begins with the window that a former daemon left half rewritten, if there is one.
    fn start(&mut self, memory: &mut dyn MemoryListener) {
        self.is_mapped = memory.map(&self.memory).is_ok();
        let former = std::mem::take(&mut self.former);
        if former.is_empty() {
            return self.begin_window(self.window.start);
        }
        // It is ours, and can't go.
        let _ = self.memory.write_at(0, &former);
        self.look_for_data(&former);
        self.begin(Phase::Restore);
    }

    fn begin(&mut self, phase: Phase) {
        (self.phase, self.next_bytes) = (phase, 0);
    }

    fn begin_window(&mut self, start_bytes: u64) {
        self.window = start_bytes..(start_bytes + WINDOW_BYTES).min(self.size_bytes);
        if self.window.is_empty() {
            return self.record_end();
        }
        self.held.hold(self.window.end);
        self.begin(Phase::Quiet);
    }

    fn look_for_data(&mut self, raw: &[u8]) {
        self.has_data.clear();
        let sectors = raw.chunks(self.sector_bytes as usize);
        self.has_data.extend(sectors.map(|sector| sector.iter().any(|byte| *byte != 0)));
    }

    fn len_bytes(&self) -> u64 {
        self.window.end - self.window.start
    }

    /// What the next command of the phase is for, from the window's start: not across an edge of the disk's extents.
    fn next_chunk(&self) -> Option<(Range<u64>, u64)> {
        let mut start = self.next_bytes;
        let mut end = (start + CHUNK_BYTES).min(self.len_bytes());
        if self.phase == Phase::Write {
            let sector_of = |bytes: u64| (bytes / self.sector_bytes) as usize;
            let rest = self.has_data.get(sector_of(start)..)?;
            let skipped = rest.iter().position(|has_data| *has_data)?;
            let run = rest[skipped..].iter().take_while(|has_data| **has_data).count();
            start += skipped as u64 * self.sector_bytes;
            end = start + (run as u64 * self.sector_bytes).min(CHUNK_BYTES);
        }
        let (offset_bytes, follow_bytes) = self.extents.locate(self.window.start + start)?;
        let end = end.min(start + follow_bytes);
        (start < end).then_some((start..end, offset_bytes))
    }

    /// Whether the phase has commands to hand out.
    fn has_more(&self) -> bool {
        match self.phase {
            _ if self.error.is_some() => false,
            Phase::Flush | Phase::FlushRestored => self.next_bytes == 0,
            Phase::ReadRaw | Phase::Restore | Phase::Read | Phase::Write => self.next_chunk().is_some(),
            Phase::Quiet | Phase::Record | Phase::RecordEnd | Phase::Over => false,
        }
    }

    /// The next phase, once all commands of a phase are back.
    fn go_on(&mut self) {
        while self.in_flight == 0 && !self.has_more() {
            if self.error.is_some() {
                return self.stop_for_error();
            }
            match self.phase {
                Phase::Quiet if self.is_leaving => return self.record_end(),
                Phase::Quiet if self.held.is_quiet() => self.begin(Phase::ReadRaw),
                Phase::ReadRaw => return self.record_window(),
                Phase::Restore => self.begin(Phase::FlushRestored),
                Phase::FlushRestored => self.begin(Phase::Read),
                Phase::Read => self.begin(Phase::Write),
                Phase::Write => self.begin(Phase::Flush),
                Phase::Flush if self.is_leaving => {
                    self.window.start = self.window.end;
                    return self.record_end();
                }
                Phase::Flush => self.begin_window(self.window.end),
                Phase::Quiet | Phase::Record | Phase::RecordEnd | Phase::Over => return,
            }
        }
    }

    /// What the drive holds in the window goes to the journal, before it is overwritten.
    fn record_window(&mut self) {
        let mut raw = vec![0; self.len_bytes() as usize];
        if self.memory.read_at(0, &mut raw).is_none() {
            self.error = Some(DeviceError::Memory);
            return self.stop_for_error();
        }
        self.look_for_data(&raw);
        self.begin(Phase::Record);
        (self.on_wish)(Wish::Record(Position { start_bytes: self.window.start, former: raw }));
    }

    /// Nothing of the window is rewritten, and all before it is durable: once the journal says so, nothing is held.
    fn record_end(&mut self) {
        self.begin(Phase::RecordEnd);
        (self.on_wish)(Wish::Record(Position { start_bytes: self.window.start, former: Vec::new() }));
    }

    fn stop_for_error(&mut self) {
        let Some(error) = self.error.take() else { return };
        (self.on_wish)(Wish::Failed(format!("the drive failed a command ({error:?})")));
        match self.phase {
            Phase::ReadRaw => self.record_end(),
            _ => self.fail(),
        }
    }

    /// The window has two keys. The next start restores it.
    fn fail(&mut self) {
        self.held.fail();
        self.begin(Phase::Over);
    }

    fn recorded(&mut self, result: Result<(), String>) {
        match (self.phase, result) {
            (Phase::Record, Ok(())) => {
                self.held.release(self.window.start);
                self.begin(Phase::Read);
            }
            (Phase::Record, Err(why)) => {
                (self.on_wish)(Wish::Failed(format!("its journal can't be written: {why}")));
                self.record_end();
            }
            (Phase::RecordEnd, Ok(())) => {
                self.held.release(self.window.start);
                self.held.give_up();
                self.begin(Phase::Over);
                if self.window.start == self.size_bytes {
                    (self.on_wish)(Wish::Done);
                }
            }
            (Phase::RecordEnd, Err(why)) => {
                (self.on_wish)(Wish::Failed(format!("its journal can't be written: {why}")));
                self.fail();
            }
            _ => {}
        }
        self.go_on();
    }
}

impl Source for Reencrypter {
    fn live_vqs(&self) -> u128 {
        u128::from(self.phase != Phase::Over || self.in_flight > 0) << VQ
    }

    fn backlog(&mut self, _vq: u16) -> u32 {
        if self.phase == Phase::Quiet {
            self.go_on();
        }
        u32::from(self.has_more())
    }

    fn fetch(&mut self, vq: u16) -> Fetch {
        if !self.has_more() {
            return Fetch::Empty;
        }
        let mut buf = IoBuf::default();
        let command = match self.phase {
            Phase::Flush | Phase::FlushRestored => {
                self.next_bytes = self.len_bytes();
                self.place.flush()
            }
            phase => {
                let Some((chunk, offset_bytes)) = self.next_chunk() else { return Fetch::Empty };
                let (op, disk, from) = match phase {
                    Phase::ReadRaw => (Op::Read, RAW, 0),
                    Phase::Restore => (Op::Write, RAW, 0),
                    Phase::Read => (Op::Read, BY_FORMER, WINDOW_BYTES),
                    _ => (Op::Write, BY_NEXT, WINDOW_BYTES),
                };
                let len_bytes = chunk.end - chunk.start;
                if !self.is_mapped || !buf.push(&self.memory, from + chunk.start, len_bytes) {
                    self.error = Some(DeviceError::Memory);
                    self.go_on();
                    return Fetch::Empty;
                }
                let place = Place { disk, ..self.place };
                let command = place.command(op, self.window.start + chunk.start, len_bytes);
                self.next_bytes = chunk.end;
                io_model::Command { offset_bytes, ..command }
            }
        };
        self.in_flight += 1;
        Fetch::Command(command, buf, Token::new(vq, 0, 0))
    }

    fn complete(&mut self, token: Token, outcome: Outcome, _buf: IoBuf) {
        token.spend();
        self.in_flight -= 1;
        if let Err(error) = outcome {
            self.error.get_or_insert(error);
        }
        self.go_on();
    }

    fn notify(&mut self) {}

    fn set_wakeup(&mut self, _wanted: bool) {}
}

impl FrontEnd for Reencrypter {
    type Order = Order;

    fn order(&mut self, order: Order, memory: &mut dyn MemoryListener) {
        match order {
            Order::Begin => self.start(memory),
            Order::Recorded(result) => self.recorded(result),
        }
    }

    /// It ends the present window, so that no command waits.
    fn leave(&mut self) {
        self.is_leaving = true;
        self.go_on();
    }

    fn settle(&mut self, memory: &mut dyn MemoryListener) -> bool {
        let is_over = self.phase == Phase::Over && self.in_flight == 0;
        if self.is_leaving && is_over && std::mem::take(&mut self.is_mapped) {
            memory.unmap(&self.memory);
        }
        self.is_leaving && !is_over
    }

    fn has_client(&self) -> bool {
        self.phase != Phase::Over
    }

    fn check_health(&mut self) {}

    fn doorbells(&self, _out: &mut Vec<(MappedU32, u32)>) {}

    /// Nothing tells when commands in flight have ended.
    fn is_polled(&self) -> bool {
        self.phase == Phase::Quiet
    }
}

#[cfg(test)]
mod tests;
