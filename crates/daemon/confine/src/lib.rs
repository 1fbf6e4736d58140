//! What the daemon's process and its threads may still do, and who is at the other end of a socket.

mod peer;
mod privileges;

pub use peer::groups_of_peer;
pub use privileges::{Identity, drop_privileges, hide_memory};
