//! Fuzzes the parsers of probes and answers between VTEPs.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("probe_message"),
    |data: &[u8]| vtepd_fuzz::probe_message(data)
);
