//! `dissect` on complete, unusual, truncated and random frames, compared with etherparse.
#![cfg(test)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use wire::roce::{Bth, opcode};
use wire::{
    Dissection, Ethernet, Fragment, Ipv4, Ipv4Summary, Ipv6, Ipv6Packet, Ipv6Summary, MacAddr,
    Network, QueuePair, Roce, Transport, Udp, Vlan, dissect,
};

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const A4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const A6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

/// A UDP datagram to the RoCE port: BTH, 16 bytes of payload and ICRC.
fn roce_datagram() -> Vec<u8> {
    let bth = Bth::new(opcode::RC_SEND_ONLY, QueuePair::try_from(0xab_cdef).unwrap(), 0x12_3456);
    let body = [bth.as_bytes(), &[7; 20][..]].concat();
    [Udp::new(0xc000, 4791, body.len()).unwrap().as_bytes(), &body[..]].concat()
}

fn expected_roce() -> Roce {
    Roce { opcode: 4, destination: QueuePair::try_from(0xab_cdef).unwrap(), sequence: 0x12_3456 }
}

fn ipv4_frame(payload: &[u8], edit: impl FnOnce(&mut Ipv4<[u8; 20]>)) -> Vec<u8> {
    let mut ip = Ipv4::new(A4, B4, 17, payload.len()).unwrap();
    edit(&mut ip);
    [Ethernet::new(B, A, 0x0800).as_bytes(), &ip.as_bytes()[..], payload].concat()
}

/// A frame with the extension headers and payload in `chain`; `next` is the type of the first.
fn ipv6_frame(next: u8, chain: &[u8]) -> Vec<u8> {
    let mut ip = Ipv6::new(A6, B6, next, chain.len()).unwrap();
    ip.set_traffic_class(0xb9).set_flow_label(0xf_1234).set_hop_limit(63);
    [Ethernet::new(B, A, 0x86dd).as_bytes(), &ip.as_bytes()[..], chain].concat()
}

fn of(frame: &[u8]) -> Dissection {
    dissect(frame).unwrap()
}

#[test]
fn every_field_of_an_ipv4_roce_frame() {
    let frame = ipv4_frame(&roce_datagram(), |ip| {
        ip.set_tos(0xba).set_ttl(33).set_dont_fragment(true);
    });
    let expected = Dissection {
        destination: B,
        source: A,
        vlan_tags: 0,
        ethertype: 0x0800,
        l3_offset: 14,
        network: Network::Ipv4(Ipv4Summary {
            source: A4,
            destination: B4,
            header_length: 20,
            tos: 0xba,
            ttl: 33,
            dont_fragment: true,
            fragment: Fragment::Whole,
            total_length: 60,
            protocol: 17,
        }),
        transport: Some(Transport { protocol: 17, offset: 34, ports: Some((0xc000, 4791)) }),
        roce: Some(expected_roce()),
    };
    assert_eq!(of(&frame), expected);
    assert_eq!(expected.network.addresses(), Some((IpAddr::V4(A4), IpAddr::V4(B4))));
    assert_eq!(expected.network.traffic_class(), Some(0xba));
    assert_eq!(expected.gso_header_length(&frame), Some(42));
    // Padding is ignored.
    assert_eq!(of(&[&frame[..], &[0xff; 30]].concat()), expected);
}

#[test]
fn every_field_of_an_ipv6_roce_frame() {
    let frame = ipv6_frame(17, &roce_datagram());
    let expected = Dissection {
        destination: B,
        source: A,
        vlan_tags: 0,
        ethertype: 0x86dd,
        l3_offset: 14,
        network: Network::Ipv6(Ipv6Summary {
            source: A6,
            destination: B6,
            traffic_class: 0xb9,
            hop_limit: 63,
            flow_label: 0xf_1234,
            fragment: Fragment::Whole,
            payload_length: 40,
            protocol: 17,
        }),
        transport: Some(Transport { protocol: 17, offset: 54, ports: Some((0xc000, 4791)) }),
        roce: Some(expected_roce()),
    };
    assert_eq!(of(&frame), expected);
    assert_eq!(expected.network.addresses(), Some((IpAddr::V6(A6), IpAddr::V6(B6))));
    assert_eq!(of(&[&frame[..], &[0xff; 30]].concat()), expected);
}

#[test]
fn q3_up_to_four_vlan_tags_are_followed() {
    let plain = ipv4_frame(&roce_datagram(), |_| {});
    for types in
        [&[0x8100u16][..], &[0x88a8, 0x8100], &[0x9100, 0x8100], &[0x88a8, 0x88a8, 0x9100, 0x8100]]
    {
        let mut frame = plain[..12].to_vec();
        frame.extend(types[0].to_be_bytes());
        for next in types[1..].iter().chain(&[0x0800]) {
            frame.extend(Vlan::new(100, *next).as_bytes());
        }
        frame.extend(&plain[14..]);
        let mut expected = of(&plain);
        expected.vlan_tags = types.len() as u8;
        expected.l3_offset += 4 * types.len() as u16;
        expected.transport.as_mut().unwrap().offset += 4 * types.len() as u16;
        assert_eq!(of(&frame), expected);

        // If the last tag is truncated, it is reported as the EtherType.
        let cut = of(&frame[..14 + 4 * types.len() - 1]);
        assert_eq!(
            (cut.vlan_tags as usize, cut.ethertype),
            (types.len() - 1, *types.last().unwrap())
        );
        assert_eq!(cut.network, Network::Other);
    }
    let mut five = plain[..12].to_vec();
    five.extend([0x81, 0, 0, 1].repeat(5));
    five.extend(&plain[12..]);
    let five = of(&five);
    assert_eq!((five.vlan_tags, five.ethertype, five.network), (4, 0x8100, Network::Other));
}

#[test]
fn q4_ipv4_fragments() {
    let fragment = |more, offset, payload: &[u8]| {
        of(&ipv4_frame(payload, |ip| {
            ip.set_more_fragments(more).set_fragment_offset(offset);
        }))
    };
    let state = |dissection: Dissection| match dissection.network {
        Network::Ipv4(ip) => (ip.fragment, ip.protocol, dissection.transport, dissection.roce),
        other => panic!("{other:?}"),
    };
    // The first fragment is shorter than its UDP length.
    let first = state(fragment(true, 0, &roce_datagram()[..24]));
    let transport = Transport { protocol: 17, offset: 34, ports: Some((0xc000, 4791)) };
    assert_eq!(first, (Fragment::First, 17, Some(transport), None));
    assert_eq!(state(fragment(true, 3, &roce_datagram())), (Fragment::Later, 17, None, None));
    for bit in 0..13 {
        assert_eq!(
            state(fragment(false, 1 << bit, &roce_datagram())),
            (Fragment::Later, 17, None, None)
        );
    }
}

#[test]
fn q4_ipv6_fragments() {
    let destination_options = [17, 0, 1, 4, 0, 0, 0, 0];
    let fragment = |next, offset_and_more: u16, chain: &[u8]| {
        let [high, low] = offset_and_more.to_be_bytes();
        let dissection = of(&ipv6_frame(44, &[&[next, 0, high, low, 0, 0, 0, 9], chain].concat()));
        match dissection.network {
            Network::Ipv6(ip) => (ip.fragment, ip.protocol, dissection.transport, dissection.roce),
            other => panic!("{other:?}"),
        }
    };
    let chain = [&destination_options[..], &roce_datagram()].concat();
    let transport = Transport { protocol: 17, offset: 54 + 16, ports: Some((0xc000, 4791)) };
    assert_eq!(fragment(60, 1, &chain), (Fragment::First, 60, Some(transport), None));
    assert_eq!(fragment(60, 8 | 1, &chain), (Fragment::Later, 60, None, None));
    for bit in 3..16 {
        assert_eq!(fragment(60, 1 << bit, &chain), (Fragment::Later, 60, None, None));
    }
    // Atomic fragments are whole, even if nested. The reserved bits 1 and 2 are ignored.
    assert_eq!(
        fragment(60, 6, &chain),
        (Fragment::Whole, 17, Some(transport), Some(expected_roce()))
    );
    let atomic = [17, 0, 0, 0, 0, 0, 0, 9];
    let twice = [&atomic[..], &roce_datagram()].concat();
    assert_eq!(
        fragment(44, 0, &twice),
        (Fragment::Whole, 17, Some(transport), Some(expected_roce()))
    );
    // A nested fragment keeps the protocol of the outer fragment header.
    assert_eq!(fragment(44, 1, &twice), (Fragment::First, 44, None, None));
}

#[test]
fn lengths_that_contradict_the_frame() {
    let datagram = roce_datagram();
    let broken = |frame: &[u8]| of(frame).network == Network::Other;
    assert!(broken(&ipv4_frame(&datagram, |ip| _ = ip.set_version(6))));
    assert!(broken(&ipv4_frame(&datagram, |ip| _ = ip.set_ihl(4))));
    let mut six = ipv6_frame(17, &datagram);
    six[14] = 0x40;
    assert!(broken(&six));

    // The addresses are known, but not the transport. The total length is too long or shorter than
    // the header, or the options exceed the frame.
    for edit in [
        |ip: &mut Ipv4<[u8; 20]>| _ = ip.set_total_length(61),
        |ip: &mut Ipv4<[u8; 20]>| _ = ip.set_total_length(19),
        |ip: &mut Ipv4<[u8; 20]>| _ = ip.set_total_length(0),
        |ip: &mut Ipv4<[u8; 20]>| _ = ip.set_ihl(15).set_total_length(59),
    ] {
        let dissection = of(&ipv4_frame(&datagram, edit));
        assert_eq!(dissection.network.addresses(), Some((IpAddr::V4(A4), IpAddr::V4(B4))));
        assert_eq!((dissection.transport, dissection.roce), (None, None));
    }
    let mut long = ipv6_frame(17, &datagram);
    long[19] += 1;
    assert_eq!(of(&long).network.addresses(), Some((IpAddr::V6(A6), IpAddr::V6(B6))));
    assert_eq!((of(&long).transport, of(&long).roce), (None, None));

    // Ports are known only if the UDP length fits the IP payload. The BTH must fit the UDP length.
    for (length, ports, roce) in [
        (0, false, false),
        (7, false, false),
        (8, true, false),
        (19, true, false),
        (20, true, true),
        (40, true, true),
        (41, false, false),
    ] {
        let mut datagram = datagram.clone();
        datagram[5] = length;
        for dissection in [of(&ipv4_frame(&datagram, |_| {})), of(&ipv6_frame(17, &datagram))] {
            let transport = dissection.transport.unwrap();
            assert_eq!(
                (transport.protocol, transport.ports.is_some()),
                (17, ports),
                "UDP length {length}"
            );
            assert_eq!(dissection.roce.is_some(), roce, "UDP length {length}");
        }
    }
}

#[test]
fn q3_extension_headers_are_followed_up_to_eight() {
    for count in 0..=10usize {
        let mut chain = Vec::new();
        for at in 0..count {
            chain.extend([if at + 1 == count { 17 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
        }
        chain.extend(roce_datagram());
        let frame = ipv6_frame(if count == 0 { 17 } else { 60 }, &chain);
        let dissection = of(&frame);
        let transport =
            Transport { protocol: 17, offset: 54 + 8 * count as u16, ports: Some((0xc000, 4791)) };
        assert_eq!(dissection.transport, (count <= 8).then_some(transport), "{count}");
        assert_eq!(dissection.roce.is_some(), count <= 8);
        assert_eq!(Ipv6Packet::parse(&frame[14..]).unwrap().upper_layer().is_ok(), count <= 8);
    }
}

#[test]
fn ends_of_an_ipv6_chain() {
    let protocol_and_transport = |next, chain: &[u8]| {
        let dissection = of(&ipv6_frame(next, chain));
        match dissection.network {
            Network::Ipv6(ip) => {
                (ip.protocol, dissection.transport.map(|transport| transport.offset))
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(protocol_and_transport(59, &[1; 20]), (59, None));
    assert_eq!(protocol_and_transport(58, &[1; 20]), (58, Some(54)));
    assert_eq!(protocol_and_transport(60, &[58]), (60, None));
    assert_eq!(protocol_and_transport(60, &[58, 1, 0, 0, 0, 0, 0, 0]), (60, None));
    assert_eq!(protocol_and_transport(44, &[58, 0, 0, 0]), (44, None));
    // The length of an authentication header is in units of four bytes.
    assert_eq!(protocol_and_transport(51, &[&[58, 1], &[0; 10][..]].concat()), (58, Some(66)));
    assert_eq!(protocol_and_transport(51, &[&[58, 2], &[0; 10][..]].concat()), (51, None));
}

#[test]
fn gso_header_length_of_tcp_and_udp() {
    let tcp = |offset: u8, length: usize| {
        let mut segment = vec![0; length];
        if let Some(byte) = segment.get_mut(12) {
            *byte = offset << 4;
        }
        let v4 = ipv4_frame(&segment, |ip| _ = ip.set_protocol(6));
        let v6 = ipv6_frame(60, &[&[6, 0, 1, 4, 0, 0, 0, 0], &segment[..]].concat());
        let lengths = (of(&v4).gso_header_length(&v4), of(&v6).gso_header_length(&v6));
        assert_eq!(lengths.0.map(|length| length + 28), lengths.1);
        lengths.0
    };
    assert_eq!(tcp(5, 20), Some(54));
    assert_eq!(tcp(8, 1000), Some(66));
    assert_eq!(tcp(15, 60), Some(94));
    assert_eq!(tcp(15, 59), None);
    assert_eq!(tcp(4, 60), None);
    assert_eq!(tcp(5, 19), None);
    assert_eq!(tcp(5, 3), None);
    let icmp = ipv4_frame(&[8; 20], |ip| _ = ip.set_protocol(1));
    assert_eq!(of(&icmp).gso_header_length(&icmp), None);
    // A GSO frame is one datagram of up to 64 kB.
    let big =
        ipv4_frame(&[Udp::new(1, 2, 65000).unwrap().as_bytes(), &[0; 65000][..]].concat(), |_| {});
    assert_eq!(of(&big).gso_header_length(&big), Some(42));
}

/// A well-formed frame, with all optional headers.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let datagram = prop_oneof![
        Just((17, roce_datagram())),
        (any::<u16>(), any::<u16>(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(
            |(from, to, body)| {
                (17, [Udp::new(from, to, body.len()).unwrap().as_bytes(), &body[..]].concat())
            }
        ),
        (any::<u16>(), any::<u16>(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(
            |(from, to, body)| {
                let mut bytes = Vec::new();
                let builder = PacketBuilder::ipv4([1; 4], [2; 4], 1).tcp(from, to, 1, 1);
                builder.write(&mut bytes, &body).unwrap();
                (6, bytes.split_off(20))
            }
        ),
        prop::collection::vec(any::<u8>(), 8..40).prop_map(|body| (132, body)),
    ];
    let chain = prop::collection::vec(
        (prop::sample::select(&[0u8, 43, 60, 51, 44][..]), any::<u16>()),
        0..4,
    );
    (datagram, any::<bool>(), chain, prop::collection::vec(any::<[u8; 4]>(), 0..3), 0usize..10)
        .prop_map(|((protocol, datagram), v6, chain, tags, padding)| {
            let mut frame = if v6 {
                let mut next = protocol;
                let mut bytes = datagram;
                for (kind, random) in chain {
                    let mut header = match kind {
                        51 => vec![next, 4, 0, 0, 0, 0, 0, 1].into_iter().chain([0; 16]).collect(),
                        44 => vec![next, 0, (random >> 8) as u8 & 1, random as u8 & 9, 0, 0, 0, 1],
                        _ => vec![next, 0, 1, 4, 0, 0, 0, 0],
                    };
                    header.extend(&bytes);
                    (bytes, next) = (header, kind);
                }
                ipv6_frame(next, &bytes)
            } else {
                ipv4_frame(&datagram, |ip| _ = ip.set_protocol(protocol))
            };
            for [_, _, id_high, id_low] in tags {
                let mut tagged = frame[..12].to_vec();
                tagged.extend([0x81, 0x00, id_high, id_low]);
                tagged.extend(&frame[12..]);
                frame = tagged;
            }
            frame.extend(vec![0xee; padding]);
            frame
        })
}

/// The offset of `part` in `frame`.
fn offset_in(frame: &[u8], part: &[u8]) -> u16 {
    (part.as_ptr().addr() - frame.as_ptr().addr()) as u16
}

/// Checks that both parsers agree on everything that both report.
fn assert_agreement(frame: &[u8]) -> Result<(), TestCaseError> {
    let Ok(theirs) = SlicedPacket::from_ethernet(frame) else { return Ok(()) };
    let ours = of(frame);
    let (addresses, payload) = match &theirs.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            (
                Some((IpAddr::V4(header.source_addr()), IpAddr::V4(header.destination_addr()))),
                // `dissect` does not parse an authentication header of IPv4.
                ip.extensions().auth.is_none().then(|| ip.payload().clone()),
            )
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            (
                Some((IpAddr::V6(header.source_addr()), IpAddr::V6(header.destination_addr()))),
                Some(ip.payload().clone()),
            )
        }
        _ => (None, None),
    };
    prop_assert_eq!(ours.network.addresses(), addresses);
    prop_assert_eq!(usize::from(ours.vlan_tags), theirs.link_exts.len());
    // With a payload length of zero, etherparse takes the rest of the frame. By RFC 8200 section 3,
    // there is no payload.
    if matches!(ours.network, Network::Ipv6(ip) if ip.payload_length == 0) {
        prop_assert_eq!(ours.transport.and_then(|transport| transport.ports), None);
        return Ok(());
    }
    if let (Some(payload), Some(transport)) = (payload, ours.transport) {
        prop_assert_eq!(transport.protocol, payload.ip_number.0);
        prop_assert_eq!(transport.offset, offset_in(frame, payload.payload));
    }
    match theirs.transport {
        Some(TransportSlice::Udp(udp)) => {
            let transport = ours.transport.unwrap();
            // The same for a UDP length shorter than the header (RFC 768).
            let ports = (udp.length() != 0).then(|| (udp.source_port(), udp.destination_port()));
            prop_assert_eq!(transport.ports, ports);
            let roce =
                ports.is_some() && udp.destination_port() == 4791 && udp.payload().len() >= 12;
            prop_assert_eq!(ours.roce.is_some(), roce);
        }
        Some(TransportSlice::Tcp(tcp)) => {
            let transport = ours.transport.unwrap();
            prop_assert_eq!(transport.ports, Some((tcp.source_port(), tcp.destination_port())));
            let headers = usize::from(transport.offset) + tcp.header_len();
            prop_assert_eq!(ours.gso_header_length(frame), Some(headers));
        }
        _ => {}
    }
    Ok(())
}

/// Invariants of every dissection.
fn assert_sane(frame: &[u8]) -> Result<(), TestCaseError> {
    let Some(ours) = dissect(frame) else {
        prop_assert!(frame.len() < 14);
        return Ok(());
    };
    prop_assert!(usize::from(ours.l3_offset) <= frame.len());
    prop_assert_eq!(&frame[usize::from(ours.l3_offset) - 2..][..2], &ours.ethertype.to_be_bytes());
    if let Some(transport) = ours.transport {
        prop_assert!(ours.network != Network::Other);
        prop_assert!(usize::from(transport.offset) <= frame.len());
        if let Some((source, destination)) = transport.ports {
            let header = &frame[usize::from(transport.offset)..];
            prop_assert_eq!(
                [&source.to_be_bytes()[..], &destination.to_be_bytes()].concat(),
                &header[..4]
            );
        }
    }
    if ours.roce.is_some() {
        prop_assert!(
            ours.transport
                .is_some_and(|transport| transport.ports.is_some_and(|ports| ports.1 == 4791))
        );
    }
    if let Some(length) = ours.gso_header_length(frame) {
        prop_assert!(length <= frame.len());
    }
    if let Network::Ipv6(ip) = ours.network
        && let Ok(packet) = Ipv6Packet::parse(&frame[usize::from(ours.l3_offset)..])
        && let Ok(upper) = packet.upper_layer()
    {
        let is_later = upper.fragment.is_some_and(|fragment| fragment.offset() != 0);
        match ours.transport {
            Some(transport) => {
                prop_assert!(!is_later);
                prop_assert_eq!(transport.protocol, upper.protocol);
                prop_assert_eq!(transport.offset, offset_in(frame, upper.payload));
            }
            // No next header, or a nested fragment, which `dissect` does not parse.
            None => {
                prop_assert!(is_later || upper.protocol == 59 || ip.fragment == Fragment::First)
            }
        }
        prop_assert!(!is_later || ip.fragment != Fragment::Whole);
        // The bytes behind the fragment header of a later fragment are not a header.
        prop_assert!(ip.fragment != Fragment::Later || upper.protocol == ip.protocol);
    }
    Ok(())
}

proptest! {
    #[test]
    fn well_formed_frames_are_seen_as_etherparse_sees_them(frame in frames()) {
        assert_sane(&frame)?;
        assert_agreement(&frame)?;
        prop_assert!(of(&frame).network.addresses().is_some());
    }

    #[test]
    fn frames_with_changed_bits_are_seen_as_etherparse_sees_them(frame in frames(), changes in prop::collection::vec(any::<(u16, u8)>(), 1..4)) {
        let mut frame = frame;
        for (at, bit) in changes {
            let at = usize::from(at) % frame.len();
            frame[at] ^= 1 << (bit % 8);
        }
        assert_sane(&frame)?;
        assert_agreement(&frame)?;
    }

    #[test]
    fn frames_cut_at_every_byte_say_less_but_nothing_else(frame in frames()) {
        let whole = of(&frame);
        for length in 0..frame.len() {
            let cut = &frame[..length];
            assert_sane(cut)?;
            assert_agreement(cut)?;
            let Some(cut) = dissect(cut) else { continue };
            prop_assert_eq!((cut.destination, cut.source), (whole.destination, whole.source));
            if cut.network != Network::Other {
                prop_assert_eq!(cut.network.addresses(), whole.network.addresses());
            }
            prop_assert!(cut.transport.is_none() || cut.transport == whole.transport);
            prop_assert!(cut.roce.is_none() || cut.roce == whole.roce);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..160), kind in 0u8..4) {
        let mut bytes = bytes;
        if bytes.len() > 14 && kind > 0 {
            let start: [u8; 3] = [[0x08, 0x00, 0x45], [0x86, 0xdd, 0x60], [0x81, 0x00, 0x00]][usize::from(kind) - 1];
            bytes[12..15].copy_from_slice(&start);
        }
        assert_sane(&bytes)?;
    }
}
