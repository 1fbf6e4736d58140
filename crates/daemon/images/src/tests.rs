//! Images that are sound, and images that are made to harm.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, mkfifoat};
use tempfile::TempDir;

use crate::{ImageFormat, Sink, Source};

const CLUSTER: usize = 1 << 16;
const SIZE_BYTES: u64 = 4 << 20;

/// Offsets of the drafted image's parts.
const L1: usize = 3 * CLUSTER;
const L2: usize = 4 * CLUSTER;
const DATA: usize = 5 * CLUSTER;

/// A qcow2 image of version 3 by the specification: counts, L1, L2, one cluster of data at the disk's byte 65536.
fn draft() -> Vec<u8> {
    let mut image = vec![0; 6 * CLUSTER];
    let put: [(usize, &[u8]); 12] = [
        (0, b"QFI\xfb"),
        (4, &3_u32.to_be_bytes()),
        (20, &16_u32.to_be_bytes()),
        (24, &SIZE_BYTES.to_be_bytes()),
        (36, &1_u32.to_be_bytes()),
        (40, &(L1 as u64).to_be_bytes()),
        (48, &(CLUSTER as u64).to_be_bytes()),
        (56, &1_u32.to_be_bytes()),
        (96, &4_u32.to_be_bytes()),
        (100, &104_u32.to_be_bytes()),
        (L1, &(L2 as u64 | 1 << 63).to_be_bytes()),
        (L2 + 8, &(DATA as u64 | 1 << 63).to_be_bytes()),
    ];
    put.into_iter().for_each(|(at, bytes)| image[at..at + bytes.len()].copy_from_slice(bytes));
    image[DATA..].fill(0x5a);
    image
}

fn with(changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut image = draft();
    changes.iter().for_each(|(at, bytes)| image[*at..at + bytes.len()].copy_from_slice(bytes));
    image
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }
}

/// Opens an image, and reads all of it.
fn read(path: &Path, named: &[PathBuf]) -> Result<Vec<u8>, String> {
    let told = |error: crate::ImageError| {
        assert!(error.title.contains(path.to_str().unwrap()) || !named.is_empty(), "names no file: {error}");
        error.to_string()
    };
    let source = Source::open(path, None, named).map_err(told)?;
    let mut data = vec![0xee; source.size_bytes() as usize];
    source.read(0, &mut data).map_err(told)?;
    Ok(data)
}

/// Data at another place, and zeros that are read although they are known.
#[test]
fn a_sound_image_is_read() {
    let folder = Folder::new();
    let path = folder.write("image", &draft());
    let data = read(&path, &[]).unwrap();
    assert_eq!(data.len() as u64, SIZE_BYTES);
    let cluster = |at: usize| data[at * CLUSTER..(at + 1) * CLUSTER].iter().all(|byte| *byte == 0x5a);
    assert_eq!((0..64).filter(|at| cluster(*at)).collect::<Vec<_>>(), [1]);
    let source = Source::open(&path, None, &[]).unwrap();
    let zeros = [0, 1, 2].map(|at| source.zeros_from(at * CLUSTER as u64).unwrap());
    assert_eq!(zeros, [CLUSTER as u64, 0, 62 * CLUSTER as u64]);
    // What lies behind the end of the disk may be missing.
    let short = with(&[(24, &(CLUSTER as u64 + 512).to_be_bytes())]);
    assert_eq!(read(&folder.write("short", &short[..DATA + 512]), &[]).unwrap()[CLUSTER..], [0x5a; 512]);
}

/// Each would be read as something else than it holds, or panic, hang or take all memory.
#[test]
fn damaged_and_hostile_images_are_refused() {
    let names = [&0x6803_f857_u32.to_be_bytes()[..], &49_u32.to_be_bytes()].concat();
    let data_file = [&0x4441_5441_u32.to_be_bytes()[..], &11_u32.to_be_bytes(), b"/etc/shadow"].concat();
    let l2_twice = [(L2 as u64).to_be_bytes(), (L2 as u64).to_be_bytes()].concat();
    let compressed = |at: u64| (1_u64 << 62 | at).to_be_bytes();
    let features = |bits: u64| bits.to_be_bytes();
    let bad: [(&str, Vec<u8>); 24] = [
        ("no qcow2 image of version 2 or 3", with(&[(4, &4_u32.to_be_bytes())])),
        ("clusters of 2^40 bytes", with(&[(20, &40_u32.to_be_bytes())])),
        ("clusters of 2^8 bytes", with(&[(20, &8_u32.to_be_bytes())])),
        ("it is encrypted", with(&[(32, &2_u32.to_be_bytes())])),
        ("dirty bit is set; see what `qemu-img check` says", with(&[(72, &features(1))])),
        ("marked as corrupt", with(&[(72, &features(2))])),
        ("another file, /etc/shadow;", with(&[(72, &features(4)), (104, &data_file)])),
        ("compression is not deflate; rewrite it by `qemu-img convert", with(&[(72, &features(8))])),
        ("subclusters", with(&[(72, &features(16))])),
        ("features that are not known: 0x8000", with(&[(72, &features(0x8000))])),
        ("list of features of a wrong size", with(&[(104, &names)])),
        ("does not end within the first cluster", with(&[(100, &u32::MAX.to_be_bytes())])),
        ("does not end within the first cluster", with(&[(104, &[1; 8])])),
        ("its L1 table has 34359738360 bytes, and at most", with(&[(36, &u32::MAX.to_be_bytes())])),
        ("and its L1 table would be", with(&[(36, &(1_u32 << 20).to_be_bytes())])),
        ("its L1 table at byte 196609 does not begin", with(&[(40, &(L1 as u64 + 1).to_be_bytes())])),
        ("reference counts has 281474976645120 bytes", with(&[(56, &u32::MAX.to_be_bytes())])),
        ("reference counts would be", with(&[(48, &(1_u64 << 60).to_be_bytes())])),
        ("L1 table has 1 entries, and its size takes 2097152", with(&[(24, &(1_u64 << 50).to_be_bytes())])),
        ("names the L2 table at byte 262144 twice", {
            with(&[(24, &(1_u64 << 30).to_be_bytes()), (36, &2_u32.to_be_bytes()), (L1, &l2_twice)])
        }),
        ("an L2 table would be", with(&[(L1, &(1_u64 << 40).to_be_bytes())])),
        ("a cluster would be", with(&[(L2 + 8, &(1_u64 << 40).to_be_bytes())])),
        ("a compressed cluster would be", with(&[(L2 + 8, &compressed(1 << 40))])),
        ("Failed to decompress cluster", with(&[(L2 + 8, &compressed(DATA as u64))])),
    ];
    let folder = Folder::new();
    for (expected, image) in bad {
        let told = read(&folder.write("image", &image), &[]).expect_err(expected);
        assert!(told.contains(expected), "{expected}: {told}");
    }
    // Any shorter length is refused. Any byte is, or is read, and never a panic.
    for len in (0..draft().len()).step_by(4096) {
        assert!(read(&folder.write("image", &draft()[..len]), &[]).is_err(), "{len} bytes of an image");
    }
    for at in (0..200).chain(L1..L1 + 16).chain(L2..L2 + 32) {
        let _ = read(&folder.write("image", &with(&[(at, &[0x7f])])), &[]);
    }
}

/// A file of the host that an image names and the operator does not; a circle.
#[test]
fn only_named_files_are_opened() {
    let folder = Folder::new();
    let base = folder.write("base", &[7; 8 * CLUSTER]);
    let on = |path: &Path| {
        let name = path.to_str().unwrap();
        with(&[(8, &512_u64.to_be_bytes()), (16, &(name.len() as u32).to_be_bytes()), (512, name.as_bytes())])
    };
    let image = folder.write("image", &on(&base));
    assert!(read(&image, &[]).unwrap_err().contains("base, which was not named by --backing"));
    let data = read(&image, &[base]).unwrap();
    assert_eq!([0, 1, 2, 9].map(|at| data[at * CLUSTER]), [7, 0x5a, 7, 0]);
    folder.write("image", &on(&image));
    assert!(read(&image, std::slice::from_ref(&image)).unwrap_err().contains("image builds on itself"));
    // What it builds on is checked, too.
    let bad = folder.write("bad", &with(&[(L2, &(1_u64 << 40).to_be_bytes())]));
    assert!(read(&folder.write("image", &on(&bad)), &[bad]).unwrap_err().contains("bad: the file has"));

    let vmdk = |extent: &str| folder.write("image", format!("# Disk DescriptorFile\nversion=1\n{extent}\n").as_bytes());
    let extent = folder.write("flat", &[9; 1024]);
    let flat = format!("RW 2 FLAT \"{}\" 0", extent.display());
    assert!(read(&vmdk(&flat), &[]).unwrap_err().contains("flat, which was not named by --backing"));
    assert_eq!(read(&vmdk(&flat), std::slice::from_ref(&extent)), Ok(vec![9; 1024]));
    let told = read(&vmdk(&flat.replace("RW 2", "RW 3")), &[extent]).unwrap_err();
    assert!(told.contains("shorter than the 1536 bytes"), "{told}");
    let told = read(&vmdk("RW 18446744073709551615 ZERO"), &[]).unwrap_err();
    assert!(told.contains("overflow"), "{told}");
}

/// A pipe that never answers, a device that never ends, a file that is no disk.
#[test]
fn what_is_no_image_file_is_refused() {
    let folder = Folder::new();
    mkfifoat(CWD, folder.path("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
    for (path, expected) in [
        (folder.path("pipe"), "it is a pipe, and no regular file"),
        (PathBuf::from("/dev/zero"), "it is a character device"),
        (folder.path(""), "it is a folder"),
        (folder.path("none"), "No such file"),
        (folder.write("vmdk", b"KDMV"), "it is a sparse VMDK; rewrite it by `qemu-img convert"),
        (folder.write("xz", b"\xfd7zXZ\0"), "compressed by xz; decompress the file first"),
        (folder.write("empty", b""), "it is empty"),
        (folder.write("cut", b"QFI\xfb"), "the file has 4 bytes"),
    ] {
        let told = read(&path, &[]).unwrap_err();
        assert!(told.contains(expected), "{told}");
    }
    let raw = Source::open(&folder.path("xz"), Some(ImageFormat::Raw), &[]).unwrap();
    assert_eq!(raw.size_bytes(), 6);
}

/// Half of it from before a change, and half from after.
#[test]
fn a_change_while_it_is_read_is_seen() {
    let folder = Folder::new();
    let path = folder.write("image", &draft());
    let source = Source::open(&path, None, &[]).unwrap();
    source.refuse_change().unwrap();
    File::options().write(true).open(&path).unwrap().set_len(8 << 20).unwrap();
    assert!(source.refuse_change().unwrap_err().to_string().contains("it has changed while it was read; wait"));
}

/// An image that others read, that takes the place of another, or that stays although it is not whole.
#[test]
fn a_new_image_appears_whole_or_not_at_all() {
    let folder = Folder::new();
    let names = || fs::read_dir(folder.path("")).unwrap().count();
    for format in [ImageFormat::Raw, ImageFormat::Qcow2] {
        let to = folder.path(&format!("{format:?}"));
        let before = names();
        let sink = Sink::create(&to, format, SIZE_BYTES).unwrap();
        sink.write(CLUSTER as u64 + 4096, &[0x5a; 8192]).unwrap();
        assert!(!to.exists());
        drop(sink);
        assert_eq!(names(), before);
        let sink = Sink::create(&to, format, SIZE_BYTES).unwrap();
        sink.write(CLUSTER as u64 + 4096, &[0x5a; 8192]).unwrap();
        let late = Sink::create(&to, format, SIZE_BYTES).unwrap();
        sink.finish().unwrap();
        let metadata = fs::metadata(&to).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert!(metadata.blocks() * 512 <= 6 * CLUSTER as u64, "{} blocks", metadata.blocks());
        assert!(late.finish().unwrap_err().to_string().contains("exists already; choose another name"));
        assert!(Sink::create(&to, format, SIZE_BYTES).is_err());
        assert_eq!(names(), before + 1);
        let data = read(&to, &[]).unwrap();
        let first = data.iter().position(|byte| *byte == 0x5a);
        assert_eq!((first, data.iter().filter(|byte| **byte == 0x5a).count()), (Some(CLUSTER + 4096), 8192));
    }
    assert!(Sink::create(&folder.path("new"), ImageFormat::Vmdk, SIZE_BYTES).is_err());
}
