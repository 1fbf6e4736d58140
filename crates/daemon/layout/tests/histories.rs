//! Random histories of a drive against a model that knows what each MiB holds: nobody gets what somebody else wrote.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::path::PathBuf;

use fastrand::Rng;
use io_model::units::Size;
use layout::{DeviceIdentity, Layout, LayoutFile, Wanted, WipeMethod};

const MIB: u64 = 1 << 20;

/// What a MiB of the drive holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// Nobody's data.
    Zeros,
    /// What was there before us.
    Unknown,
    /// A disk's, by the number that it got when it was made.
    Data(u32),
}

/// A disk as its user knows it.
#[derive(Debug)]
struct Disk {
    name: String,
    number: u32,
    mib: u64,
    /// It still waits to be zeroed.
    is_new: bool,
}

struct World {
    file: LayoutFile,
    /// `None`: there is none, which is much faster.
    path: Option<PathBuf>,
    drive: Vec<Holds>,
    disks: Vec<Disk>,
    next: u32,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    created: u32,
    grown: u32,
    scattered: u32,
    zeroed: u32,
    wiped: u32,
    shrinks_refused: u32,
}

impl World {
    fn new(random: &mut Rng, path: Option<PathBuf>) -> Self {
        let drive_mib = random.u64(16..64);
        let device = DeviceIdentity { path: "/d".into(), size_bytes: drive_mib * MIB, ..Default::default() };
        let (mut layout, _) = Layout::plan(&[], &device, None).unwrap();
        let is_blank = random.bool();
        if is_blank {
            layout.is_all_zeros();
        }
        let mut file = LayoutFile::open(path.clone()).unwrap();
        file.save(layout).unwrap();
        let drive = vec![if is_blank { Holds::Zeros } else { Holds::Unknown }; drive_mib as usize];
        Self { file, path, drive, disks: Vec::new(), next: 0, counts: Counts::default() }
    }

    fn layout(&self) -> &Layout {
        self.file.layout().unwrap()
    }

    /// Plans for the disks that there are, with these sizes; whoever is not named here keeps what it has.
    fn plan(&mut self, wanted: &[(String, u64)]) -> bool {
        let wanted: Vec<Wanted<'_>> = wanted
            .iter()
            .map(|(name, mib)| Wanted { name, size: Size(mib * MIB), offset: None, lba_bytes: 512 })
            .collect();
        let device = self.layout().device().clone();
        match Layout::plan(&wanted, &device, Some(self.layout())) {
            Ok((layout, _)) => self.file.save(layout).is_ok(),
            Err(found) => {
                let is_ours = found.iter().any(|it| it.remedy.contains("report"));
                assert!(!is_ours, "{found:?} after {:?}", self.layout());
                false
            }
        }
    }

    fn create(&mut self, random: &mut Rng) {
        let (number, mib) = (self.next, random.u64(1..12));
        self.next += 1;
        let name = format!("d{}", random.u32(..12));
        if self.layout().find(&name).is_some() || !self.plan(&[(name.clone(), mib)]) {
            return;
        }
        let is_new = self.layout().find(&name).unwrap().zeroed_bytes.is_some();
        self.counts.created += 1;
        self.disks.push(Disk { name, number, mib, is_new });
    }

    fn grow(&mut self, random: &mut Rng) {
        let Some(at) = self.choose(random) else { return };
        let (name, mib, to) = (self.disks[at].name.clone(), self.disks[at].mib, random.u64(1..20));
        if !self.plan(&[(name, to)]) {
            self.counts.shrinks_refused += u32::from(to < mib);
            return;
        }
        assert!(to >= mib, "it shrank");
        self.counts.grown += u32::from(to > mib);
        self.disks[at].mib = to;
    }

    fn choose(&self, random: &mut Rng) -> Option<usize> {
        (!self.disks.is_empty()).then(|| random.usize(..self.disks.len()))
    }

    /// One more MiB of a disk that needs it.
    fn zero(&mut self, random: &mut Rng) {
        let Some(at) = self.choose(random) else { return };
        let placement = self.layout().find(&self.disks[at].name).unwrap().clone();
        let Some(zeroed) = placement.zeroed_bytes else { return };
        let (place, _) = placement.to_look_up().locate(zeroed).unwrap();
        self.drive[(place / MIB) as usize] = Holds::Zeros;
        self.file.set_zeroed(&placement.name, zeroed + MIB).unwrap();
        self.counts.zeroed += 1;
        self.disks[at].is_new &= self.layout().find(&placement.name).unwrap().zeroed_bytes.is_some();
    }

    /// What a disk's user may write to, it does, somewhere.
    fn write(&mut self, random: &mut Rng) {
        let Some(at) = self.choose(random) else { return };
        let Disk { name, number, is_new: false, .. } = &self.disks[at] else { return };
        let placement = self.layout().find(name).unwrap();
        let (place, _) = placement.to_look_up().locate(random.u64(..placement.served_bytes() / MIB) * MIB).unwrap();
        let number = *number;
        self.drive[(place / MIB) as usize] = Holds::Data(number);
    }

    fn delete(&mut self, random: &mut Rng) {
        let Some(at) = self.choose(random) else { return };
        let disk = self.disks.swap_remove(at);
        let method = if random.bool() { WipeMethod::Zeros } else { WipeMethod::ThreePasses };
        assert!(self.file.release(&disk.name, method, &[]).unwrap());
        self.counts.scattered +=
            u32::from(self.layout().wiping().iter().filter(|it| it.former == disk.name).count() > 1);
    }

    /// One more MiB, or the end of a pass.
    fn wipe(&mut self) {
        let Some(range) = self.layout().wiping().first().cloned() else { return };
        let is_last = range.passes + 1 == range.method.passes();
        if range.wiped_bytes < range.size_bytes {
            let at = ((range.offset_bytes + range.wiped_bytes) / MIB) as usize;
            self.drive[at] = if is_last { Holds::Zeros } else { Holds::Unknown };
            self.file.set_wiped(range.offset_bytes, range.passes, range.wiped_bytes + MIB).unwrap();
        } else {
            self.file.set_wiped(range.offset_bytes, range.passes + 1, 0).unwrap();
            self.counts.wiped += u32::from(is_last);
        }
    }

    /// A kill: only the file is left.
    fn restart(&mut self) {
        let Some(path) = self.path.clone() else { return };
        let before = self.layout().clone();
        self.file = LayoutFile::open(Some(path)).unwrap();
        assert_eq!(self.layout(), &before);
    }

    fn check(&self) {
        let mut taken = vec![false; self.drive.len()];
        let mut take = |offset: u64| {
            let mib = &mut taken[(offset / MIB) as usize];
            assert!(!*mib, "MiB {} is given twice: {:?}", offset / MIB, self.layout());
            *mib = true;
        };
        assert_eq!(self.layout().placements().len(), self.disks.len());
        for Disk { name, number, mib, is_new } in &self.disks {
            let placement = self.layout().find(name).unwrap();
            assert_eq!(placement.size_bytes(), mib * MIB);
            for at in 0..*mib {
                let (place, _) = placement.to_look_up().locate(at * MIB).unwrap();
                take(place);
                let holds = self.drive[(place / MIB) as usize];
                let is_seen = !is_new && at * MIB < placement.served_bytes();
                let is_its = matches!(holds, Holds::Zeros) || holds == Holds::Data(*number);
                assert!(!is_seen || is_its, "disk {name} sees {holds:?} at MiB {at}: {:?}", self.layout());
            }
        }
        for range in self.layout().wiping() {
            (0..range.size_bytes / MIB).for_each(|at| take(range.offset_bytes + at * MIB));
        }
        let free = taken.iter().filter(|taken| !**taken).count() as u64;
        assert_eq!(self.layout().free_bytes(), free * MIB);
    }
}

#[test]
fn nobody_gets_what_somebody_else_wrote() {
    let seeds = match std::env::var("EVENKEEL_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..400).collect::<Vec<u64>>(),
    };
    let is_replay = seeds.len() == 1;
    let mut sum = Counts::default();
    for seed in seeds {
        let run = std::panic::catch_unwind(|| history(seed));
        let Ok(counts) = run else { panic!("replay with EVENKEEL_SEED={seed}") };
        sum.created += counts.created;
        sum.grown += counts.grown;
        sum.scattered += counts.scattered;
        sum.zeroed += counts.zeroed;
        sum.wiped += counts.wiped;
        sum.shrinks_refused += counts.shrinks_refused;
    }
    let least = [sum.created, sum.grown, sum.scattered, sum.zeroed, sum.wiped, sum.shrinks_refused].into_iter().min();
    assert!(is_replay || least > Some(120), "too little happened: {sum:?}");
}

fn history(seed: u64) -> Counts {
    let directory = tempfile::tempdir().unwrap();
    let mut random = Rng::with_seed(seed);
    let path = seed.is_multiple_of(8).then(|| directory.path().join("layout.toml"));
    let mut world = World::new(&mut random, path);
    for _ in 0..150 {
        match random.u32(..16) {
            0..2 => world.create(&mut random),
            2..4 => world.grow(&mut random),
            4..7 => world.zero(&mut random),
            7..10 => world.write(&mut random),
            10 => world.delete(&mut random),
            11..15 => world.wipe(),
            _ => world.restart(),
        }
        world.check();
    }
    world.counts
}
