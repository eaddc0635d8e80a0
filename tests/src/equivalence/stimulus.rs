//! The frames that are sent, as data: they can be printed, compared, generated at random and
//! shrunk.

use std::net::Ipv4Addr;

use wire::{Ethernet, MacAddr, Tcp, Udp, Vxlan, number};

use super::wires::Wire;
use crate::frames::{self, Ipv4, Pair, Roce};

/// The leaf's VTEP address.
pub const LEAF: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The VTEP behind the first uplink.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// The VTEP behind the second uplink.
pub const PEER2: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);

/// A station of the overlay. 1 and 2 are behind the leaf, 3 behind [`PEER`], 4 behind [`PEER2`].
/// All others are unknown.
pub type Station = u8;

/// The broadcast address as a station.
pub const BROADCAST: Station = 255;
/// An IPv4 multicast group as a station: 239.1.1.1.
pub const GROUP: Station = 254;

/// The MAC address of a station.
#[must_use]
pub const fn mac(station: Station) -> MacAddr {
    match station {
        BROADCAST => MacAddr([0xff; 6]),
        GROUP => MacAddr([1, 0, 0x5e, 1, 1, 1]),
        _ => MacAddr([2, 0, 0, 0, 10, station]),
    }
}

/// The IPv4 address of a station.
#[must_use]
pub const fn address(station: Station) -> Ipv4Addr {
    match station {
        GROUP => Ipv4Addr::new(239, 1, 1, 1),
        _ => Ipv4Addr::new(192, 168, 10, station),
    }
}

/// Payload of an inner frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// UDP over IPv4.
    Udp,
    /// RoCEv2 to a queue pair.
    Roce(u32),
    /// One TCP segment over IPv4.
    Tcp,
    /// RoCEv2 over IPv6.
    Ipv6,
    /// An ARP request for the destination.
    Arp,
    /// An EtherType that no protocol stack handles.
    Other,
}

/// A defect of an IPv4 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// No defect.
    None,
    /// The frame ends within the header.
    Short,
    /// Version 5.
    Version,
    /// A header of 16 bytes.
    HeaderLength,
    /// The total length exceeds the frame.
    TooLong,
    /// Bytes follow the packet.
    Trailing,
    /// The header checksum is wrong.
    Checksum,
    /// Nothing follows the addresses and the EtherType.
    Empty,
}

/// An inner frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inner {
    /// Sender.
    pub from: Station,
    /// Receiver.
    pub to: Station,
    /// Payload type.
    pub kind: Kind,
    /// Type of service of the IP header.
    pub tos: u8,
    /// Time to live of the IP header.
    pub ttl: u8,
    /// Don't-fragment bit of the IPv4 header.
    pub dont_fragment: bool,
    /// Bytes of payload.
    pub length: usize,
    /// EtherTypes of the VLAN tags, outermost first.
    pub tags: &'static [u16],
    /// The header's defect.
    pub damage: Damage,
    /// Whether the checksum of UDP or TCP over IPv4 is left to the device.
    pub partial: bool,
    /// Whether the host itself has put the frame into a VXLAN packet, without a UDP checksum. Tags are outside.
    pub nested: bool,
}

/// UDP port of the hosts' own tunnels.
pub const OWN_PORT: u16 = 8472;

/// Where a device has to sum from, and where the checksum then belongs from there on.
pub type Partial = Option<(u16, u16)>;

impl Inner {
    /// A UDP packet with default values.
    #[must_use]
    pub const fn udp(from: Station, to: Station) -> Self {
        Self {
            from,
            to,
            kind: Kind::Udp,
            tos: 0,
            ttl: 64,
            dont_fragment: false,
            length: 40,
            tags: &[],
            damage: Damage::None,
            partial: false,
            nested: false,
        }
    }

    /// With this payload type.
    #[must_use]
    pub const fn kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// With this type of service.
    #[must_use]
    pub const fn tos(self, tos: u8) -> Self {
        Self { tos, ..self }
    }

    /// With this time to live.
    #[must_use]
    pub const fn ttl(self, ttl: u8) -> Self {
        Self { ttl, ..self }
    }

    /// With this number of payload bytes.
    #[must_use]
    pub const fn length(self, length: usize) -> Self {
        Self { length, ..self }
    }

    /// With the don't-fragment bit set.
    #[must_use]
    pub const fn whole(self) -> Self {
        Self { dont_fragment: true, ..self }
    }

    /// With VLAN tags of these EtherTypes.
    #[must_use]
    pub const fn tags(self, tags: &'static [u16]) -> Self {
        Self { tags, ..self }
    }

    /// With this defect.
    #[must_use]
    pub const fn damage(self, damage: Damage) -> Self {
        Self { damage, ..self }
    }

    /// With the checksum left to the device.
    #[must_use]
    pub const fn partial(self) -> Self {
        Self { partial: true, ..self }
    }

    /// In a tunnel of the host.
    #[must_use]
    pub const fn nested(self) -> Self {
        Self { nested: true, ..self }
    }

    /// The frame's bytes, and what is left to the device. `number` distinguishes it from the other
    /// frames of a round.
    #[must_use]
    pub fn bytes(&self, number: u16) -> (Vec<u8>, Partial) {
        let pair = Pair {
            from: (mac(self.from), address(self.from)),
            to: (mac(self.to), address(self.to)),
        };
        let ports = (1000 + number, 2000);
        let payload: Vec<u8> =
            (0..self.length).map(|index| (index as u16 + number) as u8).collect();
        let ip = |protocol, transport: &[u8]| {
            let fields = Ipv4 {
                tos: self.tos,
                ttl: self.ttl,
                dont_fragment: self.dont_fragment,
                identification: number + 1,
                ..Ipv4::default()
            };
            frames::ipv4(pair, protocol, transport, fields)
        };
        let mut frame = match self.kind {
            Kind::Udp => ip(number::PROTOCOL_UDP, &frames::datagram(pair, ports, &payload)),
            Kind::Roce(queue_pair) => {
                let roce = Roce {
                    sequence: number.into(),
                    payload: self.length & !3,
                    ..Roce::to(queue_pair)
                };
                let mut frame = ip(number::PROTOCOL_UDP, &roce.datagram());
                wire::icrc::fill(&mut frame[Ethernet::LENGTH..]).unwrap();
                frame
            }
            Kind::Tcp => ip(number::PROTOCOL_TCP, &segment(pair, ports, &payload)),
            Kind::Ipv6 => Roce { sequence: number.into(), ..Roce::to(7) }.frame_v6(pair, &[]),
            Kind::Arp => frames::ethernet(pair, 0x0806, &arp_request(self.from, self.to)),
            Kind::Other => {
                frames::ethernet(pair, 0x88b5, &[&number.to_be_bytes()[..], &[0x5a; 44]].concat())
            }
        };
        self.damage_in(&mut frame);
        let mut partial = if self.partial { self.leave_checksum(&mut frame) } else { None };
        let mut before = frame.len();
        if self.nested {
            let datagram =
                test_frames::udp((1000 + number, OWN_PORT), &test_frames::vxlan(99, 0, &frame));
            frame = ip(number::PROTOCOL_UDP, &datagram);
        }
        for tag in self.tags.iter().rev() {
            frame = frames::tagged(&frame, *tag, 0x2005);
        }
        before = frame.len() - before;
        if let Some((start, _)) = &mut partial {
            *start += before as u16;
        }
        (frame, partial)
    }

    /// Replaces a checksum over IPv4 by the sum of the pseudo header, which the device completes.
    fn leave_checksum(&self, frame: &mut [u8]) -> Partial {
        const START: usize = Ethernet::LENGTH + 20;
        let (protocol, offset) = match (self.kind, self.damage) {
            (Kind::Udp, Damage::None) => (number::PROTOCOL_UDP, 6),
            (Kind::Tcp, Damage::None) => (number::PROTOCOL_TCP, 16),
            _ => return None,
        };
        let length = u16::try_from(frame.len() - START).unwrap();
        let sum = wire::checksum::Sum::new()
            .pseudo_ipv4(address(self.from), address(self.to), protocol, length)
            .fold();
        frame[START + offset..START + offset + 2].copy_from_slice(&sum.to_be_bytes());
        Some((START as u16, offset as u16))
    }

    fn damage_in(&self, frame: &mut Vec<u8>) {
        const IP: usize = Ethernet::LENGTH;
        match self.damage {
            Damage::None => return,
            Damage::Short => frame.truncate(IP + 12),
            Damage::Version => frame[IP] = 0x55,
            Damage::HeaderLength => frame[IP] = 0x44,
            Damage::TooLong => frame[IP + 2] += 1,
            Damage::Trailing => frame.extend([0xee; 8]),
            Damage::Checksum => frame[IP + 10] ^= 0xff,
            Damage::Empty => frame.truncate(IP),
        }
        if !matches!(self.damage, Damage::Checksum | Damage::Short | Damage::Empty) {
            frame[IP + 10..IP + 12].fill(0);
            let sum = wire::checksum::checksum(&frame[IP..IP + 20]);
            frame[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

fn segment(pair: Pair, (source, destination): (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut tcp = Tcp::zeroed();
    tcp.set_source_port(source).set_destination_port(destination).set_sequence(1000);
    tcp.set_data_offset(5).set_flags(Tcp::<[u8; 20]>::ACK).set_window(1000);
    let length = u16::try_from(20 + payload.len()).unwrap();
    let sum = wire::checksum::Sum::new()
        .pseudo_ipv4(pair.from.1, pair.to.1, number::PROTOCOL_TCP, length)
        .bytes(tcp.as_bytes())
        .bytes(payload);
    tcp.set_checksum(sum.checksum());
    [&tcp.as_bytes()[..], payload].concat()
}

fn arp_request(from: Station, to: Station) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, 1];
    let (sender, target) = (address(from).octets(), address(to).octets());
    [&head[..], &mac(from).0, &sender, &[0; 6], &target, &[0; 18]].concat()
}

/// A frame and where it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stimulus {
    /// A frame from a host, sent at its port.
    Host(Wire, Inner),
    /// A frame in the tunnel that the first host's kernel has to the station behind [`PEER`].
    Own(Inner),
    /// VXLAN from a VTEP, sent at an uplink.
    Tunnel(Tunnel, Inner),
    /// A router behind an uplink reports that VXLAN packets to a VTEP are too long (ICMP type 3,
    /// code 4).
    TooBig {
        /// The uplink.
        wire: Wire,
        /// The VTEP.
        to: Ipv4Addr,
        /// The MTU in the message.
        mtu: u16,
    },
}

/// The outer headers of a received VXLAN packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// The uplink that receives it.
    pub wire: Wire,
    /// Outer source address.
    pub source: Ipv4Addr,
    /// Outer destination address.
    pub destination: Ipv4Addr,
    /// UDP destination port.
    pub port: u16,
    /// VNI.
    pub vni: u32,
    /// Outer type of service.
    pub tos: u8,
    /// Bits to flip in the VXLAN header.
    pub flip: u64,
}

impl Tunnel {
    /// A packet from this VTEP at this uplink to the leaf.
    #[must_use]
    pub const fn from(wire: Wire, source: Ipv4Addr) -> Self {
        Self { wire, source, destination: LEAF, port: 4789, vni: 10, tos: 0, flip: 0 }
    }
}

impl Stimulus {
    /// The interface that sends it.
    #[must_use]
    pub const fn wire(&self) -> Wire {
        match self {
            Self::Host(wire, _) | Self::TooBig { wire, .. } => *wire,
            Self::Own(_) => Wire::H1,
            Self::Tunnel(tunnel, _) => tunnel.wire,
        }
    }

    /// The frame's bytes, and what is left to the device. `number` distinguishes it from the other
    /// frames of a round.
    #[must_use]
    pub fn bytes(&self, number: u16) -> (Vec<u8>, Partial) {
        let whole = match self {
            Self::Host(_, inner) | Self::Own(inner) => return inner.bytes(number),
            Self::Tunnel(tunnel, inner) => {
                let vxlan = test_frames::vxlan(tunnel.vni, tunnel.flip, &inner.bytes(number).0);
                let datagram = test_frames::udp((50_000, tunnel.port), &vxlan);
                let pair = outer_pair(tunnel.wire, tunnel.source, tunnel.destination);
                let fields =
                    Ipv4 { tos: tunnel.tos, identification: number + 1, ..Ipv4::default() };
                frames::ipv4(pair, number::PROTOCOL_UDP, &datagram, fields)
            }
            Self::TooBig { wire, to, mtu } => {
                let quoted = outer_pair(*wire, LEAF, *to);
                let udp = Udp::new(50_000, 4789, 8000).unwrap();
                let mut vxlan = Vxlan::zeroed();
                vxlan.set_flags(Vxlan::I_FLAG).set_vni_number(10);
                let start = [&udp.as_bytes()[..], &vxlan.as_bytes()[..]].concat();
                let fields =
                    Ipv4 { dont_fragment: true, total_length: Some(8020), ..Ipv4::default() };
                let quoted = frames::ipv4(quoted, number::PROTOCOL_UDP, &start, fields);
                let [high, low] = mtu.to_be_bytes();
                let mut icmp =
                    [&[3, 4, 0, 0, 0, 0, high, low][..], &quoted[Ethernet::LENGTH..]].concat();
                let sum = wire::checksum::checksum(&icmp);
                icmp[2..4].copy_from_slice(&sum.to_be_bytes());
                frames::ipv4(outer_pair(*wire, wire.router(), LEAF), 1, &icmp, Ipv4::default())
            }
        };
        (whole, None)
    }
}

const fn outer_pair(wire: Wire, source: Ipv4Addr, destination: Ipv4Addr) -> Pair {
    Pair { from: (wire.outside_mac(), source), to: (wire.leaf_mac(), destination) }
}

/// Frames in both directions to every kind of destination. Every row sends them.
pub const BOTH_WAYS: &[Stimulus] = &[
    Stimulus::Tunnel(Tunnel::from(Wire::U1, PEER), Inner::udp(3, 1)),
    Stimulus::Tunnel(Tunnel::from(Wire::U2, PEER2), Inner::udp(4, 2)),
    Stimulus::Tunnel(Tunnel::from(Wire::U1, PEER), Inner::udp(3, 1).kind(Kind::Roce(17))),
    Stimulus::Tunnel(Tunnel::from(Wire::U1, PEER), Inner::udp(3, 2).kind(Kind::Tcp)),
    Stimulus::Tunnel(Tunnel::from(Wire::U1, PEER), Inner::udp(3, BROADCAST)),
    Stimulus::Tunnel(Tunnel::from(Wire::U1, PEER), Inner::udp(3, 99)),
    Stimulus::Tunnel(Tunnel::from(Wire::U1, PEER), Inner::udp(3, 1).kind(Kind::Ipv6)),
    Stimulus::Tunnel(Tunnel::from(Wire::U2, PEER2), Inner::udp(4, 1).kind(Kind::Arp)),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3)),
    Stimulus::Host(Wire::H1, Inner::udp(1, 4)),
    Stimulus::Host(Wire::H2, Inner::udp(2, 3)),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).kind(Kind::Roce(18))),
    Stimulus::Host(Wire::H1, Inner::udp(1, 4).kind(Kind::Tcp).tos(0x28)),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).kind(Kind::Ipv6)),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).kind(Kind::Other)),
    Stimulus::Host(Wire::H1, Inner::udp(1, BROADCAST).kind(Kind::Arp)),
    Stimulus::Host(Wire::H1, Inner::udp(1, BROADCAST)),
    Stimulus::Host(Wire::H1, Inner::udp(1, GROUP)),
    Stimulus::Host(Wire::H1, Inner::udp(1, 98)),
    Stimulus::Host(Wire::H1, Inner::udp(1, 2)),
];
