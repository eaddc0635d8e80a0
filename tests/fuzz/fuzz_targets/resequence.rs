//! Fuzzes the order of sprayed packets.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("resequence"),
    |data: &[u8]| vtepd_fuzz::resequence(data)
);
