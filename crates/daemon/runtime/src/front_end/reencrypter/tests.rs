//! A disk that guests use at two pollers while it is re-encrypted, by a daemon that is killed again and again.
//!
//! `EVENKEEL_SEED` replays one history.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};

use backend_cipher::{Access, DataKey, Encrypted, KeyChange, Keys};
use backend_memory::{Memory, MemoryDrive};
use fastrand::Rng;
use io_model::{Backend, HwqId, Io, Nanos, Passage};
use zeroize::Zeroizing;

use super::*;

const SECTOR_BYTES: u64 = 4096;
const DISK_BYTES: u64 = 3 * WINDOW_BYTES + 5 * SECTOR_BYTES;
/// Where the disk lies: an edge in the midst of a window.
const EXTENTS: [(u64, u64); 2] =
    [(5 << 20, WINDOW_BYTES + 64 * SECTOR_BYTES), (1 << 20, DISK_BYTES - WINDOW_BYTES - 64 * SECTOR_BYTES)];
const GUEST: TenantId = TenantId(1);
const OURS: TenantId = TenantId(2);
const NOW: Nanos = Nanos(1);
/// Guests' commands in flight, each with memory of its own.
const SLOTS: u32 = 6;
const SLOT_BYTES: u64 = 64 << 10;

fn key(fill: u8) -> Arc<DataKey> {
    let mut bytes = Zeroizing::new([fill; DataKey::BYTES]);
    bytes[0] ^= 0xff;
    Arc::new(DataKey::new(bytes, SECTOR_BYTES as u32).unwrap())
}

/// A command of a guest in flight: what it does to which sectors. A write's sectors all have one byte.
struct Sent {
    op: Op,
    sectors: Range<u64>,
    fill: u8,
    /// It is in flight.
    passage: Option<Passage>,
}

/// The drive, the journal, and what guests may find: what outlives a daemon.
struct World {
    drive: MemoryDrive,
    journal: Position,
    /// Each sector's byte, or bytes: a write that a kill cut short may have happened or not.
    disk: Vec<Vec<u8>>,
    /// Sectors that were zeroed last, or never written.
    zeroed: Vec<bool>,
}

/// A daemon: two pollers' back ends, the re-encrypter at the first.
struct Daemon {
    backends: [Encrypted<Memory>; 2],
    held: Arc<HeldRange>,
    memory: Arc<Mapping>,
    sent: BTreeMap<u32, (usize, Sent)>,
    reencrypter: Reencrypter,
    tokens: BTreeMap<u32, Token>,
    next_tag: u32,
    wishes: Receiver<Wish>,
    /// A position that is on its way to the journal.
    recording: Option<Position>,
    /// Something was written since the last flush.
    is_dirty: bool,
    is_done: bool,
    /// It was killed between a record and the answer.
    is_unanswered: bool,
}

impl Daemon {
    fn new(world: &World) -> Self {
        let keys = Arc::new(Keys::default());
        let Position { start_bytes, former } = world.journal.clone();
        let held = Arc::<HeldRange>::default();
        held.begin(start_bytes..start_bytes + former.len() as u64);
        keys.set(GUEST, 0, Access::Changing(KeyChange::new(key(1), key(2), Arc::clone(&held))));
        keys.set(OURS, BY_FORMER, Access::Key(key(1)));
        keys.set(OURS, BY_NEXT, Access::Key(key(2)));
        keys.set(OURS, RAW, Access::Plain);
        let backends = [(), ()].map(|()| Encrypted::new(world.drive.open_queues(1, 64), Arc::clone(&keys)));
        let (sender, wishes) = channel();
        let job = Job {
            id: OURS,
            extents: Extents::new(EXTENTS),
            size_bytes: DISK_BYTES,
            sector_bytes: SECTOR_BYTES as u32,
            held: Arc::clone(&held),
            position: world.journal.clone(),
        };
        let mut reencrypter = Reencrypter::new(job, Box::new(move |wish| sender.send(wish).unwrap())).unwrap();
        reencrypter.order(Order::Begin, &mut ());
        let memory = Mapping::anonymous((u64::from(SLOTS) * SLOT_BYTES) as usize).unwrap();
        let (sent, tokens) = (BTreeMap::new(), BTreeMap::new());
        let (next_tag, recording, is_dirty, is_done, is_unanswered) = (SLOTS, None, false, false, false);
        Self {
            backends,
            held,
            memory,
            sent,
            reencrypter,
            tokens,
            next_tag,
            wishes,
            recording,
            is_dirty,
            is_done,
            is_unanswered,
        }
    }

    /// A guest sends a command to sectors that no command in flight touches.
    fn send(&mut self, random: &mut Rng) {
        let Some(tag) = (0..SLOTS).find(|tag| !self.sent.contains_key(tag)) else { return };
        let most = SLOT_BYTES / SECTOR_BYTES;
        let first = random.u64(..DISK_BYTES / SECTOR_BYTES);
        let sectors = first..(first + random.u64(1..=most)).min(DISK_BYTES / SECTOR_BYTES);
        let meets = |other: &Range<u64>| other.start < sectors.end && sectors.start < other.end;
        if self.sent.values().any(|(_, sent)| meets(&sent.sectors)) {
            return;
        }
        let (op, fill) = match random.u8(..8) {
            0..4 => (Op::Read, 0),
            4..7 => (Op::Write, random.u8(..)),
            _ => (Op::WriteZeroes, 0),
        };
        let poller = random.usize(..2);
        let (at, end) = (sectors.start * SECTOR_BYTES, sectors.end * SECTOR_BYTES);
        let (_, follow_bytes) = Extents::new(EXTENTS).locate(at).unwrap();
        // What lies across an edge is split elsewhere.
        let len_bytes = (end - at).min(follow_bytes);
        let sectors = sectors.start..sectors.start + len_bytes / SECTOR_BYTES;
        self.memory.write_at(u64::from(tag) * SLOT_BYTES, &vec![fill; len_bytes as usize]).unwrap();
        self.sent.insert(tag, (poller, Sent { op, sectors, fill, passage: None }));
        self.fetch(poller);
    }

    /// Sends what guests have for a poller, unless it has to wait.
    fn fetch(&mut self, poller: usize) {
        for (tag, (_, sent)) in self.sent.iter_mut().filter(|(_, (its, sent))| *its == poller && sent.passage.is_none())
        {
            let Sent { op, ref sectors, .. } = *sent;
            let (at, len_bytes) = (sectors.start * SECTOR_BYTES, (sectors.end - sectors.start) * SECTOR_BYTES);
            sent.passage = self.held.enter(at, len_bytes).ok();
            if sent.passage.is_none() {
                continue;
            }
            let mut buf = IoBuf::default();
            assert!(!op.has_data() || buf.push(&self.memory, u64::from(*tag) * SLOT_BYTES, len_bytes));
            let (offset_bytes, _) = Extents::new(EXTENTS).locate(at).unwrap();
            let place = Place { tenant: GUEST, disk: 0, base_bytes: 0 };
            let command = io_model::Command { offset_bytes, ..place.command(op, at, len_bytes) };
            self.backends[poller].submit(HwqId(0), Io { tag: *tag, command, buf }, NOW);
        }
    }

    /// One look of a poller.
    fn look(&mut self, poller: usize, world: &mut World) {
        let mut done = Vec::new();
        self.fetch(poller);
        self.backends[poller].kick();
        self.backends[poller].reap(NOW, &mut |_, one| done.push(one));
        for one in done {
            if let Some(token) = self.tokens.remove(&one.tag) {
                self.reencrypter.complete(token, one.outcome, one.buf);
                continue;
            }
            assert_eq!(one.outcome, Ok(()));
            let (_, Sent { op, sectors, fill, .. }) = self.sent.remove(&one.tag).expect("sent once");
            let mut data = vec![0; (sectors.end - sectors.start) as usize * SECTOR_BYTES as usize];
            if op == Op::Read {
                self.memory.read_at(u64::from(one.tag) * SLOT_BYTES, &mut data).unwrap();
            }
            for (sector, read) in sectors.zip(data.chunks(SECTOR_BYTES as usize)) {
                let may_be = &mut world.disk[sector as usize];
                world.zeroed[sector as usize] &= op == Op::Read;
                world.zeroed[sector as usize] |= op == Op::WriteZeroes;
                if op == Op::Read {
                    assert!(read.iter().all(|byte| *byte == read[0]), "sector {sector} is noise");
                    assert!(may_be.contains(&read[0]), "sector {sector} has {}, not {may_be:?}", read[0]);
                    *may_be = vec![read[0]];
                } else {
                    *may_be = vec![fill];
                }
            }
        }
    }

    /// The re-encrypter's next command, if it has one.
    fn reencrypt(&mut self) {
        if self.reencrypter.backlog(VQ) == 0 {
            return;
        }
        let Fetch::Command(command, buf, token) = self.reencrypter.fetch(VQ) else { panic!("a backlog of nothing") };
        self.is_dirty = command.op == Op::Write || self.is_dirty && command.op != Op::Flush;
        self.next_tag += 1;
        self.tokens.insert(self.next_tag, token);
        self.backends[0].submit(HwqId(0), Io { tag: self.next_tag, command, buf }, NOW);
    }

    /// What the re-encrypter wishes: the journal's thread takes a while.
    fn grant(&mut self, world: &mut World, random: &mut Rng) {
        match self.wishes.try_recv() {
            Ok(Wish::Record(position)) => {
                assert!(!self.is_dirty && self.recording.is_none());
                self.recording = Some(position);
            }
            Ok(Wish::Done) => self.is_done = true,
            Ok(Wish::Failed(why)) => panic!("{why}"),
            Err(_) => {}
        }
        if random.bool()
            && let Some(position) = self.recording.take()
        {
            world.journal = position;
            self.is_unanswered = random.u8(..8) == 0;
            if !self.is_unanswered {
                self.reencrypter.order(Order::Recorded(Ok(())), &mut ());
            }
        }
    }

    /// Nothing of what is in flight is answered any more.
    fn kill(self, world: &mut World) {
        self.tokens.into_values().for_each(|token| {
            token.spend();
        });
        for (_, Sent { op, sectors, fill, .. }) in self.sent.into_values().filter(|(_, sent)| sent.op != Op::Read) {
            assert!(op.has_data() || fill == 0);
            for sector in sectors {
                world.disk[sector as usize].push(fill);
                world.zeroed[sector as usize] = false;
            }
        }
    }
}

/// All of the disk by its next key alone, as guests left it; and no sector that reads as zeros was ever made noise.
fn check_all(world: &mut World) {
    let keys = Arc::new(Keys::default());
    keys.set(GUEST, 0, Access::Key(key(2)));
    keys.set(OURS, RAW, Access::Plain);
    let mut backend = Encrypted::new(world.drive.open_queues(1, 8), keys);
    let memory = Mapping::anonymous(SECTOR_BYTES as usize).unwrap();
    let mut read = |tenant, disk, at| {
        let mut buf = IoBuf::default();
        assert!(buf.push(&memory, 0, SECTOR_BYTES));
        let (offset_bytes, _) = Extents::new(EXTENTS).locate(at).unwrap();
        let place = Place { tenant, disk, base_bytes: 0 };
        let command = io_model::Command { offset_bytes, ..place.command(Op::Read, at, SECTOR_BYTES) };
        backend.submit(HwqId(0), Io { tag: 0, command, buf }, NOW);
        let mut is_done = false;
        while !is_done {
            backend.kick();
            backend.reap(NOW, &mut |_, one| is_done = one.outcome == Ok(()));
        }
        let mut data = vec![0; SECTOR_BYTES as usize];
        memory.read_at(0, &mut data).unwrap();
        data
    };
    for (sector, (may_be, is_zeroed)) in (0..).zip(world.disk.iter().zip(&world.zeroed)) {
        let data = read(GUEST, 0, sector * SECTOR_BYTES);
        assert!(data.iter().all(|byte| *byte == data[0]) && may_be.contains(&data[0]), "sector {sector}: {may_be:?}");
        let on_drive = read(OURS, RAW, sector * SECTOR_BYTES);
        assert!(!is_zeroed || on_drive == data, "sector {sector} was empty, and the drive shows it no more");
    }
}

/// Returns how often the daemon was killed.
fn history(seed: u64) -> u32 {
    let mut random = Rng::with_seed(seed);
    let drive = MemoryDrive::new(10 << 20).unwrap();
    let nothing = Position { start_bytes: 0, former: Vec::new() };
    let disk = vec![vec![0]; (DISK_BYTES / SECTOR_BYTES) as usize];
    let zeroed = vec![true; disk.len()];
    let mut world = World { drive, journal: nothing, disk, zeroed };
    // One poller may be slow: what it has in flight is older than what the other does.
    let slow = random.u16(502..700);
    let mut daemon = Daemon::new(&world);
    let mut kills = 0;
    while !daemon.is_done || !daemon.sent.is_empty() {
        match random.u16(..1000) {
            step if (500..slow).contains(&step) => daemon.look(1, &mut world),
            0..3 if kills < 12 && !daemon.is_done => {
                daemon.kill(&mut world);
                daemon = Daemon::new(&world);
                kills += 1;
            }
            0..300 if !daemon.is_done => daemon.send(&mut random),
            0..500 => daemon.look(0, &mut world),
            500..900 => daemon.reencrypt(),
            _ => daemon.grant(&mut world, &mut random),
        }
        if daemon.is_unanswered {
            daemon.kill(&mut world);
            daemon = Daemon::new(&world);
            kills += 1;
        }
    }
    check_all(&mut world);
    kills
}

/// A sector that reads as noise, as older data, or as another disk's: the one thing that a re-encryption must never do.
#[test]
fn guests_find_their_data_whatever_is_killed() {
    let seeds = match std::env::var("EVENKEEL_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..100).collect(),
    };
    let kills: u32 = seeds
        .into_iter()
        .map(|seed| {
            let run = std::panic::catch_unwind(|| history(seed));
            run.unwrap_or_else(|_| panic!("replay with EVENKEEL_SEED={seed}"))
        })
        .sum();
    assert!(kills > 40 || std::env::var("EVENKEEL_SEED").is_ok());
}
