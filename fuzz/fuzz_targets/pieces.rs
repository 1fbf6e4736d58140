//! See `evenkeel_fuzz::pieces`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_fuzz::pieces::run(data));
