//! What the daemon and its gate say to each other.

/// Bytes of a message that are received at a time.
pub const MAX_BYTES: usize = 4096;

/// An order to the gate: what to do, a device, and the number of one of its connections. The gate says device and
/// number once it has closed that connection.
pub mod order {
    /// Receive from this client, through this channel.
    pub const ATTACH: u64 = 0;
    /// Keep this client's socket.
    pub const DISPOSE: u64 = 1;
    /// Close it: the daemon has.
    pub const CLOSE: u64 = 2;
}

/// What the gate says first, in a device's place; and 1, if all that another one had is closed.
pub const BEGUN: u64 = u64::MAX;

/// What a client's thread in the gate answers, in the byte before what it received.
pub mod answer {
    pub const BYTES: u8 = 0;
    pub const NOTHING: u8 = 1;
    pub const END: u8 = 2;
    pub const TOO_MANY: u8 = 3;
    pub const FOREIGN: u8 = 4;
    pub const CLOSING: u8 = 5;
    /// A system error, whose number follows.
    pub const ERRNO: u8 = 6;
}
