//! Random disks in pieces, random commands: each byte of a command goes where a model says, once.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::VecDeque;
use std::sync::Arc;

use fastrand::Rng;
use io_model::{
    Command, DeviceError, Extents, Fetch, HeldRange, IoBuf, Mapping, Op, Outcome, Place, Placed, Source, TenantId,
    Token,
};

const VQS: u16 = 4;
const BLOCK_BYTES: u64 = 512;
const RAM_BYTES: u64 = 64 * BLOCK_BYTES;

/// Gives out what it was filled with, and notes how it ended.
#[derive(Debug)]
struct Front {
    waiting: Vec<VecDeque<(u32, Command, IoBuf)>>,
    live: u128,
    ended: Vec<(u32, Outcome, u64)>,
}

impl Source for Front {
    fn live_vqs(&self) -> u128 {
        self.live
    }

    fn backlog(&mut self, vq: u16) -> u32 {
        self.waiting[usize::from(vq)].len() as u32
    }

    fn fetch(&mut self, vq: u16) -> Fetch {
        match self.waiting[usize::from(vq)].pop_front() {
            Some((id, command, buf)) => Fetch::Command(command, buf, Token::new(vq, 3, id)),
            None => Fetch::Empty,
        }
    }

    fn complete(&mut self, token: Token, outcome: Outcome, buf: IoBuf) {
        let (_, generation, id) = token.spend();
        assert_eq!(generation, 3);
        self.ended.push((id, outcome, buf.len_bytes()));
    }

    fn notify(&mut self) {}

    fn set_wakeup(&mut self, _wanted: bool) {}
}

/// What was asked for, and what came of it so far.
struct Asked {
    command: Command,
    addresses: Vec<usize>,
    done_bytes: u64,
    fails: Option<DeviceError>,
    parts_out: u32,
}

struct World {
    random: Rng,
    /// Of each disk, where each of its blocks is on the drive.
    blocks: [Vec<u64>; 2],
    free_block: u64,
    placed: Placed<Front>,
    ram: Arc<Mapping>,
    asked: Vec<Asked>,
    in_flight: Vec<(usize, Token, IoBuf)>,
    splits: u32,
}

/// Where each block that the buffer covers is in our memory.
fn addresses(buf: &IoBuf) -> Vec<usize> {
    let blocks = |start: usize, len: usize| (start..start + len).step_by(BLOCK_BYTES as usize);
    buf.segments().iter().flat_map(|it| blocks(it.as_ptr() as usize, it.len_bytes())).collect()
}

impl World {
    fn new(seed: u64) -> Self {
        let front = Front { waiting: (0..VQS).map(|_| VecDeque::new()).collect(), live: 0b1111, ended: Vec::new() };
        let ram = Mapping::anonymous(RAM_BYTES as usize).unwrap();
        Self {
            random: Rng::with_seed(seed),
            blocks: [Vec::new(), Vec::new()],
            free_block: 1000,
            placed: Placed::new(front, Vec::new()),
            ram,
            asked: Vec::new(),
            in_flight: Vec::new(),
            splits: 0,
        }
    }

    fn grow(&mut self) {
        let (disk, count) = (self.random.usize(..2), self.random.u64(1..12));
        // Touching what it has, or not.
        self.free_block += self.random.u64(..3);
        self.blocks[disk].extend(self.free_block..self.free_block + count);
        self.free_block += count;
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        for block in &self.blocks[disk] {
            match pieces.last_mut() {
                Some((start, len)) if *start + *len == block * BLOCK_BYTES => *len += BLOCK_BYTES,
                _ => pieces.push((block * BLOCK_BYTES, BLOCK_BYTES)),
            }
        }
        self.placed.set_disk(disk as u16, Extents::new(pieces));
    }

    fn ask(&mut self) {
        let disk = self.random.usize(..2);
        let has_blocks = self.blocks[disk].len() as u64;
        if has_blocks == 0 {
            return;
        }
        let op = *self.random.choice(&[Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::Flush]).unwrap();
        let place = Place { tenant: TenantId(9), disk: disk as u16, base_bytes: 0 };
        let start = self.random.u64(..has_blocks);
        // Now and then a front end that knows of blocks that are not there.
        let most = has_blocks - start + u64::from(self.random.u8(..16) == 0);
        let len_bytes = self.random.u64(1..=most.min(40)) * BLOCK_BYTES;
        let (command, mut buf) = match op {
            Op::Flush => (place.flush(), IoBuf::default()),
            op => (place.command(op, start * BLOCK_BYTES, len_bytes), IoBuf::default()),
        };
        let command = command.with_fua(op == Op::Write && self.random.bool());
        while matches!(op, Op::Read | Op::Write) && buf.len_bytes() < len_bytes {
            let wanted = BLOCK_BYTES * self.random.u64(1..=3).min((len_bytes - buf.len_bytes()) / BLOCK_BYTES);
            assert!(buf.push(&self.ram, self.random.u64(..60) * BLOCK_BYTES, wanted));
        }
        let vq = self.random.usize(..usize::from(VQS));
        let id = self.asked.len() as u32;
        let addresses = addresses(&buf);
        self.asked.push(Asked { command, addresses, done_bytes: 0, fails: None, parts_out: 0 });
        self.placed.waiting[vq].push_back((id, command, buf));
    }

    /// The command that the next fetch of a VQ belongs to: the unfinished one, or the first that waits.
    fn next_id(&self, vq: u16, unfinished: &[Option<usize>]) -> Option<usize> {
        unfinished[usize::from(vq)].or(self.placed.waiting[usize::from(vq)].front().map(|it| it.0 as usize))
    }

    fn fetch(&mut self, unfinished: &mut [Option<usize>]) {
        let vq = self.random.u16(..VQS);
        let next = self.next_id(vq, unfinished);
        let backlog = self.placed.backlog(vq);
        assert_eq!(backlog > 0, next.is_some());
        let fetched = self.placed.fetch(vq);
        let Some(id) = next else { return assert!(matches!(fetched, Fetch::Empty)) };
        let asked = &mut self.asked[id];
        let whole = asked.command;
        let (part, buf, token) = match fetched {
            Fetch::Command(part, buf, token) => (part, buf, token),
            Fetch::Handled => {
                let end = whole.tenant_offset_bytes + whole.len_bytes;
                assert!(end > self.blocks[usize::from(whole.disk)].len() as u64 * BLOCK_BYTES);
                let ended = self.placed.ended.last();
                let is_its = |of: u32| of as usize == id;
                return assert!(matches!(ended, Some((of, Err(DeviceError::OutOfRange), _)) if is_its(*of)));
            }
            Fetch::Empty => panic!("{whole:?} was not fetched"),
        };
        assert_eq!((part.op, part.fua, part.tenant), (whole.op, whole.fua, whole.tenant));
        assert_eq!(part.tenant_offset_bytes, whole.tenant_offset_bytes + asked.done_bytes);
        for at in (0..part.len_bytes).step_by(BLOCK_BYTES as usize) {
            let block = (part.tenant_offset_bytes + at) / BLOCK_BYTES;
            let place = self.blocks[usize::from(whole.disk)][block as usize] * BLOCK_BYTES;
            assert_eq!(part.offset_bytes + at, place, "{part:?} of {whole:?}");
        }
        if matches!(whole.op, Op::Read | Op::Write) {
            let from = (asked.done_bytes / BLOCK_BYTES) as usize;
            let blocks = (part.len_bytes / BLOCK_BYTES) as usize;
            assert_eq!(addresses(&buf), asked.addresses[from..from + blocks]);
            assert_eq!(buf.mappings().count(), 1, "pinned");
        }
        asked.done_bytes += part.len_bytes;
        asked.parts_out += 1;
        self.splits += u32::from(part.len_bytes < whole.len_bytes);
        let is_whole = asked.done_bytes == whole.len_bytes;
        unfinished[usize::from(vq)] = (!is_whole).then_some(id);
        self.in_flight.push((id, token, buf));
        if self.random.u8(..8) == 0 {
            self.placed.live ^= 1 << vq;
        }
        let unfinished =
            (0..VQS).filter(|vq| unfinished[usize::from(*vq)].is_some()).fold(0, |live, vq| live | 1 << vq);
        assert_eq!(self.placed.live_vqs(), self.placed.live | unfinished);
    }

    fn end(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let (id, token, buf) = self.in_flight.swap_remove(self.random.usize(..self.in_flight.len()));
        let failed =
            *self.random.choice(&[None, None, None, Some(DeviceError::Medium), Some(DeviceError::Gone)]).unwrap();
        let asked = &mut self.asked[id];
        asked.fails = asked.fails.or(failed);
        asked.parts_out -= 1;
        let before = self.placed.ended.len();
        self.placed.complete(token, failed.map_or(Ok(()), Err), buf);
        let is_over = asked.parts_out == 0 && asked.done_bytes == asked.command.len_bytes;
        assert_eq!(self.placed.ended.len() - before, usize::from(is_over), "once, with the last part");
        if is_over {
            let data_bytes = asked.addresses.len() as u64 * BLOCK_BYTES;
            let outcome = asked.fails.map_or(Ok(()), Err);
            assert_eq!(self.placed.ended.last(), Some(&(id as u32, outcome, data_bytes)));
        }
    }
}

#[test]
fn commands_in_pieces_go_where_the_disk_is() {
    let replay = std::env::var("EVENKEEL_SEED").ok().map(|seed| seed.parse().unwrap());
    let (mut splits, mut commands) = (0, 0);
    for seed in replay.map_or(0..300, |seed: u64| seed..seed + 1) {
        println!("EVENKEEL_SEED={seed}");
        let mut world = World::new(seed);
        let mut unfinished = vec![None; usize::from(VQS)];
        world.grow();
        for _ in 0..400 {
            match world.random.u8(..20) {
                0 => world.grow(),
                1..8 => world.ask(),
                8..15 => world.fetch(&mut unfinished),
                _ => world.end(),
            }
        }
        while (0..VQS).any(|vq| world.next_id(vq, &unfinished).is_some()) {
            world.fetch(&mut unfinished);
        }
        while !world.in_flight.is_empty() {
            world.end();
        }
        assert_eq!(world.placed.ended.len(), world.asked.len());
        splits += world.splits;
        commands += world.asked.len();
    }
    assert!(replay.is_some() || splits as usize > commands / 10, "{splits} parts of {commands} commands");
}

/// Only here: a long transfer holds up its neighbours for as long as it takes, or bytes of it go astray.
#[test]
fn a_long_transfer_leaves_in_parts_of_a_mebibyte_and_ends_once() {
    const MIB: u64 = 1 << 20;
    let front = Front { waiting: vec![VecDeque::new()], live: 1, ended: Vec::new() };
    let mut placed = Placed::new(front, vec![Extents::new([(10 * MIB, 4 * MIB), (100 * MIB, 60 * MIB)])]);
    let ram = Mapping::anonymous(6 * MIB as usize).unwrap();
    let place = Place { tenant: TenantId(9), disk: 0, base_bytes: 0 };
    let long = place.command(Op::Write, 2 * MIB + 512, 5 * MIB).with_fua(true);
    let mut buf = IoBuf::default();
    assert!(buf.push(&ram, 512, 3 * MIB) && buf.push(&ram, 4 * MIB, 2 * MIB));
    let memory = addresses(&buf);
    placed.waiting[0].push_back((0, long, buf));
    // Without data it is one command, however long.
    placed.waiting[0].push_back((1, place.command(Op::Discard, 4 * MIB, 60 * MIB), IoBuf::default()));

    let mut parts = Vec::new();
    while let Fetch::Command(command, buf, token) = placed.fetch(0) {
        assert_eq!(command.fua, command.op == Op::Write);
        parts.push((command, buf, token));
    }
    let told: Vec<_> = parts.iter().map(|(it, ..)| (it.offset_bytes, it.len_bytes)).collect();
    let first = 12 * MIB + 512;
    let second = 100 * MIB;
    let mut expected = vec![(first, MIB), (first + MIB, MIB - 512)];
    expected.extend([(second, MIB), (second + MIB, MIB), (second + 2 * MIB, MIB), (second + 3 * MIB, 512)]);
    expected.push((second, 60 * MIB));
    assert_eq!(told, expected);
    let reached: Vec<usize> = parts.iter().flat_map(|(_, buf, _)| addresses(buf)).collect();
    assert_eq!(reached, memory, "each byte once, in order");
    for (_, buf, token) in parts {
        placed.complete(token, Ok(()), buf);
    }
    assert_eq!(placed.ended, [(0, Ok(()), 5 * MIB), (1, Ok(()), 0)]);
}

/// A command that uses a range while it is rewritten, or that waits for ever.
#[test]
fn commands_wait_for_a_held_range_and_others_do_not() {
    let front = Front { waiting: (0..VQS).map(|_| VecDeque::new()).collect(), live: 0b1111, ended: Vec::new() };
    let held = Arc::<HeldRange>::default();
    let extents = Extents::new([(1 << 20, 8192), (4 << 20, 8192)]).with_held(Some(Arc::clone(&held)));
    let mut placed = Placed::new(front, vec![extents]);
    let place = Place { tenant: TenantId(9), disk: 0, base_bytes: 0 };
    let ask = |placed: &mut Placed<Front>, vq: u16, id, at| {
        placed.waiting[usize::from(vq)].push_back((id, place.command(Op::Discard, at, 4096), IoBuf::default()));
    };
    held.begin(0..0);
    ask(&mut placed, 0, 1, 8192);
    let Fetch::Command(command, buf, early) = placed.fetch(0) else { panic!("nothing is held") };
    assert_eq!((command.offset_bytes, command.tenant_offset_bytes, command.len_bytes), (4 << 20, 8192, 4096));
    held.hold(12288);
    assert!(!held.is_quiet(), "a command is in flight there");
    [(0, 2, 4096), (0, 3, 12288), (1, 4, 12288)].into_iter().for_each(|(vq, id, at)| ask(&mut placed, vq, id, at));
    assert!(matches!(placed.fetch(0), Fetch::Empty) && placed.waits() && placed.live_vqs() & 1 != 0);
    assert_eq!((placed.backlog(0), placed.backlog(1)), (0, 1), "what is behind it in its queue waits, too");
    let Fetch::Command(.., elsewhere) = placed.fetch(1) else { panic!("it is elsewhere") };
    placed.complete(early, Ok(()), buf);
    assert!(held.is_quiet());
    held.release(8192);
    assert_eq!((placed.rung() & 1, placed.backlog(0), placed.waits()), (1, 2, false));
    let Fetch::Command(command, _, token) = placed.fetch(0) else { panic!("it was released") };
    assert_eq!((command.offset_bytes, command.len_bytes), ((1 << 20) + 4096, 4096));
    [token, elsewhere].into_iter().for_each(|token| placed.complete(token, Ok(()), IoBuf::default()));
    ask(&mut placed, 2, 5, 8192);
    assert!(matches!(placed.fetch(2), Fetch::Empty));
    held.fail();
    assert!(matches!(placed.fetch(2), Fetch::Handled));
    held.end();
    ask(&mut placed, 3, 6, 8192);
    let Fetch::Command(_, buf, token) = placed.fetch(3) else { panic!("nothing is held any more") };
    placed.complete(token, Ok(()), buf);
    let ended: Vec<_> = placed.ended.iter().map(|(id, outcome, _)| (*id, *outcome)).collect();
    assert_eq!(ended, [(1, Ok(())), (2, Ok(())), (4, Ok(())), (5, Err(DeviceError::Medium)), (6, Ok(()))]);
}
