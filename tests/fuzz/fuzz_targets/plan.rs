//! Fuzzes files of training jobs.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("plan"),
    |data: &[u8]| vtepd_fuzz::plan(data)
);
