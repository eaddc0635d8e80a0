//! Encodes requests: header, body, attributes.
//!
//! The `rtnetlink` crate is not used: it needs a connection task for each socket and keeps only the
//! error number. Here a few requests are made, some from blocking code in another namespace, and
//! errors must carry the kernel's explanation.

use std::net::IpAddr;

use crate::attribute::align;
use crate::envelope::HEADER;

/// `NLM_F_REQUEST`.
pub(crate) const REQUEST: u16 = 0x01;
/// `NLM_F_DUMP`.
pub(crate) const DUMP: u16 = 0x300;

/// A request under construction.
pub(crate) struct Request {
    kind: u16,
    flags: u16,
    content: Vec<u8>,
    /// Requests that are sent with it.
    followers: Vec<Self>,
}

impl Request {
    /// A message of type `kind` with the type's fixed structure.
    pub(crate) fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        Self { kind, flags, content: body.to_vec(), followers: Vec::new() }
    }

    /// Appends an attribute.
    pub(crate) fn put(mut self, kind: u16, payload: &[u8]) -> Self {
        put(&mut self.content, kind, payload);
        self
    }

    /// Appends an attribute with an address.
    pub(crate) fn put_ip(self, kind: u16, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.put(kind, &address.octets()),
            IpAddr::V6(address) => self.put(kind, &address.octets()),
        }
    }

    /// Appends an attribute if there is a value.
    pub(crate) fn put_some<const N: usize>(self, kind: u16, payload: Option<[u8; N]>) -> Self {
        match payload {
            Some(payload) => self.put(kind, &payload),
            None => self,
        }
    }

    /// Sends another request with this one, under the same sequence number.
    pub(crate) fn then(mut self, follower: Self) -> Self {
        self.followers.push(follower);
        self
    }

    /// The encoded request. The answer to it has the same `sequence`.
    pub(crate) fn bytes(&self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(HEADER.saturating_add(self.content.len())).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(HEADER.saturating_add(self.content.len()));
        bytes.extend(length.to_ne_bytes());
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(&self.content);
        self.followers.iter().for_each(|follower| bytes.extend(follower.bytes(sequence)));
        bytes
    }
}

/// Appends one attribute and its padding to `content`.
pub(crate) fn put(content: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    let length = u16::try_from(payload.len().saturating_add(4)).unwrap_or(u16::MAX);
    content.extend(length.to_ne_bytes());
    content.extend(kind.to_ne_bytes());
    content.extend(payload);
    content.resize(align(content.len()), 0);
}

/// `struct ifinfomsg`: `AF_UNSPEC`, the interface, and the values of the flags in the mask
/// `change`.
pub(crate) fn link_body(ifindex: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut body = [0; 16];
    let words = [ifindex, flags, change].map(u32::to_ne_bytes);
    for (to, from) in body.iter_mut().skip(4).zip(words.as_flattened()) {
        *to = *from;
    }
    body
}

/// `struct ndmsg`. `state` is one of `NUD_*`; `flags` are of `NTF_*`.
pub(crate) fn neighbour_body(family: u8, ifindex: u32, state: u16, flags: u8) -> [u8; 12] {
    let [i0, i1, i2, i3] = ifindex.to_ne_bytes();
    let [s0, s1] = state.to_ne_bytes();
    [family, 0, 0, 0, i0, i1, i2, i3, s0, s1, flags, 0]
}
