//! Fuzzes API requests.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("api_request"),
    |data: &[u8]| vtepd_fuzz::api_request(data)
);
