//! The protobuf encoding, from handwritten bytes in the wire format (field number × 8 + wire type).

#![cfg(test)]

use std::net::IpAddr;

use fpm::{Encoding, Frame, Transaction, decode_frame};
use netlink::{Message, Operation, Route, RouteNextHop, RouteTarget};
use proptest::prelude::*;

fn decode(payload: &[u8]) -> Result<Transaction, fpm::Error> {
    decode_frame(&Frame {
        offset: 0,
        encoding: Encoding::Protobuf,
        payload: payload.to_vec().into(),
    })
}

/// A length-delimited field.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

/// A small integer field.
fn integer(number: u8, value: u8) -> Vec<u8> {
    assert!(value < 0x80);
    vec![number << 3, value]
}

/// vrf_id, address_family (1 IPv4, 2 IPv6), sub_address_family, key.
fn start(vrf: u8, family: u8, subfamily: u8, length: u8, prefix: &[u8]) -> Vec<u8> {
    let prefix = [integer(1, length), field(2, prefix)].concat();
    [integer(1, vrf), integer(2, family), integer(3, subfamily), field(4, &field(1, &prefix))]
        .concat()
}

fn add(content: &[u8]) -> Vec<u8> {
    [integer(1, 1), field(2, content)].concat()
}

fn delete(content: &[u8]) -> Vec<u8> {
    [integer(1, 2), field(3, content)].concat()
}

fn route(destination: &str, prefix_length: u8) -> Route {
    let via = RouteTarget::NextHops(vec![]);
    let new = Route::new(destination.parse().unwrap(), prefix_length, via);
    Route { route_type: 0, protocol: 0, ..new }
}

fn hop(ifindex: u32, gateway: Option<&str>) -> RouteNextHop {
    let gateway: Option<IpAddr> = gateway.map(|gateway| gateway.parse().unwrap());
    RouteNextHop { ifindex, gateway, weight: 1, flags: 0, vni: None, encapsulation: None }
}

/// 10.0.0.12/31 over two next hops, as from BGP. The metric is field 8.
fn ecmp() -> Vec<u8> {
    // fixed32 is little-endian: 10.1.11.0 is 0x0a010b00.
    let gateway = |octets: [u8; 4]| field(3, &field(1, &[&[1 << 3 | 5], &octets[..]].concat()));
    let first = [field(2, &integer(1, 2)), gateway([0, 11, 1, 10])].concat();
    let second = [field(2, &integer(1, 3)), gateway([0, 12, 1, 10])].concat();
    let rest = [integer(5, 1), integer(6, 9), integer(8, 20), field(9, &first), field(9, &second)]
        .concat();
    add(&[start(0, 1, 1, 31, &[10, 0, 0, 12]), rest].concat())
}

#[test]
fn a_route_with_two_next_hops() {
    let via = RouteTarget::NextHops(vec![hop(2, Some("10.1.11.0")), hop(3, Some("10.1.12.0"))]);
    let expected =
        Route { route_type: 1, protocol: 186, replace: true, via, ..route("10.0.0.12", 31) };
    assert_eq!(decode(&ecmp()).unwrap().messages, [Message::Route(Operation::New, expected)]);
}

#[test]
fn prefixes_come_cut_to_their_length() {
    let octets = [0x20, 0x01, 0x0d, 0xb8, 0x80];
    let gateway = [&[0xfe, 0x80][..], &[0; 13], &[1]].concat();
    let hops =
        field(9, &[field(2, &integer(1, 7)), field(3, &field(2, &field(1, &gateway)))].concat());
    let payload = add(&[start(0, 2, 1, 33, &octets), integer(6, 4), integer(8, 0), hops].concat());
    let via = RouteTarget::NextHops(vec![hop(7, Some("fe80::1"))]);
    let expected =
        Route { route_type: 1, protocol: 196, replace: true, via, ..route("2001:db8:8000::", 33) };
    assert_eq!(decode(&payload).unwrap().messages, [Message::Route(Operation::New, expected)]);

    let default = decode(&delete(&start(0, 1, 1, 0, &[]))).unwrap();
    assert_eq!(default.messages, [Message::Route(Operation::Delete, route("0.0.0.0", 0))]);
}

#[test]
fn blackholes_have_no_next_hop() {
    for (kind, route_type) in [(2, 7), (3, 6)] {
        let rest = [integer(5, kind), integer(6, 4), integer(8, 0)].concat();
        let payload = add(&[start(0, 1, 1, 24, &[192, 0, 2]), rest].concat());
        let expected = Route { route_type, protocol: 196, replace: true, ..route("192.0.2.0", 24) };
        assert_eq!(decode(&payload).unwrap().messages, [Message::Route(Operation::New, expected)]);
    }
}

#[test]
fn what_it_cannot_say_is_left_out() {
    // Another VRF, multicast, an unknown family, an unknown message type, and an empty payload.
    for payload in [
        delete(&start(7, 1, 1, 8, &[10])),
        delete(&start(0, 1, 2, 8, &[10])),
        delete(&start(0, 0, 1, 8, &[10])),
        integer(1, 9),
        vec![],
    ] {
        assert_eq!(decode(&payload).unwrap().messages, [], "{payload:?}");
    }
}

#[test]
fn contradictions_are_refused() {
    for (payload, words) in [
        (integer(1, 1), "without add_route"),
        (integer(1, 2), "without delete_route"),
        (delete(&[integer(1, 0), integer(2, 1), integer(3, 1)].concat()), "without prefix"),
        (delete(&start(0, 1, 1, 33, &[10, 0, 0, 0, 0])), "33 bits"),
        (delete(&start(0, 1, 1, 24, &[10, 0])), "24 bits in 2"),
        (delete(&start(0, 1, 1, 24, &[10, 0, 0, 0, 0])), "24 bits in 5"),
        (
            add(&[start(0, 2, 1, 0, &[]), field(9, &field(3, &field(2, &field(1, &[1, 2]))))]
                .concat()),
            "2 octets",
        ),
        (vec![0xff], "malformed protobuf"),
    ] {
        let error = decode(&payload).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("byte 4"), "{error}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&payload);
    }

    #[test]
    fn no_damage_makes_it_panic(place in any::<prop::sample::Index>(), value: u8, cut in any::<prop::sample::Index>()) {
        let mut payload = ecmp();
        *place.get_mut(&mut payload) = value;
        payload.truncate(cut.index(payload.len() + 1));
        let _ = decode(&payload);
    }
}
