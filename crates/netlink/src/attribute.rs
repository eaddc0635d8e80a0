//! Type-length-value attributes (`struct nlattr`), decoded in place.
//!
//! ```text
//!  0               2               4
//! +---------------+---------------+------------------+---------+
//! | nla_len       |N|O| nla_type  | payload          | padding |
//! +---------------+---------------+------------------+---------+
//! ```
//! `nla_len` includes the 4-byte header but not the padding to the next multiple of 4. The flags N
//! (nested) and O (network byte order) are set inconsistently by senders, so they are masked.
//! Source: `include/uapi/linux/netlink.h`.

use std::net::IpAddr;

use wire::MacAddr;

use crate::malformed::{DecodeError, Malformed};

/// `NLA_TYPE_MASK`: without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const TYPE_MASK: u16 = 0x3fff;
/// Bytes before an attribute's payload.
const HEADER: usize = 4;

/// `NLMSG_ALIGN` and `NLA_ALIGN`: rounds up to a multiple of 4.
pub(crate) const fn align(length: usize) -> usize {
    length.saturating_add(3) & !3
}

/// One attribute.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attribute<'a> {
    /// Its type, without the two flag bits.
    pub(crate) kind: u16,
    /// Its payload, without padding.
    pub(crate) payload: &'a [u8],
    /// Where the payload starts in the buffer that is being decoded.
    offset: usize,
}

impl<'a> Attribute<'a> {
    /// The first `N` octets. Longer payloads are accepted: the kernel extends structures at their
    /// end.
    fn array<const N: usize>(&self) -> Result<[u8; N], DecodeError> {
        self.payload.first_chunk().copied().ok_or_else(|| self.too_short(N))
    }

    fn too_short(&self, expected: usize) -> DecodeError {
        DecodeError {
            offset: self.offset,
            what: Malformed::AttributeTooShort {
                attribute: self.kind,
                expected,
                actual: self.payload.len(),
            },
        }
    }

    pub(crate) fn u8(&self) -> Result<u8, DecodeError> {
        Ok(u8::from_ne_bytes(self.array()?))
    }

    pub(crate) fn u16(&self) -> Result<u16, DecodeError> {
        Ok(u16::from_ne_bytes(self.array()?))
    }

    pub(crate) fn u32(&self) -> Result<u32, DecodeError> {
        Ok(u32::from_ne_bytes(self.array()?))
    }

    pub(crate) fn i32(&self) -> Result<i32, DecodeError> {
        Ok(i32::from_ne_bytes(self.array()?))
    }

    pub(crate) fn u16_network_order(&self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32_network_order(&self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn bool(&self) -> Result<bool, DecodeError> {
        Ok(self.u8()? != 0)
    }

    /// An IPv4 address of 4 octets or an IPv6 address of 16.
    pub(crate) fn ip(&self) -> Result<IpAddr, DecodeError> {
        if self.payload.len() < 16 {
            Ok(IpAddr::from(self.array::<4>()?))
        } else {
            Ok(IpAddr::from(self.array::<16>()?))
        }
    }

    /// `struct rtvia`: u16 address family in host order, then the address.
    pub(crate) fn via(&self) -> Result<IpAddr, DecodeError> {
        let (_family, address) =
            self.payload.split_first_chunk::<2>().ok_or_else(|| self.too_short(6))?;
        Attribute { payload: address, offset: self.offset.saturating_add(2), ..*self }.ip()
    }

    /// A MAC address; `None` if link-layer addresses have another size (InfiniBand, tunnels).
    pub(crate) fn mac(&self) -> Option<MacAddr> {
        self.payload.try_into().map(MacAddr).ok()
    }

    /// A string, up to its NUL if it has one.
    pub(crate) fn string(&self) -> String {
        let end = self.payload.iter().position(|&octet| octet == 0).unwrap_or(self.payload.len());
        String::from_utf8_lossy(self.payload.get(..end).unwrap_or_default()).into_owned()
    }

    /// The nested attributes.
    pub(crate) const fn nested(&self) -> Attributes<'a> {
        Attributes { rest: self.payload, offset: self.offset, failed: false }
    }

    /// The payload as records of `N` octets. A shorter remainder is malformed.
    pub(crate) fn records<const N: usize>(&self) -> Result<&'a [[u8; N]], DecodeError> {
        match self.payload.as_chunks() {
            (records, []) => Ok(records),
            (records, _) => Err(self.too_short(records.len().saturating_add(1).saturating_mul(N))),
        }
    }

    /// The payload and its position, for payloads with a layout of their own.
    pub(crate) const fn raw(&self) -> (&'a [u8], usize) {
        (self.payload, self.offset)
    }
}

/// The attributes of a message or of a nested attribute, in order. Ends after the first error.
#[derive(Debug, Clone)]
pub(crate) struct Attributes<'a> {
    rest: &'a [u8],
    offset: usize,
    failed: bool,
}

impl<'a> Attributes<'a> {
    /// The attributes in `bytes`, which start at `offset` of the buffer that is being decoded.
    pub(crate) const fn new(bytes: &'a [u8], offset: usize) -> Self {
        Self { rest: bytes, offset, failed: false }
    }

    fn read(&mut self) -> Result<Attribute<'a>, DecodeError> {
        let available = self.rest.len();
        let wrong = |what| DecodeError { offset: self.offset, what };
        let Some(([l0, l1, t0, t1], _)) = self.rest.split_first_chunk::<HEADER>() else {
            return Err(wrong(Malformed::AttributeHeader { available }));
        };
        let length = usize::from(u16::from_ne_bytes([*l0, *l1]));
        let kind = u16::from_ne_bytes([*t0, *t1]) & TYPE_MASK;
        let Some(payload) = self.rest.get(HEADER..length) else {
            return Err(wrong(Malformed::AttributeLength { attribute: kind, length, available }));
        };
        let attribute = Attribute { kind, payload, offset: self.offset.saturating_add(HEADER) };
        // The last attribute may lack its padding.
        let taken = align(length).min(available);
        self.rest = self.rest.get(taken..).unwrap_or_default();
        self.offset = self.offset.saturating_add(taken);
        Ok(attribute)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let result = self.read();
        self.failed = result.is_err();
        Some(result)
    }
}
