//! What outer headers inherit from the inner packet.

use std::net::{Ipv4Addr, Ipv6Addr};

use frame::{DropReason, ETHERNET, MACS};
use tables::{DontFragment, Tos, Ttl, Tunnel};
use wire::number::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN};
use wire::outer::Address;

/// Length of Ethernet, IPv4, UDP and VXLAN header in bytes.
pub const OVERHEAD: usize = Ipv4Addr::OUTER;
/// Length of Ethernet, IPv6, UDP and VXLAN header in bytes.
pub(crate) const OVERHEAD_IPV6: usize = Ipv6Addr::OUTER;
/// Offset of the outer UDP header in the frame, behind IPv4.
pub(crate) const UDP_AT: usize = Ipv4Addr::UDP_AT;
/// Offset of the outer UDP header in the frame, behind IPv6.
pub(crate) const UDP_AT_IPV6: usize = Ipv6Addr::UDP_AT;
/// Offset of the checksum in the UDP header.
pub(crate) const UDP_CHECKSUM: u16 = 6;

/// Number of tags that the kernel skips (`VLAN_MAX_DEPTH` less one, `__vlan_get_protocol()` in
/// `include/linux/if_vlan.h`).
const MAX_TAGS: usize = 7;

/// The fields of the inner packet that kernel tunnels read. They rely on the EtherType only and
/// ignore the IP version and checksum. They look behind 802.1Q and 802.1ad tags, but no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Inner {
    /// Type of service or traffic class, of IP.
    pub tos: Option<u8>,
    /// Time to live or hop limit, of IP.
    pub ttl: Option<u8>,
    /// The don't-fragment bit; always set for IPv6. Not set behind tags, because `vxlan_xmit_one()`
    /// does not look there.
    pub dont_fragment: bool,
}

impl Inner {
    /// Reads the fields from a frame.
    ///
    /// # Errors
    /// [`DropReason::InnerTruncated`] if the frame ends inside the IP header. The kernel drops such
    /// frames (`skb_vlan_inet_prepare()` in `include/net/ip_tunnels.h`).
    #[inline]
    pub(crate) fn of(frame: &[u8]) -> Result<Self, DropReason> {
        let mut at = MACS;
        for _ in 0..=MAX_TAGS {
            let kind = frame.get(at..).and_then(<[u8]>::first_chunk);
            match kind.map(|kind| u16::from_be_bytes(*kind)) {
                Some(ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN) => at += 4,
                Some(ETHERTYPE_IPV4) => {
                    let header = frame.get(at + 2..).and_then(<[u8]>::first_chunk::<20>);
                    let &[_, tos, _, _, _, _, flags, _, ttl, ..] =
                        header.ok_or(DropReason::InnerTruncated)?;
                    let dont_fragment = at == MACS && flags & 0x40 != 0;
                    return Ok(Self { tos: Some(tos), ttl: Some(ttl), dont_fragment });
                }
                Some(ETHERTYPE_IPV6) => {
                    let header = frame.get(at + 2..).and_then(<[u8]>::first_chunk::<40>);
                    let &[first, second, _, _, _, _, _, limit, ..] =
                        header.ok_or(DropReason::InnerTruncated)?;
                    let class = first << 4 | second >> 4;
                    return Ok(Self {
                        tos: Some(class),
                        ttl: Some(limit),
                        dont_fragment: at == MACS,
                    });
                }
                _ => break,
            }
        }
        Ok(Self::default())
    }

    /// Reads the fields of a decapsulated frame. There the kernel does not look behind tags.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(crate) fn of_received(frame: &[u8]) -> Result<Self, DropReason> {
        match frame.get(MACS..ETHERNET) {
            Some([0x81, 0x00] | [0x88, 0xa8]) => Ok(Self::default()),
            _ => Self::of(frame),
        }
    }
}

/// The fields of the outer header that may be inherited from the inner packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inherited {
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// The don't-fragment bit.
    pub dont_fragment: bool,
}

impl Inherited {
    /// Follows `vxlan_xmit_one()` (`drivers/net/vxlan/vxlan_core.c`).
    pub(crate) fn of(tunnel: &Tunnel, inner: &Inner) -> Self {
        let Inner { tos: inner_tos, ttl: inner_ttl, dont_fragment: inner_df } = *inner;
        let tos = match tunnel.tos {
            Tos::Fixed(tos) => tos,
            Tos::Inherit => inner_tos.unwrap_or(0),
        };
        let ttl = match tunnel.ttl {
            Ttl::Fixed(ttl) => ttl,
            Ttl::Inherit { default } => inner_ttl.filter(|&ttl| ttl != 0).unwrap_or(default),
        };
        let dont_fragment = match tunnel.df {
            DontFragment::Unset => false,
            DontFragment::Set => true,
            DontFragment::Inherit => inner_df,
        };
        let tos = wire::ecn::encapsulate(tos, inner_tos.unwrap_or(0));
        Self { tos, ttl, dont_fragment }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IPV4: [u8; 20] = [0x45, 0x49, 0, 20, 0, 1, 0x40, 0, 33, 17, 0, 0, 9, 0, 0, 1, 9, 0, 0, 2];
    const TAG: [u8; 4] = [0x81, 0, 0, 100];

    fn frame(tags: &[[u8; 4]], kind: [u8; 2], packet: &[u8]) -> Vec<u8> {
        [&[2; 12][..], &tags.concat(), &kind, packet].concat()
    }

    /// Observed on Linux 6.18 with `tos inherit ttl inherit df inherit`.
    #[test]
    fn inner_fields_are_those_that_the_kernel_reads() {
        let four = |tags: &[[u8; 4]]| Inner::of(&frame(tags, [8, 0], &IPV4));
        let read = |dont_fragment| Ok(Inner { tos: Some(0x49), ttl: Some(33), dont_fragment });
        let (service, old) = ([0x88, 0xa8, 0, 100], [0x91, 0, 0, 100]);
        assert_eq!(four(&[]), read(true));
        for tags in [&[TAG][..], &[service], &[TAG, TAG], &[service, TAG], &[TAG; 5]] {
            assert_eq!(four(tags), read(false), "{tags:?}");
        }
        for tags in [&[old][..], &[TAG, old], &[TAG; 9]] {
            assert_eq!(four(tags), Ok(Inner::default()), "{tags:?}");
        }
        let mut six = [0; 40];
        six[..2].copy_from_slice(&[0x64, 0x90]);
        six[7] = 33;
        assert_eq!(Inner::of(&frame(&[], [0x86, 0xdd], &six)), read(true));
        assert_eq!(Inner::of(&frame(&[TAG], [0x86, 0xdd], &six)), read(false));
        // Only the EtherType counts, not the version.
        let mut other = IPV4;
        other[0] = 0x65;
        assert_eq!(Inner::of(&frame(&[], [8, 0], &other)), read(true));
        let cut = Err(DropReason::InnerTruncated);
        assert_eq!(Inner::of(&frame(&[], [8, 0], &IPV4[..19])), cut);
        assert_eq!(Inner::of(&frame(&[TAG], [8, 0], &IPV4[..19])), cut);
        assert_eq!(Inner::of(&frame(&[], [0x86, 0xdd], &six[..39])), cut);
        assert_eq!(Inner::of(&frame(&[], [0x88, 0xb5], &[])), Ok(Inner::default()));
    }

    /// The kernel does not look behind the tags of decapsulated frames.
    #[test]
    fn received_frames_are_read_without_tags_only() {
        let tagged = frame(&[TAG], [8, 0], &IPV4);
        assert_eq!(Inner::of_received(&tagged), Ok(Inner::default()));
        assert_eq!(
            Inner::of_received(&frame(&[], [8, 0], &IPV4)).map(|inner| inner.tos),
            Ok(Some(0x49))
        );
        assert_eq!(
            Inner::of_received(&frame(&[], [8, 0], &IPV4[..19])),
            Err(DropReason::InnerTruncated)
        );
    }
}
