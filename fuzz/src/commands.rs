//! x
/// x
pub fn run(_: &[u8]) {}
