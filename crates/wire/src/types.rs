//! Types whose values are always valid. They are parsed once, at the edge of the program.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::net::{IpAddr, Ipv6Addr};
use core::num::NonZeroU32;
use core::str::FromStr;

/// An address as one of IPv6. One of IPv4 is mapped (RFC 4291 section 2.5.5.2).
#[inline]
#[must_use]
pub const fn as_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// A number or text that is not a valid value of its type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// A VNI is 1 to 16777215 (RFC 7348 section 5: 24 bits; FRR and this project do not use 0).
    #[error("VNI {0} is out of range (1 to 16777215)")]
    Vni(u32),
    /// A queue pair number has 24 bits (InfiniBand architecture 9.2.1).
    #[error("queue pair {0:#x} is out of range (0 to 0xffffff)")]
    QueuePair(u32),
    /// A MAC address is six hexadecimal octets separated by colons.
    #[error(
        "'{0}' is no MAC address (expected six hexadecimal octets, for example 02:00:00:00:00:01)"
    )]
    Mac(String),
}

/// An IEEE 802 MAC address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl Hash for MacAddr {
    /// Hashes the address as one word, because the default hash of an array also hashes its length.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f] = self.0;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]));
    }
}

impl MacAddr {
    /// All zeros. In a VXLAN FDB, the entry with this address holds the flood list.
    pub const ZERO: Self = Self([0; 6]);
    /// All ones.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether the group bit is set: multicast or broadcast (IEEE 802-2014 section 8.2.2).
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddr {
    type Err = TypeError;

    fn from_str(text: &str) -> Result<Self, TypeError> {
        let wrong = || TypeError::Mac(text.to_owned());
        let mut octets = [0u8; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().ok_or_else(wrong)?;
            if part.len() != 2 {
                return Err(wrong());
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Self(octets))
    }
}

/// A VXLAN network identifier, 1 to 16777215 (RFC 7348 section 5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vni(NonZeroU32);

impl Vni {
    /// The largest VNI, as a number.
    pub const MAX: u32 = 0x00ff_ffff;
    /// The largest VNI.
    pub const HIGHEST: Self = Self(NonZeroU32::MIN.saturating_add(Self::MAX - 1));

    /// The VNI as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl TryFrom<u32> for Vni {
    type Error = TypeError;

    fn try_from(number: u32) -> Result<Self, TypeError> {
        match NonZeroU32::new(number) {
            Some(vni) if number <= Self::MAX => Ok(Self(vni)),
            _ => Err(TypeError::Vni(number)),
        }
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vni({})", self.0)
    }
}

/// A RoCE queue pair number, 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePair(u32);

impl QueuePair {
    /// The largest queue pair number.
    pub const MAX: u32 = 0x00ff_ffff;

    /// The queue pair number as an integer.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// A queue pair number from three bytes of a header, in network byte order.
    #[must_use]
    pub const fn from_be_bytes(bytes: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
    }
}

impl TryFrom<u32> for QueuePair {
    type Error = TypeError;

    fn try_from(number: u32) -> Result<Self, TypeError> {
        if number <= Self::MAX { Ok(Self(number)) } else { Err(TypeError::QueuePair(number)) }
    }
}

impl fmt::Display for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair({:#x})", self.0)
    }
}
