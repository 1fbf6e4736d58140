//! Moving commands allocates nothing.

use fake_device::Fake;
use nvme_driver::{Blocks, Controller, Data};

/// Allocations of this thread meanwhile.
fn counted(run: impl FnOnce()) -> u64 {
    allocation_counter::measure(run).count_total
}

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
        allocations += counted(|| {
            for _ in 0..32 {
                queue.read(blocks, data).unwrap();
            }
            queue.ring().unwrap();
        });
        // The fake allocates.
        fake.scan_doorbells();
        allocations += counted(|| {
            completed += queue.poll(&mut |done| assert!(done.status.is_success())).unwrap();
        });
    }
    assert_eq!((completed, allocations), (160, 0));
    assert!(counted(|| drop(std::hint::black_box(Box::new(1)))) > 0, "the counter works");
}
