//! See `evenkeel_fuzz::ublk`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_fuzz::block_device::run(data));
