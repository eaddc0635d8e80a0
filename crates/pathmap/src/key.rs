//! Authentication of messages: keyed BLAKE2s with a tag of 16 bytes (RFC 7693).

use std::fmt;
use std::net::IpAddr;

use blake2::Blake2sMac;
use blake2::digest::consts::U16;
use blake2::digest::{KeyInit, Mac};
use wire::as_ipv6;

/// Length of a tag in bytes.
pub const TAG: usize = 16;

/// The secret that all vtepds of a fabric share.
#[derive(Clone)]
pub struct Key(Blake2sMac<U16>);

/// A key that is too short or too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a key has {SHORTEST} to {LONGEST} bytes, not {0}: for example, take the output of 'openssl rand -hex 16'"
)]
pub struct KeyError(pub usize);

const SHORTEST: usize = 16;
const LONGEST: usize = 32;

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// A key of 16 to 32 bytes.
    ///
    /// # Errors
    /// If it is shorter or longer.
    pub fn new(secret: &[u8]) -> Result<Self, KeyError> {
        if !(SHORTEST..=LONGEST).contains(&secret.len()) {
            return Err(KeyError(secret.len()));
        }
        Blake2sMac::new_from_slice(secret).map(Self).map_err(|_| KeyError(secret.len()))
    }

    fn of(&self, (source, destination): (IpAddr, IpAddr), body: &[u8]) -> Blake2sMac<U16> {
        let mut tag = self.0.clone();
        for address in [source, destination] {
            tag.update(&as_ipv6(address).octets());
        }
        tag.update(body);
        tag
    }

    /// Appends the tag of a message from `ends.0` to `ends.1` (outer addresses).
    pub fn seal(&self, ends: (IpAddr, IpAddr), message: &mut Vec<u8>) {
        let tag = self.of(ends, message).finalize().into_bytes();
        message.extend_from_slice(&tag);
    }

    /// The message without its tag; `None` if the tag is not that of this key. The comparison takes
    /// the same time for all wrong tags.
    #[must_use]
    pub fn open<'m>(&self, ends: (IpAddr, IpAddr), message: &'m [u8]) -> Option<&'m [u8]> {
        let (body, tag) = message.split_last_chunk::<TAG>()?;
        self.of(ends, body).verify_slice(tag).ok().map(|()| body)
    }

    /// The token of messages between two VTEPs before one of them has told another, in both directions
    /// ([`crate::message::Probe::token`]). Those who have the key know it, and those who have seen such
    /// messages.
    #[must_use]
    pub fn opening_token(&self, (one, other): (IpAddr, IpAddr)) -> u32 {
        let ends = if one < other { (one, other) } else { (other, one) };
        // No message begins like this.
        let bytes = self.of(ends, b"opening").finalize().into_bytes();
        bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    /// A number that nobody without the key can predict, from others.
    #[must_use]
    pub fn number<const N: usize>(&self, of: [u32; N]) -> u32 {
        // Messages begin with 32 bytes of addresses.
        const { assert!(N < 8) };
        let mut tag = self.0.clone();
        of.iter().for_each(|number| tag.update(&number.to_be_bytes()));
        let bytes = tag.finalize().into_bytes();
        bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_opens_with_its_key_and_its_addresses_only() {
        let [key, other] =
            [b"0123456789abcdef", b"0123456789abcdeg"].map(|key| Key::new(key).unwrap());
        let ends = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut message = b"path".to_vec();
        key.seal(ends, &mut message);
        assert_eq!(message.len(), 4 + TAG);
        assert_eq!(key.open(ends, &message), Some(&b"path"[..]));
        assert_eq!(other.open(ends, &message), None);
        assert_eq!(key.open((ends.1, ends.0), &message), None);
        for bit in 0..message.len() * 8 {
            let mut changed = message.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.open(ends, &changed), None, "bit {bit}");
        }
        for length in 0..message.len() {
            assert_eq!(key.open(ends, &message[..length]), None);
        }
    }

    #[test]
    fn an_opening_token_is_that_of_two_addresses_and_the_key() {
        let [key, other] =
            [b"0123456789abcdef", b"0123456789abcdeg"].map(|key| Key::new(key).unwrap());
        let [a, b, c] = [1, 2, 3].map(|low| IpAddr::from([10, 0, 0, low]));
        let token = key.opening_token((a, b));
        assert_eq!(key.opening_token((b, a)), token);
        let others =
            [other.opening_token((a, b)), key.opening_token((a, c)), key.opening_token((c, b))];
        assert!(!others.contains(&token), "{others:?}");
    }

    #[test]
    fn a_key_has_16_to_32_bytes() {
        let length = |length| Key::new(&vec![1; length]).is_ok();
        assert_eq!([0, 15, 16, 32, 33].map(length), [false, false, true, true, false]);
    }
}
