//! Programs of a virtio-blk driver, and of a hostile one, against a disk's virtqueues; the device is killed now
//! and then.
//!
//! | module | what |
//! | --- | --- |
//! | `driver` | what happens, as the fuzzer chooses it, and the requests that a driver builds |
//! | `meaning` | what is in a ring and what a request means, written from the specification a second time |
//! | `world` | guest memory and drive, each with a model, around [`vhost_blk::Queues`] |
//!
//! Before every call the model says what must come of it, from the content of guest memory at that time: which command,
//! which status, or that the device stops. After it, every byte of guest memory (data, status, used rings, event
//! indexes) and of the drive is what the model says.
//!
//! A killed device must find in its log exactly the requests that it fetched and did not publish, and the write cache
//! as its driver left it. If the guest wrote over the ring's indexes, the device must refuse instead.

mod driver;
mod meaning;
mod world;

use arbitrary::{Arbitrary, Result, Unstructured};

use driver::Step;
pub use world::Bug;
use world::World;

/// Steps of one run at most.
const MAX_STEPS: usize = 300;

/// Runs one input.
///
/// # Panics
/// Something did not hold.
pub fn run(data: &[u8]) {
    run_with(data, None);
    assert_eq!(io_model::lost_tokens(), 0, "a fetched command was dropped");
}

/// As [`run`], with a bug planted.
pub fn run_with(data: &[u8], bug: Option<Bug>) {
    let mut u = Unstructured::new(data);
    let Ok(features) = u8::arbitrary(&mut u) else { return };
    let mut world = World::new(features, bug);
    // Running out of input ends the program.
    let _ = play(&mut world, &mut u);
    world.finish();
}

fn play(world: &mut World, u: &mut Unstructured<'_>) -> Result<()> {
    for _ in 0..MAX_STEPS {
        if u.is_empty() {
            break;
        }
        world.step(Step::arbitrary(u)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;
    use crate::seeds::{random_input, run_seeds};

    #[test]
    fn random_inputs() {
        // Not `run`: it looks at a counter of the whole process, and other tests fail on purpose.
        run_seeds(3000, 4000, |data| run_with(data, None));
    }

    /// The oracle sees every planted bug, within a few inputs that pass without it.
    #[test]
    fn planted_bugs_are_seen() {
        for bug in [Bug::WritesTooFar, Bug::ReadsElsewhere, Bug::ForgetsOneInFlight, Bug::CompletesTwice] {
            let seen = (1..=100).any(|seed| {
                let input = random_input(seed, 4000);
                run_with(&input, None);
                catch_unwind(|| run_with(&input, Some(bug))).is_err()
            });
            assert!(seen, "{bug:?} went unseen");
        }
    }
}
