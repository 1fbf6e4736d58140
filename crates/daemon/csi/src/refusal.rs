//! What the daemon refuses, as statuses of the Container Storage Interface.
//!
//! Kubernetes acts on some of them: after `RESOURCE_EXHAUSTED` of CreateVolume it schedules the pod elsewhere, and only
//! `INVALID_ARGUMENT` makes a change of attributes infeasible. It tries again after all others.

use api::{Problem, Reason};
use tonic::{Code, Status};

/// Statuses of the daemon's reasons. Others are `INTERNAL`.
const CODES: [(Code, &[Reason]); 7] = [
    (Code::InvalidArgument, &[Reason::Invalid, Reason::NoShrinking]),
    (
        Code::ResourceExhausted,
        &[
            Reason::NoRoom,
            Reason::NoDrive,
            Reason::NoSuchDrive,
            Reason::PromiseNotKept,
            Reason::PromiseNotJudged,
            Reason::TooMany,
            Reason::DriveMissing,
        ],
    ),
    (Code::AlreadyExists, &[Reason::NameTaken, Reason::OtherSettings, Reason::OtherKind, Reason::NameReserved]),
    (Code::NotFound, &[Reason::NoSuchDisk]),
    (Code::FailedPrecondition, &[Reason::Attached, Reason::InUse, Reason::Declared, Reason::NotServable]),
    (
        Code::Aborted,
        &[Reason::Leaving, Reason::StillLeaving, Reason::Zeroing, Reason::Reencrypting, Reason::ChangedMeanwhile],
    ),
    (Code::Unavailable, &[Reason::Ending, Reason::TooManyAsk, Reason::Hung, Reason::NotDurable]),
];

/// The status for an error of the daemon's client.
pub fn status(error: &anyhow::Error) -> Status {
    let Some(problem) = error.downcast_ref::<Problem>() else {
        // The daemon is away, stopped or stuck. Nothing is known about what was asked; each call may be repeated.
        return Status::unavailable(format!("{error:#}"));
    };
    let has = |reasons: &[Reason]| reasons.iter().any(|reason| reason.code() == problem.code);
    let found = CODES.iter().find(|(_, reasons)| has(reasons)).map(|(code, _)| *code);
    let code = found.unwrap_or(match problem.status {
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        _ => Code::Internal,
    });
    Status::new(code, problem.to_string())
}

/// Whether the daemon refused for this reason.
pub fn is(error: &anyhow::Error, reason: Reason) -> bool {
    error.downcast_ref::<Problem>().is_some_and(|problem| problem.code == reason.code())
}

/// Whether no daemon answers.
pub fn is_away(error: &anyhow::Error) -> bool {
    !error.is::<Problem>()
}
