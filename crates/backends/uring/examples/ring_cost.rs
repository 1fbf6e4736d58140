//! What io_uring's ways of submitting and completing, registered buffers, and doing without a ring cost on a given
//! drive; the figures of `docs/decisions/0003-io-uring-buffers.md` and `0026-io-uring-what-helps.md`.
//!
//! `cargo run --release -p backend-uring --example ring_cost -- PATH [SECONDS]`: random reads with `O_DIRECT` from
//! a file or block device that is there. It drives rings directly, because the variants that lost are not
//! in the crate. On a drive that completes inside of the submission (zram, a memory-backed device) the
//! processor time is what a command costs; on others it holds the polling too. The time of all threads holds the
//! kernel's that submit or read for this process; those of a loop device are nobody's.

#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use guest_memory::{IoBuf, Mapping};
use io_uring::{EnterFlags, IoUring, opcode, types};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Completion {
    /// The kernel interrupts the thread for each completion.
    Interrupt,
    /// `COOP_TASKRUN` with `TASKRUN_FLAG`: at the thread's next system call, which the flag asks for.
    Cooperative,
    /// `DEFER_TASKRUN` with `TASKRUN_FLAG`: at the next enter that asks for events.
    Deferred,
    /// `SQPOLL`: a thread of the kernel's takes the entries.
    KernelSubmits,
    /// `IOPOLL`: the drive is asked instead of interrupting.
    Polled,
    /// No ring: `preadv`, which waits.
    Waiting,
}

const COMPLETIONS: [Completion; 6] = [
    Completion::Interrupt,
    Completion::Cooperative,
    Completion::Deferred,
    Completion::KernelSubmits,
    Completion::Polled,
    Completion::Waiting,
];

struct Variant {
    completion: Completion,
    fixed: bool,
    depth: u32,
    len_bytes: u32,
}

#[derive(Default)]
struct Cost {
    iops: f64,
    processor_us: f64,
    all_threads_us: f64,
    submits: f64,
    reaps: f64,
}

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let Some(path) = args.next() else {
        return Err(io::Error::other("usage: ring_cost PATH [SECONDS]"));
    };
    let seconds: u64 = args.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path)?;
    let size_bytes = file.seek(SeekFrom::End(0))?;
    let locked = getrlimit(Resource::Memlock);
    println!("{path}, {} MiB, memlock limit {:?}", size_bytes >> 20, locked.current);
    println!(
        "{:13} {:6} {:>5} {:>7} {:>9} {:>13} {:>13} {:>10} {:>9}",
        "completion", "fixed", "depth", "bytes", "IOPS", "CPU µs/IO", "all threads", "submits/IO", "reaps/IO"
    );
    for (depth, len_bytes) in [(1, 4 << 10), (32, 4 << 10), (128, 4 << 10), (32, 128 << 10)] {
        for completion in COMPLETIONS {
            for fixed in [false, true] {
                let variant = Variant { completion, fixed, depth, len_bytes };
                let name = format!("{completion:?}");
                match measure(&variant, &file, size_bytes, Duration::from_secs(seconds)) {
                    Ok(Cost { iops, processor_us, all_threads_us, submits, reaps }) => println!(
                        "{name:13} {fixed:<6} {depth:5} {len_bytes:7} {iops:9.0} {processor_us:13.2} \
                         {all_threads_us:13.2} {submits:10.3} {reaps:9.3}"
                    ),
                    Err(error) => println!("{name:13} {fixed:<6} {depth:5} {len_bytes:7} {error}"),
                }
            }
        }
    }
    Ok(())
}

fn ring(variant: &Variant) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_submit_all().setup_single_issuer();
    match variant.completion {
        Completion::Interrupt | Completion::Waiting => {}
        Completion::Cooperative => {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        Completion::Deferred => {
            builder.setup_defer_taskrun().setup_taskrun_flag();
        }
        Completion::KernelSubmits => {
            builder.setup_sqpoll(1000);
        }
        Completion::Polled => {
            builder.setup_iopoll();
        }
    }
    builder.build(variant.depth)
}

fn measure(variant: &Variant, file: &File, size_bytes: u64, time: Duration) -> io::Result<Cost> {
    let &Variant { completion, fixed, depth, len_bytes } = variant;
    if completion == Completion::Waiting {
        return measure_waiting(variant, file, size_bytes, time);
    }
    let mut ring = ring(variant)?;
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    let memory = Mapping::anonymous(depth as usize * len_bytes as usize).map_err(io::Error::other)?;
    let all = IoBuf::owned(&memory);
    let base = all.segments()[0].as_ptr();
    if fixed {
        let whole = libc::iovec { iov_base: base.cast(), iov_len: all.segments()[0].len_bytes() };
        // SAFETY: `memory` outlives the ring: it is declared after it but kept until all reads ended, and
        // the kernel holds its own reference to registered pages.
        unsafe { ring.submitter().register_buffers(&[whole])? };
    }
    let mut random: u64 = 1;
    let mut push = |ring: &mut IoUring, slot: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let offset_bytes = (random >> 30) % (size_bytes / u64::from(len_bytes)) * u64::from(len_bytes);
        let data = base.wrapping_add(slot as usize * len_bytes as usize);
        let entry = if fixed {
            opcode::ReadFixed::new(types::Fixed(0), data, len_bytes, 0).offset(offset_bytes).build()
        } else {
            opcode::Read::new(types::Fixed(0), data, len_bytes).offset(offset_bytes).build()
        };
        // SAFETY: the slot's part of `memory` is used by one read at a time and outlives it.
        unsafe { ring.submission().push(&entry.user_data(slot)) }.map_err(io::Error::other)
    };
    for slot in 0..u64::from(depth) {
        push(&mut ring, slot)?;
    }
    let (mut done, mut submits, mut reaps) = (0u64, 0u64, 0u64);
    let (started, before) = (Instant::now(), processor_us());
    let mut in_flight = depth;
    while in_flight > 0 {
        if !ring.submission().is_empty() {
            // With the flag raised, this asks for completions too.
            ring.submit()?;
            submits += 1;
        }
        if ring.submission().taskrun() || completion == Completion::Polled {
            // SAFETY: no signal mask is passed.
            unsafe { ring.submitter().enter::<libc::sigset_t>(0, 0, EnterFlags::GETEVENTS.bits(), None)? };
            reaps += 1;
        }
        let over = started.elapsed() > time;
        while let Some(entry) = { ring.completion().next() } {
            match u32::try_from(entry.result()) {
                Ok(read_bytes) if read_bytes == len_bytes => {}
                Ok(_) => return Err(io::Error::other("a read was short")),
                Err(_) => return Err(io::Error::from_raw_os_error(-entry.result())),
            }
            done += 1;
            if over {
                in_flight -= 1;
            } else {
                push(&mut ring, entry.user_data())?;
            }
        }
    }
    Ok(cost(done, (submits, reaps), started, before))
}

/// Measures these reads one at a time, waiting for each.
fn measure_waiting(variant: &Variant, file: &File, size_bytes: u64, time: Duration) -> io::Result<Cost> {
    let len_bytes = variant.len_bytes as usize;
    let memory = Mapping::anonymous(variant.depth as usize * len_bytes).map_err(io::Error::other)?;
    let all = IoBuf::owned(&memory);
    let mut random: u64 = 1;
    let (started, before) = (Instant::now(), processor_us());
    let mut done: u64 = 0;
    while started.elapsed() < time {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let offset_bytes = (random >> 30) % (size_bytes / len_bytes as u64) * len_bytes as u64;
        let base = all.segments()[0].as_ptr().wrapping_add(done as usize % variant.depth as usize * len_bytes);
        let one = libc::iovec { iov_base: base.cast(), iov_len: len_bytes };
        // SAFETY: the slot's part of `memory` outlives the call.
        let read_bytes = unsafe { libc::preadv(file.as_raw_fd(), &raw const one, 1, offset_bytes as i64) };
        if read_bytes < 0 {
            return Err(io::Error::last_os_error());
        }
        done += 1;
    }
    Ok(cost(done, (done, 0), started, before))
}

fn cost(done: u64, (submits, reaps): (u64, u64), started: Instant, before: (f64, f64)) -> Cost {
    let per = |count: f64| count / done as f64;
    let after = processor_us();
    Cost {
        iops: done as f64 / started.elapsed().as_secs_f64(),
        processor_us: per(after.0 - before.0),
        all_threads_us: per(after.1 - before.1),
        submits: per(submits as f64),
        reaps: per(reaps as f64),
    }
}

/// Time on a processor so far, of this thread and of all of the process: exact, and other processes' does not count.
fn processor_us() -> (f64, f64) {
    let so_far = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    };
    (so_far(ClockId::ThreadCPUTime), so_far(ClockId::ProcessCPUTime))
}
