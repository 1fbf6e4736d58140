//! Confines the daemon's process and threads: privileges, system calls, files. Identifies socket peers.
//!
//! | module | the wall |
//! | --- | --- |
//! | `privileges` | no root, no capabilities, and no way to gain them |
//! | `calls`, `filters` | seccomp: the system calls of each kind of thread |
//! | `landlock` | the files that the process may open |
//! | `erased_memory` | freed memory without keys |
//! | `peer` | the user at the other end of a socket |
//! | `inherited` | file descriptors that the process inherited |
//! | `same_file` | which descriptors refer to the same open file |
//! | `respawn` | a process that is started again when it is killed |
//! | `survivor` | a process that shares this one's memory, so that this one's end is quick |
//!
//! The order of setup: [`drop_privileges`] and [`fence`] before any thread starts, then [`arm`]. Each thread calls
//! [`enter`] first. Threads inherit all filters and fences, which can't be removed.

mod calls;
mod erased_memory;
mod filters;
mod inherited;
mod landlock;
mod peer;
mod privileges;
mod respawn;
mod same_file;
mod survivor;

pub use calls::ThreadKind;
pub use erased_memory::ErasingAllocator;
pub use filters::{arm, arm_alone, before_the_end, enter, is_armed};
pub use inherited::take_inherited;
pub use landlock::{Fence, fence};
pub use peer::groups_of_peer;
pub use privileges::{Identity, drop_privileges, hide_memory, keep_what_block_devices_take};
pub use respawn::{Walls, keep_running, keep_running_within};
pub use same_file::compare_files;
pub use survivor::leave_memory_to_a_survivor;
