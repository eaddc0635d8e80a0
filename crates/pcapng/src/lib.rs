//! Writes capture files in the format pcapng (draft-ietf-opsawg-pcapng), which Wireshark reads:
//! packets of several interfaces in one file, each with a comment.
//!
//! Numbers are in the byte order of the machine, as the format wants.

use std::collections::BTreeMap;
use std::io::{self, Write};

/// Block types (sections 4.1 to 4.3 and 4.6).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const INTERFACE_STATISTICS: u32 = 5;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// `LINKTYPE_ETHERNET`.
const ETHERNET: u16 = 1;

/// Options of blocks.
const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const TIME_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const DROPPED_BY_INTERFACE: u16 = 5;

/// Time stamps count nanoseconds: ten to the power of minus this.
const NANOSECONDS: u8 = 9;
/// The longest text of an option in bytes.
const LONGEST_TEXT: usize = 4096;

/// Whether the machine that captured a packet received or sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
}

impl Direction {
    /// The direction of this name in vtepd's API: `in` or `out`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "in" => Some(Self::In),
            "out" => Some(Self::Out),
            _ => None,
        }
    }
}

/// A packet of a capture file.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    /// Name of its interface.
    pub interface: &'a str,
    /// Nanoseconds since 1970, UTC.
    pub time: u64,
    /// Its first bytes, from the Ethernet header on.
    pub data: &'a [u8],
    /// Its length in bytes.
    pub length: u32,
    /// Absent if it is not known.
    pub direction: Option<Direction>,
    /// What Wireshark shows as the packet's comment; empty for none.
    pub comment: &'a str,
}

/// Writes one section. Each interface is described before its first packet.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// The number of each interface, by its name.
    interfaces: BTreeMap<String, u32>,
}

impl<W: Write> Writer<W> {
    /// Writes the header of the section. `application` is the name of the program.
    ///
    /// # Errors
    /// As the output.
    pub fn new(mut out: W, application: &str) -> io::Result<Self> {
        let mut body = BYTE_ORDER_MAGIC.to_ne_bytes().to_vec();
        // Version 1.0, and a section whose length is not known.
        body.extend(1u16.to_ne_bytes());
        body.extend(0u16.to_ne_bytes());
        body.extend(u64::MAX.to_ne_bytes());
        text(&mut body, APPLICATION, application);
        block(&mut out, SECTION_HEADER, body)?;
        Ok(Self { out, interfaces: BTreeMap::new() })
    }

    /// The number of an interface, which is described if it is new.
    ///
    /// # Errors
    /// As the output.
    pub fn interface(&mut self, name: &str) -> io::Result<u32> {
        if let Some(number) = self.interfaces.get(name) {
            return Ok(*number);
        }
        let mut body = ETHERNET.to_ne_bytes().to_vec();
        // Two reserved bytes, and no limit of a packet's length.
        body.extend([0; 2]);
        body.extend(0u32.to_ne_bytes());
        text(&mut body, INTERFACE_NAME, name);
        option(&mut body, TIME_RESOLUTION, &[NANOSECONDS]);
        block(&mut self.out, INTERFACE_DESCRIPTION, body)?;
        let number = self.interfaces.len() as u32;
        self.interfaces.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Writes a packet.
    ///
    /// # Errors
    /// As the output.
    pub fn packet(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        let mut body = self.interface(packet.interface)?.to_ne_bytes().to_vec();
        body.extend(halves(packet.time));
        body.extend((packet.data.len() as u32).to_ne_bytes());
        body.extend(packet.length.to_ne_bytes());
        padded(&mut body, packet.data);
        if let Some(direction) = packet.direction {
            let flags: u32 = match direction {
                Direction::In => 1,
                Direction::Out => 2,
            };
            option(&mut body, PACKET_FLAGS, &flags.to_ne_bytes());
        }
        text(&mut body, COMMENT, packet.comment);
        block(&mut self.out, ENHANCED_PACKET, body)
    }

    /// Writes how many packets of an interface the capture lost, until this time in nanoseconds since
    /// 1970.
    ///
    /// # Errors
    /// As the output.
    pub fn lost(&mut self, interface: &str, time: u64, packets: u64) -> io::Result<()> {
        let mut body = self.interface(interface)?.to_ne_bytes().to_vec();
        body.extend(halves(time));
        option(&mut body, DROPPED_BY_INTERFACE, &packets.to_ne_bytes());
        block(&mut self.out, INTERFACE_STATISTICS, body)
    }

    /// Writes what the output has buffered.
    ///
    /// # Errors
    /// As the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A time stamp: its high and its low 32 bits.
fn halves(time: u64) -> [u8; 8] {
    let [[a, b, c, d], [e, f, g, h]] = [(time >> 32) as u32, time as u32].map(u32::to_ne_bytes);
    [a, b, c, d, e, f, g, h]
}

/// Appends bytes, padded to 32 bits.
fn padded(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend(bytes);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Appends an option.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_ne_bytes());
    body.extend((value.len() as u16).to_ne_bytes());
    padded(body, value);
}

/// Appends an option with a text, unless it is empty. A long one is cut.
fn text(body: &mut Vec<u8>, code: u16, value: &str) {
    let value = value.get(..end(value, LONGEST_TEXT)).unwrap_or_default();
    if !value.is_empty() {
        option(body, code, value.as_bytes());
    }
}

/// Writes a block: its type, its length, its body, which is padded, and its length again.
fn block(out: &mut impl Write, kind: u32, mut body: Vec<u8>) -> io::Result<()> {
    option(&mut body, END_OF_OPTIONS, &[]);
    let length = (body.len() as u32 + 12).to_ne_bytes();
    let head: Vec<u8> = kind.to_ne_bytes().into_iter().chain(length).collect();
    out.write_all(&head)?;
    out.write_all(&body)?;
    out.write_all(&length)
}

/// The end of a text of at most so many bytes.
fn end(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    /// The blocks of a file: type and body.
    fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut blocks = Vec::new();
        while !file.is_empty() {
            let (kind, length) = (word(file, 0), word(file, 4) as usize);
            assert_eq!((length % 4, word(file, length - 4) as usize), (0, length));
            blocks.push((kind, file[8..length - 4].to_vec()));
            file = &file[length..];
        }
        blocks
    }

    #[test]
    fn each_interface_is_described_once_and_before_its_packets() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, "a test").unwrap();
        for (number, name) in ["up1", "inner", "up1"].into_iter().enumerate() {
            let data = vec![7; 60 + number];
            let (time, length) = ((1 << 32) + number as u64, 1500);
            let direction = [None, Some(Direction::In), Some(Direction::Out)][number];
            let packet =
                Packet { interface: name, time, data: &data, length, direction, comment: "why" };
            writer.packet(&packet).unwrap();
        }
        writer.lost("up1", 9, 3).unwrap();
        writer.flush().unwrap();
        let blocks = blocks(&file);
        let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [SECTION_HEADER, 1, 6, 1, 6, 6, 5]);
        let (_, last) = &blocks[5];
        assert_eq!([0, 4, 8, 12, 16].map(|at| word(last, at)), [0, 1, 2, 62, 1500]);
        // Two bytes of padding, the direction, and the comment.
        assert_eq!(&last[20 + 62..20 + 64], [0, 0]);
        assert_eq!(word(last, 20 + 64 + 4), 2);
        assert_eq!(&last[20 + 64 + 12..20 + 64 + 15], b"why");
        let (_, lost) = &blocks[6];
        assert_eq!(u64::from_ne_bytes(lost[16..24].try_into().unwrap()), 3);
    }

    #[test]
    fn a_long_comment_is_cut_between_characters() {
        let long = "é".repeat(LONGEST_TEXT);
        assert_eq!(end(&long, 5), 4);
        let mut body = Vec::new();
        text(&mut body, COMMENT, &long);
        assert_eq!(body.len(), 4 + LONGEST_TEXT);
        body.clear();
        text(&mut body, COMMENT, "");
        assert!(body.is_empty());
    }
}
