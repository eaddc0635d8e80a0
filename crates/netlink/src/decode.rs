//! From bytes to [`Message`]: one decoder for messages of the kernel and of zebra's FPM.
//!
//! ```text
//!  0               4       6       8               12              16
//! +---------------+-------+-------+---------------+---------------+------+------------+
//! | nlmsg_len     | type  | flags | sequence      | port          | body | attributes |
//! +---------------+-------+-------+---------------+---------------+------+------------+
//! ```
//! Everything is in host byte order unless an attribute requires another order. `nlmsg_len`
//! includes the header, and the next message starts at the next multiple of 4. Source:
//! `include/uapi/linux/netlink.h`.
//!
//! The decoder skips what it does not know, rejects what is malformed, and never panics
//! (docs/adr/0003-own-netlink-decoder.md explains why it is not `netlink-packet-route`).
//!
//! What the types of [`crate::Message`] cannot represent becomes [`Message::Other`]: MPLS label
//! routes, multicast routes, source-specific IPv6 routes, and messages that are neither `RTM_NEW*`
//! nor `RTM_DEL*`.

pub(crate) mod ipsec;
mod link;
mod mdb;
mod neighbour;
mod netconf;
mod route;
mod rule;

pub(crate) use route::cached_mtu;

use crate::attribute::{Attributes, align};
use crate::message::{Message, Operation};

/// `AF_INET`.
pub(crate) const AF_INET: u8 = 2;
/// `AF_INET6`.
pub(crate) const AF_INET6: u8 = 10;
/// `AF_BRIDGE`.
pub(crate) const AF_BRIDGE: u8 = 7;

/// Bytes of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;

/// A decoding error with its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed netlink at byte {offset}: {what}")]
pub struct DecodeError {
    /// Position in the decoded buffer in bytes, from 0.
    pub offset: usize,
    /// What is wrong there.
    pub what: Malformed,
}

/// How a netlink message is malformed. Lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes are left than a header has.
    #[error("{available} bytes are left, a message header has 16")]
    MessageHeader {
        /// Bytes left.
        available: usize,
    },
    /// `nlmsg_len` is shorter than the header or exceeds the buffer.
    #[error("nlmsg_len is {length}, but must be 16 to {available}")]
    MessageLength {
        /// `nlmsg_len`.
        length: u32,
        /// Bytes left.
        available: usize,
    },
    /// The message ends inside the fixed structure of its type.
    #[error("the body of message type {kind} has {actual} bytes instead of at least {expected}")]
    Body {
        /// `nlmsg_type`.
        kind: u16,
        /// Size of the type's structure.
        expected: usize,
        /// Bytes present.
        actual: usize,
    },
    /// Fewer bytes are left than an attribute header has.
    #[error("{available} bytes are left, an attribute header has 4")]
    AttributeHeader {
        /// Bytes left.
        available: usize,
    },
    /// `nla_len` is shorter than the header or exceeds what contains the attribute.
    #[error("the length of attribute {attribute} is {length}, but must be 4 to {available}")]
    AttributeLength {
        /// Attribute type.
        attribute: u16,
        /// `nla_len`.
        length: usize,
        /// Bytes left.
        available: usize,
    },
    /// The payload of an attribute is shorter than its type requires.
    #[error("attribute {attribute} has {actual} bytes instead of {expected}")]
    AttributeTooShort {
        /// Attribute type.
        attribute: u16,
        /// Bytes that the type requires.
        expected: usize,
        /// Bytes present.
        actual: usize,
    },
    /// `rtnh_len` of a next hop in `RTA_MULTIPATH` is shorter than its header or exceeds the
    /// attribute.
    #[error("rtnh_len is {length}, but must be 8 to {available}")]
    NextHopLength {
        /// `rtnh_len`.
        length: usize,
        /// Bytes left.
        available: usize,
    },
    /// A message lacks an attribute that its type requires.
    #[error("message type {kind} has no attribute {attribute}")]
    Missing {
        /// `nlmsg_type`.
        kind: u16,
        /// Attribute type.
        attribute: u16,
    },
    /// A prefix longer than its address, or an address of a family other than the message's.
    #[error("an address of {octets} bytes with a prefix of {length} bits")]
    Prefix {
        /// Bytes of the address.
        octets: usize,
        /// Prefix length in bits.
        length: u8,
    },
}

/// A netlink message whose content is not decoded yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope<'a> {
    /// `nlmsg_type`.
    pub(crate) kind: u16,
    /// `nlmsg_flags`.
    pub(crate) flags: u16,
    /// `nlmsg_seq`.
    pub(crate) sequence: u32,
    /// What follows the header.
    pub(crate) payload: &'a [u8],
    /// Where the payload starts in the buffer.
    pub(crate) offset: usize,
}

impl<'a> Envelope<'a> {
    /// Splits the payload into the fixed structure of `N` bytes and the attributes after it.
    fn body<const N: usize>(&self) -> Result<(&'a [u8; N], Attributes<'a>), DecodeError> {
        let Some((body, rest)) = self.payload.split_first_chunk::<N>() else {
            let what = Malformed::Body { kind: self.kind, expected: N, actual: self.payload.len() };
            return Err(DecodeError { offset: self.offset, what });
        };
        Ok((body, Attributes::new(rest, self.offset.saturating_add(N))))
    }

    fn missing(&self, attribute: u16) -> DecodeError {
        DecodeError { offset: self.offset, what: Malformed::Missing { kind: self.kind, attribute } }
    }

    /// Decodes the content.
    pub(crate) fn message(&self) -> Result<Message, DecodeError> {
        // rtnetlink types come in groups of four: NEW, DEL, GET, SET.
        let operation = match self.kind & 3 {
            0 => Operation::New,
            1 => Operation::Delete,
            _ => return Ok(Message::Other(self.kind)),
        };
        let message = match self.kind & !3 {
            16 => Some(Message::Link(operation, link::link(self)?)),
            20 => link::address(self)?.map(|address| Message::Address(operation, address)),
            24 => route::route(self)?.map(|route| Message::Route(operation, route)),
            28 => neighbour::neighbour(self, operation)?,
            32 => rule::rule(self)?.map(|rule| Message::Rule(operation, rule)),
            36 => link::root_qdisc(self)?.map(|qdisc| Message::Qdisc(operation, qdisc)),
            80 => netconf::reverse_path_filter(self, operation)?
                .map(|filter| Message::ReversePathFilter(operation, filter)),
            84 => mdb::mdb(self)?.map(|mdb| Message::Mdb(operation, mdb)),
            104 => Some(Message::NextHop(operation, route::next_hop(self)?)),
            _ => None,
        };
        Ok(message.unwrap_or(Message::Other(self.kind)))
    }
}

/// The netlink messages of a buffer, in order, undecoded. Ends after the first error.
#[derive(Debug, Clone)]
pub(crate) struct Envelopes<'a> {
    rest: &'a [u8],
    offset: usize,
    failed: bool,
}

impl<'a> Envelopes<'a> {
    pub(crate) const fn new(buffer: &'a [u8]) -> Self {
        Self { rest: buffer, offset: 0, failed: false }
    }

    fn read(&mut self) -> Result<Envelope<'a>, DecodeError> {
        let available = self.rest.len();
        let wrong = |what| DecodeError { offset: self.offset, what };
        let Some((header, _)) = self.rest.split_first_chunk::<HEADER>() else {
            return Err(wrong(Malformed::MessageHeader { available }));
        };
        let [l0, l1, l2, l3, t0, t1, f0, f1, s0, s1, s2, s3, ..] = *header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]);
        let end = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(payload) = self.rest.get(HEADER..end) else {
            return Err(wrong(Malformed::MessageLength { length, available }));
        };
        let envelope = Envelope {
            kind: u16::from_ne_bytes([t0, t1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            payload,
            offset: self.offset.saturating_add(HEADER),
        };
        // The last message may lack its padding.
        let taken = align(end).min(available);
        self.rest = self.rest.get(taken..).unwrap_or_default();
        self.offset = self.offset.saturating_add(taken);
        Ok(envelope)
    }
}

impl<'a> Iterator for Envelopes<'a> {
    type Item = Result<Envelope<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let result = self.read();
        self.failed = result.is_err();
        Some(result)
    }
}

/// The netlink messages of a buffer, in order.
///
/// A message with malformed content yields an error, and the next message follows. After a
/// malformed message length, the position of the next message is unknown, so the error is the last
/// item.
#[derive(Debug, Clone)]
pub struct Messages<'a>(Envelopes<'a>);

impl<'a> Messages<'a> {
    /// Reads `buffer`, which starts with a `struct nlmsghdr`: a datagram of a netlink socket or the
    /// payload of an FPM frame.
    #[must_use]
    pub const fn new(buffer: &'a [u8]) -> Self {
        Self(Envelopes::new(buffer))
    }
}

impl Iterator for Messages<'_> {
    type Item = Result<Message, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.and_then(|envelope| envelope.message()))
    }
}

/// [`Messages::new`], as a function.
#[must_use]
pub const fn decode(buffer: &[u8]) -> Messages<'_> {
    Messages::new(buffer)
}
