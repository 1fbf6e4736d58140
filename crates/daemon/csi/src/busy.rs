//! One operation per volume at a time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use tonic::Status;

/// Volumes and snapshots that an operation is under way for.
#[derive(Debug, Clone, Default)]
pub struct Busy(Arc<Mutex<BTreeSet<String>>>);

/// The right to work on a volume, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    busy: Busy,
    volume: String,
}

impl Busy {
    /// Begins an operation on a volume.
    ///
    /// # Errors
    /// `ABORTED`: another one is under way, as the specification asks.
    pub fn begin(&self, volume: &str) -> Result<Turn, Status> {
        if !self.with(|volumes| volumes.insert(volume.to_owned())) {
            let words = format!("another operation on {volume:?} is under way; try again once it is done");
            return Err(Status::aborted(words));
        }
        Ok(Turn { busy: self.clone(), volume: volume.to_owned() })
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut BTreeSet<String>) -> T) -> T {
        // An operation that panicked leaves a whole set: its turn ends as it unwinds.
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.busy.with(|volumes| volumes.remove(&self.volume));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only here: a retry formats a volume while the first call still does, or no call ever can again.
    #[test]
    fn a_volume_has_one_operation_at_a_time() {
        let busy = Busy::default();
        let first = busy.begin("a").expect("free");
        assert_eq!(busy.begin("a").expect_err("busy").code(), tonic::Code::Aborted);
        assert!(busy.begin("b").is_ok());
        drop(first);
        assert!(busy.begin("a").is_ok());
    }
}
