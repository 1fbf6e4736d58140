//! Commands that wait for a forecast. The owner never plays one: meanwhile it would carry out nothing.

use api::DiskError;
use promises::forecasts::Asked;
use runtime::command::Command;

use crate::owner::Owner;

/// How often a command waits for forecasts at most: others may change what is served meanwhile.
const ROUNDS: u32 = 8;

impl Owner {
    /// The forecasts that a command lacked, if it is to wait for them. Nothing of it was done then.
    pub(crate) fn missing_for<T>(&self, done: &Result<T, DiskError>) -> Option<Vec<Asked>> {
        let missing = self.common.forecasts.take_missing();
        (done.is_err() && !missing.is_empty() && self.round < ROUNDS).then_some(missing)
    }

    /// Carries out a command once these are played.
    pub(crate) fn carry_out_after(&self, missing: Vec<Asked>, command: Command) {
        let (handle, round) = (self.common.handle.clone(), self.round + 1);
        self.common.forecasts.play(missing, move || handle.tell(Command::Again(Box::new(command), round)));
    }

    /// Carries out a command that waited so often.
    pub(crate) fn apply_again(&mut self, command: Command, round: u32) {
        self.round = round;
        self.apply(command);
        self.round = 0;
    }
}
