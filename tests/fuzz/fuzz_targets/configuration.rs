//! Fuzzes configuration files.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("configuration"),
    |data: &[u8]| vtepd_fuzz::configuration(data)
);
