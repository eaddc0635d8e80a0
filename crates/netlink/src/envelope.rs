//! Messages with their header, whose content is not decoded yet.

use crate::attribute::{Attributes, align};
use crate::malformed::{DecodeError, Malformed};

/// `AF_INET`.
pub(crate) const AF_INET: u8 = 2;
/// `AF_INET6`.
pub(crate) const AF_INET6: u8 = 10;
/// `AF_BRIDGE`.
pub(crate) const AF_BRIDGE: u8 = 7;

/// Bytes of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;

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
    pub(crate) fn body<const N: usize>(
        &self,
    ) -> Result<(&'a [u8; N], Attributes<'a>), DecodeError> {
        let Some((body, rest)) = self.payload.split_first_chunk::<N>() else {
            let what = Malformed::Body { kind: self.kind, expected: N, actual: self.payload.len() };
            return Err(DecodeError { offset: self.offset, what });
        };
        Ok((body, Attributes::new(rest, self.offset.saturating_add(N))))
    }

    pub(crate) fn missing(&self, attribute: u16) -> DecodeError {
        DecodeError { offset: self.offset, what: Malformed::Missing { kind: self.kind, attribute } }
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
