//! Random commands to a thin disk whose pieces come late, are shared, or don't come: what is read is what was written.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};

use fastrand::Rng;
use io_model::{
    Ask, Command, DeviceError, Extents, Fetch, IoBuf, Mapping, Op, Outcome, Piece, PieceMap, Place, Placed, Source,
    TenantId, Token, Wish,
};

const BLOCK: usize = 512;
const PIECE: usize = 8 * BLOCK;
/// The last piece is half a one.
const DISK: usize = 11 * PIECE + PIECE / 2;
const DRIVE_PIECES: u32 = 16;
const VQS: usize = 3;

/// Gives out what it was filled with, and notes how it ended.
#[derive(Debug, Default)]
struct Front {
    waiting: [VecDeque<(u32, Command, IoBuf)>; VQS],
    ended: Vec<(u32, Outcome)>,
}

impl Source for Front {
    fn live_vqs(&self) -> u128 {
        0
    }

    fn backlog(&mut self, vq: u16) -> u32 {
        self.waiting[usize::from(vq)].len() as u32
    }

    fn fetch(&mut self, vq: u16) -> Fetch {
        match self.waiting[usize::from(vq)].pop_front() {
            Some((id, command, buf)) => Fetch::Command(command, buf, Token::new(vq, 0, id)),
            None => Fetch::Empty,
        }
    }

    fn complete(&mut self, token: Token, outcome: Outcome, _buf: IoBuf) {
        let (vq, _, id) = token.spend();
        assert!(usize::from(vq) < VQS, "the notes of Placed are gone");
        self.ended.push((id, outcome));
    }

    fn notify(&mut self) {}

    fn set_wakeup(&mut self, _wanted: bool) {}
}

fn piece_range(piece: u32) -> Range<usize> {
    piece as usize * PIECE..(piece as usize + 1) * PIECE
}

struct UnderWay {
    command: Command,
    /// What it writes.
    byte: u8,
    /// A read whose result may be anything: others write there meanwhile.
    is_racing: bool,
}

struct World {
    random: Rng,
    placed: Placed<Front>,
    map: Arc<PieceMap>,
    asks: Receiver<Ask>,
    waiting_asks: Vec<Ask>,
    drive: Vec<u8>,
    free: Vec<u32>,
    /// Pieces that a snapshot keeps, with what they held then.
    kept: Vec<(u32, Vec<u8>)>,
    /// Freed pieces, until no command that may use them is in flight.
    quarantine: Vec<(u32, Weak<()>)>,
    /// What the disk is to hold. Blocks of commands that are under way have no value.
    model: Vec<Option<u8>>,
    ram: Arc<Mapping>,
    /// Commands under way, by their number.
    under_way: Vec<Option<UnderWay>>,
    in_flight: Vec<(Command, IoBuf, Token)>,
    refused: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let (sender, asks) = channel();
        let map = Arc::new(PieceMap::new(PIECE as u64, DISK as u64, move |ask| sender.send(ask).unwrap()));
        let placed = Placed::new(Front::default(), vec![Extents::thin(Arc::clone(&map))]);
        Self {
            random: Rng::with_seed(seed),
            placed,
            map,
            asks,
            waiting_asks: Vec::new(),
            drive: vec![0; DRIVE_PIECES as usize * PIECE],
            free: (0..DRIVE_PIECES).collect(),
            kept: Vec::new(),
            quarantine: Vec::new(),
            model: vec![Some(0); DISK / BLOCK],
            ram: Mapping::anonymous(64 * DISK).unwrap(),
            under_way: Vec::new(),
            in_flight: Vec::new(),
            refused: 0,
        }
    }

    fn ask(&mut self) {
        let start = self.random.usize(..DISK / BLOCK);
        let len = self.random.usize(1..=(DISK / BLOCK - start).min(30));
        let op =
            *self.random.choice(&[Op::Read, Op::Read, Op::Write, Op::Write, Op::Discard, Op::WriteZeroes]).unwrap();
        // Nobody knows what comes of two writes that overlap. But pieces that are read may leave the disk.
        let overlaps = |it: &&mut UnderWay| {
            let its_start = it.command.tenant_offset_bytes as usize / BLOCK;
            its_start < start + len && start < its_start + it.command.len_bytes as usize / BLOCK
        };
        let overlapping: Vec<&mut UnderWay> = self.under_way.iter_mut().flatten().filter(overlaps).collect();
        let is_racing = overlapping.iter().any(|it| it.command.op != Op::Read);
        if is_racing && op != Op::Read {
            return;
        }
        if op != Op::Read {
            overlapping.into_iter().for_each(|it| it.is_racing = true);
        }
        if self.under_way.len() == 64 {
            return;
        }
        let place = Place { tenant: TenantId(9), disk: 0, base_bytes: 0 };
        let command = place.command(op, (start * BLOCK) as u64, (len * BLOCK) as u64);
        let (id, byte) = (self.under_way.len(), self.random.u8(1..));
        let mut buf = IoBuf::default();
        if op.has_data() {
            assert!(buf.push(&self.ram, (id * DISK) as u64, command.len_bytes));
            assert_eq!(buf.copy_from(&vec![byte; len * BLOCK]), len * BLOCK);
        }
        self.under_way.push(Some(UnderWay { command, byte, is_racing }));
        let vq = self.random.usize(..VQS);
        self.placed.waiting[vq].push_back((id as u32, command, buf));
    }

    fn fetch(&mut self) {
        let vq = self.random.u16(..VQS as u16);
        // Some front ends don't ask.
        if self.random.bool() {
            self.placed.rung();
        }
        let backlog = self.placed.backlog(vq);
        match self.placed.fetch(vq) {
            Fetch::Command(command, buf, token) => self.in_flight.push((command, buf, token)),
            Fetch::Handled => {}
            Fetch::Empty => assert_eq!(backlog, 0),
        }
    }

    /// The drive carries out a command.
    fn end(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let (command, buf, token) = self.in_flight.swap_remove(self.random.usize(..self.in_flight.len()));
        let start = command.offset_bytes as usize;
        let range = start..start + command.len_bytes as usize;
        let overlaps = |piece: &u32| piece_range(*piece).start < range.end && range.start < piece_range(*piece).end;
        assert!(!self.free.iter().any(overlaps), "a command uses a piece of nobody: {command:?}");
        if command.op != Op::Read {
            assert!(!self.kept.iter().any(|(piece, _)| overlaps(piece)), "a shared piece is written: {command:?}");
        }
        match command.op {
            Op::Read => assert_eq!(buf.copy_from(&self.drive[range]) as u64, command.len_bytes),
            Op::Write => assert_eq!(buf.copy_to(&mut self.drive[range]) as u64, command.len_bytes),
            _ => self.drive[range].fill(0),
        }
        self.placed.complete(token, Ok(()), buf);
    }

    /// The giver of pieces answers.
    fn answer(&mut self) {
        self.waiting_asks.extend(self.asks.try_iter());
        if self.waiting_asks.is_empty() {
            return;
        }
        let ask = self.waiting_asks.swap_remove(self.random.usize(..self.waiting_asks.len()));
        for index in ask.first..ask.first + ask.count {
            let former = self.map.piece(index);
            match (former, ask.wish) {
                (Piece::Own(piece), Wish::Discard) => {
                    self.map.set(index, Piece::None);
                    self.give(piece);
                }
                (Piece::Shared(_), Wish::Discard) => assert!(self.map.set(index, Piece::None)),
                (Piece::Own(_), _) | (Piece::None, Wish::Discard) => {}
                (Piece::Packed, _) => unreachable!("a thin disk has none"),
                (Piece::None | Piece::Shared(_), wish) => {
                    let Some(piece) = self.free.pop() else {
                        self.refused += 1;
                        return ask.refuse();
                    };
                    let at = piece as usize * PIECE;
                    self.drive[at..at + PIECE].fill(0);
                    if let (Piece::Shared(former), Wish::Write) = (former, wish) {
                        let from = former as usize * PIECE;
                        self.drive.copy_within(from..from + PIECE, at);
                    }
                    self.map.set(index, Piece::Own(piece));
                }
            }
        }
        ask.done();
    }

    fn give(&mut self, piece: u32) {
        let witness = Arc::new(());
        self.quarantine.push((piece, Arc::downgrade(&witness)));
        self.placed.drop_when_quiet(witness);
    }

    /// Freed pieces that no command uses are given out again.
    fn free(&mut self) {
        self.placed.settle();
        let is_quiet = |(_, witness): &mut (u32, Weak<()>)| witness.strong_count() == 0;
        self.free.extend(self.quarantine.extract_if(.., is_quiet).map(|(piece, _)| piece));
    }

    /// A snapshot is made. Nothing is under way.
    fn snapshot(&mut self) {
        self.forget_snapshot();
        for index in 0..self.map.count() {
            if let Piece::Own(piece) = self.map.piece(index) {
                self.map.set(index, Piece::Shared(piece));
                self.kept.push((piece, self.drive[piece_range(piece)].to_vec()));
            }
        }
    }

    fn forget_snapshot(&mut self) {
        for (piece, content) in std::mem::take(&mut self.kept) {
            assert!(self.drive[piece_range(piece)] == content, "the snapshot has changed");
            match (0..self.map.count()).find(|index| self.map.piece(*index) == Piece::Shared(piece)) {
                Some(index) => assert!(self.map.set(index, Piece::Own(piece))),
                None => self.give(piece),
            }
        }
    }

    /// What ended, against the model.
    fn check(&mut self) {
        for (id, outcome) in std::mem::take(&mut self.placed.ended) {
            let UnderWay { command, byte, is_racing } = self.under_way[id as usize].take().unwrap();
            let start = command.tenant_offset_bytes as usize / BLOCK;
            let blocks = start..start + command.len_bytes as usize / BLOCK;
            if outcome.is_err() {
                assert_eq!(outcome, Err(DeviceError::NoSpace));
                assert!(matches!(command.op, Op::Write | Op::WriteZeroes));
                // Some of it may be written.
                self.model[blocks].fill(None);
                continue;
            }
            let value = match command.op {
                Op::Read if is_racing => continue,
                Op::Read => {
                    let mut buf = IoBuf::default();
                    assert!(buf.push(&self.ram, u64::from(id) * DISK as u64, command.len_bytes));
                    let mut read = vec![0; command.len_bytes as usize];
                    assert_eq!(buf.copy_to(&mut read), read.len());
                    for (block, read) in blocks.zip(read.chunks(BLOCK)) {
                        assert!(read.iter().all(|byte| *byte == read[0]), "block {block} is torn");
                        let expected = *self.model[block].get_or_insert(read[0]);
                        assert_eq!(read[0], expected, "block {block}");
                    }
                    continue;
                }
                Op::Write => Some(byte),
                Op::WriteZeroes => Some(0),
                // Any of the blocks reads as zeros or as before.
                _ => None,
            };
            self.model[blocks].fill(value);
        }
        if self.under_way.iter().all(Option::is_none) {
            self.under_way.clear();
        }
    }

    /// All commands end.
    fn drain(&mut self) {
        for _ in 0..10_000 {
            [Self::fetch, Self::end, Self::answer, Self::free, Self::check].iter().for_each(|step| step(self));
            if self.under_way.is_empty() {
                return assert!(!self.placed.waits() && !self.placed.settle());
            }
        }
        panic!(
            "commands wait for ever: {:?}",
            self.under_way.iter().flatten().map(|it| it.command).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_thin_disk_reads_as_it_was_written() {
    let replay = std::env::var("EVENKEEL_SEED").ok().map(|seed| seed.parse().unwrap());
    let (mut refused, mut snapshots) = (0, 0);
    for seed in replay.map_or(0..400, |seed: u64| seed..seed + 1) {
        println!("EVENKEEL_SEED={seed}");
        let mut world = World::new(seed);
        for _ in 0..1000 {
            match world.random.u8(..60) {
                0..15 => world.ask(),
                15..30 => world.fetch(),
                30..40 => world.end(),
                40..50 => world.answer(),
                50..55 => world.free(),
                55 => world.forget_snapshot(),
                56 => {
                    world.drain();
                    world.snapshot();
                    snapshots += 1;
                }
                _ => world.check(),
            }
        }
        world.drain();
        refused += world.refused;
    }
    assert!(replay.is_some() || refused > 100 && snapshots > 400, "{refused} refused, {snapshots} snapshots");
}
