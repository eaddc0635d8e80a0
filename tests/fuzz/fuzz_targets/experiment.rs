//! Fuzzes experiment files.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("experiment"),
    |data: &[u8]| vtepd_fuzz::experiment(data)
);
