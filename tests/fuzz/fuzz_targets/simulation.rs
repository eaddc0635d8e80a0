//! Fuzzes simulation files.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("simulation"),
    |data: &[u8]| vtepd_fuzz::simulation(data)
);
