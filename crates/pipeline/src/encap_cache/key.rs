//! The key of a flow.

use frame::{Checksum, Frame, PUNT_TPID};
use path::{Version, is_sprayed};
use wire::number::PORT_ROCE;
use wire::{Dissection, MacAddr, Network};

use super::{EncapCache, HEADERS, SETS};

/// The bytes of a frame on which the decision depends, and the epoch in which it is known to hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    pub(super) words: [u64; 5],
    pub(super) epoch: Version<EncapCache>,
}

fn word(headers: &[u8; HEADERS], at: usize) -> u64 {
    u64::from_le_bytes(
        headers.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default(),
    )
}

fn half(headers: &[u8; HEADERS], at: usize) -> u32 {
    u32::from_le_bytes(
        headers.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default(),
    )
}

fn length(headers: &[u8; HEADERS], at: usize) -> usize {
    let bytes = headers.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
    usize::from(u16::from_be_bytes(bytes))
}

impl Key {
    /// The key of a frame whose lengths fit a RoCE frame over IPv4. Other frames can have such a
    /// key too, but it is never remembered for them; see [`Self::is_of`].
    #[inline(always)]
    pub(crate) fn of(frame: &Frame<'_>, epoch: Version<EncapCache>) -> Option<Self> {
        let finished = frame.offload.gso.is_none()
            && !matches!(frame.offload.checksum, Checksum::Partial { .. });
        let tag = frame.vlan.filter(|tag| tag.tpid == PUNT_TPID && finished)?;
        let headers = frame.data.first_chunk::<HEADERS>()?;
        let (ip, udp) = (length(headers, 16), length(headers, 38));
        if ip + 14 > frame.data.len() || udp + 20 > ip || udp < 8 + 12 {
            return None;
        }
        let words = [
            word(headers, 0),
            word(headers, 8),
            u64::from(half(headers, 20)) | u64::from(half(headers, 34)) << 32,
            word(headers, 26),
            u64::from(half(headers, 46) & 0xffff_ff00)
                | u64::from(tag.tci & 0x0fff) << 32
                | u64::from(is_sprayed(headers[42])),
        ];
        Some(Self { words, epoch })
    }

    /// The key of a frame that is sent to the RoCE port.
    #[inline]
    pub(crate) fn of_roce(frame: &Frame<'_>, epoch: Version<EncapCache>) -> Option<Self> {
        let headers = frame.data.first_chunk::<HEADERS>()?;
        (length(headers, 36) == usize::from(PORT_ROCE)).then(|| Self::of(frame, epoch))?
    }

    /// Whether the key of a frame with this dissection may be remembered: a complete RoCE frame
    /// without tags and IPv4 options.
    #[inline]
    pub(crate) fn is_of(dissection: &Dissection) -> bool {
        let plain = matches!(&dissection.network, Network::Ipv4(ip) if ip.header_length == 20);
        plain && dissection.vlan_tags == 0 && dissection.roce.is_some()
    }

    /// The epoch.
    pub(crate) const fn epoch(&self) -> Version<EncapCache> {
        self.epoch
    }

    /// The slot of the frame's VNI.
    #[inline(always)]
    pub(super) const fn slot(&self) -> u16 {
        let [.., last] = self.words;
        (last >> 32) as u16
    }

    /// The destination MAC address of the frame.
    pub(super) const fn destination(&self) -> MacAddr {
        let [first, ..] = self.words;
        let [a, b, c, d, e, f, ..] = first.to_le_bytes();
        MacAddr([a, b, c, d, e, f])
    }

    /// The bits in which the flows differ. Compares in registers; `==` on arrays would go through
    /// memory.
    #[inline(always)]
    const fn difference(&self, other: &Self) -> u64 {
        let ([a, b, c, d, e], [f, g, h, i, j]) = (self.words, other.words);
        (a ^ f) | (b ^ g) | (c ^ h) | (d ^ i) | (e ^ j)
    }

    #[inline(always)]
    pub(super) const fn is(&self, other: &Self) -> bool {
        self.difference(other) | (self.epoch.number() ^ other.epoch.number()) == 0
    }

    /// Whether the keys are those of one flow, in whatever epochs.
    #[inline(always)]
    pub(super) const fn is_same_flow(&self, other: &Self) -> bool {
        self.difference(other) == 0
    }

    #[inline(always)]
    pub(super) fn set(&self) -> usize {
        let [a, b, c, d, e] = self.words;
        let mixed = (a ^ d.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (b ^ c.rotate_left(32) ^ e.rotate_left(16)).wrapping_mul(0xa54f_f53a_5f1d_36f1);
        (mixed >> (64 - SETS.ilog2())) as usize
    }
}
