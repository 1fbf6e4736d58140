//! Programs of admin and I/O commands against a whole controller.
//!
//! | module | what |
//! | --- | --- |
//! | `program` | what happens, as the fuzzer chooses it, and the driver that builds commands |
//! | `ram` | the guest's memory and a shadow copy of it |
//! | `meaning` | what a command means, written from the specification a second time |
//! | `model` | which command is open, and which completion it must get |
//! | `namespaces` | which there are, and where |
//! | `disk` | the drive: a double between guard bytes, and the model of the tenant's disk |
//! | `world` | all of them around one [`nvme_controller::Controller`] |
//!
//! After every call into the controller: each completion that appeared is one that was due, and none that
//! was due is missing. Every few steps each byte of guest memory and of the drive is what the commands make
//! of it; what a command names is compared at once.
//!
//! Where the guest lets the device write other things over a completion queue, what was posted there can't
//! be told and is left out; where a device command fails, any part of its work may have been done.

mod disk;
mod meaning;
mod model;
mod namespaces;
mod program;
mod ram;
mod world;

use arbitrary::{Arbitrary, Result, Unstructured};

pub use disk::Bug;
use program::Step;
use world::{Choices, World};

/// Steps of one run at most.
const MAX_STEPS: usize = 200;

/// Steps between looks at every byte of memory and drive, which take longest.
const CHECK_EVERY: usize = 16;

/// Runs one input.
///
/// # Panics
/// Something did not hold.
pub fn run(data: &[u8]) {
    run_with(data, None);
    assert_eq!(io_model::lost_tokens(), 0, "a fetched command was dropped");
}

/// As [`run`], with a bug planted in the drive.
pub fn run_with(data: &[u8], bug: Option<Bug>) {
    let mut u = Unstructured::new(data);
    let Ok(choices) = Choices::arbitrary(&mut u) else { return };
    let mut world = World::new(&choices, bug);
    // Running out of input ends the program.
    let _ = play(&mut world, &mut u);
    world.finish();
}

fn play(world: &mut World, u: &mut Unstructured<'_>) -> Result<()> {
    for number in 0..MAX_STEPS {
        if u.is_empty() {
            break;
        }
        let step = Step::arbitrary(u)?;
        world.step(step);
        if number % CHECK_EVERY == CHECK_EVERY - 1 {
            world.check();
        }
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
        run_seeds(600, 6000, |data| run_with(data, None));
    }

    /// The oracle sees every planted bug, within a few inputs that pass without it.
    #[test]
    fn planted_bugs_are_seen() {
        for bug in [
            Bug::WritesTooFar,
            Bug::ReadsElsewhere,
            Bug::TouchesOtherMemory,
            Bug::CompletesTwice,
            Bug::LosesCompletion,
            Bug::SkipsZeroes,
        ] {
            let seen = (1..=40).any(|seed| {
                let input = random_input(seed, 6000);
                run_with(&input, None);
                catch_unwind(|| run_with(&input, Some(bug))).is_err()
            });
            assert!(seen, "{bug:?} went unseen");
        }
    }
}
