use std::sync::mpsc::{Receiver, channel};

use io_model::{Awaited, DeviceError};

use super::*;
use crate::file::Maps;

const PIECE_BYTES: u64 = 65_536;
const ONE: MapId = MapId(2);
const OTHER: MapId = MapId(3);

/// A pool of `size` pieces, all of them clean, from the tenth piece of the drive on, with two disks.
struct World {
    giver: Giver,
    tables: [Arc<PieceMap>; 2],
    asks: Receiver<(MapId, Ask)>,
    begun: BTreeSet<Place>,
}

impl World {
    fn new(size: u32) -> Self {
        let mut pool = Pool::new(std::iter::once(10..10 + size).collect(), Maps::new(), &BTreeMap::new()).unwrap();
        (10..10 + size).for_each(|number| pool.is_zero(number));
        let mut giver = Giver::new(pool, PIECE_BYTES);
        let (sender, asks) = channel();
        let tables = [ONE, OTHER].map(|map| {
            let sender = sender.clone();
            let ask = move |ask| sender.send((map, ask)).unwrap();
            Arc::new(PieceMap::new(PIECE_BYTES, 8 * PIECE_BYTES, ask))
        });
        for (map, table) in [ONE, OTHER].into_iter().zip(&tables) {
            giver.add(map, 8);
            giver.show(map, Arc::clone(table));
        }
        Self { giver, tables, asks, begun: BTreeSet::new() }
    }

    fn ask(&mut self, disk: usize, first: u32, wish: Wish) -> Awaited {
        let awaited = self.tables[disk].ask(first, 1, wish);
        let (map, ask) = self.asks.recv().unwrap();
        self.giver.ask(map, ask);
        awaited
    }

    /// The batch is durable. Returns freed places and jobs for the mover.
    fn commit(&mut self) -> (Vec<Place>, Vec<Job>) {
        let _ = self.giver.take_batch();
        let freed = self.giver.publish();
        let Jobs { promised, others } = self.giver.jobs(&mut self.begun);
        (freed, [promised, others].concat())
    }

    fn piece(&self, disk: usize, index: u32) -> Piece {
        self.tables[disk].piece(index)
    }
}

/// A command that goes on before what it relies on is durable.
#[test]
fn nothing_is_seen_before_it_is_durable() {
    let mut world = World::new(4);
    let asked = [0, 1].map(|disk| world.ask(disk, 5, Wish::Write));
    assert_eq!(asked.each_ref().map(Awaited::answer), [None, None]);
    assert_eq!([world.piece(0, 5), world.piece(1, 5)], [Piece::None, Piece::None]);
    assert_eq!(world.commit(), (Vec::new(), Vec::new()));
    assert_eq!(asked.each_ref().map(Awaited::answer), [Some(Ok(())), Some(Ok(()))]);
    assert_eq!([world.piece(0, 5), world.piece(1, 5)], [Piece::Own(10), Piece::Own(11)]);
    // A write that can't be recorded fails, and the disk keeps what it has.
    let asked = world.ask(0, 6, Wish::Write);
    let _ = world.giver.take_batch();
    world.giver.give_up();
    assert_eq!((asked.answer(), world.piece(0, 6)), (Some(Err(DeviceError::Medium)), Piece::None));
}

/// A write that fails although room comes, or that waits although none comes.
#[test]
fn a_write_waits_for_pieces_that_are_being_wiped_and_no_longer() {
    let mut world = World::new(2);
    let asked = [0, 1].map(|first| world.ask(0, first, Wish::Write));
    world.commit();
    assert!(asked.iter().all(|asked| asked.answer() == Some(Ok(()))));
    let refused = world.ask(1, 0, Wish::Write);
    assert_eq!((refused.answer(), world.giver.room()), (Some(Err(DeviceError::NoSpace)), RoomState::Full));
    let given = world.ask(0, 1, Wish::Discard);
    let (freed, jobs) = world.commit();
    assert_eq!((given.answer(), world.piece(0, 1), freed.len(), jobs.len()), (Some(Ok(())), Piece::None, 1, 0));
    // Commands may still use it.
    let waits = world.ask(1, 0, Wish::Write);
    world.giver.release(&freed);
    let (_, jobs) = world.commit();
    assert_eq!(jobs, [Job { from_bytes: None, to_bytes: 11 * PIECE_BYTES }]);
    assert_eq!(waits.answer(), None);
    world.giver.moved(&jobs, true);
    world.commit();
    assert_eq!((waits.answer(), world.piece(1, 0)), (Some(Ok(())), Piece::Own(11)));
    // A piece that the drive fails to wipe is given to nobody.
    let _ = world.ask(1, 0, Wish::Discard);
    let (freed, _) = world.commit();
    world.giver.release(&freed);
    let (_, jobs) = world.commit();
    let waits = world.ask(0, 3, Wish::Write);
    world.giver.moved(&jobs, false);
    assert_eq!(waits.answer(), Some(Err(DeviceError::NoSpace)));
}

/// A snapshot that changes, a copy that is made twice, or one that is used before it is whole.
#[test]
fn a_shared_piece_is_copied_once() {
    let mut world = World::new(4);
    let _ = world.ask(0, 2, Wish::Write);
    world.commit();
    world.giver.freeze(&[ONE]);
    assert_eq!(world.piece(0, 2), Piece::Shared(10));
    let frozen = world.ask(0, 2, Wish::Write);
    world.commit();
    assert_eq!(frozen.answer(), None);
    world.giver.share(&[(ONE, MapId(4))]).unwrap();
    world.giver.thaw(&[ONE]);
    let joined = world.ask(0, 2, Wish::Write);
    let (_, jobs) = world.commit();
    assert_eq!(jobs, [Job { from_bytes: Some(10 * PIECE_BYTES), to_bytes: 11 * PIECE_BYTES }]);
    assert_eq!([frozen.answer(), joined.answer()], [None, None]);
    world.giver.moved(&jobs, true);
    assert_eq!(world.commit(), (Vec::new(), Vec::new()), "the snapshot has the former one");
    assert_eq!([frozen.answer(), joined.answer()], [Some(Ok(())), Some(Ok(()))]);
    assert_eq!(world.piece(0, 2), Piece::Own(11));
    // Once more, and the copy fails: the command fails, and what was half copied is wiped.
    world.giver.share(&[(ONE, MapId(5))]).unwrap();
    world.giver.thaw(&[ONE]);
    let failing = world.ask(0, 2, Wish::Write);
    let (_, jobs) = world.commit();
    world.giver.moved(&jobs, false);
    let (_, wipes) = world.commit();
    assert_eq!(wipes, [Job { from_bytes: None, to_bytes: jobs[0].to_bytes }]);
    assert_eq!((failing.answer(), world.piece(0, 2)), (Some(Err(DeviceError::Medium)), Piece::Shared(11)));
    // The disk goes amid a copy.
    let lost = world.ask(0, 2, Wish::Write);
    let (_, jobs) = world.commit();
    world.giver.remove(&[ONE, MapId(4), MapId(5)]);
    world.giver.moved(&jobs, true);
    let (freed, _) = world.commit();
    assert_eq!((lost.answer(), freed.len()), (Some(Err(DeviceError::Medium)), 3));
}

/// Room that came while the daemon runs and that nobody gets, or that holds what the drive held before.
#[test]
fn a_write_that_waits_gets_a_piece_of_a_pool_that_grew() {
    let mut world = World::new(1);
    let _ = world.ask(0, 0, Wish::Write);
    world.commit();
    let refused = world.ask(1, 0, Wish::Write);
    assert_eq!((refused.answer(), world.giver.room()), (Some(Err(DeviceError::NoSpace)), RoomState::Full));
    world.giver.extend(40..41, false);
    assert_ne!(world.giver.room(), RoomState::Full);
    let waits = world.ask(1, 0, Wish::Write);
    let (_, jobs) = world.commit();
    assert_eq!((waits.answer(), &jobs[..]), (None, &[Job { from_bytes: None, to_bytes: 40 * PIECE_BYTES }][..]));
    // What is clean needs no wiping.
    world.giver.extend(50..51, true);
    assert_eq!(world.commit().1, []);
    assert_eq!((waits.answer(), world.piece(1, 0)), (Some(Ok(())), Piece::Own(50)));
    world.giver.moved(&jobs, true);
    let next = world.ask(1, 1, Wish::Write);
    world.commit();
    assert_eq!((next.answer(), world.piece(1, 1)), (Some(Ok(())), Piece::Own(40)));
}

/// A guaranteed disk whose first write to reserved room waits for a wipe, since others took all that was wiped.
#[test]
fn what_is_reserved_is_wiped_and_at_hand() {
    let mut world = World::new(6);
    world.giver.reserve(ONE, 3).unwrap();
    let others: Vec<_> = (0..4).map(|first| world.ask(1, first, Wish::Write)).collect();
    world.commit();
    assert_eq!(others.iter().filter(|asked| asked.answer() == Some(Ok(()))).count(), 3);
    // What others give back is not clean yet: they wait for it, and take nothing of what is reserved.
    let _ = world.ask(1, 0, Wish::Discard);
    let (freed, _) = world.commit();
    world.giver.release(&freed);
    let (_, wipes) = world.commit();
    let waits = world.ask(1, 5, Wish::Write);
    let reserved: Vec<_> = (0..3).map(|first| world.ask(0, first, Wish::Write)).collect();
    world.commit();
    assert!(reserved.iter().all(|asked| asked.answer() == Some(Ok(()))));
    assert_eq!(waits.answer(), None);
    world.giver.moved(&wipes, true);
    world.commit();
    assert_eq!(waits.answer(), Some(Ok(())));
}

/// A guaranteed disk's copy that waits behind pieces to wipe and the copies of others.
#[test]
fn copies_of_guaranteed_disks_are_apart() {
    let mut world = World::new(8);
    let _ = [0, 1].map(|disk| world.ask(disk, 0, Wish::Write));
    let _ = world.ask(1, 1, Wish::Write);
    world.commit();
    world.giver.share(&[(ONE, MapId(4)), (OTHER, MapId(5))]).unwrap();
    [ONE, OTHER].into_iter().for_each(|map| world.giver.thaw(&[map]));
    world.giver.set_promised(ONE, true);
    let _ = world.ask(0, 3, Wish::Write);
    let _ = world.ask(0, 3, Wish::Discard);
    let (freed, _) = world.commit();
    world.giver.release(&freed);
    let _ = [0, 1].map(|disk| world.ask(disk, 0, Wish::Write));
    let _ = world.giver.take_batch();
    world.giver.publish();
    let Jobs { promised, others } = world.giver.jobs(&mut world.begun);
    assert_eq!(promised.iter().map(|job| job.from_bytes).collect::<Vec<_>>(), [Some(10 * PIECE_BYTES)]);
    assert_eq!(others.iter().map(|job| job.from_bytes).collect::<Vec<_>>(), [Some(11 * PIECE_BYTES), None]);
    // It is promised nothing any more.
    world.giver.moved(&promised, true);
    world.giver.set_promised(ONE, false);
    world.giver.share(&[(ONE, MapId(6))]).unwrap();
    world.giver.thaw(&[ONE]);
    let _ = world.ask(0, 0, Wish::Write);
    let _ = world.giver.take_batch();
    world.giver.publish();
    assert_eq!(world.giver.jobs(&mut world.begun).promised, []);
}
