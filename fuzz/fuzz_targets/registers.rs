//! See `evenkeel_fuzz::registers`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_fuzz::registers::run(data));
