//! Fuzzes encapsulation with frames of hosts.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("encapsulate"),
    |data: &[u8]| vtepd_fuzz::encapsulate(data)
);
