//! CRC-32C, the checksum of SCTP (RFC 9260 appendix A). SCTP senders leave it to the device, like
//! other checksums, and a virtio-net header does not distinguish the two.

/// The reflected Castagnoli polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Continues a CRC over `bytes`. The initial value is all ones. The result is the complement of the
/// final register.
pub(crate) fn crc32c(register: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(register, |register, byte| {
        (0..8).fold(register ^ u32::from(*byte), |r, _| (r >> 1) ^ (POLYNOMIAL * (r & 1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_and_an_example_of_rfc_3720() {
        assert_eq!(!crc32c(u32::MAX, b"123456789"), 0xe306_9283);
        // Appendix B.4: 32 bytes of ones.
        assert_eq!(!crc32c(u32::MAX, &[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(crc32c(u32::MAX, b"1234"), b"56789"), crc32c(u32::MAX, b"123456789"));
    }
}
