//! Fuzzes the decoder of streams to the FPM port.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("fpm_stream"),
    |data: &[u8]| vtepd_fuzz::fpm_stream(data)
);
