//! The way of a request allocates nothing once it was walked a first time.

use io_model::{Fetch, Source};
use vhost_blk::RingSetup;

use crate::guest::*;

/// Serves `rounds` of a batch; the driver's own work is not counted.
fn allocations(world: &mut World, requests: &[(Request, Framing)], rounds: u32) -> u64 {
    let mut in_flight = Vec::with_capacity(64);
    let mut counted = 0;
    for _ in 0..rounds {
        for (request, framing) in requests {
            world.submit(request, *framing);
        }
        let queues = &mut world.queues;
        counted += allocation_counter::measure(|| {
            while queues.backlog(VQ) > 0 {
                match queues.fetch(VQ) {
                    Fetch::Command(_, buf, token) => in_flight.push((token, buf)),
                    Fetch::Handled => {}
                    Fetch::Empty => break,
                }
            }
            in_flight.drain(..).for_each(|(token, buf)| queues.complete(token, Ok(()), buf));
            queues.notify();
        })
        .count_total;
        assert_eq!(world.driver.completions(&world.ram).len(), requests.len());
    }
    counted
}

#[test]
fn no_allocation_per_request() {
    assert_eq!(allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1)))).count_total, 1);
    let requests = [
        (Request::read(0, 4096), Framing::Direct),
        (Request::read(8, 8192), Framing::Indirect),
        (Request::write(8, &[1; 8192]), Framing::Odd),
        (Request::read(0, 4096), Framing::Odd),
        (Request::ranges(DISCARD, &[(0, 1, 0), (2, 1, 0)]), Framing::Direct),
        (Request::other(FLUSH, 0), Framing::Direct),
        (Request::other(77, 0), Framing::Direct),
    ];
    let mut world = World::unstarted(config(), 64);
    let setup = RingSetup { inflight: Some(world.log_region()), ..world.setup() };
    world.queues.start(QUEUE, setup).expect("a good ring");
    world.queues.enable(QUEUE, true);
    let first = allocations(&mut world, &requests, 1);
    let steady = allocations(&mut world, &requests, 1000);
    assert!(first < 20, "{first} to begin with");
    assert_eq!(steady, 0);
}
