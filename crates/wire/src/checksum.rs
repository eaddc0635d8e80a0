//! The Internet checksum (RFC 1071), pseudo headers, incremental updates (RFC 1624) and completion
//! of partial checksums.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::error::WireError;

/// A running one's complement sum. Pieces may be added in any order. Each piece but the last of a
/// message must have an even length, because an odd last byte is padded with zero.
///
/// The sum is kept in native byte order. Only the result needs a swap (RFC 1071 section 2(B)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// An empty sum.
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    /// The sum in a checksum field with a partial checksum. The field holds the sum of the pseudo
    /// header, not its complement.
    #[must_use]
    pub const fn of_partial(field: u16) -> Self {
        Self(field.to_be() as u64)
    }

    /// Adds bytes. The total length must not exceed 4 GB.
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let (words, tail) = bytes.as_chunks::<4>();
        // Sums 32-bit words. As 2¹⁶ ≡ 1 in this arithmetic, `fold` can add their halves later.
        let mut sum =
            self.0 + words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum::<u64>();
        let mut last = [0; 4];
        for (place, byte) in last.iter_mut().zip(tail) {
            *place = *byte;
        }
        sum += u64::from(u32::from_ne_bytes(last));
        Self(sum)
    }

    /// Adds a 16-bit word.
    #[inline]
    #[must_use]
    pub const fn word(self, word: u16) -> Self {
        Self(self.0 + word.to_be() as u64)
    }

    /// Adds a 32-bit word.
    #[inline]
    #[must_use]
    pub const fn long(self, long: u32) -> Self {
        Self(self.0 + long.to_be() as u64)
    }

    /// Adds the pseudo header of an IPv4 datagram (RFC 9293 section 3.1, RFC 768). `length` is the
    /// length of transport header and payload in bytes.
    #[inline]
    #[must_use]
    pub const fn pseudo_ipv4(
        self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        protocol: u8,
        length: u16,
    ) -> Self {
        self.long(source.to_bits()).long(destination.to_bits()).word(protocol as u16).word(length)
    }

    /// Adds the pseudo header of an IPv6 datagram (RFC 8200 section 8.1). `length` is the length of
    /// upper-layer header and payload in bytes.
    #[inline]
    #[must_use]
    pub fn pseudo_ipv6(
        self,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        protocol: u8,
        length: u32,
    ) -> Self {
        self.bytes(&source.octets())
            .bytes(&destination.octets())
            .long(length)
            .long(u32::from(protocol))
    }

    /// The sum folded to 16 bits. It is 0xffff over data with a valid checksum.
    #[inline]
    #[must_use]
    pub const fn fold(self) -> u16 {
        let mut sum = self.0;
        sum = (sum & 0xffff_ffff) + (sum >> 32);
        sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        u16::from_be(sum as u16)
    }

    /// The checksum: the complement of the sum.
    #[inline]
    #[must_use]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// The checksum for a UDP header: 0xffff instead of 0, because 0 means that there is no
    /// checksum (RFC 768).
    #[inline]
    #[must_use]
    pub const fn checksum_not_zero(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            checksum => checksum,
        }
    }

    /// Whether data that includes its checksum is valid.
    #[inline]
    #[must_use]
    pub const fn is_intact(self) -> bool {
        self.fold() == 0xffff
    }
}

/// The Internet checksum of `bytes`.
#[inline]
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::new().bytes(bytes).checksum()
}

/// Updates a checksum after a 16-bit word of the data changed from `old` to `new` (RFC 1624
/// equation 3).
#[inline]
#[must_use]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::new().word(!checksum).word(!old).word(new).checksum()
}

/// Completes a partial checksum (`VIRTIO_NET_HDR_F_NEEDS_CSUM`). Sums `frame` from `start` to its
/// end and stores the checksum at `start + offset`, where the sum of the pseudo header is. Never
/// stores 0, like `skb_checksum_help()` (Linux net/core/dev.c).
///
/// # Errors
/// If the checksum field does not lie within the frame.
pub fn complete(frame: &mut [u8], start: usize, offset: usize) -> Result<(), WireError> {
    let available = frame.len();
    let truncated = WireError::truncated(
        "partial checksum",
        start.saturating_add(offset).saturating_add(2),
        available,
    );
    let covered = frame.get_mut(start..).ok_or(truncated)?;
    let checksum = Sum::new().bytes(covered).checksum_not_zero();
    let field =
        covered.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()).ok_or(truncated)?;
    *field = checksum.to_be_bytes();
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition of RFC 1071 section 1: big-endian words, with end-around carry.
    fn by_definition(bytes: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in bytes.chunks(2) {
            let word = [pair[0], pair.get(1).copied().unwrap_or(0)];
            sum += u32::from(u16::from_be_bytes(word));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::new().bytes(&bytes).fold(), 0xddf2);
        assert_eq!(checksum(&bytes), 0x220d);
    }

    #[test]
    fn example_of_rfc_1624() {
        // RFC 1624 section 4. Equation 2 would give 0xffff.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn carries_survive_the_largest_frame() {
        for length in [65_535, 65_536, 1 << 20] {
            let bytes = vec![0xff; length];
            assert_eq!(checksum(&bytes), by_definition(&bytes), "{length}");
        }
        assert_eq!(Sum(u64::MAX).fold(), 0xffff);
    }

    proptest! {
        #[test]
        fn equals_the_definition(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(checksum(&bytes), by_definition(&bytes));
        }

        #[test]
        fn pieces_of_even_length_add_up(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..100) {
            let (a, b) = bytes.split_at((cut * 2).min(bytes.len() & !1));
            prop_assert_eq!(Sum::new().bytes(a).bytes(b).checksum(), by_definition(&bytes));
        }

        #[test]
        fn words_equal_bytes(word: u16, long: u32) {
            let bytes = [&word.to_be_bytes()[..], &long.to_be_bytes()].concat();
            prop_assert_eq!(Sum::new().word(word).long(long).checksum(), by_definition(&bytes));
        }

        #[test]
        fn update_equals_a_new_sum(mut bytes in prop::collection::vec(any::<u8>(), 4..60), at in 0usize..28, new: u16) {
            bytes.push(1); // A sum over zeros only has two representations.
            let before = checksum(&bytes);
            let at = (at * 2).min((bytes.len() - 4) & !1);
            let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update(before, old, new), checksum(&bytes));
        }

        #[test]
        fn single_bit_errors_are_seen(mut bytes in prop::collection::vec(any::<u8>(), 4..60), at in 0usize..480) {
            let at = at % (bytes.len() * 8);
            let before = checksum(&bytes);
            bytes[at / 8] ^= 1 << (at % 8);
            prop_assert_ne!(checksum(&bytes), before);
        }

        #[test]
        fn completed_udp_is_intact(payload in prop::collection::vec(any::<u8>(), 0..64), source: u32, destination: u32, headers in 0usize..40) {
            let (source, destination) = (Ipv4Addr::from(source), Ipv4Addr::from(destination));
            let length = 8 + payload.len() as u16;
            let pseudo = Sum::new().pseudo_ipv4(source, destination, 17, length);
            let mut frame = vec![0x5a; headers];
            frame.extend([1, 2, 3, 4]);
            frame.extend(length.to_be_bytes());
            frame.extend(pseudo.fold().to_be_bytes());
            frame.extend(&payload);
            complete(&mut frame, headers, 6).unwrap();
            let (udp, rest) = etherparse::UdpHeader::from_slice(&frame[headers..]).unwrap();
            prop_assert!(pseudo.bytes(&frame[headers..]).is_intact());
            prop_assert_eq!(
                udp.checksum,
                udp.calc_checksum_ipv4_raw(source.octets(), destination.octets(), rest).unwrap()
            );
            prop_assert_eq!(Sum::of_partial(pseudo.fold()).fold(), pseudo.fold());
        }

        #[test]
        fn completing_outside_the_frame_fails(length in 0usize..20, start: u16, offset: u16) {
            let mut frame = vec![0; length];
            let inside = usize::from(start) + usize::from(offset) + 2 <= length;
            prop_assert_eq!(complete(&mut frame, start.into(), offset.into()).is_ok(), inside);
        }

        #[test]
        fn pseudo_ipv6_equals_etherparse(source: [u8; 16], destination: [u8; 16], payload in prop::collection::vec(any::<u8>(), 0..64)) {
            let length = 8 + payload.len() as u16;
            let udp = etherparse::UdpHeader { source_port: 1, destination_port: 2, length, checksum: 0 };
            let expected = udp.calc_checksum_ipv6_raw(source, destination, &payload).unwrap();
            let sum = Sum::new()
                .pseudo_ipv6(source.into(), destination.into(), 17, length.into())
                .bytes(&udp.to_bytes())
                .bytes(&payload);
            prop_assert_eq!(sum.checksum_not_zero(), expected);
        }
    }

    #[test]
    fn completing_overflowing_offsets_fails() {
        assert!(complete(&mut [0; 4], usize::MAX, usize::MAX).is_err());
    }
}
