//! See `evenkeel_fuzz::virtqueues`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_fuzz::virtqueues::run(data));
