//! Fuzzes the programs of the offload datapath against the pipeline.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("offload"),
    |data: &[u8]| vtepd_fuzz::offload(data)
);
