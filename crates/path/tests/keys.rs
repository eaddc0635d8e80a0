//! Which frames share a key and a port, and the reported reason.
#![cfg(test)]

mod common;

use common::{Frame, bth, roce, udp};
use path::{Entropy, Key, Policy, Reason, Settings};
use wire::{Network, QueuePair, dissect};

const QUEUE_PAIR_POLICIES: [Policy; 2] = [Policy::QpHash, Policy::QpBins];

fn entropy(policy: Policy) -> Entropy {
    Entropy::new(Settings { policy, seed: 7, ..Settings::default() }).unwrap()
}

/// The queue pair key for the addresses of a test frame.
fn queue_pair_key(frame: &Frame, number: u32) -> Key {
    let (source, destination) = frame.dissect().network.addresses().unwrap();
    Key::QueuePair { source, destination, queue_pair: QueuePair::try_from(number).unwrap() }
}

#[test]
fn q1_any_opcode_sequence_and_inner_port_use_one_outer_port() {
    for policy in QUEUE_PAIR_POLICIES {
        let entropy = entropy(policy);
        let expected = entropy.decide(&Frame::new(roce(0xc000, 0x04, 0x1234, 0)).dissect());
        for opcode in 0..=0xff {
            for (port, sequence) in
                [(0xc000, 1), (0xffff, 0xff_ffff), (1, opcode << 8), (4791, 0x80_0000)]
            {
                let frame = Frame::new(roce(port, opcode as u8, 0x1234, sequence));
                assert_eq!(
                    entropy.decide(&frame.dissect()),
                    expected,
                    "opcode {opcode:#x} port {port}"
                );
            }
        }
    }
}

#[test]
fn q1_header_fields_that_change_within_a_flow_do_not_matter() {
    let mut frame = Frame::new(roce(0xc000, 0x04, 0x1234, 0)).bytes();
    let expected = entropy(Policy::QpHash).decide(&dissect(&frame).unwrap());
    // TOS, identification, don't-fragment, TTL, UDP checksum, BTH flags, partition key.
    for (at, value) in
        [(15, 0xba), (18, 7), (20, 0x40), (22, 3), (40, 9), (43, 0xff), (45, 1), (46, 0x80)]
    {
        frame[at] = value;
        assert_eq!(
            entropy(Policy::QpHash).decide(&dissect(&frame).unwrap()),
            expected,
            "byte {at}"
        );
    }
}

#[test]
fn q1_another_queue_pair_is_another_key() {
    let hash = |queue_pair| {
        entropy(Policy::QpHash).decide(&Frame::new(roce(0xc000, 4, queue_pair, 0)).dissect()).hash
    };
    assert_ne!(hash(0x1234), hash(0x1235));
    assert_ne!(hash(0), hash(0x80_0000));
}

#[test]
fn q3_queue_pair_is_found_behind_vlan_tags_without_changing_the_port() {
    let mut frame = Frame::new(roce(0xc000, 4, 0x1234, 0));
    let expected = queue_pair_key(&frame, 0x1234);
    let port = entropy(Policy::QpHash).decide(&frame.dissect()).source_port;
    let stacks: [&[[u8; 4]]; 4] = [
        &[[0x81, 0x00, 0x00, 0x0a]],
        &[[0x88, 0xa8, 0x00, 0x64], [0x81, 0x00, 0x60, 0x0b]],
        &[[0x91, 0x00, 0x0f, 0xff], [0x81, 0x00, 0x00, 0x01]],
        &[[0x88, 0xa8, 0, 1], [0x88, 0xa8, 0, 2], [0x81, 0, 0, 3], [0x81, 0, 0, 4]],
    ];
    for tags in stacks {
        frame.tags = tags.to_vec();
        let explanation = entropy(Policy::QpHash).explain(&frame.dissect());
        assert_eq!((explanation.key, explanation.reason), (expected, Reason::Roce), "{tags:02x?}");
        assert_eq!(explanation.decision.source_port, port);
    }
}

#[test]
fn q3_queue_pair_is_found_behind_ipv4_options_and_ipv6_extension_headers() {
    let mut frame = Frame::new(roce(0xc000, 4, 0x1234, 0));
    let plain = entropy(Policy::QpHash).explain(&frame.dissect());
    frame.options = vec![1; 8];
    assert_eq!(entropy(Policy::QpHash).explain(&frame.dissect()), plain);

    frame.ipv6 = true;
    frame.options.clear();
    let plain = entropy(Policy::QpHash).explain(&frame.dissect());
    assert_eq!((plain.key, plain.reason), (queue_pair_key(&frame, 0x1234), Reason::Roce));
    let hop_by_hop_and_destination_options =
        [vec![60, 0, 1, 4, 0, 0, 0, 0], vec![17, 0, 1, 4, 0, 0, 0, 0]];
    let authentication =
        [51u8, 0, 1, 4, 0, 0, 0, 0].into_iter().chain([17, 4, 0, 0]).chain([0; 20]).collect();
    let atomic_fragment = vec![17, 0, 0, 0, 1, 2, 3, 4];
    for (next, options) in [
        (0, hop_by_hop_and_destination_options.concat()),
        (60, authentication),
        (43, vec![17, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (44, atomic_fragment),
    ] {
        frame.next = next;
        frame.options = options;
        assert_eq!(entropy(Policy::QpHash).explain(&frame.dissect()), plain, "next header {next}");
    }
}

#[test]
fn q3_truncated_base_transport_header_falls_back_to_the_five_tuple() {
    let full = bth(4, 0x1234, 0);
    for length in 0..12 {
        let frame = Frame::new(udp(0xc000, 4791, &full[..length]));
        let explanation = entropy(Policy::QpHash).explain(&frame.dissect());
        assert_eq!(explanation.reason, Reason::TruncatedRoce, "{length} bytes");
        assert!(
            matches!(
                explanation.key,
                Key::FiveTuple { protocol: 17, source_port: 0xc000, destination_port: 4791, .. }
            ),
            "{length} bytes: {:?}",
            explanation.key
        );
    }
    let frame = Frame::new(udp(0xc000, 4791, &full[..12]));
    assert_eq!(entropy(Policy::QpHash).explain(&frame.dissect()).reason, Reason::Roce);
}

#[test]
fn q3_frame_cut_anywhere_has_a_defined_key() {
    let frame = Frame::new(roce(0xc000, 4, 0x1234, 0)).bytes();
    for length in 14..frame.len() {
        let explanation = entropy(Policy::QpHash).explain(&dissect(&frame[..length]).unwrap());
        let expected = if length < 14 + 20 { Reason::BrokenIp } else { Reason::BrokenTransport };
        assert_eq!(explanation.reason, expected, "{length} bytes");
    }
}

#[test]
fn q4_fragments_share_a_key() {
    for policy in Policy::ALL {
        let whole = Frame::new(roce(0xc000, 4, 0x1234, 0));
        let mut first = whole.clone();
        first.fragment = 0x2000;
        let mut later = Frame::new(vec![0x55; 64]);
        later.fragment = 0x2000 | 185;
        let mut last = Frame::new(vec![0xaa; 3]);
        last.fragment = 370;
        let [first, later, last] =
            [first, later, last].map(|frame| entropy(policy).explain(&frame.dissect()));
        assert_eq!(first.reason, Reason::FirstFragment);
        assert_eq!(later.reason, Reason::LaterFragment);
        assert!(matches!(first.key, Key::Addresses { protocol: 17, .. }));
        assert_eq!((first.key, first.decision), (later.key, later.decision));
        assert_eq!((first.key, first.decision), (last.key, last.decision));
        assert_ne!(first.key, entropy(policy).explain(&whole.dissect()).key);
    }
}

#[test]
fn q4_ipv6_fragments_share_a_key_behind_the_same_and_different_extension_headers() {
    // The fragmentable part starts with destination options, which only the first fragment has.
    let mut first = Frame::new(roce(0xc000, 4, 0x1234, 0));
    first.ipv6 = true;
    first.next = 44;
    first.options = vec![60, 0, 0, 1, 0, 0, 0, 9, 17, 0, 1, 4, 0, 0, 0, 0];
    let mut later = Frame::new(vec![0x11; 24]);
    later.ipv6 = true;
    later.next = 44;
    later.options = vec![60, 0, 0x05, 0xa8, 0, 0, 0, 9];
    let [first, later] =
        [first, later].map(|frame| entropy(Policy::QpHash).explain(&frame.dissect()));
    assert_eq!((first.reason, later.reason), (Reason::FirstFragment, Reason::LaterFragment));
    assert!(matches!(first.key, Key::Addresses { protocol: 60, .. }));
    assert_eq!((first.key, first.decision), (later.key, later.decision));
}

#[test]
fn fallbacks_have_their_reasons() {
    let explain = |frame: &Frame| entropy(Policy::QpHash).explain(&frame.dissect());
    assert_eq!(explain(&Frame::new(udp(1, 2, &[]))).reason, Reason::NotRoce);
    let mut cut = Frame::new(udp(1, 2, &[])).bytes();
    cut.truncate(14 + 19);
    assert_eq!(entropy(Policy::QpHash).explain(&dissect(&cut).unwrap()).reason, Reason::BrokenIp);
    let mut icmp = Frame::new(vec![8, 0, 0, 0, 0, 0, 0, 1]);
    icmp.protocol = 1;
    assert_eq!(explain(&icmp).reason, Reason::NoPorts);
    let mut short = Frame::new(udp(1, 4791, &bth(4, 1, 1)));
    short.payload[4..6].copy_from_slice(&100u16.to_be_bytes());
    assert_eq!(explain(&short).reason, Reason::BrokenTransport);

    let mut arp = Frame::new(vec![]).bytes();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let dissection = dissect(&arp).unwrap();
    assert_eq!(dissection.network, Network::Other);
    let explanation = entropy(Policy::QpHash).explain(&dissection);
    assert_eq!(explanation.reason, Reason::NotIp);
    assert!(matches!(explanation.key, Key::Macs { ethertype: 0x0806, .. }));
}

#[test]
fn five_tuple_sees_roce_as_any_udp() {
    let explain = |port, queue_pair| {
        entropy(Policy::FiveTuple).explain(&Frame::new(roce(port, 4, queue_pair, 0)).dissect())
    };
    let one = explain(0xc000, 1);
    assert_eq!(one.reason, Reason::RoceByFiveTuple);
    assert_eq!(one, explain(0xc000, 2));
    assert_ne!(one.decision.hash, explain(0xc001, 1).decision.hash);
}

#[test]
fn decision_explanation_and_key_have_one_hash() {
    let mut frames = vec![Frame::new(roce(0xc000, 4, 0x1234, 0)), Frame::new(udp(1, 2, &[]))];
    let mut fragment = frames[0].clone();
    fragment.fragment = 185;
    frames.push(fragment);
    let mut icmp = Frame::new(vec![8; 8]);
    icmp.protocol = 1;
    frames.push(icmp);
    for frame in frames.clone() {
        frames.push(Frame { ipv6: true, next: frame.protocol, fragment: 0, ..frame });
    }
    let mut dissections: Vec<_> = frames.iter().map(Frame::dissect).collect();
    dissections.push(dissect(&[0x5a; 60]).unwrap());
    for policy in Policy::ALL {
        for dissection in &dissections {
            let explanation = entropy(policy).explain(dissection);
            assert_eq!(explanation.decision, entropy(policy).decide(dissection));
            assert_eq!(explanation.decision.hash, explanation.key.hash(7), "{:?}", explanation.key);
            assert!(explanation.range.contains(explanation.decision.source_port));
            assert_eq!(explanation.policy, policy);
        }
    }
}
