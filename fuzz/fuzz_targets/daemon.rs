//! See `evenkeel_fuzz::daemon`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_fuzz::daemon::run(data));
