//! Fuzzes an exchange of probes between leaves that have the key.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("probe_exchange"),
    |data: &[u8]| vtepd_fuzz::probe_exchange(data)
);
