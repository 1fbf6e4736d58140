//! Checks a configuration's promises with the planner, and decides which are admitted.
//!
//! | module | what |
//! | --- | --- |
//! | `drive_profile` | the drive profile that a file names |
//! | `planning` | the planner's input: site, policy, tenants with their loads |
//! | `forecasts` | answers that are known, and who plays the others |
//! | `judged` | all promises of a question, and the targets that would be accepted |
//! | `admission` | which promises can be kept, before any tenant is served |
//! | `standing` | earlier promises, and those that a change makes worse |
//! | `placing` | choosing the drive of a tenant that names none |
//! | `ready` | all drives of a file, from their text to the messages before the start |
//! | `words` | loads and changes in an operator's words |
//!
//! Pure, except for [`drive_profile::load`], which reads a profile's file, [`ready::prepare`], which looks at drives,
//! and [`forecasts`], whose plays have a limit of time.
//! The daemon and the command line share it, so that `evenkeel check` and `evenkeel plan` say what the daemon will do.

#![forbid(unsafe_code)]

pub mod admission;
pub mod drive_profile;
pub mod forecasts;
mod judged;
pub mod placing;
pub mod planning;
pub mod ready;
mod standing;
pub mod words;
