//! See `evenkeel_fuzz::messages`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_fuzz::messages::run(data));
