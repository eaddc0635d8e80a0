//! Builders for frames to inject.

use std::net::{Ipv4Addr, Ipv6Addr};

use ::fabric::Namespace;
use fabric::packet::{BATCH, Interface, PacketSocket};
use test_frames::{IPV4, IPV6, Ipv6, ROCE, UDP};
pub use test_frames::{Ipv4, tagged};
use wire::{Ethernet, MacAddr, icrc};

use crate::lab::Host;

/// Sender and receiver of a frame.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// Sender.
    pub from: (MacAddr, Ipv4Addr),
    /// Receiver.
    pub to: (MacAddr, Ipv4Addr),
}

impl Pair {
    /// From one host to another in the first overlay.
    #[must_use]
    pub const fn of(from: &Host, to: &Host) -> Self {
        Self { from: (from.mac(), from.ip()), to: (to.mac(), to.ip()) }
    }

    const fn octets(self) -> ([u8; 4], [u8; 4]) {
        (self.from.1.octets(), self.to.1.octets())
    }

    /// The same with another destination MAC address.
    #[must_use]
    pub const fn to_mac(self, mac: MacAddr) -> Self {
        Self { to: (mac, self.to.1), ..self }
    }
}

/// An Ethernet frame.
#[must_use]
pub fn ethernet(pair: Pair, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    test_frames::ethernet(pair.from.0.0, pair.to.0.0, ethertype, payload)
}

/// An Ethernet frame with an IPv4 packet.
#[must_use]
pub fn ipv4(pair: Pair, protocol: u8, payload: &[u8], fields: Ipv4) -> Vec<u8> {
    ethernet(pair, IPV4, &test_frames::ipv4(pair.octets(), protocol, payload, fields))
}

/// UDP header and payload with a correct checksum over IPv4.
#[must_use]
pub fn datagram(pair: Pair, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    test_frames::udp_over_ipv4(pair.octets(), ports, payload)
}

/// An Ethernet frame with UDP over IPv4.
#[must_use]
pub fn udp(pair: Pair, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    ipv4(pair, UDP, &datagram(pair, ports, payload), Ipv4::default())
}

/// A RoCEv2 packet.
#[derive(Debug, Clone, Copy)]
pub struct Roce {
    /// Destination queue pair.
    pub queue_pair: u32,
    /// Packet sequence number.
    pub sequence: u32,
    /// Opcode.
    pub opcode: u8,
    /// Inner UDP source port.
    pub source_port: u16,
    /// Bytes between the base transport header and the ICRC.
    pub payload: usize,
}

impl Roce {
    /// A packet to a queue pair, with default values.
    #[must_use]
    pub const fn to(queue_pair: u32) -> Self {
        Self { queue_pair, sequence: 0, opcode: 4, source_port: 0xc000, payload: 64 }
    }

    /// Base transport header, payload and room for the ICRC.
    #[must_use]
    pub fn transport(self) -> Vec<u8> {
        let payload: Vec<u8> =
            (0..self.payload).map(|n| (n as u32).wrapping_mul(self.sequence | 1) as u8).collect();
        test_frames::bth(self.opcode, self.queue_pair, self.sequence, &payload)
    }

    /// A UDP datagram without checksum.
    #[must_use]
    pub fn datagram(self) -> Vec<u8> {
        test_frames::udp((self.source_port, ROCE), &self.transport())
    }

    /// A frame over IPv4, with a correct ICRC and without a UDP checksum.
    #[must_use]
    pub fn frame(self, pair: Pair) -> Vec<u8> {
        let mut frame = ipv4(pair, UDP, &self.datagram(), Ipv4::default());
        icrc::fill(&mut frame[Ethernet::LENGTH..]).unwrap();
        frame
    }

    /// A frame over IPv6 with extension headers. Each extension is a protocol number and its bytes,
    /// which start with the next header's number.
    #[must_use]
    pub fn frame_v6(self, pair: Pair, extensions: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut payload = Vec::new();
        let mut next: Vec<u8> = extensions.iter().map(|(protocol, _)| *protocol).collect();
        next.push(UDP);
        for ((_, bytes), next) in extensions.iter().zip(&next[1..]) {
            let mut bytes = bytes.clone();
            bytes[0] = *next;
            payload.extend(bytes);
        }
        payload.extend(self.datagram());
        let addresses = (v6(pair.from.1).octets(), v6(pair.to.1).octets());
        ethernet(pair, IPV6, &test_frames::ipv6(addresses, next[0], &payload, Ipv6::default()))
    }
}

fn v6(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = address.octets();
    Ipv6Addr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d])
}

/// A VXLAN packet of a remote VTEP, to be injected at a leaf's uplink.
#[derive(Debug, Clone, Copy)]
pub struct Tunnelled {
    /// MAC address of the leaf's uplink.
    pub to: MacAddr,
    /// Sending VTEP.
    pub source: Ipv4Addr,
    /// Receiving VTEP.
    pub destination: Ipv4Addr,
    /// Outer UDP destination port.
    pub port: u16,
    /// VNI.
    pub vni: u32,
    /// Outer type of service.
    pub tos: u8,
    /// Bits to flip in the VXLAN header.
    pub flip: u64,
}

impl Tunnelled {
    /// The encapsulated frame.
    #[must_use]
    pub fn frame(self, inner: &[u8]) -> Vec<u8> {
        let pair = Pair {
            from: (MacAddr([2, 0xee, 0, 0, 0, 1]), self.source),
            to: (self.to, self.destination),
        };
        let payload = test_frames::vxlan(self.vni, self.flip, inner);
        let datagram = test_frames::udp((50_000, self.port), &payload);
        ipv4(pair, UDP, &datagram, Ipv4 { tos: self.tos, ..Ipv4::default() })
    }
}

/// Sends frames out of an interface unchanged.
pub fn inject(namespace: &Namespace, interface: &str, frames: &[Vec<u8>]) {
    namespace.enter(|| inject_here(interface, frames)).unwrap();
}

/// As [`inject`], in the namespace of the calling thread.
pub fn inject_here(interface: &str, frames: &[Vec<u8>]) {
    let interface = Interface::find(interface).unwrap();
    let socket = PacketSocket::sender(&interface).unwrap();
    for chunk in frames.chunks(BATCH) {
        let mut rest: Vec<&[u8]> = chunk.iter().map(Vec::as_slice).collect();
        while !rest.is_empty() {
            let taken = socket.send(&rest).unwrap();
            rest.drain(..taken);
        }
    }
}
