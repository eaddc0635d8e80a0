//! Fuzzes the steering programs against the pipeline.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("steering"),
    |data: &[u8]| vtepd_fuzz::steering(data)
);
