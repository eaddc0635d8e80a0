//! Remembers decisions about RoCE flows. A later frame of a known flow costs a comparison, a copy
//! of the flow's outer headers and five patched words. See docs/adr/0012-remembered-flows.md.
//!
//! The key holds everything of the frame that the decision depends on: VNI, MAC addresses, the IPv4
//! header without length, identification and checksum, UDP ports, and queue pair. Any other frame
//! takes the full path of [`Pipeline::encapsulate`](crate::Pipeline), and the result is remembered.
//! This applies only if the result is a single frame to a known VTEP with a resolved next hop, and
//! if the policy allows it.
//!
//! Of the tables, the decision depends on the FDB entry of the destination and on the versions of
//! the VNI's settings, of the next-hop group and of the policy. After each new snapshot, the first
//! frame of a flow compares these ([`EncapCache::confirm`]). The frames after it compare one number,
//! the epoch.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use frame::{Checksum, Destination, Frame, Offload, PUNT_TPID, Payload, TxBatch, TxFrame, VtepId};
use path::record::Packet;
use path::{CounterId, Counting, Paths, Policy, Version};
use tables::{Snapshot, VniIndex, VniTable, VtepIndex};
use wire::checksum::Sum;
use wire::number::PORT_ROCE;
use wire::{Dissection, Ethernet, Ipv4, MacAddr, Network, QueuePair, Udp};

use crate::identification::Block;
use crate::outer::{OVERHEAD, UDP_AT, UDP_CHECKSUM};

/// Length of Ethernet, IPv4 (without options), UDP and base transport header in bytes.
pub(crate) const HEADERS: usize = 14 + 20 + 8 + 12;
const SETS: usize = 2048;
/// Flows per cache set. A direct-mapped cache would evict too many flows.
const WAYS: usize = 2;
/// The bytes of a frame on which the decision depends, and the epoch in which it is known to hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    words: [u64; 5],
    epoch: Version<EncapCache>,
}

/// The versions of what the decision about a flow depends on, apart from the FDB entry.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Versions {
    settings: Version<VniTable>,
    group: Version<Paths>,
    policy: Version<Policy>,
}

impl Versions {
    /// The current versions for a VNI and a VTEP.
    #[inline]
    pub(crate) fn of(
        vni: VniIndex,
        vtep: VtepIndex,
        snapshot: &Snapshot,
        policy: Version<Policy>,
    ) -> Option<Self> {
        let group = snapshot.vtep(vtep)?.paths.version();
        Some(Self { settings: snapshot.settings_version(vni), group, policy })
    }
}

/// What the decision about a flow depends on, and when it was made.
#[derive(Debug, Clone, Copy, Default)]
struct Origin {
    versions: Versions,
    /// `None` in unused entries.
    time: Option<Instant>,
}

/// The decision about a flow, in two cache lines.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Flow {
    key: Key,
    ifindex: u32,
    vtep: VtepId,
    path: u16,
    /// Length of the longest outer IPv4 packet that was found to fit the uplink. Longer frames take
    /// the full path.
    longest: u16,
    /// Sum of the outer IPv4 header without length, identification and checksum.
    header: u16,
    /// Sum of the outer pseudo header without length, if there is a UDP checksum.
    pseudo: Option<u16>,
    /// Where frames of the flow are counted, if they are.
    counter: Option<CounterId>,
    by_default: bool,
    impaired: bool,
    /// The outer headers of the frame that was remembered.
    outer: [u8; OVERHEAD],
}

/// A remembered flow, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedFlow {
    /// The slot of its VNI.
    pub slot: u16,
    /// Destination MAC address.
    pub destination_mac: MacAddr,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Destination queue pair.
    pub queue_pair: QueuePair,
    /// The VTEP that its frames are sent to.
    pub vtep: Ipv4Addr,
    /// The uplink.
    pub ifindex: u32,
    /// The outer UDP source port.
    pub source_port: u16,
    /// How long ago the decision was made.
    pub age: Duration,
    /// Whether it was used since tables or policies last changed.
    pub is_current: bool,
}

/// The cache of decisions about RoCE flows.
#[derive(Debug, Default)]
pub(crate) struct EncapCache {
    /// Empty until the first flow is remembered.
    sets: Box<[[Flow; WAYS]]>,
    /// The origins of the flows in `sets`, apart from them to save cache lines.
    origins: Box<[[Origin; WAYS]]>,
    /// The epoch: the time since the snapshot or the policies' version last changed.
    epoch: Version<Self>,
    /// The snapshot and the policies in this epoch. `None` before the first one.
    current: Option<(Version<Snapshot>, Version<Policy>)>,
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
            u64::from(half(headers, 46) & 0xffff_ff00) | u64::from(tag.tci & 0x0fff) << 32,
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
    const fn slot(&self) -> u16 {
        let [.., last] = self.words;
        (last >> 32) as u16
    }

    /// The destination MAC address of the frame.
    const fn destination(&self) -> MacAddr {
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
    const fn is(&self, other: &Self) -> bool {
        self.difference(other) | (self.epoch.number() ^ other.epoch.number()) == 0
    }

    /// Whether the keys are those of one flow, in whatever epochs.
    #[inline(always)]
    const fn is_same_flow(&self, other: &Self) -> bool {
        self.difference(other) == 0
    }

    #[inline(always)]
    fn set(&self) -> usize {
        let [a, b, c, d, e] = self.words;
        let mixed = (a ^ d.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (b ^ c.rotate_left(32) ^ e.rotate_left(16)).wrapping_mul(0xa54f_f53a_5f1d_36f1);
        (mixed >> (64 - SETS.ilog2())) as usize
    }
}

impl Flow {
    const NONE: Self = Self {
        key: Key { words: [0; 5], epoch: Version::NEVER },
        ifindex: 0,
        vtep: VtepId { index: 0, assignment: 0 },
        path: 0,
        longest: 0,
        header: 0,
        pseudo: None,
        counter: None,
        by_default: false,
        impaired: false,
        outer: [0; OVERHEAD],
    };

    /// Takes the decision from the frame that was sent; `None` if it cannot be reused.
    fn of(key: Key, sent: &TxFrame, counter: Option<CounterId>) -> Option<Self> {
        let Destination::Uplink { ifindex, path, by_default, impaired } = sent.to else {
            return None;
        };
        let vtep = sent.vtep?;
        let outer =
            *sent.head().first_chunk::<OVERHEAD>().filter(|_| sent.head().len() == OVERHEAD)?;
        let word = |at: usize| {
            outer.get(at..).and_then(<[u8]>::first_chunk).map(|word| u16::from_be_bytes(*word))
        };
        let (longest, identification) = (word(16)?, word(18)?);
        // Both sums are those that were written, less what differs between frames (RFC 1624).
        let header = Sum::of_partial(!word(24)?).word(!longest).word(!identification).fold();
        let udp_length = word(38)?;
        let checksum = matches!(sent.offload.checksum, Checksum::Partial { .. });
        let pseudo = Sum::of_partial(word(40)?).word(!udp_length).fold();
        let pseudo = checksum.then_some(pseudo);
        Some(Self {
            key,
            ifindex,
            vtep,
            path,
            longest,
            header,
            pseudo,
            counter,
            by_default,
            impaired,
            outer,
        })
    }
}

impl EncapCache {
    /// Sends frames as long as their flows are known. `first` is the index of the first frame in its
    /// batch. Returns how many were sent.
    #[inline(never)]
    pub(crate) fn send_all(
        &self,
        (frames, first): (&[Frame<'_>], u32),
        epoch: Version<EncapCache>,
        identifications: &mut Block,
        (out, counting): (&mut TxBatch, Counting<'_>),
    ) -> usize {
        for (frame, index) in frames.iter().zip(first..) {
            let send = |key: Key| self.send(&key, (index, frame), identifications, (out, counting));
            if !Key::of(frame, epoch).is_some_and(send) {
                return (index - first) as usize;
            }
        }
        frames.len()
    }

    /// Sends a frame if its flow is known. Returns whether it was sent.
    #[inline(always)]
    fn send(
        &self,
        key: &Key,
        (index, frame): (u32, &Frame<'_>),
        identifications: &mut Block,
        (out, counting): (&mut TxBatch, Counting<'_>),
    ) -> bool {
        let Some([one, other]) = self.sets.get(key.set()) else { return false };
        let flow = if one.key.is(key) {
            one
        } else if other.key.is(key) {
            other
        } else {
            return false;
        };
        let inner = frame.data.len();
        if inner + OVERHEAD - 14 > usize::from(flow.longest) {
            return false;
        }
        let Flow { ifindex, path, by_default, impaired, .. } = *flow;
        let to = Destination::Uplink { ifindex, path, by_default, impaired };
        let body = Payload::Received { frame: index, range: 0..inner as u32 };
        let Some(transmit) = out.append(to, flow.key.slot(), body, Offload::default()) else {
            return false;
        };
        transmit.vtep = Some(flow.vtep);
        let outer = transmit.start_head::<OVERHEAD>();
        let identification = identifications.next();
        let l3_length = (inner + OVERHEAD - 14) as u16;
        let udp_length = l3_length - 20;
        *outer = flow.outer;
        [outer[16], outer[17]] = l3_length.to_be_bytes();
        [outer[18], outer[19]] = identification.to_be_bytes();
        let header = Sum::of_partial(flow.header).word(l3_length).word(identification);
        [outer[24], outer[25]] = header.checksum().to_be_bytes();
        [outer[38], outer[39]] = udp_length.to_be_bytes();
        if let Some(pseudo) = flow.pseudo {
            [outer[40], outer[41]] = Sum::of_partial(pseudo).word(udp_length).fold().to_be_bytes();
            transmit.offload.checksum =
                Checksum::Partial { start: UDP_AT as u16, offset: UDP_CHECKSUM };
        }
        if let Some(counter) = flow.counter {
            // The key is one of plain RoCE over IPv4.
            let (tos, transport) = (frame.data.get(15), frame.data.get(42..));
            let packet = tos.zip(transport).and_then(|(tos, rest)| Packet::of(*tos, rest));
            counting.count(counter, inner, packet);
        }
        true
    }

    /// The epoch of a batch. It is a new one if the snapshot or the policies' version has changed
    /// since the last batch.
    #[inline]
    pub(crate) fn epoch(
        &mut self,
        snapshot: &Snapshot,
        policies: Version<Policy>,
    ) -> Version<Self> {
        let current = Some((snapshot.version(), policies));
        if self.current != current {
            self.current = current;
            self.epoch = self.epoch.next();
        }
        self.epoch
    }

    /// Whether the flow is known, and nothing that its decision depends on has changed since. It then
    /// belongs to this epoch.
    #[inline(never)]
    pub(crate) fn confirm(
        &mut self,
        key: &Key,
        snapshot: &Snapshot,
        policies: Version<Policy>,
    ) -> bool {
        let set = key.set();
        let Some([one, other]) = self.sets.get(set) else { return false };
        let way = match () {
            () if one.key.is_same_flow(key) => 0,
            () if other.key.is_same_flow(key) => 1,
            () => return false,
        };
        let Some(Origin { versions, .. }) = self.origins.get(set).and_then(|set| set.get(way))
        else {
            return false;
        };
        let flow = self.sets.get_mut(set).and_then(|set| set.get_mut(way));
        let Some((flow, vni)) = flow.zip(snapshot.vni(key.slot())) else { return false };
        if versions.settings != snapshot.settings_version(vni.index) {
            return false;
        }
        let index = VtepIndex(flow.vtep.index);
        let holds = versions.policy == policies
            && vni.fdb.get(&key.destination()) == Some(&index)
            && snapshot.vtep_assignment(index) == flow.vtep.assignment
            && snapshot.vtep(index).is_some_and(|vtep| vtep.paths.version() == versions.group);
        if holds {
            flow.key.epoch = key.epoch;
        }
        holds
    }

    /// Remembers the flow of a frame for which [`Key::is_of`] holds. `sent` must be the only result of
    /// its encapsulation. Returns whether another flow of this epoch is forgotten for it.
    pub(crate) fn remember(
        &mut self,
        key: &Key,
        versions: Versions,
        (sent, counter): (&TxFrame, Option<CounterId>),
        now: Instant,
    ) -> bool {
        if self.sets.is_empty() {
            // Allocated once per worker.
            self.sets = vec![[Flow::NONE; WAYS]; SETS].into();
            self.origins = vec![[Origin::default(); WAYS]; SETS].into();
        }
        let number = key.set();
        let Some(set) = self.sets.get_mut(number) else { return false };
        let identification = sent.head().get(19).map_or(0, |low| usize::from(*low));
        // A flow that was not used in this epoch may be gone.
        let free = |known: &Flow| known.key.epoch != key.epoch || known.key.is(key);
        let free = set.iter().position(free);
        let way = match free {
            Some(way) => way,
            // Only some frames evict another flow. With too many flows, writing entries would cost
            // more than it saves.
            None if identification % 16 < WAYS => identification % 16,
            None => return false,
        };
        let Some(flow) = Flow::of(*key, sent, counter) else { return false };
        if let Some(known) = set.get_mut(way) {
            *known = flow;
        }
        if let Some(origin) = self.origins.get_mut(number).and_then(|set| set.get_mut(way)) {
            *origin = Origin { versions, time: Some(now) };
        }
        free.is_none()
    }

    /// The remembered flows, in no order: at most 4096.
    pub(crate) fn flows(&self, now: Instant) -> impl Iterator<Item = CachedFlow> {
        let origins = self.origins.iter().flatten();
        self.sets.iter().flatten().zip(origins).filter_map(move |(flow, origin)| {
            let [.., hosts, last] = flow.key.words;
            let [s0, s1, s2, s3, d0, d1, d2, d3] = hosts.to_le_bytes();
            let [_, q0, q1, q2, ..] = last.to_le_bytes();
            let (ip, rest) = Ipv4::parse(flow.outer.get(Ethernet::LENGTH..)?).ok()?;
            let (udp, _) = Udp::parse(rest).ok()?;
            Some(CachedFlow {
                slot: flow.key.slot(),
                destination_mac: flow.key.destination(),
                source: [s0, s1, s2, s3].into(),
                destination: [d0, d1, d2, d3].into(),
                queue_pair: QueuePair::from_be_bytes([q0, q1, q2]),
                vtep: ip.destination(),
                ifindex: flow.ifindex,
                source_port: udp.source_port(),
                age: now.saturating_duration_since(origin.time?),
                is_current: flow.key.epoch == self.epoch,
            })
        })
    }
}
