//! How netlink messages can be malformed.

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
