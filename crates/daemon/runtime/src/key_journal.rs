//! The thread that writes the journal of a re-encryption: a poller can't wait for a file.

use std::io;
use std::sync::mpsc::channel;

use confine::ThreadKind;
use keys::{ChangeJournal, Position};

use crate::threads;

/// Starts it. Each position given to the returned function is written; then `recorded` says so. The thread ends with
/// that function.
///
/// # Errors
/// The kernel has no thread left.
pub fn start(
    mut journal: ChangeJournal,
    recorded: impl Fn(Result<(), String>) + Send + 'static,
) -> io::Result<impl Fn(Position) + Send + 'static> {
    let (sender, positions) = channel::<Position>();
    threads::spawn("key-journal", ThreadKind::Zeroing, move || {
        for Position { start_bytes, former } in positions {
            recorded(journal.record(start_bytes, &former).map_err(|error| error.to_string()));
        }
    })?;
    Ok(move |position| {
        // The thread ends after this.
        let _ = sender.send(position);
    })
}
