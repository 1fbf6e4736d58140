//! Ctrl-C and SIGTERM: a copy that is cancelled leaves nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use api::Problem;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Exit status after a second signal, as shells have it for SIGINT: 128 and the signal's number.
const EXIT_INTERRUPTED: i32 = 128 + SIGINT;

/// Whether the copy is to end early.
#[derive(Clone)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on the first signal cancels, and a second one ends the program at once.
    pub fn watch() -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            let watched = flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED, Arc::clone(&stop))
                .and_then(|_| flag::register(signal, Arc::clone(&stop)));
            watched.context("can't watch for signals")?;
        }
        Ok(Self(stop))
    }

    /// Fails if the copy is to end early.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Problem::new(500, "cancelled", "cancelled", "run the command again").into());
        }
        Ok(())
    }
}
