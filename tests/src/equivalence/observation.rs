//! What arrived, in a normal form without fields that may differ between two runs of the same
//! forwarding.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use std::net::Ipv4Addr;

use wire::checksum::Sum;
use wire::{Ethernet, Ipv4Packet, number};

use super::stimulus::OWN_PORT;
use super::wires::Wire;

/// The kernel's default range of source ports (`net.ipv4.ip_local_port_range`).
pub const PORTS: std::ops::Range<u16> = 32768..60999;

/// The frames that arrived, each with its number of copies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    frames: BTreeMap<(Wire, Vec<u8>), usize>,
}

impl Observation {
    /// Adds a frame. ARP and ICMPv6 at uplinks are left out, because the leaf's address resolution
    /// is rate-limited.
    pub fn add(&mut self, wire: Wire, bytes: &[u8]) {
        // ARP, and ICMPv6 with or without a hop-by-hop header.
        let resolution = match bytes.get(12..14) {
            Some([8, 6]) => true,
            Some([0x86, 0xdd]) => matches!(bytes.get(20), Some(0 | 58)),
            _ => false,
        };
        if wire.is_uplink() && resolution {
            return;
        }
        *self.frames.entry((wire, normal(wire, bytes))).or_default() += 1;
    }

    /// The number of frames.
    #[must_use]
    pub fn count(&self) -> usize {
        self.frames.values().sum()
    }

    /// The same with both uplinks treated as one, for equal-cost next hops.
    #[must_use]
    pub fn with_one_uplink(&self) -> Self {
        let mut frames = BTreeMap::new();
        for ((wire, bytes), count) in &self.frames {
            let mut bytes = bytes.clone();
            let wire = if wire.is_uplink() { Wire::U1 } else { *wire };
            if wire.is_uplink() {
                bytes[..12].fill(0);
            }
            *frames.entry((wire, bytes)).or_default() += count;
        }
        Self { frames }
    }

    /// The frames whose numbers differ, one per line, with the numbers of both sides.
    #[must_use]
    pub fn difference(&self, other: &Self) -> String {
        let mut lines = Vec::new();
        for key in self
            .frames
            .keys()
            .chain(other.frames.keys().filter(|key| !self.frames.contains_key(*key)))
        {
            let counts = [self, other].map(|side| side.frames.get(key).copied().unwrap_or(0));
            if counts[0] != counts[1] {
                let [kernel, vtepd] = counts;
                lines.push(format!(
                    "    kernel {kernel}, vtepd {vtepd}: {} {}",
                    key.0.name(),
                    shown(&key.1)
                ));
            }
        }
        lines.join("\n")
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((wire, bytes), count) in &self.frames {
            writeln!(f, "    {count} x {} {}", wire.name(), shown(bytes))?;
        }
        Ok(())
    }
}

const IP: usize = Ethernet::LENGTH;

/// Normalises a packet that the leaf sent, or an ICMP packet. It replaces source
/// port, IP identification and checksums by whether they are valid.
fn normal(wire: Wire, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = normal_outside(wire, bytes);
    let inner = if wire.is_uplink() { 50 } else { 0 };
    own_tunnel(bytes.get_mut(inner..).unwrap_or_default());
    bytes
}

/// Replaces the identification of a packet in a tunnel of a host, and the checksum over it.
fn own_tunnel(frame: &mut [u8]) {
    let mut ip = IP;
    while let Some([0x81, 0] | [0x88, 0xa8]) = frame.get(ip - 2..ip) {
        ip += 4;
    }
    let Some(packet) = frame.get_mut(ip..).filter(|packet| packet.len() >= 28) else { return };
    let is_own = packet[0] == 0x45 && packet[9] == 17 && packet[22..24] == OWN_PORT.to_be_bytes();
    if is_own {
        let right = Sum::new().bytes(&packet[..20]).is_intact();
        packet[4..6].fill(0);
        packet[10..12].fill(if right { 0 } else { 0xff });
    }
}

fn normal_outside(wire: Wire, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let Some(ip) = bytes.get(IP..).and_then(|packet| Ipv4Packet::parse(packet).ok()) else {
        return bytes;
    };
    if bytes.get(12..14) != Some(&[8, 0]) {
        return bytes;
    }
    let own = bytes.get(6..12) == Some(&wire.leaf_mac().0) || ip.header.protocol() == 1;
    if !own {
        return bytes;
    }
    let right = ip.checksum_is_right();
    let (protocol, first, header) =
        (ip.header.protocol(), ip.header.fragment_offset() == 0, usize::from(ip.header.ihl()) * 4);
    let (whole, l4) = (first && !ip.header.more_fragments(), IP + header);
    let before = bytes.clone();
    let ip_of = |at: usize| Ipv4Addr::from(*before[at..].first_chunk().unwrap_or(&[0; 4]));
    let length = usize::from(u16::from_be_bytes([before[IP + 2], before[IP + 3]]));
    let length = length.min(before.len() - IP);
    // The identification, and the checksum that covers it.
    bytes[IP + 4..IP + 6].fill(0);
    bytes[IP + 10..IP + 12].fill(if right { 0 } else { 0xff });
    if first && protocol == number::PROTOCOL_UDP && bytes.len() >= l4 + 8 {
        let port = u16::from_be_bytes([bytes[l4], bytes[l4 + 1]]);
        bytes[l4..l4 + 2].fill(if PORTS.contains(&port) { 0 } else { 0xff });
        let none = bytes[l4 + 6..l4 + 8] == [0, 0];
        // That of the first fragment covers the others, too.
        let is_right = none || !whole || {
            let datagram = &before[l4..IP + length.max(header)];
            let (source, destination) = (ip_of(26), ip_of(30));
            Sum::new()
                .pseudo_ipv4(source, destination, protocol, datagram.len() as u16)
                .bytes(datagram)
                .is_intact()
        };
        bytes[l4 + 6..l4 + 8].fill(match (none, is_right) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 0xff,
        });
    }
    if whole && protocol == 1 && bytes.len() >= l4 + 8 {
        // The checksum of an ICMP message covers the identification of the quoted packet.
        bytes[l4 + 2..l4 + 4].fill(0);
        if bytes.len() >= l4 + 28 && wire.is_uplink() {
            bytes[l4 + 12..l4 + 14].fill(0);
            bytes[l4 + 18..l4 + 20].fill(0);
            bytes[l4 + 28..].fill(0);
        }
    }
    bytes
}

/// A frame in one line of text.
fn shown(bytes: &[u8]) -> String {
    let Some((ethernet, rest)) = Ethernet::parse(bytes).ok() else {
        return format!("{bytes:02x?}");
    };
    let mut text =
        format!("{} > {} {:04x}", ethernet.source(), ethernet.destination(), ethernet.ethertype());
    let length = bytes.len();
    let Ok(ip) = Ipv4Packet::parse(rest) else {
        return format!("{text} {length} B {}", hex(&rest[..rest.len().min(48)]));
    };
    let header = &ip.header;
    write!(text, " {} > {} protocol {}", header.source(), header.destination(), header.protocol())
        .unwrap();
    write!(text, " id {} ttl {} tos {:#x}", header.identification(), header.ttl(), header.tos())
        .unwrap();
    for (bit, name) in [(header.dont_fragment(), " DF"), (header.more_fragments(), " MF")] {
        text += if bit { name } else { "" };
    }
    if header.fragment_offset() != 0 {
        write!(text, " offset {}", header.fragment_offset()).unwrap();
    }
    let payload = ip.payload;
    if header.protocol() == number::PROTOCOL_UDP && payload.get(2..4) == Some(&[0x12, 0xb5]) {
        let outer = &payload[..payload.len().min(16)];
        let inner = shown(payload.get(16..).unwrap_or_default());
        return format!("{text} VXLAN {} [{inner}]", hex(outer));
    }
    format!("{text} {length} B {}", hex(&payload[..payload.len().min(16)]))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
