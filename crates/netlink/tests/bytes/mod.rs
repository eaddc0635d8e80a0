//! Builds messages from handwritten bytes.

#![allow(dead_code, reason = "each test uses a part")]

use std::net::IpAddr;

use netlink::{Message, decode};

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// An attribute with its padding.
pub(crate) fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(payload.len() + 4).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub(crate) fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_ne_bytes())
}

pub(crate) fn message(kind: u16, flags: u16, body: &[u8], attributes: &[Vec<u8>]) -> Vec<u8> {
    let content = [body, &attributes.concat()].concat();
    let mut bytes = u32::try_from(16 + content.len()).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(content);
    bytes
}

pub(crate) fn one(bytes: &[u8]) -> Message {
    let mut messages = decode(bytes);
    let message = messages.next().unwrap().unwrap();
    assert_eq!(messages.next(), None);
    message
}

pub(crate) fn link_body(family: u8, ifindex: u32, flags: u32) -> Vec<u8> {
    [&[family, 0, 1, 0][..], &ifindex.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 4]].concat()
}

pub(crate) fn vxlan_message(data: &[Vec<u8>]) -> Vec<u8> {
    let info = [attribute(1, b"vxlan\0"), attribute(2 | 0x8000, &data.concat())];
    message(
        16,
        0,
        &link_body(0, 5, 0x1043),
        &[attribute(3, b"vx10\0"), attribute(18, &info.concat())],
    )
}

/// Every `IFLA_VXLAN_*` of Linux 6.18 as the kernel writes it, and some unknown ones.
pub(crate) fn all_of_vxlan() -> Vec<Vec<u8>> {
    let mut all = vec![
        number(1, 10010),
        attribute(2, &[239, 1, 1, 1]),
        number(3, 2),
        attribute(4, &[10, 0, 0, 11]),
        attribute(5, &[64]),
        attribute(6, &[1]),
        attribute(7, &[1]),
        number(8, 300),
        number(9, 1000),
        attribute(10, &[0xc0, 0, 0xff, 0xff]),
        attribute(15, &[0x12, 0xb5]),
        attribute(18, &[1]),
        attribute(19, &[1]),
        attribute(20, &[1]),
        attribute(24, &[]),
        attribute(25, &[1]),
        attribute(26, &[0, 1, 2, 3]),
        attribute(28, &[1]),
        attribute(29, &[2]),
        attribute(30, &[1]),
        attribute(31, &[0]),
        number(32, 1),
        attribute(33, &[0xff; 8]),
        attribute(34, &[1]),
        attribute(35, &[1]),
        attribute(9999, &[]),
    ];
    all.extend([11, 12, 13, 14, 21, 22].map(|kind| attribute(kind, &[1])));
    all.extend([23, 27].map(|kind| attribute(kind, &[])));
    all
}

pub(crate) fn route_body(family: u8, prefix_length: u8, flags: u32) -> Vec<u8> {
    [&[family, prefix_length, 0, 0x10, 254, 186, 0, 1][..], &flags.to_ne_bytes()].concat()
}
