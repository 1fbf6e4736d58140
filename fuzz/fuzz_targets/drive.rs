//! See `evenkeel_fuzz::drive`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_fuzz::drive::run(data));
