use std::fs::OpenOptions;

use fastrand::Rng;

use super::*;
use crate::volatile::Volatile;

fn random_batch(random: &mut Rng, maps: &Maps, next_map: &mut u32) -> Batch {
    let mut batch = Batch::default();
    let of_disks: Vec<MapId> = maps.keys().copied().filter(|map| *map != MapId::CLEAN).collect();
    if random.u8(..4) == 0 {
        batch.added.push(MapId(*next_map));
        *next_map += 1;
    }
    if random.u8(..6) == 0 {
        batch.removed.extend(random.choice(&of_disks));
    }
    let stays = |map: &&MapId| !batch.removed.contains(map);
    let written: Vec<MapId> =
        of_disks.iter().filter(stays).chain(&batch.added).chain(&[MapId::CLEAN]).copied().collect();
    let mut pages = BTreeMap::new();
    for _ in 0..random.u8(..6) {
        let Some(map) = random.choice(&written).copied() else { continue };
        let key = PageKey { map, number: random.u32(..4) };
        let fill = random.u32(..);
        pages.insert(key, Box::new(std::array::from_fn(|at| fill.wrapping_add(at as u32))));
    }
    batch.pages = pages.into_iter().collect();
    batch
}

fn apply(maps: &mut Maps, batch: Batch) {
    batch.added.iter().for_each(|map| drop(maps.insert(*map, BTreeMap::new())));
    batch.removed.iter().for_each(|map| drop(maps.remove(map)));
    for (PageKey { map, number }, entries) in batch.pages {
        maps.entry(map).or_default().insert(number, entries);
    }
}

/// A batch of which a part is there after a power failure, or a later one that brings a former one's remains to life.
#[test]
fn a_batch_is_there_as_a_whole_or_not_at_all() {
    let id = PoolId(9);
    let replay = std::env::var("EVENKEEL_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let (mut failures, mut there) = (0, 0);
    for seed in replay.map_or(0..60, |seed: u64| seed..seed + 1) {
        println!("EVENKEEL_SEED={seed}");
        let mut random = Rng::with_seed(seed);
        let mut file = PieceFile::create(Volatile::default(), id).expect("no failure yet");
        let (mut maps, mut next_map) = (Maps::new(), MapId::FIRST.0);
        for _ in 0..60 {
            let batch = random_batch(&mut random, &maps, &mut next_map);
            let before = maps.clone();
            apply(&mut maps, batch.clone());
            file.storage.writes_left = (random.u8(..3) == 0).then(|| random.u32(..40));
            if file.commit(batch.clone()).is_ok() && random.u8(..8) != 0 {
                continue;
            }
            let is_durable = !file.has_failed;
            assert!(is_durable || file.commit(Batch::default()).is_err(), "nothing after a failure");
            let after = file.storage.after_failure(&mut random);
            let (again, found) = PieceFile::open(after, &[PoolId(3), id]).expect("it is not damaged");
            assert!(found == maps || !is_durable && found == before, "a part of {batch:?}");
            failures += 1;
            there += usize::from(!is_durable && found == maps);
            (file, maps) = (again, found);
        }
    }
    assert!(replay.is_some() || failures > 500 && there > 10, "{failures} failures, {there} there nevertheless");
}

fn two_batches() -> (Volatile, Volatile) {
    let mut file = PieceFile::create(Volatile::default(), PoolId(9)).expect("written");
    let batch = |fill: u32| Batch {
        pages: (0..3).map(|number| (PageKey { map: MapId(2), number }, Box::new([fill; ENTRIES]))).collect(),
        added: vec![MapId(2)],
        removed: Vec::new(),
    };
    file.commit(batch(1)).expect("written");
    let first = file.storage.clone();
    file.commit(batch(2)).expect("written");
    // A clean end.
    file.commit(Batch::default()).expect("written");
    (first, file.storage)
}

/// Each with a message of its own, and no map that is half of today and half of yesterday.
#[test]
fn damaged_files_are_refused() {
    let opened = |storage: Volatile, id| {
        PieceFile::open(storage, &[PoolId(id)]).map(|(_, maps)| maps).map_err(|error| error.to_string())
    };
    let (first, whole) = two_batches();
    assert_eq!(opened(whole.clone(), 9).expect("whole")[&MapId(2)][&0][5], 2);
    assert_eq!(opened(whole.clone(), 8), Err("it is an older copy, or of another drive".to_owned()));
    assert_eq!(opened(Volatile::default(), 9), Err("it is damaged: it has no header".to_owned()));
    let mut short = whole.clone();
    (short.len, short.durable) = (short.len - 1, short.durable[..short.len - 4096].to_vec());
    assert_eq!(opened(short, 9), Err("it is damaged: it is cut short".to_owned()));
    let missing = Err("it is damaged: some of its pages are missing, or older than others".to_owned());
    let pages = whole.durable.chunks(PAGE_BYTES).zip(first.durable.chunks(PAGE_BYTES));
    let changed = pages.enumerate().skip(2).filter(|(_, (now, then))| now != then).map(|(at, _)| at * PAGE_BYTES);
    for at in changed {
        let mut damaged = whole.clone();
        damaged.durable[at + 100] ^= 1;
        assert_eq!(opened(damaged, 9), missing, "at {at}");
    }
    let mut headers = whole.clone();
    headers.durable[9] ^= 1;
    headers.durable[4096 + 9] ^= 1;
    assert_eq!(opened(headers, 9), Err("it is damaged: it has no header".to_owned()));
    let mut endless = whole;
    for at in [0, PAGE_BYTES] {
        let header = Header { id: PoolId(9), batch: 7, slots: u64::MAX, pages: 0, sum: 0 };
        endless.durable[at..at + PAGE_BYTES].copy_from_slice(&header.to_bytes());
    }
    assert_eq!(opened(endless, 9), Err("it is damaged: it is cut short".to_owned()));
}

#[test]
fn a_file_of_the_system_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pool");
    let open = |is_new| OpenOptions::new().read(true).write(true).create_new(is_new).open(&path).expect("opened");
    let mut file = PieceFile::create(open(true), PoolId(1)).expect("written");
    let pages = (0..200).map(|number| (PageKey { map: MapId(2), number }, Box::new([number; ENTRIES]))).collect();
    file.set_id(PoolId(2));
    file.commit(Batch { pages, added: vec![MapId(2), MapId(3)], removed: Vec::new() }).expect("written");
    let (_, maps) = PieceFile::open(open(false), &[PoolId(2)]).expect("read");
    assert_eq!((maps.len(), maps[&MapId(2)].len(), maps[&MapId(2)][&199][7]), (2, 200, 199));
}
