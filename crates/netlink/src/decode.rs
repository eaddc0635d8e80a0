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
//! routes, multicast routes, and messages that are neither `RTM_NEW*` nor `RTM_DEL*`.

pub(crate) mod ipsec;
mod link;
mod mdb;
mod neighbour;
mod netconf;
mod route;
mod rule;

pub(crate) use route::cached_mtu;

use crate::envelope::{Envelope, Envelopes};
use crate::malformed::DecodeError;
use crate::message::{Message, Operation};

impl Envelope<'_> {
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
