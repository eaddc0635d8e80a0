//! The headers of a frame as one line. What is cut off or unknown ends the line.

use std::net::{Ipv4Addr, Ipv6Addr};

use wire::MacAddr;
use wire::number::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, PORT_ROCE, PORT_VXLAN, PROTOCOL_TCP,
    PROTOCOL_UDP, is_vlan,
};

/// Describes an Ethernet frame, and the frame in it if it is a VXLAN packet.
pub(crate) fn line(frame: &[u8]) -> String {
    let mut text = String::new();
    if ethernet(frame, &mut text).is_none() {
        text += if text.is_empty() { "… cut" } else { " … cut" };
    }
    text
}

fn take<const N: usize>(bytes: &[u8]) -> Option<(&[u8; N], &[u8])> {
    bytes.split_first_chunk()
}

fn ethernet(frame: &[u8], text: &mut String) -> Option<()> {
    let (to, rest) = take::<6>(frame)?;
    let (from, mut rest) = take::<6>(rest)?;
    *text += &format!("{} > {}", MacAddr(*from), MacAddr(*to));
    loop {
        let (kind, after) = take::<2>(rest)?;
        let kind = u16::from_be_bytes(*kind);
        rest = after;
        if is_vlan(kind) {
            let (tag, after) = take::<2>(rest)?;
            *text += &format!(", vlan {}", u16::from_be_bytes(*tag) & 0xfff);
            rest = after;
            continue;
        }
        match kind {
            ETHERTYPE_IPV4 => return ipv4(rest, text),
            ETHERTYPE_IPV6 => return ipv6(rest, text),
            ETHERTYPE_ARP => *text += ", ARP",
            other => *text += &format!(", EtherType {other:#06x}"),
        }
        return Some(());
    }
}

fn ipv4(packet: &[u8], text: &mut String) -> Option<()> {
    let (header, _) = take::<20>(packet)?;
    let [version, tos, _, _, _, _, f0, f1, ttl, protocol, _, _, addresses @ ..] = *header;
    let [s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
    let (source, destination) = (Ipv4Addr::new(s0, s1, s2, s3), Ipv4Addr::new(d0, d1, d2, d3));
    *text += &format!(", {source} > {destination}, TTL {ttl}{}", mark(tos));
    let offset = u16::from_be_bytes([f0, f1]) & 0x1fff;
    if offset > 0 {
        *text += &format!(", fragment at {}", 8 * offset);
        return Some(());
    }
    let length = 4 * usize::from(version & 15);
    upper(protocol, packet.get(length..).filter(|_| length >= 20)?, text)
}

fn ipv6(packet: &[u8], text: &mut String) -> Option<()> {
    let (head, rest) = take::<8>(packet)?;
    let (source, rest) = take::<16>(rest)?;
    let (destination, rest) = take::<16>(rest)?;
    let [v, f, _, _, _, _, next, hops] = *head;
    let (source, destination) = (Ipv6Addr::from(*source), Ipv6Addr::from(*destination));
    *text += &format!(", {source} > {destination}, TTL {hops}{}", mark(v << 4 | f >> 4));
    upper(next, rest, text)
}

fn mark(tos: u8) -> &'static str {
    if tos & 3 == 3 { ", CE" } else { "" }
}

fn upper(protocol: u8, rest: &[u8], text: &mut String) -> Option<()> {
    let name = match protocol {
        PROTOCOL_UDP => "UDP",
        PROTOCOL_TCP => "TCP",
        other => {
            *text += &format!(", protocol {other}");
            return Some(());
        }
    };
    let (ports, after) = take::<4>(rest)?;
    let [s0, s1, d0, d1] = *ports;
    let (source, destination) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
    *text += &format!(", {name} {source} > {destination}");
    if protocol != PROTOCOL_UDP {
        return Some(());
    }
    match destination {
        PORT_VXLAN => {
            let (header, inner) = take::<8>(after.get(4..)?)?;
            let [_, _, _, _, v0, v1, v2, _] = *header;
            *text += &format!(", VNI {}: ", u32::from_be_bytes([0, v0, v1, v2]));
            ethernet(inner, text)
        }
        PORT_ROCE => {
            let (header, _) = take::<12>(after.get(4..)?)?;
            let [opcode, _, _, _, _, q0, q1, q2, _, p0, p1, p2] = *header;
            let number = |a, b, c| u32::from_be_bytes([0, a, b, c]);
            let (pair, packet) = (number(q0, q1, q2), number(p0, p1, p2));
            *text += &format!(", RoCE opcode {opcode:#04x}, queue pair {pair:#x}, PSN {packet}");
            Some(())
        }
        _ => Some(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(digits: &str) -> Vec<u8> {
        let digits: Vec<char> = digits.chars().filter(|digit| !digit.is_whitespace()).collect();
        let byte = |two: &[char]| u8::from_str_radix(&two.iter().collect::<String>(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    const ROCE: &str = "020000000002 020000000001 8100000a 0800
        4503004000004000 4011 0000 0a010001 0a010002 c00012b7002c0000 04 40 ffff 00 000011 80 000007";

    #[test]
    fn a_packet_in_a_tunnel_is_one_line() {
        let inner = "02:00:00:00:00:01 > 02:00:00:00:00:02, vlan 10, 10.1.0.1 > 10.1.0.2, TTL 64, CE, \
            UDP 49152 > 4791, RoCE opcode 0x04, queue pair 0x11, PSN 7";
        assert_eq!(line(&bytes(ROCE)), inner);
        let outer = "0200000000aa 0200000000bb 86dd 60000000004011ff
            20010db8000000000000000000000001 20010db8000000000000000000000002
            c00112b500400000 08000000 00000a00";
        let whole = bytes(&format!("{outer}{ROCE}"));
        let expected = "02:00:00:00:00:bb > 02:00:00:00:00:aa, 2001:db8::1 > 2001:db8::2, TTL 255, \
            UDP 49153 > 4789, VNI 10: ";
        assert_eq!(line(&whole), format!("{expected}{inner}"));
        for end in 0..whole.len() {
            let text = line(&whole[..end]);
            assert!(text.ends_with("… cut"), "cut at {end}: {text}");
        }
    }

    #[test]
    fn other_frames_end_where_they_are_unknown() {
        let arp = line(&bytes("ffffffffffff 020000000001 0806 0001"));
        assert_eq!(arp, "02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff, ARP");
        let lldp = line(&bytes("0180c200000e 020000000001 88cc"));
        assert_eq!(lldp, "02:00:00:00:00:01 > 01:80:c2:00:00:0e, EtherType 0x88cc");
        let icmp = line(&bytes(
            "020000000002 020000000001 0800 45000040 00000000 4001 0000 0a010001 0a010002",
        ));
        assert!(icmp.ends_with("10.1.0.1 > 10.1.0.2, TTL 64, protocol 1"), "{icmp}");
        let fragment = line(&bytes(
            "020000000002 020000000001 0800 45000040 00000010 4011 0000 0a010001 0a010002",
        ));
        assert!(fragment.ends_with(", fragment at 128"), "{fragment}");
        let short = line(&bytes(
            "020000000002 020000000001 0800 40000040 00000000 4011 0000 0a010001 0a010002",
        ));
        assert!(short.ends_with("10.1.0.1 > 10.1.0.2, TTL 64 … cut"), "{short}");
    }
}
