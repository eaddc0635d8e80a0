//! Fuzzes traffic matrices.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("matrix"),
    |data: &[u8]| vtepd_fuzz::matrix(data)
);
