//! See `evenkeel_fuzz::commands`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_fuzz::commands::run(data));
