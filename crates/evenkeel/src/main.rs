//! The evenkeel daemon and command line.

#![forbid(unsafe_code)]

fn main() {}
