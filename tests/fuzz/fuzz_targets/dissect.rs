//! Fuzzes the dissection of Ethernet frames.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("dissect"),
    |data: &[u8]| vtepd_fuzz::dissect(data)
);
