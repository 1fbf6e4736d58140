//! See `evenkeel_fuzz::images`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_fuzz::images::run(data));
