//! What the daemon's process and its threads may still do, and who is at the other end of a socket.
//!
//! | module | the wall |
//! | --- | --- |
//! | `privileges` | who the process is: no root, no capability, none to be gained |
//! | `calls`, `filters` | seccomp: the system calls of each kind of thread |
//! | `landlock` | the files that the process may open |
//! | `peer` | who connects |
//! | `inherited` | descriptors that were there before |
//! | `same_file` | which descriptors are copies |
//! | `respawn` | a process that is there again when it was killed |
//!
//! In the order in which they go up: [`drop_privileges`] and [`fence`] before any thread starts, [`arm`], and each
//! thread [`enter`]s first thing. Filters and fences are inherited by whatever a thread starts, and never come off.

mod calls;
mod filters;
mod inherited;
mod landlock;
mod peer;
mod privileges;
mod respawn;
mod same_file;

pub use calls::ThreadKind;
pub use filters::{arm, enter, is_armed};
pub use inherited::take_inherited;
pub use landlock::{Fence, fence};
pub use peer::groups_of_peer;
pub use privileges::{Identity, drop_privileges, hide_memory, keep_what_block_devices_take};
pub use respawn::keep_running;
pub use same_file::compare_files;
