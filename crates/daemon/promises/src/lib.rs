//! What follows from a configuration for promises: the demands that the planner is asked about, and which promises are
//! admitted.
//!
//! | module | what |
//! | --- | --- |
//! | `drive_profile` | the drive that a file names |
//! | `planning` | what the planner is asked: site, policy, tenants with their demands |
//! | `judged` | all promises of a question, and the targets that would be accepted |
//! | `admission` | which promises can be kept, before anybody is served |
//! | `standing` | what was promised before, and what of it a change makes worse |
//! | `placing` | on which drive a tenant goes that names none |
//! | `ready` | all drives of a file, from their text to what is said before anybody is served |
//! | `words` | demands and changes as an operator says them |
//!
//! Pure, but for [`drive_profile::load`], which reads a profile's file, and [`ready::prepare`], which looks at drives.
//! The daemon and the command line share it, so that `evenkeel check` and `evenkeel plan` say what the daemon will do.

#![forbid(unsafe_code)]

pub mod admission;
pub mod drive_profile;
pub mod judged;
pub mod placing;
pub mod planning;
pub mod ready;
mod standing;
pub mod words;
