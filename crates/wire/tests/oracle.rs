//! All headers that etherparse supports are compared with it. The others are compared with bytes
//! written by hand.
#![cfg(test)]

use etherparse::{
    ArpEthIpv4Packet, ArpPacket, Ethernet2HeaderSlice, Icmpv4Slice, Icmpv6Slice, Ipv4HeaderSlice,
    Ipv6FragmentHeaderSlice, Ipv6HeaderSlice, SingleVlanHeaderSlice, TcpHeaderSlice,
    UdpHeaderSlice,
};
use proptest::prelude::*;
use wire::icmp::{Icmp, Icmpv6};
use wire::roce::{Aeth, Bth, Cnp, Deth, Reth, opcode};
use wire::{
    Arp, Ethernet, Ipv4, Ipv4Packet, Ipv6, Ipv6Fragment, Ipv6Packet, MacAddr, QueuePair, Tcp,
    TcpSegment, Udp, UdpDatagram, Vlan, Vni, Vxlan, WireError,
};

proptest! {
    #[test]
    fn ethernet_and_vlan(bytes: [u8; 18]) {
        let (ours, rest) = Ethernet::parse(&bytes).unwrap();
        let theirs = Ethernet2HeaderSlice::from_slice(&bytes).unwrap();
        prop_assert_eq!(ours.destination().0, theirs.destination());
        prop_assert_eq!(ours.source().0, theirs.source());
        prop_assert_eq!(ours.ethertype(), theirs.ether_type().0);
        let built = Ethernet::new(ours.destination(), ours.source(), ours.ethertype());
        prop_assert_eq!(built.as_bytes(), theirs.slice());

        let (ours, _) = Vlan::parse(rest).unwrap();
        let theirs = SingleVlanHeaderSlice::from_slice(rest).unwrap();
        prop_assert_eq!(ours.priority(), theirs.priority_code_point().value());
        prop_assert_eq!(ours.drop_eligible(), theirs.drop_eligible_indicator());
        prop_assert_eq!(ours.id(), theirs.vlan_identifier().value());
        prop_assert_eq!(ours.ethertype(), theirs.ether_type().0);
        let mut built = Vlan::new(ours.id(), ours.ethertype());
        built.set_priority(ours.priority()).set_drop_eligible(ours.drop_eligible());
        prop_assert_eq!(built.as_bytes(), theirs.slice());
    }

    #[test]
    fn arp(operation: u16, sender_mac: [u8; 6], sender: [u8; 4], target_mac: [u8; 6], target: [u8; 4]) {
        let theirs = ArpEthIpv4Packet {
            operation: etherparse::ArpOperation(operation),
            sender_mac,
            sender_ipv4: sender,
            target_mac,
            target_ipv4: target,
        };
        let mut built = Arp::new(operation);
        built.set_sender_mac(MacAddr(sender_mac)).set_sender(sender.into());
        built.set_target_mac(MacAddr(target_mac)).set_target(target.into());
        prop_assert_eq!(built.as_bytes(), &theirs.to_bytes());
        let bytes = theirs.to_bytes();
        let ours = Arp::parse_ipv4(&bytes).unwrap();
        prop_assert_eq!((ours.sender_mac().0, ours.target_mac().0), (sender_mac, target_mac));
        prop_assert_eq!((ours.sender().octets(), ours.target().octets()), (sender, target));
        prop_assert_eq!(ours.operation(), operation);
    }

    #[test]
    fn arp_of_anything_but_ipv4_over_ethernet_is_refused(mut bytes: [u8; 28], ordinary: bool) {
        if ordinary {
            bytes[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        }
        let theirs = ArpPacket::from_slice(&bytes).is_ok_and(|packet| packet.try_eth_ipv4().is_ok());
        prop_assert_eq!(Arp::parse_ipv4(&bytes).is_ok(), theirs);
    }

    #[test]
    fn ipv4(mut bytes in prop::collection::vec(any::<u8>(), 0..80), ihl in 0u8..16, version in 3u8..6, total in 0u16..100) {
        if let Some(start) = bytes.first_chunk_mut::<4>() {
            *start = [version << 4 | ihl, start[1], 0, total as u8];
        }
        let ours = Ipv4Packet::parse(&bytes);
        let Ok(theirs) = Ipv4HeaderSlice::from_slice(&bytes) else {
            prop_assert!(ours.is_err());
            return Ok(());
        };
        let total = usize::from(total);
        prop_assert_eq!(ours.is_ok(), total >= theirs.slice().len() && total <= bytes.len());
        if let Ok(ours) = ours {
            prop_assert_eq!(ours.header.version(), theirs.version());
            prop_assert_eq!(ours.header.ihl(), theirs.ihl());
            prop_assert_eq!(ours.header.tos(), theirs.dcp().value() << 2 | theirs.ecn().value());
            prop_assert_eq!(ours.header.total_length(), theirs.total_len());
            prop_assert_eq!(ours.header.identification(), theirs.identification());
            prop_assert_eq!(ours.header.dont_fragment(), theirs.dont_fragment());
            prop_assert_eq!(ours.header.more_fragments(), theirs.more_fragments());
            prop_assert_eq!(ours.header.fragment_offset(), theirs.fragments_offset().value());
            prop_assert_eq!(ours.header.ttl(), theirs.ttl());
            prop_assert_eq!(ours.header.protocol(), theirs.protocol().0);
            prop_assert_eq!(ours.header.checksum(), theirs.header_checksum());
            prop_assert_eq!(ours.header.source(), theirs.source_addr());
            prop_assert_eq!(ours.header.destination(), theirs.destination_addr());
            prop_assert_eq!(ours.options, theirs.options());
            prop_assert_eq!(ours.payload, &bytes[theirs.slice().len()..total]);
            // A received 0xffff is equivalent to 0x0000: both are zero in one's complement.
            let mut expected = theirs.to_header();
            expected.header_checksum = expected.calc_header_checksum();
            let right = theirs.header_checksum() == expected.header_checksum;
            if !matches!(theirs.header_checksum(), 0 | 0xffff) && bytes[6] & 0x80 == 0 {
                prop_assert_eq!(ours.checksum_is_right(), right);
            }
        }
    }

    #[test]
    fn ipv4_builder(source: u32, destination: u32, protocol: u8, length in 0usize..70000) {
        let ours = Ipv4::new(source.into(), destination.into(), protocol, length);
        if length > 65515 {
            let total = WireError::Invalid { header: "Ipv4", field: "total length", value: length as u32 + 20 };
            prop_assert_eq!(ours.unwrap_err(), total);
        } else {
            let mut theirs = etherparse::Ipv4Header::new(
                length as u16, 64, protocol.into(), source.to_be_bytes(), destination.to_be_bytes(),
            ).unwrap();
            theirs.dont_fragment = false;
            theirs.header_checksum = theirs.calc_header_checksum();
            let ours = ours.unwrap();
            prop_assert_eq!(&ours.as_bytes()[..], &theirs.to_bytes()[..]);
        }
    }

    #[test]
    fn ipv6(mut bytes in prop::collection::vec(any::<u8>(), 0..80), version in 5u8..8, length in 0u8..60) {
        if let Some(start) = bytes.first_chunk_mut::<6>() {
            *start = [version << 4 | start[0] & 15, start[1], start[2], start[3], 0, length];
        }
        let ours = Ipv6Packet::parse(&bytes);
        let Ok(theirs) = Ipv6HeaderSlice::from_slice(&bytes) else {
            prop_assert!(ours.is_err());
            return Ok(());
        };
        prop_assert_eq!(ours.is_ok(), 40 + usize::from(length) <= bytes.len());
        if let Ok(ours) = ours {
            prop_assert_eq!(ours.header.traffic_class(), theirs.traffic_class());
            prop_assert_eq!(ours.header.flow_label(), theirs.flow_label().value());
            prop_assert_eq!(ours.header.payload_length(), theirs.payload_length());
            prop_assert_eq!(ours.header.next_header(), theirs.next_header().0);
            prop_assert_eq!(ours.header.hop_limit(), theirs.hop_limit());
            prop_assert_eq!(ours.header.source(), theirs.source_addr());
            prop_assert_eq!(ours.header.destination(), theirs.destination_addr());
            prop_assert_eq!(ours.payload, &bytes[40..][..usize::from(length)]);
            let mut built =
                Ipv6::new(theirs.source_addr(), theirs.destination_addr(), theirs.next_header().0, length.into())
                    .unwrap();
            prop_assert_eq!(built.hop_limit(), 64);
            built.set_traffic_class(theirs.traffic_class()).set_flow_label(theirs.flow_label().value());
            built.set_hop_limit(theirs.hop_limit());
            prop_assert_eq!(built.as_bytes(), theirs.slice());
        }
    }

    #[test]
    fn ipv6_fragment(bytes: [u8; 8]) {
        let (ours, _) = Ipv6Fragment::parse(&bytes).unwrap();
        let theirs = Ipv6FragmentHeaderSlice::from_slice(&bytes).unwrap();
        prop_assert_eq!(ours.next_header(), theirs.next_header().0);
        prop_assert_eq!(ours.offset(), theirs.fragment_offset().value());
        prop_assert_eq!(ours.more_fragments(), theirs.more_fragments());
        prop_assert_eq!(ours.identification(), theirs.identification());
    }

    #[test]
    fn udp(bytes in prop::collection::vec(any::<u8>(), 8..40), length in 0u16..48) {
        let mut bytes = bytes;
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
        let (ours, _) = Udp::parse(&bytes).unwrap();
        let theirs = UdpHeaderSlice::from_slice(&bytes).unwrap();
        prop_assert_eq!(ours.source_port(), theirs.source_port());
        prop_assert_eq!(ours.destination_port(), theirs.destination_port());
        prop_assert_eq!(ours.length(), theirs.length());
        prop_assert_eq!(ours.checksum(), theirs.checksum());
        let datagram = UdpDatagram::parse(&bytes);
        prop_assert_eq!(datagram.is_ok(), length >= 8 && usize::from(length) <= bytes.len());
        if let Ok(datagram) = datagram {
            prop_assert_eq!(datagram.payload, &bytes[8..usize::from(length)]);
            let mut built = Udp::new(ours.source_port(), ours.destination_port(), datagram.payload.len()).unwrap();
            built.set_checksum(ours.checksum());
            prop_assert_eq!(built.as_bytes(), theirs.slice());
        }
    }

    #[test]
    fn tcp(mut bytes in prop::collection::vec(any::<u8>(), 20..80), offset in 0u8..16) {
        bytes[12] = offset << 4 | bytes[12] & 15;
        let ours = TcpSegment::parse(&bytes);
        let Ok(theirs) = TcpHeaderSlice::from_slice(&bytes) else {
            prop_assert!(ours.is_err());
            return Ok(());
        };
        let ours = ours.unwrap();
        let flags = [
            (Tcp::CWR, theirs.cwr()), (Tcp::ECE, theirs.ece()), (Tcp::URG, theirs.urg()), (Tcp::ACK, theirs.ack()),
            (Tcp::PSH, theirs.psh()), (Tcp::RST, theirs.rst()), (Tcp::SYN, theirs.syn()), (Tcp::FIN, theirs.fin()),
        ];
        for (flag, set) in flags {
            prop_assert_eq!(ours.header.flags() & flag != 0, set, "{:#x}", flag);
        }
        prop_assert_eq!(ours.header.source_port(), theirs.source_port());
        prop_assert_eq!(ours.header.destination_port(), theirs.destination_port());
        prop_assert_eq!(ours.header.sequence(), theirs.sequence_number());
        prop_assert_eq!(ours.header.acknowledgment(), theirs.acknowledgment_number());
        prop_assert_eq!(ours.header.data_offset(), theirs.data_offset());
        prop_assert_eq!(ours.header.reserved() & 1 == 1, theirs.ns());
        prop_assert_eq!(ours.header.window(), theirs.window_size());
        prop_assert_eq!(ours.header.checksum(), theirs.checksum());
        prop_assert_eq!(&bytes[Tcp::CHECKSUM_OFFSET..][..2], &theirs.checksum().to_be_bytes());
        prop_assert_eq!(ours.header.urgent(), theirs.urgent_pointer());
        prop_assert_eq!(ours.options, theirs.options());
        prop_assert_eq!(ours.payload, &bytes[theirs.slice().len()..]);
    }

    #[test]
    fn icmp_and_icmpv6(bytes: [u8; 20]) {
        let (ours, _) = Icmp::parse(&bytes).unwrap();
        let theirs = Icmpv4Slice::from_slice(&bytes).unwrap();
        prop_assert_eq!((ours.kind(), ours.code()), (theirs.type_u8(), theirs.code_u8()));
        prop_assert_eq!(ours.checksum(), theirs.checksum());
        let (identifier, sequence_or_mtu) = (ours.identifier(), ours.sequence_or_mtu());
        let last = u32::from(identifier) << 16 | u32::from(sequence_or_mtu);
        prop_assert_eq!(last.to_be_bytes(), theirs.bytes5to8());

        let (ours, _) = Icmpv6::parse(&bytes).unwrap();
        let theirs = Icmpv6Slice::from_slice(&bytes).unwrap();
        prop_assert_eq!((ours.kind(), ours.code()), (theirs.type_u8(), theirs.code_u8()));
        prop_assert_eq!(ours.checksum(), theirs.checksum());
        prop_assert_eq!(ours.parameter().to_be_bytes(), theirs.bytes5to8());
    }

    #[test]
    fn whole_packets_of_random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Arp::parse_ipv4(&bytes);
        let _ = Ipv4Packet::parse(&bytes).map(|packet| packet.checksum_is_right());
        let _ = Ipv6Packet::parse(&bytes).map(|packet| packet.upper_layer().is_ok());
        let _ = UdpDatagram::parse(&bytes);
        let _ = TcpSegment::parse(&bytes);
        let _ = wire::icrc::is_right(&bytes);
        let _ = wire::icrc::fill(&mut bytes.clone());
        let _ = Vxlan::parse(&bytes).map(|(vxlan, _)| vxlan.vni().is_ok());
    }

    #[test]
    fn l12_each_reserved_bit_of_vxlan_is_seen(number in 1..=Vni::MAX, bit in 0u32..64) {
        let vni = Vni::try_from(number).unwrap();
        let built = Vxlan::new(vni);
        let [_, a, b, c] = number.to_be_bytes();
        prop_assert_eq!(built.as_bytes(), &[0x08, 0, 0, 0, a, b, c, 0]);
        prop_assert_eq!((built.vni(), built.reserved_bits()), (Ok(vni), 0));
        let changed = (u64::from_be_bytes(*built.as_bytes()) ^ 1 << bit).to_be_bytes();
        let (changed, _) = Vxlan::parse(&changed).unwrap();
        match bit {
            8..32 => prop_assert_eq!(changed.vni_number(), number ^ 1 << (bit - 8)),
            59 => prop_assert!(changed.vni().is_err()),
            _ => {
                prop_assert_eq!(changed.reserved_bits(), 1 << bit);
                prop_assert_eq!(changed.vni(), Ok(vni));
            }
        }
    }
}

#[test]
fn vxlan_has_39_reserved_bits_and_no_vni_0() {
    assert_eq!(Vxlan::RESERVED.count_ones(), 39);
    let mut vxlan = Vxlan::zeroed();
    vxlan.set_flags(Vxlan::I_FLAG);
    assert_eq!(vxlan.vni(), Err(WireError::Invalid { header: "Vxlan", field: "VNI", value: 0 }));
    vxlan.set_flags(0xf7).set_vni_number(5);
    assert_eq!(
        vxlan.vni(),
        Err(WireError::Invalid { header: "Vxlan", field: "flags", value: 0xf7 })
    );
}

#[test]
fn roce_headers_by_hand() {
    let queue_pair = QueuePair::try_from(0x00ab_cdef).unwrap();
    let mut bth = Bth::new(opcode::RC_WRITE_ONLY, queue_pair, 0x12_3456);
    assert_eq!(bth.as_bytes(), &[0x0a, 0x40, 0xff, 0xff, 0, 0xab, 0xcd, 0xef, 0, 0x12, 0x34, 0x56]);
    bth.set_solicited(true).set_migrated(false).set_pad_count(3).set_transport_version(5);
    bth.set_partition_key(0x8001).set_fecn(true).set_becn(true).set_acknowledge(true);
    assert_eq!(
        bth.as_bytes(),
        &[0x0a, 0xb5, 0x80, 0x01, 0xc0, 0xab, 0xcd, 0xef, 0x80, 0x12, 0x34, 0x56]
    );
    assert_eq!((bth.destination(), bth.sequence()), (queue_pair, 0x12_3456));

    let mut aeth = Aeth::zeroed();
    aeth.set_syndrome(0x60).set_message_sequence(0x0a_0b0c);
    assert_eq!(aeth.as_bytes(), &[0x60, 0x0a, 0x0b, 0x0c]);

    let mut deth = Deth::zeroed();
    deth.set_queue_key(0x8001_0000).set_source(queue_pair);
    assert_eq!(deth.as_bytes(), &[0x80, 0x01, 0, 0, 0, 0xab, 0xcd, 0xef]);

    let mut reth = Reth::zeroed();
    reth.set_virtual_address(0x0102_0304_0506_0708)
        .set_remote_key(0x1122_3344)
        .set_dma_length(4096);
    assert_eq!(reth.as_bytes(), &[1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44, 0, 0, 0x10, 0]);

    let mut cnp = Bth::new(opcode::CONGESTION_NOTIFICATION, queue_pair, 0);
    cnp.set_becn(true);
    assert_eq!((cnp.as_bytes()[0], cnp.as_bytes()[4]), (0x81, 0x40));
    assert_eq!(Cnp::zeroed().as_bytes(), &[0; 16]);
}
