//! What the daemon's process and its threads may still do, and who is at the other end of a socket.

mod peer;

pub use peer::groups_of_peer;
