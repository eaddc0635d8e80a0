//! Frames of `test-frames`, so that the tests do not depend on the builders of `wire`.
#![allow(dead_code, reason = "each test uses a part")]

use test_frames::{IPV4, IPV6, Ipv4, Ipv6, ethernet, tagged};
use wire::{Dissection, dissect};

/// A RoCE frame with variable parts.
#[derive(Clone)]
pub(crate) struct Frame {
    pub tags: Vec<[u8; 4]>,
    pub source: [u8; 4],
    pub destination: [u8; 4],
    pub ipv6: bool,
    /// IPv6 extension headers or IPv4 options, including their padding.
    pub options: Vec<u8>,
    /// Type of the first extension header.
    pub next: u8,
    /// IPv4 flags and fragment offset.
    pub fragment: u16,
    pub protocol: u8,
    pub payload: Vec<u8>,
}

/// Base transport header with opcode, destination queue pair and sequence number, and four bytes of
/// ICRC.
pub(crate) fn bth(opcode: u8, queue_pair: u32, sequence: u32) -> Vec<u8> {
    test_frames::bth(opcode, queue_pair, sequence, &[])
}

pub(crate) fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    test_frames::udp((source, destination), payload)
}

pub(crate) fn roce(source_port: u16, opcode: u8, queue_pair: u32, sequence: u32) -> Vec<u8> {
    udp(source_port, 4791, &bth(opcode, queue_pair, sequence))
}

impl Frame {
    pub(crate) fn new(payload: Vec<u8>) -> Self {
        Self {
            tags: vec![],
            source: [10, 0, 0, 1],
            destination: [10, 0, 0, 2],
            ipv6: false,
            options: vec![],
            next: 17,
            fragment: 0,
            protocol: 17,
            payload,
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let (from, to) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let frame = if self.ipv6 {
            let v6 = |[a, b, c, d]: [u8; 4]| {
                [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
            };
            let addresses = (v6(self.source), v6(self.destination));
            let payload = [&self.options[..], &self.payload].concat();
            let packet = test_frames::ipv6(addresses, self.next, &payload, Ipv6::default());
            ethernet(from, to, IPV6, &packet)
        } else {
            let fields = Ipv4 { options: self.options.clone(), ..Ipv4::default() };
            let fields = fields.fragment(self.fragment);
            let addresses = (self.source, self.destination);
            let packet = test_frames::ipv4(addresses, self.protocol, &self.payload, fields);
            ethernet(from, to, IPV4, &packet)
        };
        self.tags.iter().rev().fold(frame, |frame, [a, b, c, d]| {
            tagged(&frame, u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]))
        })
    }

    pub(crate) fn dissect(&self) -> Dissection {
        dissect(&self.bytes()).unwrap()
    }
}
