//! See `evenkeel_fuzz::keeper`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_fuzz::keeper::run(data));
