//! Fuzzes decapsulation with packets of the underlay.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("decapsulate"),
    |data: &[u8]| vtepd_fuzz::decapsulate(data)
);
