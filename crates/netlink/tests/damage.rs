//! Malformed messages: errors have the position and the reason, and nothing panics.

#![cfg(test)]

mod bytes;

use bytes::{all_of_vxlan, attribute, message, number, one, route_body, vxlan_message};
use netlink::{DecodeError, Malformed, Messages, decode};
use proptest::prelude::*;

fn error(bytes: &[u8]) -> DecodeError {
    decode(bytes).find_map(Result::err).unwrap()
}

#[test]
fn errors_say_where_and_what() {
    let neighbour = [2, 0, 0, 0, 5, 0, 0, 0, 0x02, 0, 0x10, 0];
    let fdb = [7, 0, 0, 0, 5, 0, 0, 0, 0x02, 0, 0x10, 0];
    let after = message(28, 0, &fdb, &[attribute(2, &[2; 6])]);
    let mut long = attribute(1, &[10, 0, 0, 1]);
    long[0] = 9;
    let bad_group = attribute(2, &[0; 12]);
    let cases = [
        (vec![0; 7], 0, Malformed::MessageHeader { available: 7 }),
        (
            message(28, 0, &neighbour[..8], &[]),
            16,
            Malformed::Body { kind: 28, expected: 12, actual: 8 },
        ),
        (message(28, 0, &neighbour, &[]), 16, Malformed::Missing { kind: 28, attribute: 1 }),
        (message(28, 0, &fdb, &[]), 16, Malformed::Missing { kind: 28, attribute: 2 }),
        (
            message(28, 0, &neighbour, &[vec![1, 2]]),
            28,
            Malformed::AttributeHeader { available: 2 },
        ),
        (
            message(28, 0, &neighbour, &[long]),
            28,
            Malformed::AttributeLength { attribute: 1, length: 9, available: 8 },
        ),
        (
            message(28, 0, &neighbour, &[attribute(1, &[10, 0, 0])]),
            32,
            Malformed::AttributeTooShort { attribute: 1, expected: 4, actual: 3 },
        ),
        (
            message(24, 0, &route_body(2, 24, 0), &[]),
            16,
            Malformed::Missing { kind: 24, attribute: 1 },
        ),
        (
            message(24, 0, &route_body(2, 33, 0), &[attribute(1, &[10, 0, 0, 12])]),
            16,
            Malformed::Prefix { octets: 4, length: 33 },
        ),
        (
            message(24, 0, &route_body(2, 32, 0), &[attribute(1, &[1; 16])]),
            16,
            Malformed::Prefix { octets: 16, length: 32 },
        ),
        (
            message(24, 0, &route_body(2, 0, 0), &[attribute(9, &[9, 0, 0, 0, 1, 0, 0, 0])]),
            32,
            Malformed::NextHopLength { length: 9, available: 8 },
        ),
        (
            message(104, 0, &[0; 8], &[number(1, 1), bad_group]),
            36,
            Malformed::AttributeTooShort { attribute: 2, expected: 16, actual: 12 },
        ),
        (message(104, 0, &[0; 8], &[]), 16, Malformed::Missing { kind: 104, attribute: 1 }),
    ];
    for (bytes, offset, what) in cases {
        assert_eq!(error(&bytes), DecodeError { offset, what });
        // After a valid message, the offset still counts from the start of the buffer.
        let behind = [&after[..], &bytes].concat();
        let error = error(&behind);
        let shifted = DecodeError { offset: offset + after.len(), what };
        assert_eq!(error, shifted);
        assert!(
            error.to_string().starts_with(&format!("malformed netlink at byte {}", shifted.offset))
        );
    }
    // Malformed content affects only its own message. A malformed length hides all later messages.
    let content = message(28, 0, &neighbour, &[]);
    let results: Vec<_> =
        Messages::new(&[&content[..], &after].concat()).map(|message| message.is_ok()).collect();
    assert_eq!(results, [false, true]);
    let mut length = content;
    length[0] = 15;
    let results: Vec<_> =
        Messages::new(&[&length[..], &after].concat()).map(|message| message.is_ok()).collect();
    assert_eq!(results, [false]);
}

/// One message of each type, with all of its attributes.
fn samples() -> Vec<Vec<u8>> {
    let entry = [&[16, 0, 0, 0, 3, 0, 0, 0][..], &attribute(5, &[10, 1, 11, 0])].concat();
    let members = [22, 0, 0, 0, 0, 0, 0, 0, 27, 0, 0, 0, 0, 0, 0, 0];
    let fdb = [7, 0, 0, 0, 5, 0, 0, 0, 0x42, 0, 0x12, 0];
    vec![
        vxlan_message(&all_of_vxlan()),
        message(20, 0, &[2, 31, 0, 0, 3, 0, 0, 0], &[attribute(2, &[10, 1, 11, 1])]),
        message(
            24,
            0,
            &route_body(2, 32, 0),
            &[attribute(1, &[10, 0, 0, 12]), attribute(9, &entry), number(30, 7)],
        ),
        message(
            28,
            0,
            &fdb,
            &[attribute(2, &[2; 6]), attribute(1, &[10, 0, 0, 12]), number(11, 10010)],
        ),
        message(104, 0, &[0; 8], &[number(1, 26), attribute(2, &members)]),
    ]
}

#[test]
fn cut_at_every_byte() {
    for sample in samples() {
        one(&sample);
        for cut in 1..sample.len() {
            // nlmsg_len exceeds the buffer now.
            let messages: Vec<_> = decode(&sample[..cut]).collect();
            assert!(
                matches!(&messages[..], [Err(error)] if error.offset == 0),
                "{cut}: {messages:?}"
            );
            // With a matching length, the result is an error inside the message or a message
            // without its last attributes.
            let mut shorter = sample[..cut].to_vec();
            if let Some(length) = shorter.first_chunk_mut::<4>() {
                *length = u32::try_from(cut).unwrap().to_ne_bytes();
            }
            let messages: Vec<_> = decode(&shorter).collect();
            assert_eq!(messages.len(), 1, "{cut}: {messages:?}");
            if let Err(error) = &messages[0] {
                assert!(error.offset <= cut, "{cut}: {error}");
            }
        }
    }
}

/// Shortens the payload of every top-level attribute to nothing. Types with a fixed size must yield
/// an error.
#[test]
fn attributes_that_are_too_short() {
    let cases: [(u16, usize, &[u16]); 5] = [
        (16, 16, &[4, 5, 10, 16, 33]),
        (20, 8, &[1, 2]),
        (24, 12, &[1, 4, 5, 6, 15, 18, 21, 30]),
        (28, 12, &[1, 5, 6, 7, 8, 9, 11, 13, 15]),
        (104, 8, &[1, 5, 6]),
    ];
    for (kind, size, attributes) in cases {
        let mut body = vec![0; size];
        body[0] = 2;
        for &number in attributes {
            let error = error(&message(kind, 0, &body, &[attribute(number, &[])]));
            assert!(
                matches!(error.what, Malformed::AttributeTooShort { attribute, actual: 0, .. } if attribute == number),
                "{kind} {number}: {error}"
            );
        }
    }
}

#[test]
fn no_single_bit_makes_it_panic() {
    for sample in samples() {
        for bit in 0..sample.len() * 8 {
            let mut damaged = sample.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            decode(&damaged).for_each(drop);
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        decode(&bytes).for_each(drop);
    }

    /// Well-formed messages with arbitrary attributes, also nested ones.
    #[test]
    fn no_attributes_make_it_panic(
        kind in prop::sample::select(vec![16u16, 17, 20, 24, 25, 28, 29, 104, 105]),
        family in prop::sample::select(vec![0u8, 2, 7, 10]),
        attributes in prop::collection::vec((0u16..45, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
        nest in prop::option::of(prop::sample::select(vec![8u16, 9, 12, 18, 22, 43])),
    ) {
        let attributes: Vec<_> = attributes.iter().map(|(kind, payload)| attribute(*kind, payload)).collect();
        let attributes = match nest {
            Some(outer) => vec![attribute(outer, &[attribute(1, b"vxlan\0"), attribute(2, &attributes.concat())].concat())],
            None => attributes,
        };
        let size = match kind { 16 | 17 => 16, 24..=29 => 12, _ => 8 };
        let mut body = vec![0; size];
        body[0] = family;
        let bytes = message(kind, 0, &body, &attributes);
        prop_assert_eq!(decode(&bytes).count(), 1);
    }
}
