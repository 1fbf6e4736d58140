//! See `evenkeel_fuzz::tenants`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_fuzz::tenants::run(data));
