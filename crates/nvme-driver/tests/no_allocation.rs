//! Moving commands allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use nvme_driver::fake::Fake;
use nvme_driver::{Blocks, Controller, Data};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..32 {
            queue.read(blocks, data).unwrap();
        }
        queue.ring().unwrap();
        let submitted = ALLOCATIONS.load(Ordering::Relaxed);
        // The fake allocates.
        fake.patrol();
        let served = ALLOCATIONS.load(Ordering::Relaxed);
        completed += queue.poll(&mut |done| assert!(done.status.is_success())).unwrap();
        allocations += submitted - before + ALLOCATIONS.load(Ordering::Relaxed) - served;
    }
    assert_eq!((completed, allocations), (160, 0));
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > 0, "the counter works");
}
