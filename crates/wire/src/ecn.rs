//! Explicit congestion notification over a tunnel (RFC 6040), as implemented by Linux
//! (include/net/inet_ecn.h).
//!
//! All functions use the two low bits of an IPv4 type of service or an IPv6 traffic class.

use crate::checksum;

/// The ECN field (RFC 3168 section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codepoint {
    /// 0: the transport is not ECN-capable.
    NotEct,
    /// 1: ECN-capable transport, ECT(1).
    Ect1,
    /// 2: ECN-capable transport, ECT(0).
    Ect0,
    /// 3: congestion experienced.
    Ce,
}

impl core::fmt::Display for Codepoint {
    /// The names of RFC 3168 section 5.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NotEct => "Not-ECT",
            Self::Ect1 => "ECT(1)",
            Self::Ect0 => "ECT(0)",
            Self::Ce => "CE",
        })
    }
}

impl Codepoint {
    /// The code point of a type of service or traffic class.
    #[inline]
    #[must_use]
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Returns `traffic_class` with this code point.
    #[inline]
    #[must_use]
    pub const fn put(self, traffic_class: u8) -> u8 {
        traffic_class & !3
            | match self {
                Self::NotEct => 0,
                Self::Ect1 => 1,
                Self::Ect0 => 2,
                Self::Ce => 3,
            }
    }
}

/// The outer traffic class: DSCP of `outer`, and the inner code point, but ECT(0) instead of CE, as
/// `INET_ECN_encapsulate()` does. The outer header then reports congestion of the underlay only. (The
/// normal mode of RFC 6040 section 4.1 copies CE, too.)
#[inline]
#[must_use]
pub const fn encapsulate(outer: u8, inner: u8) -> u8 {
    match Codepoint::of(inner) {
        Codepoint::Ce => Codepoint::Ect0.put(outer),
        codepoint => codepoint.put(outer),
    }
}

/// What a tunnel's egress does with the inner header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Egress {
    /// Forward the packet unchanged.
    Keep,
    /// Forward the packet unchanged. Kernel VXLAN logs that this outer code point is unexpected
    /// over an inner Not-ECT.
    KeepSuspicious,
    /// Write this code point into the inner header.
    Set(Codepoint),
    /// Drop the packet: it experienced congestion, and its transport is not ECN-capable. Kernel
    /// VXLAN also logs this, and counts a receive error and a frame error.
    Drop,
}

/// What happens to a packet with traffic class `outer` around `inner` (RFC 6040 figure 4).
///
/// ```text
///            outer: Not-ECT   ECT(0)          ECT(1)          CE
/// inner
/// Not-ECT           keep      keep, logged    keep, logged    drop, logged and counted
/// ECT(0)            keep      keep            set ECT(1)      set CE
/// ECT(1)            keep      keep            keep            set CE
/// CE                keep      keep            keep            keep
/// ```
///
/// Applies to inner IP packets only. All others are forwarded unchanged.
#[inline]
#[must_use]
pub const fn decapsulate(outer: u8, inner: u8) -> Egress {
    match (Codepoint::of(inner), Codepoint::of(outer)) {
        (Codepoint::NotEct, Codepoint::Ce) => Egress::Drop,
        (Codepoint::NotEct, Codepoint::Ect0 | Codepoint::Ect1) => Egress::KeepSuspicious,
        (Codepoint::Ect0 | Codepoint::Ect1, Codepoint::Ce) => Egress::Set(Codepoint::Ce),
        (Codepoint::Ect0, Codepoint::Ect1) => Egress::Set(Codepoint::Ect1),
        _ => Egress::Keep,
    }
}

/// Writes a code point into the IPv4 or IPv6 header at the start of `packet`, and updates the IPv4
/// header checksum. Returns `false` and writes nothing if there is no complete header.
pub fn set(packet: &mut [u8], codepoint: Codepoint) -> bool {
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            let Some(header) = packet.first_chunk_mut::<20>() else { return false };
            let old = u16::from_be_bytes([header[0], header[1]]);
            header[1] = codepoint.put(header[1]);
            let new = u16::from_be_bytes([header[0], header[1]]);
            let sum = u16::from_be_bytes([header[10], header[11]]);
            [header[10], header[11]] = checksum::update(sum, old, new).to_be_bytes();
            true
        }
        Some(6) => {
            let Some(header) = packet.first_chunk_mut::<40>() else { return false };
            // The traffic class spans two bytes.
            let class = codepoint.put(header[0] << 4 | header[1] >> 4);
            header[1] = class << 4 | header[1] & 0x0f;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l6_encapsulate_as_linux_does() {
        for (inner, linux) in [(0, 0), (1, 1), (2, 2), (3, 2)] {
            for dscp in [0, 0x14, 0xb8, 0xfc] {
                for old in 0..4 {
                    assert_eq!(encapsulate(dscp | old, 0xa8 | inner), dscp | linux);
                }
            }
        }
    }

    #[test]
    fn l7_decapsulate_figure_4() {
        use Egress::{Drop, Keep, KeepSuspicious};
        let (ect1, ce) = (Egress::Set(Codepoint::Ect1), Egress::Set(Codepoint::Ce));
        // Rows are inner and columns outer code points, in numerical order: Not-ECT, ECT(1),
        // ECT(0), CE.
        let figure = [
            [Keep, KeepSuspicious, KeepSuspicious, Drop],
            [Keep, Keep, Keep, ce],
            [Keep, ect1, Keep, ce],
            [Keep, Keep, Keep, Keep],
        ];
        for (inner, row) in (0u8..).zip(figure) {
            for (outer, expected) in (0u8..).zip(row) {
                assert_eq!(
                    decapsulate(0x14 | outer, 0xb8 | inner),
                    expected,
                    "inner {inner} outer {outer}"
                );
            }
        }
    }

    #[test]
    fn set_changes_the_code_point_only_and_keeps_the_checksum_right() {
        let mut packet =
            [0x45, 0xb8, 0, 20, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let sum = checksum::checksum(&packet).to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        for codepoint in [Codepoint::Ce, Codepoint::Ect1, Codepoint::NotEct, Codepoint::Ect0] {
            assert!(set(&mut packet, codepoint));
            assert_eq!(packet[1], codepoint.put(0xb8));
            assert_eq!(checksum::checksum(&packet), 0);
        }

        let mut packet = [0x5a; 40];
        packet[..4].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45]);
        assert!(set(&mut packet, Codepoint::Ce));
        assert_eq!(packet[..4], [0x6a, 0xb1 | 0x30, 0x23, 0x45]);
        assert!(set(&mut packet, Codepoint::NotEct));
        assert_eq!(packet[..4], [0x6a, 0x81, 0x23, 0x45]);
    }

    #[test]
    fn set_leaves_anything_else_alone() {
        for mut bytes in [vec![], vec![0x45; 19], vec![0x60; 39], vec![0x55; 40]] {
            let before = bytes.clone();
            assert!(!set(&mut bytes, Codepoint::Ce));
            assert_eq!(bytes, before);
        }
    }
}
