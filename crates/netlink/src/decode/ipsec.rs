//! `struct xfrm_userpolicy_info` and `struct xfrm_userpolicy_default`: IPsec policies.
//!
//! The types of these messages overlap those of rtnetlink, so they have a decoder of their own.
//! Layouts and attribute numbers: `include/uapi/linux/xfrm.h`.

use std::net::IpAddr;

use crate::envelope::{AF_INET, AF_INET6, Envelope};
use crate::malformed::DecodeError;
use crate::message::{IpsecDirection, IpsecPolicy, Message};

/// `XFRM_MSG_NEWPOLICY`.
const NEW_POLICY: u16 = 0x13;
/// `XFRM_MSG_GETDEFAULT`, which is also the type of its answer.
const DEFAULT: u16 = 0x28;
/// `XFRM_POLICY_BLOCK`.
const BLOCK: u8 = 1;
/// `XFRM_USERPOLICY_BLOCK`.
const DEFAULT_BLOCK: u8 = 1;
/// `XFRMA_TMPL`: the transformations that the policy requires.
const TEMPLATES: u16 = 5;
/// `XFRMA_IF_ID`.
const INTERFACE_ID: u16 = 31;

/// Decodes an answer to a request for policies or for the default policy. Policies that cannot
/// apply to VXLAN become [`Message::Other`]: those for forwarded packets, of single
/// sockets and of xfrm interfaces.
pub(crate) fn message(envelope: &Envelope<'_>) -> Result<Message, DecodeError> {
    let message = match envelope.kind {
        NEW_POLICY => policy(envelope)?.map(Message::IpsecPolicy),
        DEFAULT => {
            let (&[input, _forward, output], _) = envelope.body::<3>()?;
            Some(Message::IpsecDefault { block: input == DEFAULT_BLOCK || output == DEFAULT_BLOCK })
        }
        _ => None,
    };
    Ok(message.unwrap_or(Message::Other(envelope.kind)))
}

fn policy(envelope: &Envelope<'_>) -> Result<Option<IpsecPolicy>, DecodeError> {
    // The selector, 56 bytes; lifetimes; priority and index; direction, action, flags, share;
    // padding.
    let (body, attributes) = envelope.body::<168>()?;
    let (destination, rest) = body.split_at(16);
    let (source, rest) = rest.split_at(16);
    let &[p0, p1, m0, m1, _, _, _, _, f0, f1, destination_length, source_length, protocol, ..] =
        rest
    else {
        return Ok(None);
    };
    let &[.., direction, action, _, _, _, _, _, _] = body;
    let direction = match direction {
        0 => IpsecDirection::In,
        1 => IpsecDirection::Out,
        _ => return Ok(None),
    };
    let (mut transforms, mut of_interface) = (false, false);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            TEMPLATES => transforms = !attribute.payload.is_empty(),
            INTERFACE_ID => of_interface = attribute.u32()? != 0,
            _ => {}
        }
    }
    let family = u16::from_ne_bytes([f0, f1]);
    if ![AF_INET, AF_INET6].map(u16::from).contains(&family) || of_interface {
        return Ok(None);
    }
    let is_ipv6 = family == u16::from(AF_INET6);
    Ok(Some(IpsecPolicy {
        direction,
        source: (address(source, is_ipv6), source_length),
        destination: (address(destination, is_ipv6), destination_length),
        protocol,
        destination_port: (u16::from_be_bytes([p0, p1]), u16::from_be_bytes([m0, m1])),
        block: action == BLOCK,
        transforms,
    }))
}

/// The address in an `xfrm_address_t`.
fn address(octets: &[u8], is_ipv6: bool) -> IpAddr {
    if is_ipv6 {
        return IpAddr::from(octets.first_chunk::<16>().copied().unwrap_or_default());
    }
    IpAddr::from(octets.first_chunk::<4>().copied().unwrap_or_default())
}
