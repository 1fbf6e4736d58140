//! See `evenkeel_fuzz::front_end`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_fuzz::front_end::run(data));
