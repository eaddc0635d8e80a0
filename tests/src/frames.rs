//! Builders for frames to inject.

use std::net::{Ipv4Addr, Ipv6Addr};

use ::lab::Namespace;
use ::lab::packet::{BATCH, Interface, PacketSocket};
use wire::roce::Bth;
use wire::{Ethernet, Ipv4, Ipv6, MacAddr, QueuePair, Udp, Vxlan, icrc, number};

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

    /// The same with another destination MAC address.
    #[must_use]
    pub const fn to_mac(self, mac: MacAddr) -> Self {
        Self { to: (mac, self.to.1), ..self }
    }
}

/// An Ethernet frame.
#[must_use]
pub fn ethernet(pair: Pair, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&Ethernet::new(pair.to.0, pair.from.0, ethertype).as_bytes()[..], payload].concat()
}

/// An Ethernet frame with an IPv4 packet. `change` may modify the IPv4 header.
#[must_use]
pub fn ipv4(
    pair: Pair,
    protocol: u8,
    payload: &[u8],
    change: impl Fn(&mut Ipv4<[u8; 20]>),
) -> Vec<u8> {
    let mut header = Ipv4::new(pair.from.1, pair.to.1, protocol, payload.len()).unwrap();
    change(&mut header);
    header.fill_checksum();
    ethernet(pair, number::ETHERTYPE_IPV4, &[&header.as_bytes()[..], payload].concat())
}

/// UDP header and payload with a correct checksum over IPv4.
#[must_use]
pub fn datagram(pair: Pair, (source, destination): (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut header = Udp::new(source, destination, payload.len()).unwrap();
    let sum = wire::checksum::Sum::new()
        .pseudo_ipv4(pair.from.1, pair.to.1, number::PROTOCOL_UDP, header.length())
        .bytes(header.as_bytes())
        .bytes(payload);
    header.set_checksum(sum.checksum_not_zero());
    [&header.as_bytes()[..], payload].concat()
}

/// An Ethernet frame with UDP over IPv4.
#[must_use]
pub fn udp(pair: Pair, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    ipv4(pair, number::PROTOCOL_UDP, &datagram(pair, ports, payload), |_| ())
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
        let queue_pair = QueuePair::try_from(self.queue_pair).unwrap();
        let bth = Bth::new(self.opcode, queue_pair, self.sequence);
        let payload = (0..self.payload).map(|n| (n as u32).wrapping_mul(self.sequence | 1) as u8);
        bth.as_bytes().iter().copied().chain(payload).chain([0; icrc::LENGTH]).collect()
    }

    /// A frame over IPv4, with a correct ICRC and without a UDP checksum.
    #[must_use]
    pub fn frame(self, pair: Pair) -> Vec<u8> {
        let transport = self.transport();
        let udp = Udp::new(self.source_port, number::PORT_ROCE, transport.len()).unwrap();
        let packet = [&udp.as_bytes()[..], &transport].concat();
        let mut frame = ipv4(pair, number::PROTOCOL_UDP, &packet, |_| ());
        icrc::fill(&mut frame[Ethernet::LENGTH..]).unwrap();
        frame
    }

    /// A frame over IPv6 with extension headers. Each extension is a protocol number and its bytes,
    /// which start with the next header's number.
    #[must_use]
    pub fn frame_v6(self, pair: Pair, extensions: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let transport = self.transport();
        let udp = Udp::new(self.source_port, number::PORT_ROCE, transport.len()).unwrap();
        let mut payload = Vec::new();
        let mut next: Vec<u8> = extensions.iter().map(|(protocol, _)| *protocol).collect();
        next.push(number::PROTOCOL_UDP);
        for ((_, bytes), next) in extensions.iter().zip(&next[1..]) {
            let mut bytes = bytes.clone();
            bytes[0] = *next;
            payload.extend(bytes);
        }
        payload.extend(udp.as_bytes());
        payload.extend(transport);
        let header = Ipv6::new(v6(pair.from.1), v6(pair.to.1), next[0], payload.len()).unwrap();
        ethernet(pair, number::ETHERTYPE_IPV6, &[&header.as_bytes()[..], &payload].concat())
    }
}

fn v6(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = address.octets();
    Ipv6Addr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d])
}

/// The frame with a VLAN tag after its MAC addresses.
#[must_use]
pub fn tagged(frame: &[u8], tpid: u16, tci: u16) -> Vec<u8> {
    [&frame[..12], &tpid.to_be_bytes(), &tci.to_be_bytes(), &frame[12..]].concat()
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
        let mut vxlan = Vxlan::zeroed();
        vxlan.set_flags(Vxlan::I_FLAG).set_vni_number(self.vni);
        let vxlan = (u64::from_be_bytes(*vxlan.as_bytes()) ^ self.flip).to_be_bytes();
        let payload = [&vxlan[..], inner].concat();
        let udp = Udp::new(50_000, self.port, payload.len()).unwrap();
        let pair = Pair {
            from: (MacAddr([2, 0xee, 0, 0, 0, 1]), self.source),
            to: (self.to, self.destination),
        };
        ipv4(pair, number::PROTOCOL_UDP, &[&udp.as_bytes()[..], &payload].concat(), |ip| {
            ip.set_tos(self.tos);
        })
    }
}

/// Sends frames out of an interface unchanged.
pub fn inject(namespace: &Namespace, interface: &str, frames: &[Vec<u8>]) {
    let send = || {
        let interface = Interface::find(interface).unwrap();
        let socket = PacketSocket::sender(&interface).unwrap();
        for chunk in frames.chunks(BATCH) {
            let mut rest: Vec<&[u8]> = chunk.iter().map(Vec::as_slice).collect();
            while !rest.is_empty() {
                let taken = socket.send(&rest).unwrap();
                rest.drain(..taken);
            }
        }
    };
    namespace.enter(send).unwrap();
}
