//! A macro that declares fixed-size headers. It generates views and builders from a table of
//! fields.
//!
//! `Udp<&[u8; 8]>` is a view of a header in a frame, `Udp<&mut [u8; 8]>` edits one in place, and
//! `Udp<[u8; 8]>` owns its bytes. Only `parse` checks the length; getters and setters cannot fail.
//! If a field has fewer bits than its type, the setter takes the low bits.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::types::{MacAddr, QueuePair};

/// A field value that fills whole bytes of a header.
pub(crate) trait Field: Sized {
    const LENGTH: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
}

/// A field value that fills some bits of a header, selected by a mask over the big-endian word at
/// its offset.
pub(crate) trait Bits {
    fn of_word(word: u32) -> Self;
    fn to_word(self) -> u32;
}

macro_rules! field {
    ($type:ty, $length:literal, $from:expr, $to:expr) => {
        impl Field for $type {
            const LENGTH: usize = $length;
            #[inline]
            fn read(bytes: &[u8]) -> Self {
                let from: fn([u8; $length]) -> Self = $from;
                from(bytes.first_chunk().copied().unwrap_or_default())
            }
            #[inline]
            fn write(self, bytes: &mut [u8]) {
                let to: fn(Self) -> [u8; $length] = $to;
                if let Some(place) = bytes.first_chunk_mut() {
                    *place = to(self);
                }
            }
        }
    };
}

field!(u8, 1, u8::from_be_bytes, u8::to_be_bytes);
field!(u16, 2, u16::from_be_bytes, u16::to_be_bytes);
field!(u32, 4, u32::from_be_bytes, u32::to_be_bytes);
field!(u64, 8, u64::from_be_bytes, u64::to_be_bytes);
field!(MacAddr, 6, MacAddr, |mac| mac.0);
field!(Ipv4Addr, 4, Ipv4Addr::from, |address| address.octets());
field!(Ipv6Addr, 16, Ipv6Addr::from, |address| address.octets());

macro_rules! bits {
    ($type:ty, $of:expr, $to:expr) => {
        impl Bits for $type {
            #[inline]
            fn of_word(word: u32) -> Self {
                let of: fn(u32) -> Self = $of;
                of(word)
            }
            #[inline]
            fn to_word(self) -> u32 {
                let to: fn(Self) -> u32 = $to;
                to(self)
            }
        }
    };
}

bits!(bool, |word| word != 0, u32::from);
bits!(u8, |word| word as u8, u32::from);
bits!(u16, |word| word as u16, u32::from);
bits!(u32, |word| word, |value| value);
bits!(
    QueuePair,
    |word| QueuePair::from_be_bytes([(word >> 16) as u8, (word >> 8) as u8, word as u8]),
    |number| { number.get() }
);

/// Whether a field lies within its header. Evaluated at compile time for every declared field.
pub(crate) const fn fits(at: usize, length: usize, header: usize) -> bool {
    at + length <= header
}

/// Number of bytes of the big-endian word that a mask selects from.
pub(crate) const fn width(mask: u32) -> usize {
    match mask {
        0..=0xff => 1,
        0x100..=0xffff => 2,
        _ => 4,
    }
}

/// The big-endian word of the first `length` bytes, up to four.
#[inline]
pub(crate) fn word(bytes: &[u8], length: usize) -> u32 {
    bytes.iter().take(length).fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// Writes the low `length` bytes of `word`.
#[inline]
pub(crate) fn set_word(bytes: &mut [u8], length: usize, word: u32) {
    for (place, byte) in bytes.iter_mut().zip(word.to_be_bytes().into_iter().skip(4 - length)) {
        *place = byte;
    }
}

macro_rules! header {
    (
        $(#[$meta:meta])*
        $name:ident[$length:literal] {
            $( $(#[$field_meta:meta])* $get:ident, $set:ident: $type:ty = $at:literal $(& $mask:literal)?; )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name<B>(B);

        impl $name<[u8; $length]> {
            /// Length in bytes.
            pub const LENGTH: usize = $length;

            /// A header with all bytes zero.
            #[inline]
            #[must_use]
            pub const fn zeroed() -> Self {
                Self([0; $length])
            }

            /// Writes the header to the start of `out`. Returns the bytes after it.
            ///
            /// # Errors
            /// If `out` is too short.
            #[inline]
            pub fn write<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8], $crate::WireError> {
                let available = out.len();
                match out.split_first_chunk_mut() {
                    Some((place, rest)) => {
                        *place = self.0;
                        Ok(rest)
                    }
                    None => Err($crate::WireError::truncated(stringify!($name), $length, available)),
                }
            }
        }

        impl<'a> $name<&'a [u8; $length]> {
            /// Views the header at the start of `bytes`. Also returns the bytes after it.
            ///
            /// # Errors
            /// If `bytes` is too short. No field is checked.
            #[inline]
            pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), $crate::WireError> {
                match bytes.split_first_chunk() {
                    Some((header, rest)) => Ok((Self(header), rest)),
                    None => Err($crate::WireError::truncated(stringify!($name), $length, bytes.len())),
                }
            }
        }

        impl<'a> $name<&'a mut [u8; $length]> {
            /// Views the header at the start of `bytes` for editing. Also returns the bytes after
            /// it.
            ///
            /// # Errors
            /// If `bytes` is too short. No field is checked.
            #[inline]
            pub fn parse_mut(bytes: &'a mut [u8]) -> Result<(Self, &'a mut [u8]), $crate::WireError> {
                let available = bytes.len();
                match bytes.split_first_chunk_mut() {
                    Some((header, rest)) => Ok((Self(header), rest)),
                    None => Err($crate::WireError::truncated(stringify!($name), $length, available)),
                }
            }
        }

        impl<B: core::borrow::Borrow<[u8; $length]>> $name<B> {
            /// The header's bytes.
            #[inline]
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; $length] {
                self.0.borrow()
            }

            $(
                $(#[$field_meta])*
                #[inline]
                #[must_use]
                pub fn $get(&self) -> $type {
                    $crate::header::header!(@get self.0.borrow(), $length, $type, $at $(, $mask)?)
                }
            )*

            /// A copy made field by field. Tests use it to show that the fields cover every bit.
            #[cfg(test)]
            pub(crate) fn rebuilt(&self) -> $name<[u8; $length]> {
                let mut copy = $name::zeroed();
                $( copy.$set(self.$get()); )*
                copy
            }
        }

        impl<B: core::borrow::BorrowMut<[u8; $length]>> $name<B> {
            $(
                #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
                #[inline]
                pub fn $set(&mut self, value: $type) -> &mut Self {
                    $crate::header::header!(@set self.0.borrow_mut(), value, $length, $type, $at $(, $mask)?);
                    self
                }
            )*
        }

        impl<B: core::borrow::Borrow<[u8; $length]>> core::fmt::Debug for $name<B> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name))$( .field(stringify!($get), &self.$get()) )*.finish()
            }
        }
    };
    (@get $bytes:expr, $length:literal, $type:ty, $at:literal) => {{
        const { assert!($crate::header::fits($at, <$type as $crate::header::Field>::LENGTH, $length)) };
        <$type as $crate::header::Field>::read($bytes.get($at..).unwrap_or_default())
    }};
    (@get $bytes:expr, $length:literal, $type:ty, $at:literal, $mask:literal) => {{
        const WORD: usize = $crate::header::width($mask);
        const { assert!($crate::header::fits($at, WORD, $length)) };
        let word = $crate::header::word($bytes.get($at..).unwrap_or_default(), WORD);
        <$type as $crate::header::Bits>::of_word((word & $mask) >> u32::trailing_zeros($mask))
    }};
    (@set $bytes:expr, $value:expr, $length:literal, $type:ty, $at:literal) => {
        $crate::header::Field::write($value, $bytes.get_mut($at..).unwrap_or_default())
    };
    (@set $bytes:expr, $value:expr, $length:literal, $type:ty, $at:literal, $mask:literal) => {{
        const WORD: usize = $crate::header::width($mask);
        let bytes = $bytes.get_mut($at..).unwrap_or_default();
        let others = $crate::header::word(bytes, WORD) & !$mask;
        let value = $crate::header::Bits::to_word($value) << u32::trailing_zeros($mask) & $mask;
        $crate::header::set_word(bytes, WORD, others | value);
    }};
}
pub(crate) use header;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::icmp::{Icmp, Icmpv6};
    use crate::roce::{Aeth, Bth, Cnp, Deth, ImmDt, Reth};
    use crate::{
        Arp, Ethernet, Ipv4, Ipv6, Ipv6Extension, Ipv6Fragment, Tcp, Udp, Vlan, Vxlan, WireError,
    };

    macro_rules! every_header {
        ($($name:ident: $test:ident,)*) => {
            $(
                proptest! {
                    /// A copy of all fields equals the header. So each bit belongs to a field, and
                    /// a setter does not change other fields.
                    #[test]
                    fn $test(bytes in prop::collection::vec(any::<u8>(), $name::LENGTH..$name::LENGTH + 4)) {
                        let (view, rest) = $name::parse(&bytes).unwrap();
                        prop_assert_eq!(rest, &bytes[$name::LENGTH..]);
                        let rebuilt = view.rebuilt();
                        prop_assert_eq!(rebuilt.as_bytes(), &bytes[..$name::LENGTH]);

                        let mut out = vec![0xa5; bytes.len()];
                        prop_assert_eq!(rebuilt.write(&mut out).unwrap().len(), rest.len());
                        prop_assert_eq!(&out[..$name::LENGTH], &bytes[..$name::LENGTH]);
                        prop_assert!(out[$name::LENGTH..].iter().all(|byte| *byte == 0xa5));

                        let (edited, _) = $name::parse_mut(&mut out).unwrap();
                        prop_assert_eq!(edited.rebuilt(), rebuilt);
                        for length in 0..$name::LENGTH {
                            let needed = WireError::truncated(stringify!($name), $name::LENGTH, length);
                            prop_assert_eq!($name::parse(&bytes[..length]).unwrap_err(), needed);
                            prop_assert_eq!($name::parse_mut(&mut out[..length]).unwrap_err(), needed);
                            prop_assert_eq!(rebuilt.write(&mut out[..length]).unwrap_err(), needed);
                        }
                        for bit in 0..$name::LENGTH * 8 {
                            let mut changed = bytes.clone();
                            changed[bit / 8] ^= 1 << (bit % 8);
                            let (view, _) = $name::parse(&changed).unwrap();
 let again = view.rebuilt();
                            prop_assert_ne!(format!("{view:?}"), format!("{rebuilt:?}"));
                            prop_assert_eq!(again.as_bytes(), &changed[..$name::LENGTH]);
                        }
                    }
                }
            )*
        };
    }

    every_header! {
        Ethernet: ethernet,
        Vlan: vlan,
        Arp: arp,
        Ipv4: ipv4,
        Ipv6: ipv6,
        Ipv6Fragment: ipv6_fragment,
        Ipv6Extension: ipv6_extension,
        Udp: udp,
        Tcp: tcp,
        Vxlan: vxlan,
        Bth: bth,
        Aeth: aeth,
        Deth: deth,
        Reth: reth,
        Cnp: cnp,
        ImmDt: imm_dt,
        Icmp: icmp,
        Icmpv6: icmpv6,
    }

    #[test]
    fn values_too_large_for_a_field_do_not_touch_the_next() {
        let mut bth = Bth::zeroed();
        bth.set_sequence(0xffff_ffff);
        assert_eq!(bth.as_bytes(), &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff]);
        let mut ipv4 = Ipv4::zeroed();
        ipv4.set_fragment_offset(0xffff);
        assert_eq!(ipv4.as_bytes()[6..8], [0x1f, 0xff]);
    }
}
