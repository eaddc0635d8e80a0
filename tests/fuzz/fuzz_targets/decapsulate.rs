//! Fuzzes what the underlay can bring.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vtepd_fuzz::decapsulate(data));
