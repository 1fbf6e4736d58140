//! Moving commands allocates nothing.

#![allow(clippy::disallowed_methods, reason = "the drive's thread is the test's")]

use std::thread;

use backend_nvme::{NvmeDrive, Options};
use fake_device::Fake;
use guest_memory::Mapping;
use io_model::{Backend, HwqId, Io, IoBuf, Nanos, Op, Place, TenantId};

/// Allocations of this thread meanwhile.
fn counted(run: impl FnOnce()) -> u64 {
    allocation_counter::measure(run).count_total
}

#[test]
fn commands_on_guest_memory_allocate_nothing() {
    let fake = Fake::new(8192).with_dma_space().with_mapped_doorbells();
    let (drive, running) = NvmeDrive::start(fake.device(), Options::default()).unwrap();
    let running = thread::spawn(move || running.run(|_| {}));
    let mut queues = drive.open_queues(1, 32).unwrap();
    let (memory, _) = Mapping::memfd("guest", 4 << 20).unwrap();
    let place = Place::whole_drive(TenantId(1));
    queues.map_memory(place.tenant, &memory).unwrap();
    let (mut allocations, mut ended, mut now) = (0, 0, 0);
    // Longer than one command too (MDTS is 1 MiB): it is split.
    for len_bytes in [512, 4096, 8192, 65_536, 1 << 20, 2 << 20] {
        let bufs: Vec<IoBuf> = (0..32)
            .map(|_| {
                let mut buf = IoBuf::default();
                assert!(buf.push(&memory, 512, len_bytes));
                buf
            })
            .collect();
        let mut left = 32;
        allocations += counted(|| {
            for (tag, buf) in (0..).zip(bufs) {
                queues.submit(HwqId(0), Io { tag, command: place.command(Op::Read, 0, len_bytes), buf }, Nanos(now));
            }
        });
        while left > 0 {
            now += 1;
            allocations += counted(|| queues.kick());
            // The fake allocates.
            fake.scan_doorbells();
            allocations += counted(|| {
                queues.reap(Nanos(now), &mut |_, done| {
                    assert_eq!(done.outcome, Ok(()));
                    left -= 1;
                    ended += 1;
                });
            });
        }
    }
    assert_eq!((ended, allocations), (192, 0));
    assert!(counted(|| drop(std::hint::black_box(Box::new(1)))) > 0, "the counter works");
    assert_eq!(drive.copied_bytes(), 0);
    drop((queues, drive));
    running.join().unwrap();
}
