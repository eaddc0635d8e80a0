//! All headers that pnet_packet supports are compared with it: an oracle that is independent of
//! etherparse.
#![cfg(test)]

use pnet_packet::arp::ArpPacket;
use pnet_packet::ethernet::EthernetPacket;
use pnet_packet::ipv4::Ipv4Packet as Ipv4Oracle;
use pnet_packet::ipv6::{FragmentPacket, Ipv6Packet as Ipv6Oracle};
use pnet_packet::tcp::TcpPacket;
use pnet_packet::udp::UdpPacket;
use pnet_packet::vlan::VlanPacket;
use pnet_packet::vxlan::VxlanPacket;
use pnet_packet::{ipv4, udp};
use proptest::prelude::*;
use wire::checksum::Sum;
use wire::{
    Arp, Ethernet, Ipv4, Ipv4Packet, Ipv6, Ipv6Fragment, MacAddr, Tcp, Udp, Vlan, Vni, Vxlan,
};

proptest! {
    #[test]
    fn ethernet_and_vlan(bytes: [u8; 18]) {
        let (ours, rest) = Ethernet::parse(&bytes).unwrap();
        let theirs = EthernetPacket::new(&bytes).unwrap();
        prop_assert_eq!(ours.destination().0, theirs.get_destination().octets());
        prop_assert_eq!(ours.source().0, theirs.get_source().octets());
        prop_assert_eq!(ours.ethertype(), theirs.get_ethertype().0);

        let (ours, _) = Vlan::parse(rest).unwrap();
        let theirs = VlanPacket::new(rest).unwrap();
        prop_assert_eq!(ours.priority(), theirs.get_priority_code_point().0);
        prop_assert_eq!(u8::from(ours.drop_eligible()), theirs.get_drop_eligible_indicator());
        prop_assert_eq!(ours.id(), theirs.get_vlan_identifier());
        prop_assert_eq!(ours.ethertype(), theirs.get_ethertype().0);
    }

    #[test]
    fn arp(mac: [u8; 6], sender: u32, target: u32, operation: u16) {
        let mut ours = Arp::new(operation);
        ours.set_sender_mac(MacAddr(mac)).set_sender(sender.into()).set_target(target.into());
        let theirs = ArpPacket::new(ours.as_bytes()).unwrap();
        prop_assert_eq!(theirs.get_hardware_type().0, 1);
        prop_assert_eq!(theirs.get_protocol_type().0, 0x0800);
        prop_assert_eq!((theirs.get_hw_addr_len(), theirs.get_proto_addr_len()), (6, 4));
        prop_assert_eq!(theirs.get_operation().0, operation);
        prop_assert_eq!(theirs.get_sender_hw_addr().octets(), mac);
        prop_assert_eq!(theirs.get_sender_proto_addr().to_bits(), sender);
        prop_assert_eq!(theirs.get_target_proto_addr().to_bits(), target);
    }

    #[test]
    fn ipv4_header(bytes: [u8; 20]) {
        let (ours, _) = Ipv4::parse(&bytes).unwrap();
        let theirs = Ipv4Oracle::new(&bytes).unwrap();
        prop_assert_eq!((ours.version(), ours.ihl()), (theirs.get_version(), theirs.get_header_length()));
        prop_assert_eq!(ours.tos(), theirs.get_dscp() << 2 | theirs.get_ecn());
        prop_assert_eq!(ours.total_length(), theirs.get_total_length());
        prop_assert_eq!(ours.identification(), theirs.get_identification());
        let flags = [ours.more_fragments(), ours.dont_fragment(), ours.reserved()];
        for (flag, bit) in flags.into_iter().zip(0..) {
            prop_assert_eq!(flag, theirs.get_flags() >> bit & 1 == 1);
        }
        prop_assert_eq!(ours.fragment_offset(), theirs.get_fragment_offset());
        prop_assert_eq!(ours.ttl(), theirs.get_ttl());
        prop_assert_eq!(ours.protocol(), theirs.get_next_level_protocol().0);
        prop_assert_eq!(ours.checksum(), theirs.get_checksum());
        prop_assert_eq!(ours.source(), theirs.get_source());
        prop_assert_eq!(ours.destination(), theirs.get_destination());
    }

    #[test]
    fn ipv4_checksum(source: u32, destination: u32, protocol: u8, tos: u8, ttl: u8, damage in 0u8..8) {
        let mut ours = Ipv4::new(source.into(), destination.into(), protocol, 0).unwrap();
        ours.set_tos(tos).set_ttl(ttl).fill_checksum();
        let mut bytes = *ours.as_bytes();
        let sum = ipv4::checksum(&Ipv4Oracle::new(&bytes).unwrap());
        prop_assert_eq!(ours.checksum(), sum);
        bytes[10] ^= 1 << damage;
        prop_assert!(!Ipv4Packet::parse(&bytes).unwrap().checksum_is_right());
    }

    #[test]
    fn ipv6_header(bytes: [u8; 40]) {
        let (ours, _) = Ipv6::parse(&bytes).unwrap();
        let theirs = Ipv6Oracle::new(&bytes).unwrap();
        prop_assert_eq!(ours.version(), theirs.get_version());
        prop_assert_eq!(ours.traffic_class(), theirs.get_traffic_class());
        prop_assert_eq!(ours.flow_label(), theirs.get_flow_label());
        prop_assert_eq!(ours.payload_length(), theirs.get_payload_length());
        prop_assert_eq!(ours.next_header(), theirs.get_next_header().0);
        prop_assert_eq!(ours.hop_limit(), theirs.get_hop_limit());
        prop_assert_eq!(ours.source(), theirs.get_source());
        prop_assert_eq!(ours.destination(), theirs.get_destination());
    }

    #[test]
    fn ipv6_fragment(bytes: [u8; 8]) {
        let (ours, _) = Ipv6Fragment::parse(&bytes).unwrap();
        let theirs = FragmentPacket::new(&bytes).unwrap();
        prop_assert_eq!(ours.next_header(), theirs.get_next_header().0);
        prop_assert_eq!(ours.offset(), theirs.get_fragment_offset_with_flags() >> 3);
        prop_assert_eq!(ours.more_fragments(), theirs.get_fragment_offset_with_flags() & 1 == 1);
        prop_assert_eq!(ours.identification(), theirs.get_id());
    }

    #[test]
    fn udp_with_its_checksums(
        ports: (u16, u16), payload in prop::collection::vec(any::<u8>(), 0..100),
        v4: (u32, u32), v6: (u128, u128),
    ) {
        let mut ours = Udp::new(ports.0, ports.1, payload.len()).unwrap();
        let bytes = [&ours.as_bytes()[..], &payload].concat();
        let theirs = UdpPacket::new(&bytes).unwrap();
        prop_assert_eq!((theirs.get_source(), theirs.get_destination()), ports);
        prop_assert_eq!(theirs.get_length(), ours.length());
        let whole = |sum: Sum| sum.bytes(&bytes).checksum();
        let sum = whole(Sum::new().pseudo_ipv4(v4.0.into(), v4.1.into(), 17, ours.length()));
        prop_assert_eq!(sum, udp::ipv4_checksum(&theirs, &v4.0.into(), &v4.1.into()));
        let sum = whole(Sum::new().pseudo_ipv6(v6.0.into(), v6.1.into(), 17, ours.length().into()));
        prop_assert_eq!(sum, udp::ipv6_checksum(&theirs, &v6.0.into(), &v6.1.into()));
        ours.set_checksum(sum);
        prop_assert_eq!(UdpPacket::new(ours.as_bytes()).unwrap().get_checksum(), sum);
    }

    #[test]
    fn tcp_header(bytes: [u8; 20]) {
        let (ours, _) = Tcp::parse(&bytes).unwrap();
        let theirs = TcpPacket::new(&bytes).unwrap();
        prop_assert_eq!(ours.source_port(), theirs.get_source());
        prop_assert_eq!(ours.destination_port(), theirs.get_destination());
        prop_assert_eq!(ours.sequence(), theirs.get_sequence());
        prop_assert_eq!(ours.acknowledgment(), theirs.get_acknowledgement());
        prop_assert_eq!(ours.data_offset(), theirs.get_data_offset());
        prop_assert_eq!(ours.flags(), theirs.get_flags());
        prop_assert_eq!(ours.window(), theirs.get_window());
        prop_assert_eq!(ours.checksum(), theirs.get_checksum());
        prop_assert_eq!(ours.urgent(), theirs.get_urgent_ptr());
    }

    #[test]
    fn vxlan(number in 1..=Vni::MAX) {
        let ours = Vxlan::new(Vni::try_from(number).unwrap());
        let theirs = VxlanPacket::new(ours.as_bytes()).unwrap();
        prop_assert_eq!(theirs.get_flags(), 0x08);
        prop_assert_eq!(theirs.get_vni(), number);
    }
}
