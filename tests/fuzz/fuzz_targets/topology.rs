//! Fuzzes topology files.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("topology"),
    |data: &[u8]| vtepd_fuzz::topology(data)
);
