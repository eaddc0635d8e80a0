//! Fuzzes what a host can put on the bridge.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vtepd_fuzz::encapsulate(data));
