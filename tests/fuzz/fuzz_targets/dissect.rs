//! Fuzzes any Ethernet frame.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vtepd_fuzz::dissect(data));
