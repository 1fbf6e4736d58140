//! Memory that is too much, goes away, or belongs to another client by now.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nvme_spec::Sqe;
use nvme_spec::data::{SglDescriptor, sgl_type};
use nvme_spec::opcode::{admin, nvm};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use test_clients::nvme::{ENTRIES, Nvme, read, transfer, write};
use test_clients::socket::memory;
use test_clients::virtio::Virtio;

use super::{Field, Outcome};

/// Where an attack's own memory lies.
const MORE_IOVA: u64 = 1 << 40;
const MAPS: u32 = 1000;
const SMALLEST_MAP: u64 = 16 << 10;
/// No tenant of a test's configuration needs a sixteenth of what a process can address.
const MOST_GRANTED: u64 = 8 << 40;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Maps of a file of 2^62 bytes, each as large as is granted, until nothing is left that is worth a map.
pub fn address_space(field: &Field) -> io::Result<Outcome> {
    let nvme = Nvme::greet_patiently(&field.bad())?;
    let file = memory(1 << 62)?;
    let (mut iova, mut len, mut maps) = (MORE_IOVA, 1_u64 << 46, 0);
    while maps < MAPS && len >= SMALLEST_MAP && field.goes_on() {
        match nvme.map(iova, &file, len)? {
            Ok(()) => (iova, maps) = (iova + len, maps + 1),
            Err(_) => len /= 2,
        }
    }
    let granted = iova - MORE_IOVA;
    let findings =
        (granted > MOST_GRANTED).then(|| format!("a tenant was granted {} GiB of address space", granted >> 30));
    field.hold();
    Ok(Outcome::Done(findings.into_iter().collect()))
}

/// Memory of 1 GiB that only the daemon ever touches.
pub fn sparse_memory_filled(field: &Field) -> io::Result<Outcome> {
    const LEN: u64 = 1 << 30;
    let mut nvme = Nvme::start(&field.bad(), true)?;
    let file = memory(LEN)?;
    if nvme.map(MORE_IOVA, &file, LEN)?.is_err() {
        return Ok(Outcome::Done(Vec::new()));
    }
    let mut at = 0;
    while field.goes_on() && at < LEN {
        let batch = (LEN - at).min(16 * 256 * KIB) / (256 * KIB);
        for cid in 0..batch {
            nvme.submit(1, read(cid as u16, 0, MORE_IOVA + at + cid * 256 * KIB, 256 * KIB))?;
        }
        nvme.ring(1)?;
        await_all(field, &mut nvme, batch as usize)?;
        at += batch * 256 * KIB;
    }
    Ok(Outcome::Done(Vec::new()))
}

fn await_all(field: &Field, nvme: &mut Nvme, count: usize) -> io::Result<()> {
    let mut done = 0;
    while done < count && field.goes_on() {
        done += nvme.poll(1)?.len();
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

/// As much as the 2 GiB, where that is no more than a quarter of what is free.
fn punched_bytes() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free =
        info.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse().ok());
    let quarter = free.unwrap_or(1 << 20) * KIB / 4;
    quarter.min(2 << 30) & !(MIB - 1)
}

/// Fills `file` and punches all of it out, until told to stop.
fn punch(file: &File, len: u64, stop: &AtomicBool) -> io::Result<()> {
    while !stop.load(Relaxed) {
        fallocate(file, FallocateFlags::empty(), 0, len)?;
        fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, len)?;
    }
    Ok(())
}

fn beside_a_puncher(
    field: &Field,
    file: &File,
    len: u64,
    ring: impl FnOnce() -> io::Result<()>,
) -> io::Result<Outcome> {
    std::thread::scope(|scope| {
        let puncher = scope.spawn(|| punch(file, len, &field.stop));
        let rung = ring();
        field.endured(rung)?;
        let punched = puncher.join().map_err(|_| io::Error::other("the puncher panicked"))?;
        punched.map(|()| Outcome::Done(Vec::new()))
    })
}

/// Commands whose scatter lists and data lie in memory that is being punched. The thread that serves them waits for
/// the punch: tenants of one poller share that, and the remedy is `threads`.
pub fn punched_under_doorbells(field: &Field) -> io::Result<Outcome> {
    let len = punched_bytes();
    let mut nvme = Nvme::start(&field.apart(), true)?;
    let file = memory(len)?;
    if nvme.map(MORE_IOVA, &file, len)?.is_err() {
        return Ok(Outcome::Done(Vec::new()));
    }
    beside_a_puncher(field, &file, len, || {
        let mut at = 0;
        while field.goes_on() {
            at = (at + 7 * MIB) % len;
            let list = SglDescriptor::new(sgl_type::LAST_SEGMENT, MORE_IOVA + at, 16);
            nvme.submit(1, transfer(nvm::READ, 0, 0, 4096, list))?;
            nvme.submit(1, read(1, 0, MORE_IOVA + at, 4096))?;
            nvme.ring(1)?;
            await_all(field, &mut nvme, 2)?;
        }
        Ok(())
    })
}

/// Shadow doorbells there, which the daemon looks at by itself, on behalf of a poller that sleeps.
pub fn punched_under_shadow_doorbells(field: &Field) -> io::Result<Outcome> {
    let len = punched_bytes();
    let mut nvme = Nvme::start(&field.lone(), false)?;
    let file = memory(len)?;
    if nvme.map(MORE_IOVA, &file, len)?.is_err() {
        return Ok(Outcome::Done(Vec::new()));
    }
    let pages = [MORE_IOVA, MORE_IOVA + 4096];
    let status = nvme.run(0, Sqe { opc: admin::DOORBELL_BUFFER_CONFIG, dptr: pages, ..Sqe::default() })?;
    if !status.is_success() {
        return Ok(Outcome::Skipped(format!("no shadow doorbells: {status}")));
    }
    beside_a_puncher(field, &file, len, || {
        let mut tail = 0;
        while field.goes_on() {
            tail = (tail + 1) % u32::from(ENTRIES);
            // Queue 1's submission doorbell.
            file.write_all_at(&tail.to_le_bytes(), 8)?;
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    })
}

/// Bytes of data, in this many writes, and a page of a scatter list behind them.
const DATA_BYTES: u64 = 2 * MIB;
const WRITES: u64 = 16;
const WRITE_BYTES: u64 = DATA_BYTES / WRITES;

/// Nowhere zero.
fn pattern(round: u8) -> Vec<u8> {
    (0..DATA_BYTES).map(|at| 1 + (at as u8 ^ round ^ (at >> 12) as u8) % 255).collect()
}

/// The list, then half of the data too, go away while writes of the rest run.
pub fn truncated_under_writes(field: &Field) -> io::Result<Outcome> {
    let mut findings = Vec::new();
    let mut round = 0_u8;
    while field.goes_on() && findings.is_empty() {
        round = round.wrapping_add(1);
        let file = memory(DATA_BYTES + 4096)?;
        let kept = if round.is_multiple_of(2) { DATA_BYTES / 2 } else { DATA_BYTES };
        findings = lose_and_write(field, &file, round, || Ok(ftruncate(&file, kept)?))?;
    }
    Ok(Outcome::Done(findings))
}

/// The list is a hole in a file system that is full.
pub fn full_tmpfs(field: &Field) -> io::Result<Outcome> {
    let place = field.scratch.join("tmpfs");
    fs::create_dir_all(&place)?;
    if let Err(errno) = mount("hostile", &place, "tmpfs", MountFlags::empty(), Some(c"size=4m")) {
        return Ok(Outcome::Skipped(format!("no tmpfs can be mounted here: {errno}")));
    }
    let opened = |name| File::options().read(true).write(true).create(true).truncate(true).open(place.join(name));
    let files = opened("memory").and_then(|memory| Ok((memory, opened("filler")?)));
    // A lazy one: nothing is left in the mount table, whatever happens to us.
    let unmounted = unmount(&place, UnmountFlags::DETACH);
    let (file, filler) = files?;
    unmounted?;
    file.set_len(DATA_BYTES + 4096)?;
    let findings = lose_and_write(field, &file, 1, || {
        let mut at = 0;
        while filler.write_all_at(&[1; 4096], at).is_ok() {
            at += 4096;
        }
        Ok(())
    })?;
    Ok(Outcome::Done(findings))
}

/// Writes of `file`'s data after a command that stumbles over what was lost of it. What was acknowledged must be there.
fn lose_and_write(
    field: &Field,
    file: &File,
    round: u8,
    lose: impl FnOnce() -> io::Result<()>,
) -> io::Result<Vec<String>> {
    let mut nvme = Nvme::start(&field.bad(), true)?;
    let data = pattern(round);
    file.write_all_at(&data, 0)?;
    if nvme.map(MORE_IOVA, file, DATA_BYTES + 4096)?.is_err() {
        return Ok(Vec::new());
    }
    lose()?;
    let list = SglDescriptor::new(sgl_type::LAST_SEGMENT, MORE_IOVA + DATA_BYTES, 16);
    nvme.submit(1, transfer(nvm::READ, WRITES as u16, 0, 4096, list))?;
    for n in 0..WRITES {
        let at = n * WRITE_BYTES;
        nvme.submit(1, write(n as u16, at / 512, MORE_IOVA + at, WRITE_BYTES))?;
    }
    nvme.ring(1)?;
    let (start, mut written, mut count) = (Instant::now(), Vec::new(), 0);
    while count <= WRITES && start.elapsed() < Duration::from_millis(300) {
        let done = nvme.poll(1)?;
        count += done.len() as u64;
        written.extend(
            done.iter().filter(|(cid, status)| status.is_success() && u64::from(*cid) < WRITES).map(|done| done.0),
        );
    }
    if nvme.is_closed() {
        field.was_closed();
    }
    drop(nvme);
    read_back(field, &written, &data)
}

/// What writes that succeeded left on the drive and should not have.
fn read_back(field: &Field, written: &[u16], data: &[u8]) -> io::Result<Vec<String>> {
    let mut nvme = Nvme::start(&field.bad(), true)?;
    let file = memory(WRITE_BYTES)?;
    nvme.map(MORE_IOVA, &file, WRITE_BYTES)??;
    let mut findings = Vec::new();
    for &cid in written {
        let at = u64::from(cid) * WRITE_BYTES;
        let status = nvme.run(1, read(0, at / 512, MORE_IOVA, WRITE_BYTES))?;
        let mut found = vec![0; WRITE_BYTES as usize];
        file.read_exact_at(&mut found, 0)?;
        let expected = &data[at as usize..][..found.len()];
        if !status.is_success() {
            findings.push(format!("a write that succeeded can't be read: {status}"));
        } else if found != expected {
            let zeros = found.iter().filter(|&&byte| byte == 0).count();
            findings.push(format!("a write of {WRITE_BYTES} bytes succeeded and left {zeros} zeros on the drive"));
        }
    }
    findings.truncate(1);
    Ok(findings)
}

/// Reads go where a table said that another one replaced while they ran.
pub fn tables_replaced(field: &Field) -> io::Result<Outcome> {
    const DATA: u64 = 1 << 33;
    const READS: u64 = 40;
    const READ_BYTES: u64 = 256 * KIB;
    let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let (mut old, mut new) = (memory(READS * READ_BYTES)?, memory(READS * READ_BYTES)?);
    let mut virtio = Virtio::start(&field.evil(), &[(DATA, old.as_fd(), READS * READ_BYTES)], call.as_fd())?;
    let mut findings = Vec::new();
    while field.goes_on() && findings.is_empty() {
        for slot in 0..READS {
            virtio.read(slot as u16, slot * READ_BYTES / 512, DATA + slot * READ_BYTES, READ_BYTES as u32)?;
        }
        virtio.kick()?;
        virtio.set_memory(&[(DATA, new.as_fd(), READS * READ_BYTES)])?;
        // Acknowledged: from now on the old memory is ours alone. The drive holds zeros there.
        let last_pages = (1..=READS).map(|slot| slot * READ_BYTES - 4096);
        last_pages.clone().try_for_each(|at| old.write_all_at(&[0xa5; 4096], at))?;
        let (start, mut done) = (Instant::now(), 0);
        while done < READS && start.elapsed() < Duration::from_secs(2) && field.goes_on() {
            done += u64::from(virtio.poll()?);
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut page = [0; 4096];
        for at in last_pages {
            old.read_exact_at(&mut page, at)?;
            if page != [0xa5; 4096] {
                findings.push("a read landed in memory after it was acknowledged that it is replaced".into());
            }
        }
        (old, new) = (new, old);
    }
    findings.truncate(1);
    Ok(Outcome::Done(findings))
}
