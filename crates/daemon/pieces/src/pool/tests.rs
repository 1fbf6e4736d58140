use fastrand::Rng;

use super::*;
use crate::file::{PieceFile, PoolId};
use crate::volatile::Volatile;

const ID: PoolId = PoolId(1);
/// Two ranges of the drive.
const RANGES: [Range<u32>; 2] = [100..109, 20..25];
const PIECES: u32 = 14;
const COUNT: u32 = 4;

/// What a piece holds: two halves.
type Content = [u8; 2];
/// What each map is to hold.
type Model = BTreeMap<MapId, Vec<Content>>;

/// The power has failed.
struct Failed;

/// A pool with its file, a drive, and what all of it is to hold.
struct World {
    random: Rng,
    file: PieceFile<Volatile>,
    pool: Pool,
    drive: Vec<Content>,
    model: Model,
    next_map: u32,
    freed: Vec<Place>,
    full: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let file = PieceFile::create(Volatile::default(), ID).expect("written");
        let pool = Pool::new(RANGES.to_vec(), Maps::new(), &BTreeMap::new()).expect("no map");
        let random = Rng::with_seed(seed);
        // Whatever the drive held before.
        let drive = vec![[0xee; 2]; PIECES as usize];
        Self { random, file, pool, drive, model: Model::new(), next_map: 2, freed: Vec::new(), full: 0 }
    }

    fn commit(&mut self) -> Result<(), Failed> {
        let batch = self.pool.take_batch();
        self.file.commit(batch).map_err(|_| Failed)?;
        // No command is in flight here.
        self.freed.drain(..).for_each(|place| self.pool.release(place));
        Ok(())
    }

    fn content(&self, map: MapId, index: u32) -> Content {
        self.pool.piece(map, index).map_or([0; 2], |(place, _)| self.drive[place.0 as usize])
    }

    fn check(&self, model: &Model) -> Result<(), String> {
        for (map, content) in model {
            for (index, expected) in content.iter().enumerate() {
                let found = self.content(*map, index as u32);
                if found != *expected {
                    return Err(format!("piece {index} of {map:?} is {found:x?}, not {expected:x?}"));
                }
            }
        }
        let maps: Vec<&MapId> = self.pool.maps.keys().collect();
        let same = maps == model.keys().collect::<Vec<_>>();
        let dirty = (0..PIECES).find(|place| self.pool.clean.has(*place) && self.drive[*place as usize] != [0; 2]);
        match dirty {
            None if same => Ok(()),
            None => Err(format!("the maps are {maps:?}")),
            Some(place) => Err(format!("place {place} is not clean")),
        }
    }

    fn some_map(&mut self) -> Option<MapId> {
        let maps: Vec<MapId> = self.model.keys().copied().collect();
        self.random.choice(&maps).copied()
    }

    /// One step. The model is as it has to be if the power does not fail.
    fn step(&mut self) -> Result<(), Failed> {
        let kind = self.random.u8(..24);
        let Some(map) = self.some_map().filter(|_| kind > 0) else { return self.add() };
        let index = self.random.u32(..COUNT);
        match kind {
            1..10 => self.write(map, index)?,
            10..13 => {
                self.model.entry(map).and_modify(|it| it[index as usize] = [0; 2]);
                self.freed.extend(self.pool.discard(map, index));
            }
            // A snapshot, or a clone: of a disk, of a snapshot, or of another clone.
            13..15 => {
                let into = MapId(self.next_map);
                self.next_map += 1;
                self.model.insert(into, self.model[&map].clone());
                self.pool.share(map, into).expect("few maps");
            }
            15 => {
                self.model.remove(&map);
                self.freed.extend(self.pool.remove(map));
            }
            16 => {
                let to = self.some_map().unwrap_or(map);
                self.model.insert(map, self.model[&to].clone());
                self.freed.extend(self.pool.roll_back(map, to).expect("few maps"));
            }
            17 => {
                let pieces = self.random.u32(..COUNT);
                let _ = self.pool.reserve(map, pieces);
            }
            _ => {
                if let Some(place) = self.pool.take_dirty() {
                    self.drive[place.0 as usize] = [0; 2];
                    self.pool.wiped(place);
                }
            }
        }
        self.commit()
    }

    fn add(&mut self) -> Result<(), Failed> {
        let map = MapId(self.next_map);
        self.next_map += 1;
        self.model.insert(map, vec![[0; 2]; COUNT as usize]);
        self.pool.add(map, COUNT);
        self.commit()
    }

    fn write(&mut self, map: MapId, index: u32) -> Result<(), Failed> {
        let (half, value) = (self.random.usize(..2), self.random.u8(1..));
        let reserved = self.pool.maps[&map].reserved > self.pool.pieces(map);
        let grant = match self.pool.write(map, index) {
            Ok(grant) => grant,
            Err(NoRoom) => {
                assert!(!reserved || self.pool.dirty.count() > 0, "what is reserved is there");
                self.full += 1;
                return Ok(());
            }
        };
        self.commit()?;
        let place = match grant {
            Grant::Own(place) => place,
            Grant::New(place) => {
                assert_eq!(self.drive[place.0 as usize], [0; 2], "a new piece is zero");
                place
            }
            Grant::Copy { from, to } => {
                self.drive[to.0 as usize] = self.drive[from.0 as usize];
                self.freed.extend(self.pool.copied(map, index, from, to));
                self.commit()?;
                to
            }
        };
        let written = &mut self.drive[place.0 as usize];
        written[half] = value;
        let now = *written;
        self.model.entry(map).and_modify(|it| it[index as usize] = now);
        Ok(())
    }

    /// The next start after a power failure.
    fn restart(&mut self) {
        let storage = self.file.storage.after_failure(&mut self.random);
        let (file, maps) = PieceFile::open(storage, &[ID]).expect("it is not damaged");
        let counts = self.model.keys().chain(maps.keys()).map(|map| (*map, COUNT)).collect();
        self.pool = Pool::new(RANGES.to_vec(), maps, &counts).expect("the maps fit");
        (self.file, self.freed) = (file, Vec::new());
    }
}

/// Data that is lost, that comes back, or that another map reads: after any power failure.
///
/// `EVENKEEL_PROGRAMS` says how many programs, from the seed `EVENKEEL_SEED` on; `cargo xtask pieces` sets both.
#[test]
fn maps_keep_their_data_over_power_failures() {
    let set = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let (programs, first) = (set("EVENKEEL_PROGRAMS"), set("EVENKEEL_SEED").unwrap_or(0));
    let count = programs.unwrap_or(2_000);
    let (mut failures, mut full) = (0, 0);
    for seed in first..first + count {
        if programs.is_some() && seed > first && (seed - first).is_multiple_of(5_000) {
            println!("{} of {count} programs, {failures} power failures", seed - first);
        }
        let mut world = World::new(seed);
        for step in 0..80 {
            let before = world.model.clone();
            world.file.storage.writes_left = (world.random.u8(..6) == 0).then(|| world.random.u32(..30));
            let has_failed = world.step().is_err();
            world.file.storage.writes_left = None;
            let after = world.model.clone();
            if has_failed {
                failures += 1;
                world.restart();
            }
            let told = world.check(&after).or_else(|why| {
                world.model = before;
                if has_failed { world.check(&world.model) } else { Err(why) }
            });
            told.unwrap_or_else(|why| panic!("seed {seed}, step {step}: {why}"));
        }
        full += u64::from(world.full);
    }
    println!("all hold: {count} programs, {failures} power failures, {full} times the pool was full");
    assert!(count < 1_000 || failures > 5 * count && full > count / 2, "{failures} failures, {full} times full");
}

#[test]
fn pieces_lie_in_turn_and_where_the_pool_is() {
    let mut pool = Pool::new(RANGES.to_vec(), Maps::new(), &BTreeMap::new()).expect("no map");
    while let Some(place) = pool.take_dirty() {
        pool.wiped(place);
    }
    pool.add(MapId(2), PIECES);
    let places = (0..PIECES).map(|index| match pool.write(MapId(2), index) {
        Ok(Grant::New(place)) => pool.on_drive(place),
        other => panic!("{other:?}"),
    });
    let places: Vec<_> = places.collect();
    assert_eq!(places, RANGES.into_iter().flatten().map(Some).collect::<Vec<_>>());
    assert_eq!(pool.on_drive(Place(PIECES)), None);
    let place_of = |number: u32| pool.place_of(number).and_then(|place| pool.on_drive(place));
    assert!(
        (0..200).all(|number| place_of(number) == Some(number).filter(|it| RANGES.iter().any(|at| at.contains(it))))
    );
}

#[test]
fn maps_that_do_not_fit_are_refused() {
    let opened = |place: u32, index: usize| {
        let mut page = Box::new([0; ENTRIES]);
        page[index] = place + 1;
        let maps = Maps::from([(MapId(2), BTreeMap::from([(0, page)]))]);
        Pool::new(RANGES.to_vec(), maps, &BTreeMap::from([(MapId(2), COUNT)])).map(|_| ()).map_err(|why| why.0)
    };
    assert_eq!(opened(PIECES - 1, 3), Ok(()));
    assert_eq!(opened(PIECES, 3), Err("a piece is beyond the pool"));
    assert_eq!(opened(0, COUNT as usize), Err("a disk has more pieces than its size allows"));
}
