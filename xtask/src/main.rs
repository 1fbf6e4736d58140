//! Repository checks, guest tests and benches.

#![forbid(unsafe_code)]

fn main() {}
