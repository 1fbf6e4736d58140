//! An image file of any bytes, or a small qcow2 image that is sound but for some bytes.
//!
//! What must hold: nothing panics; the sizes of reads change nothing; what is known as zeros reads as zeros; and the
//! clusters of an accepted qcow2 image are those that a second reader of the specification finds.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use ::images::Source;
use arbitrary::{Arbitrary, Result, Unstructured};
use rustix::fs::{MemfdFlags, memfd_create};

/// Of the sound image.
const CLUSTER: usize = 512;
const ENTRIES: usize = CLUSTER / 8;
const SIZE_BYTES: u64 = (CLUSTER * ENTRIES * 3 / 2) as u64;
const L1: usize = 3 * CLUSTER;

/// The most bytes of a disk that are read.
const MOST_BYTES: u64 = 1 << 20;

#[derive(Debug, Arbitrary)]
struct Change {
    at: u16,
    value: u64,
    /// 1, 4 or 8 bytes of it.
    width: u8,
}

/// Runs one input.
pub fn run(input: &[u8]) {
    match input.split_first() {
        Some((0, bytes)) => try_image(bytes),
        Some((_, changes)) => {
            let mut image = sound();
            // It is over when the bytes are.
            let _ = change(&mut image, &mut Unstructured::new(changes));
            try_image(&image);
        }
        None => {}
    }
}

/// A header, counts, an L1 table, two L2 tables, and clusters with data.
fn sound() -> Vec<u8> {
    let mut image = vec![0; 10 * CLUSTER];
    let cluster = |n: usize| ((n * CLUSTER) as u64 | 1 << 63).to_be_bytes();
    let put: [(usize, &[u8]); 16] = [
        (0, b"QFI\xfb"),
        (4, &3_u32.to_be_bytes()),
        (20, &9_u32.to_be_bytes()),
        (24, &SIZE_BYTES.to_be_bytes()),
        (36, &2_u32.to_be_bytes()),
        (40, &(L1 as u64).to_be_bytes()),
        (48, &(CLUSTER as u64).to_be_bytes()),
        (56, &1_u32.to_be_bytes()),
        (96, &4_u32.to_be_bytes()),
        (100, &104_u32.to_be_bytes()),
        (L1, &cluster(4)),
        (L1 + 8, &cluster(5)),
        (4 * CLUSTER, &cluster(6)),
        (4 * CLUSTER + 24, &cluster(7)),
        (5 * CLUSTER, &cluster(8)),
        (5 * CLUSTER + 8, &(1_u64 << 62 | (9 * CLUSTER + 1) as u64).to_be_bytes()),
    ];
    put.into_iter().for_each(|(at, bytes)| image[at..at + bytes.len()].copy_from_slice(bytes));
    for (at, byte) in image.iter_mut().enumerate().skip(6 * CLUSTER) {
        *byte = at as u8 | 1;
    }
    image
}

fn change(image: &mut Vec<u8>, input: &mut Unstructured<'_>) -> Result<()> {
    while !input.is_empty() {
        let Change { at, value, width } = input.arbitrary()?;
        let bytes = &value.to_be_bytes()[8 - [1, 4, 8][usize::from(width % 3)]..];
        let at = usize::from(at) % (image.len() + CLUSTER);
        if at >= image.len() {
            image.truncate(at - CLUSTER);
            return Ok(());
        }
        let end = image.len().min(at + bytes.len());
        image[at..end].copy_from_slice(&bytes[..end - at]);
    }
    Ok(())
}

fn try_image(bytes: &[u8]) {
    let file = File::from(memfd_create(c"image", MemfdFlags::CLOEXEC).expect("a file in memory"));
    file.write_all_at(bytes, 0).expect("a file in memory takes it");
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let source = match Source::open(&path, None, &[]) {
        Ok(source) => source,
        Err(refused) => {
            assert!(!refused.title.is_empty() && !refused.remedy.is_empty());
            return;
        }
    };
    source.refuse_change().expect("nothing changes it");
    let len = source.size_bytes().min(MOST_BYTES) as usize;
    let (mut whole, mut at) = (vec![0xee; len], 0);
    let is_read = source.read(0, &mut whole).is_ok();
    while at < len {
        let zeros = source.zeros_from(at as u64).map_or(0, |zeros| zeros.min((len - at) as u64) as usize);
        assert!(!is_read || whole[at..at + zeros].iter().all(|byte| *byte == 0), "no zeros at {at}");
        let mut piece = vec![0xee; zeros.max(4096).min(len - at)];
        let read = source.read(at as u64, &mut piece);
        assert!(!is_read || read.is_ok() && piece == whole[at..at + piece.len()], "read otherwise at {at}");
        at += piece.len();
    }
    if is_read && bytes.starts_with(b"QFI\xfb") {
        compare(bytes, &whole);
    }
}

/// Reads clusters a second time, by the specification. Compressed ones are left out.
fn compare(image: &[u8], disk: &[u8]) {
    let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| image.get(at + i).copied().unwrap_or(0)));
    let cluster = 1_usize << (number(20) >> 32);
    let l1 = number(40) as usize;
    for (n, data) in disk.chunks(cluster).enumerate() {
        let l2 = (number(l1 + n / (cluster / 8) * 8) & 0x00ff_ffff_ffff_fe00) as usize;
        let entry = if l2 == 0 { 0 } else { number(l2 + n % (cluster / 8) * 8) };
        let at = (entry & 0x00ff_ffff_ffff_fe00) as usize;
        if entry & 1 << 62 != 0 {
            continue;
        }
        let expected = if entry & 1 != 0 || at == 0 { &vec![0; data.len()] } else { &image[at..at + data.len()] };
        assert!(data == expected, "cluster {n}");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn random_inputs_hold() {
        crate::seeds::run_seeds(2000, 64, super::run);
    }

    /// The harness compares something.
    #[test]
    fn the_sound_image_is_read() {
        let image = super::sound();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image");
        std::fs::write(&path, &image).expect("a file");
        let source = ::images::Source::open(&path, None, &[]).expect("it is sound");
        let mut data = vec![0; 4 * super::CLUSTER];
        source.read(0, &mut data).expect("it is readable");
        super::compare(&image, &data);
        assert_eq!(data[3 * super::CLUSTER..], image[7 * super::CLUSTER..8 * super::CLUSTER]);
    }
}
