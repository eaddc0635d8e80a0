//! Chains of IPv6 extension headers (RFC 8200 section 4).

use crate::dissect::Fragment;
use crate::ipv6::{Ipv6Extension, Ipv6Fragment, MAX_EXTENSION_HEADERS};
use crate::number::{
    PROTOCOL_AUTHENTICATION, PROTOCOL_DESTINATION_OPTIONS, PROTOCOL_FRAGMENT, PROTOCOL_HOP_BY_HOP,
    PROTOCOL_NO_NEXT_HEADER, PROTOCOL_ROUTING,
};

/// An IPv6 packet's upper layer: protocol, length of the extension headers in bytes, and payload.
pub(crate) type Upper<'a> = (u8, u16, &'a [u8]);

/// The result of parsing an IPv6 header chain.
pub(crate) struct Chain<'a> {
    pub(crate) protocol: u8,
    pub(crate) fragment: Fragment,
    /// `None` if the upper layer was not reached.
    pub(crate) upper: Option<Upper<'a>>,
}

/// Parses the chain of IPv6 extension headers (RFC 8200 section 4), which starts with type `next`.
pub(crate) fn extensions(next: u8, payload: &[u8]) -> Chain<'_> {
    let mut chain = Chain { protocol: next, fragment: Fragment::Whole, upper: None };
    let (mut next, mut rest) = (next, payload);
    for _ in 0..=MAX_EXTENSION_HEADERS {
        // Behind a fragment header, `protocol` keeps the value that all fragments have.
        if chain.fragment == Fragment::Whole {
            chain.protocol = next;
        }
        let units = Ipv6Extension::parse(rest).map(|(header, _)| usize::from(header.length()));
        let length = match (next, units) {
            (PROTOCOL_HOP_BY_HOP | PROTOCOL_ROUTING | PROTOCOL_DESTINATION_OPTIONS, Ok(units)) => {
                (units + 1) * 8
            }
            (PROTOCOL_AUTHENTICATION, Ok(units)) => (units + 2) * 4,
            // A fragment within a fragment is not parsed, because later fragments do not have that
            // header.
            (PROTOCOL_FRAGMENT, Ok(_)) if chain.fragment == Fragment::Whole => Ipv6Fragment::LENGTH,
            (
                PROTOCOL_HOP_BY_HOP
                | PROTOCOL_ROUTING
                | PROTOCOL_DESTINATION_OPTIONS
                | PROTOCOL_AUTHENTICATION
                | PROTOCOL_FRAGMENT
                | PROTOCOL_NO_NEXT_HEADER,
                _,
            ) => return chain,
            _ => {
                // At most 8 headers of 2 kB precede it, so the offset fits.
                let skipped = u16::try_from(payload.len() - rest.len()).unwrap_or(u16::MAX);
                chain.upper = Some((next, skipped, rest));
                return chain;
            }
        };
        let Some((header, behind)) = rest.split_at_checked(length) else { return chain };
        let Ok((extension, _)) = Ipv6Extension::parse(header) else { return chain };
        if next == PROTOCOL_FRAGMENT
            && let Ok((header, _)) = Ipv6Fragment::parse(header)
        {
            chain.fragment = Fragment::of(header.offset(), header.more_fragments());
            chain.protocol = header.next_header();
            if chain.fragment == Fragment::Later {
                return chain;
            }
        }
        next = extension.next_header();
        rest = behind;
    }
    chain
}
