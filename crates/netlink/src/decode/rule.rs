//! `struct fib_rule_hdr`: policy routing rules.
//!
//! Attribute numbers: `include/uapi/linux/fib_rules.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::envelope::{AF_INET, AF_INET6, Envelope};
use crate::malformed::DecodeError;
use crate::message::Rule;

/// `FIB_RULE_INVERT`.
const INVERT: u32 = 2;
/// The value for "not set" of `FRA_SUPPRESS_PREFIXLEN` and `FRA_SUPPRESS_IFGROUP`.
const UNSET: u32 = u32::MAX;

/// A rule. `None` for families other than IPv4 and IPv6.
pub(super) fn rule(envelope: &Envelope<'_>) -> Result<Option<Rule>, DecodeError> {
    let (&[family, to_length, from_length, tos, table, _, _, action, f0, f1, f2, f3], attributes) =
        envelope.body::<12>()?;
    let any = match family {
        AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return Ok(None),
    };
    let mut rule = Rule {
        table: table.into(),
        action,
        inverted: u32::from_ne_bytes([f0, f1, f2, f3]) & INVERT != 0,
        ..Rule::default()
    };
    let (mut to, mut from) = (any, any);
    let mut port_mask = u16::MAX;
    let mut others: Vec<&'static str> = Vec::new();
    if tos != 0 {
        others.push("tos");
    }
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            1 => to = attribute.ip()?,
            2 => from = attribute.ip()?,
            3 => rule.input = Some(attribute.string()),
            6 => rule.priority = attribute.u32()?,
            15 => rule.table = attribute.u32()?,
            17 => rule.output = Some(attribute.string()),
            19 => rule.l3mdev = attribute.bool()?,
            22 => rule.protocol = Some(attribute.u8()?).filter(|protocol| *protocol != 0),
            24 => {
                let &[low, high] = attribute.records::<2>()? else { continue };
                rule.destination_ports = Some((u16::from_ne_bytes(low), u16::from_ne_bytes(high)));
            }
            // FRA_PROTOCOL (the origin of the rule) and FRA_PAD do not affect which packets match.
            21 | 18 => {}
            13 | 14 => {
                if attribute.u32()? != UNSET {
                    others.push("suppress");
                }
            }
            29 => port_mask = attribute.u16()?,
            other => others.push(selector(other)),
        }
    }
    if port_mask != u16::MAX {
        // With a mask only some bits of the port are compared, so the range alone is not
        // sufficient.
        rule.destination_ports = None;
        others.push("dport");
    }
    others.sort_unstable();
    others.dedup();
    Ok(Some(Rule { to: (to, to_length), from: (from, from_length), others, ..rule }))
}

/// The name of an attribute in `ip rule`.
const fn selector(attribute: u16) -> &'static str {
    match attribute {
        4 => "goto",
        10 | 16 => "fwmark",
        11 => "realms",
        12 => "tun_id",
        20 => "uidrange",
        23 | 28 => "sport",
        25 | 30 => "dscp",
        26 | 27 => "flowlabel",
        _ => "an unknown selector",
    }
}
