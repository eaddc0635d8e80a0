//! Fuzzes what zebra, or somebody else, can send to the FPM port.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vtepd_fuzz::fpm_stream(data));
