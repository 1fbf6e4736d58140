//! Parts that are broken on purpose, to see that the checkers see it.

use crate::disks::NewSpace;

/// What is broken. A policy can't do these: it never holds a command, and tokens and types keep pollers from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sabotage {
    /// Nothing.
    #[default]
    None,
    /// The drive gives a command back a second time, when its tag may belong to another one.
    DeliverTwice,
    /// The drive forgets a command.
    Lose,
    /// A tenant's commands go to the range of the first one.
    ForeignRange,
    /// Completions go to the queue beside the one that they belong to.
    ForeignVq,
    /// A disk that grew has its last piece a step beside where the layout says.
    WrongPiece,
    /// What a deleted disk left is free at once.
    SkipWiping,
    /// The wiper begins while commands of the deleted disk are with the drive.
    WipeEarly,
}

/// The command that a drive delivers twice or loses, by its serial number.
pub(crate) const VICTIM: u64 = 100;

/// What only the laboratory does with a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Laboratory {
    /// What is broken.
    pub sabotage: Sabotage,
    /// What places disks, where they come and go.
    pub new_space: Option<NewSpace>,
}
