//! Disks against a copy in memory, over many lives of the process that has them open.

use std::fs;
use std::os::unix::fs::FileExt;

use tempfile::TempDir;

use super::*;
use crate::{ImageFormat, Sink, Source};

const CLUSTER: usize = 1 << 16;
const CLUSTERS: usize = 40;
/// The last cluster is short.
const SIZE: usize = CLUSTERS * CLUSTER - 4096;

struct Rig {
    folder: TempDir,
    random: fastrand::Rng,
    /// What the disk has.
    content: Vec<u8>,
    base: Option<PathBuf>,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        Sink::create(&path, ImageFormat::Qcow2, SIZE as u64).unwrap().finish().unwrap();
        Self { folder, random: fastrand::Rng::with_seed(seed), content: vec![0; SIZE], base: None }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    /// Has the disk build on a raw file of `len` bytes.
    fn with_base(mut self, len: usize) -> Self {
        let base = self.folder.path().join("base");
        let data: Vec<u8> = (0..len).map(|at| (at / 512) as u8 | 1).collect();
        fs::write(&base, &data).unwrap();
        let visible = len.min(SIZE);
        self.content[..visible].copy_from_slice(&data[..visible]);
        let name = base.to_str().unwrap().as_bytes();
        let file = File::options().write(true).open(self.path()).unwrap();
        // Behind the extensions that `imago` wrote, well inside the first cluster.
        file.write_all_at(name, 4096).unwrap();
        file.write_all_at(&4096_u64.to_be_bytes(), 8).unwrap();
        file.write_all_at(&(name.len() as u32).to_be_bytes(), 16).unwrap();
        self.base = Some(base);
        self
    }

    fn open(&self) -> DiskImage {
        DiskImage::open(&self.path(), self.base.as_slice()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What the image holds, read by other code.
    fn check(&self, seed: u64) {
        let source = Source::open(&self.path(), None, self.base.as_slice()).unwrap();
        let mut data = vec![0xee; SIZE];
        source.read(0, &mut data).unwrap();
        let wrong = data.iter().zip(&self.content).position(|(is, should)| is != should);
        assert_eq!(wrong, None, "seed {seed}: the first byte that is not what was written");
    }

    /// Changes the disk as a command would. `false`: the process dies before the change is durable.
    fn change(&mut self, disk: &mut DiskImage, is_durable: bool) {
        let first = self.random.usize(..CLUSTERS);
        let count = self.random.usize(1..=4.min(CLUSTERS - first));
        let range = first * CLUSTER..((first + count) * CLUSTER).min(SIZE);
        if self.random.u8(..4) == 0 {
            disk.discard(first as u32, count as u32).unwrap();
            return self.content[range].fill(0);
        }
        disk.allocate(first as u32, count as u32).unwrap();
        if !is_durable {
            return;
        }
        disk.flush().unwrap();
        for cluster in first..first + count {
            let Some((Cluster::Own(at), _)) = disk.find(cluster as u32).unwrap() else { panic!("not allocated") };
            // A part: the rest is what it was.
            let within = self.random.usize(..8) * 512;
            let byte = self.random.u8(1..);
            disk.opened[0].file.write_all_at(&[byte; 512], at + within as u64).unwrap();
            let at = cluster * CLUSTER + within;
            self.content[at..at + 512].fill(byte);
        }
    }
}

/// A cluster that is given out twice, data of a discarded cluster that comes back, an image that no other program can
/// read.
#[test]
fn a_disk_is_what_was_written_to_it_in_many_lives() {
    for seed in 0..9 {
        let mut rig = Rig::new(seed);
        if seed % 3 > 0 {
            // Ends within a cluster, or behind the disk.
            rig = rig.with_base([0, 7 * CLUSTER + 512, SIZE + CLUSTER][seed as usize % 3]);
        }
        for _ in 0..4 {
            let mut disk = rig.open();
            for _ in 0..rig.random.usize(..12) {
                rig.change(&mut disk, true);
            }
            if rig.random.bool() {
                rig.change(&mut disk, false);
            }
            drop(disk);
            rig.check(seed);
        }
    }
}

/// Clusters that a killed daemon left would be lost for ever, and `qemu-img check` would complain.
#[test]
fn clusters_that_nothing_refers_to_are_given_back() {
    let rig = Rig::new(0);
    let count = |at: u64| {
        let file = File::open(rig.path()).unwrap();
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 48).unwrap();
        let table = u64::from_be_bytes(bytes);
        file.read_exact_at(&mut bytes, table).unwrap();
        let block = u64::from_be_bytes(bytes);
        let mut bytes = [0; 2];
        file.read_exact_at(&mut bytes, block + at / CLUSTER as u64 * 2).unwrap();
        (u16::from_be_bytes(bytes), block + at / CLUSTER as u64 * 2)
    };
    let disk = rig.open();
    disk.allocate(3, 1).unwrap();
    disk.flush().unwrap();
    let Some((Cluster::Own(at), 1)) = disk.find(3).unwrap() else { panic!("not allocated") };
    drop(disk);
    let (leaked, used) = (20 * CLUSTER as u64, count(at));
    assert_eq!((used.0, count(leaked).0), (1, 0));
    let file = File::options().write(true).open(rig.path()).unwrap();
    file.write_all_at(&1_u16.to_be_bytes(), count(leaked).1).unwrap();
    drop(rig.open());
    assert_eq!((count(at).0, count(leaked).0), (1, 0));
    // The other way round a cluster would be given out again.
    file.write_all_at(&0_u16.to_be_bytes(), used.1).unwrap();
    let told = DiskImage::open(&rig.path(), &[]).err().expect("refused").to_string();
    assert!(told.contains("is in use, and its reference count is too low; see what `qemu-img check` says"), "{told}");
}

/// Two writers would destroy it.
#[test]
fn nobody_else_has_a_disk_that_is_open() {
    let rig = Rig::new(0).with_base(CLUSTER);
    let disk = rig.open();
    let told = DiskImage::open(&rig.path(), rig.base.as_slice()).err().expect("refused").to_string();
    assert!(told.contains("another process has it open"), "{told}");
    let base = rig.base.clone().unwrap();
    // A base may be shared, but not be written to.
    Opened::open(&base, Use::Read).unwrap();
    assert!(Opened::open(&base, Use::Write).is_err());
    // What moves data keeps the locks.
    let files: Vec<File> = disk.files().unwrap().into_iter().map(|(file, _)| file).collect();
    drop(disk);
    assert!(DiskImage::open(&rig.path(), rig.base.as_slice()).is_err());
    drop(files);
    rig.open();
}

/// An image that passes the checks and then makes the daemon panic, hang, or change what is not the image's.
#[test]
fn damaged_images_are_refused_or_used_without_a_panic() {
    let mut rig = Rig::new(7);
    let mut disk = rig.open();
    (0..12).for_each(|_| rig.change(&mut disk, true));
    drop(disk);
    let sound = fs::read(rig.path()).unwrap();
    let mut random = fastrand::Rng::with_seed(11);
    let (mut used, mut refused) = (0, 0);
    for _ in 0..60 {
        let mut image = sound.clone();
        for _ in 0..random.usize(1..3) {
            // The header, or a table: they are where something else than data is.
            let cluster = random.usize(..8) * CLUSTER;
            let at = cluster + if cluster == 0 { random.usize(..112) } else { random.usize(..512) };
            image[at] = random.u8(..);
        }
        fs::write(rig.path(), &image).unwrap();
        let Ok(mut disk) = DiskImage::open(&rig.path(), &[]) else {
            refused += 1;
            continue;
        };
        used += 1;
        let clusters = disk.clusters().min(64);
        for _ in 0..4 {
            let first = random.u32(..clusters);
            let _ = disk.find(first);
            let _ = disk.allocate(first, 1);
            let _ = disk.flush();
            let _ = disk.discard(first, 1);
        }
    }
    assert!(used > 0 && refused > 0, "{used} used, {refused} refused");
}
