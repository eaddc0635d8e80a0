//! Frames built by hand, so that the tests do not depend on the builders of `wire`.
#![allow(dead_code, reason = "each test uses a part")]

use wire::{Dissection, dissect};

/// A RoCE frame with variable parts.
#[derive(Clone)]
pub struct Frame {
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
pub fn bth(opcode: u8, queue_pair: u32, sequence: u32) -> Vec<u8> {
    let [_, q @ ..] = queue_pair.to_be_bytes();
    let mut bytes = vec![opcode, 0x40, 0xff, 0xff, 0, q[0], q[1], q[2]];
    bytes.extend(sequence.to_be_bytes());
    bytes.extend([0; 4]);
    bytes
}

pub fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = source.to_be_bytes().to_vec();
    bytes.extend(destination.to_be_bytes());
    bytes.extend((8 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}

pub fn roce(source_port: u16, opcode: u8, queue_pair: u32, sequence: u32) -> Vec<u8> {
    udp(source_port, 4791, &bth(opcode, queue_pair, sequence))
}

impl Frame {
    pub fn new(payload: Vec<u8>) -> Self {
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

    pub fn bytes(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        for tag in &self.tags {
            frame.extend(tag);
        }
        let body = self.options.len() + self.payload.len();
        if self.ipv6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((body as u16).to_be_bytes());
            frame.extend([self.next, 64]);
            for address in [self.source, self.destination] {
                frame.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0]);
                frame.extend(address);
            }
        } else {
            frame.extend([0x08, 0x00, 0x45 + (self.options.len() / 4) as u8, 0]);
            frame.extend((20 + body as u16).to_be_bytes());
            frame.extend([0, 1]);
            frame.extend(self.fragment.to_be_bytes());
            frame.extend([64, self.protocol, 0, 0]);
            frame.extend(self.source);
            frame.extend(self.destination);
        }
        frame.extend(&self.options);
        frame.extend(&self.payload);
        frame
    }

    pub fn dissect(&self) -> Dissection {
        dissect(&self.bytes()).unwrap()
    }
}
