//! Fuzzes the program that chooses kernel VXLAN's source port against the path crate.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("chosen_port"),
    |data: &[u8]| vtepd_fuzz::chosen_port(data)
);
