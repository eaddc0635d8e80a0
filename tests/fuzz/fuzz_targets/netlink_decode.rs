//! Fuzzes the decoder of netlink messages.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vtepd_fuzz::write_seeds_if_asked("netlink_decode"),
    |data: &[u8]| vtepd_fuzz::netlink_decode(data)
);
