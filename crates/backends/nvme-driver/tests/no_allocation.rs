//! Moving commands allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fake_device::Fake;
use nvme_driver::{Blocks, Controller, Data};

thread_local! {
    // Per thread: the test harness's own thread allocates while the test runs.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn allocations_so_far() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn submitting_and_polling_allocate_nothing() {
    let fake = Fake::new(2048).with_mapped_doorbells();
    let mut controller = Controller::start(fake.device()).unwrap();
    let mut queue = controller.create_queue_pair(33, None).unwrap();
    let memory = controller.allocate_dma(1 << 20).unwrap();
    let (mut allocations, mut completed) = (0, 0);
    for len_bytes in [512, 4096, 8192, 65_536, 1 << 20] {
        let blocks = Blocks { nsid: 1, lba: 0, count: (len_bytes / 512) as u32 };
        let data = Data { iova: memory.iova(), len_bytes };
        let before = allocations_so_far();
        for _ in 0..32 {
            queue.read(blocks, data).unwrap();
        }
        queue.ring().unwrap();
        let submitted = allocations_so_far();
        // The fake allocates.
        fake.scan_doorbells();
        let served = allocations_so_far();
        completed += queue.poll(&mut |done| assert!(done.status.is_success())).unwrap();
        allocations += submitted - before + allocations_so_far() - served;
    }
    assert_eq!((completed, allocations), (160, 0));
    assert!(allocations_so_far() > 0, "the counter works");
}
