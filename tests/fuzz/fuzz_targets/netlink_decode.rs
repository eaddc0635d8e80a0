//! Fuzzes what the kernel can send.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vtepd_fuzz::netlink_decode(data));
