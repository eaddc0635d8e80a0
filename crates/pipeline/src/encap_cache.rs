//! Remembers decisions about RoCE flows. A later frame of a known flow costs a comparison, a copy
//! of the flow's outer headers and five patched words. See docs/adr/0012-remembered-flows.md.
//!
//! The key holds everything of the frame that the decision depends on: VNI, MAC addresses, the IPv4
//! header without length, identification and checksum, UDP ports, queue pair, and whether `spray` may
//! send it by any path. Any other frame
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

use frame::{Checksum, Destination, Frame, MACS, Offload, Payload, TxBatch, TxFrame, VtepId};
use path::record::Packet;
use path::{Choice, CounterId, Counting, PathId, Paths, Policy, PoolNumber, Sprays, Version};
use tables::{Snapshot, VniIndex, VniTable, VtepIndex};
use wire::checksum::Sum;
use wire::{Ethernet, Ipv4, MacAddr, QueuePair, Udp};

use crate::identification::Block;
use crate::lookup::uplink;
use crate::outer::{OVERHEAD, UDP_AT, UDP_CHECKSUM};

mod key;

pub(crate) use key::Key;

/// Length of Ethernet, IPv4 (without options), UDP and base transport header in bytes.
pub(crate) const HEADERS: usize = 14 + 20 + 8 + 12;
const SETS: usize = 2048;
/// Flows per cache set. A direct-mapped cache would evict too many flows.
const WAYS: usize = 2;

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
    /// Where each frame has its next hop and source port from, if it is sprayed. Those of the frame
    /// that was remembered then say nothing.
    pool: Option<PoolNumber>,
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
    /// The uplink and the outer UDP source port. `None` if each frame has its own.
    pub path: Option<(u32, u16)>,
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
        pool: None,
        by_default: false,
        impaired: false,
        outer: [0; OVERHEAD],
    };

    /// Takes the decision from the frame that was sent; `None` if it cannot be reused.
    fn of(key: Key, sent: &TxFrame, choice: &Choice<'_>) -> Option<Self> {
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
        let Choice { counter, pool, .. } = *choice;
        Some(Self {
            key,
            ifindex,
            vtep,
            path,
            longest,
            header,
            pseudo,
            counter,
            pool,
            by_default,
            impaired,
            outer,
        })
    }

    /// Sends a frame to an uplink, with a change to the outer headers that are remembered. Returns
    /// whether it was sent.
    #[inline(always)]
    fn send(
        &self,
        to: Destination,
        (index, frame): (u32, &Frame<'_>),
        with: &mut Sending<'_>,
        change: impl FnOnce(&mut [u8; OVERHEAD], &Way),
    ) -> bool {
        let inner = frame.data.len();
        let body = Payload::Received { frame: index, range: 0..inner as u32 };
        let Some(transmit) = with.out.append(to, self.key.slot(), body, Offload::default()) else {
            return false;
        };
        transmit.vtep = Some(self.vtep);
        let outer = transmit.start_head::<OVERHEAD>();
        let identification = with.identifications.next();
        let l3_length = (inner + OVERHEAD - 14) as u16;
        let udp_length = l3_length - 20;
        *outer = self.outer;
        change(outer, &with.last);
        [outer[16], outer[17]] = l3_length.to_be_bytes();
        [outer[18], outer[19]] = identification.to_be_bytes();
        let header = Sum::of_partial(self.header).word(l3_length).word(identification);
        [outer[24], outer[25]] = header.checksum().to_be_bytes();
        [outer[38], outer[39]] = udp_length.to_be_bytes();
        if let Some(pseudo) = self.pseudo {
            [outer[40], outer[41]] = Sum::of_partial(pseudo).word(udp_length).fold().to_be_bytes();
            transmit.offload.checksum =
                Checksum::Partial { start: UDP_AT as u16, offset: UDP_CHECKSUM };
        }
        if let Some(counter) = self.counter {
            // The key is one of plain RoCE over IPv4.
            let (tos, transport) = (frame.data.get(15), frame.data.get(42..));
            let packet = tos.zip(transport).and_then(|(tos, rest)| Packet::of(*tos, rest));
            with.counting.count(counter, inner, packet);
        }
        true
    }

    /// Sends a frame by the next path of a pool. Returns whether it was sent.
    #[inline(never)]
    fn send_sprayed(
        &self,
        pool: PoolNumber,
        (index, frame): (u32, &Frame<'_>),
        with: &mut Sending<'_>,
    ) -> bool {
        with.find_way(pool, self.vtep, frame.data.len())
            && self.send(with.last.to, (index, frame), with, |outer, way| {
                outer.split_at_mut(MACS).0.copy_from_slice(&way.macs);
                [outer[34], outer[35]] = way.source_port;
            })
    }
}

/// What frames of known flows are sent with.
pub(crate) struct Sending<'a> {
    pub(crate) out: &'a mut TxBatch,
    pub(crate) identifications: &'a mut Block,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) counting: Counting<'a>,
    pub(crate) sprays: Option<&'a mut Sprays>,
    /// The way of the last sprayed frame.
    pub(crate) last: Way,
}

/// The way of sprayed frames of a pool to a VTEP.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    /// `None` at first.
    pool: Option<PoolNumber>,
    vtep: u32,
    to: Destination,
    /// The longest outer packet that fits the uplink.
    mtu: u32,
    /// The outer MAC addresses and the UDP source port.
    macs: [u8; MACS],
    source_port: [u8; 2],
}

impl Way {
    /// No way.
    pub(crate) const NONE: Self = Self {
        pool: None,
        vtep: 0,
        to: Destination::Bridge,
        mtu: 0,
        macs: [0; MACS],
        source_port: [0; 2],
    };
}

impl Sending<'_> {
    /// Has `last` be the way of a sprayed frame. Returns whether that was possible: otherwise, the frame
    /// has to take the full path.
    #[inline(always)]
    fn find_way(&mut self, pool: PoolNumber, vtep: VtepId, inner: usize) -> bool {
        let length = (inner + OVERHEAD - 14) as u64;
        let last = &self.last;
        let goes_on = last.pool == Some(pool)
            && last.vtep == vtep.index
            && length <= last.mtu.into()
            && self.sprays.as_mut().is_some_and(|sprays| sprays.again(pool));
        if !goes_on {
            self.last = self.next_way(pool, vtep).unwrap_or(Way::NONE);
        }
        length <= self.last.mtu.into()
    }

    /// The way of the next bundle.
    #[inline(never)]
    fn next_way(&mut self, pool: PoolNumber, vtep: VtepId) -> Option<Way> {
        let PathId { hop, source_port } = self.sprays.as_mut()?.next(pool)?;
        let hop = self.snapshot.vtep(VtepIndex(vtep.index))?.paths.find(hop)?;
        let mut macs = [0; MACS];
        let (to, from) = macs.split_at_mut(MACS / 2);
        to.copy_from_slice(&hop.destination_mac.as_ref()?.0);
        from.copy_from_slice(&hop.source_mac.0);
        Some(Way {
            pool: Some(pool),
            vtep: vtep.index,
            to: uplink(hop),
            // The length of an IPv4 packet has 16 bits.
            mtu: hop.mtu.min(u16::MAX.into()),
            macs,
            source_port: source_port.to_be_bytes(),
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
        mut with: Sending<'_>,
    ) -> usize {
        for (frame, index) in frames.iter().zip(first..) {
            let send = |key: Key| self.send(&key, (index, frame), &mut with);
            if !Key::of(frame, epoch).is_some_and(send) {
                return (index - first) as usize;
            }
        }
        frames.len()
    }

    /// Sends a frame if its flow is known. Returns whether it was sent.
    #[inline(always)]
    fn send(&self, key: &Key, (index, frame): (u32, &Frame<'_>), with: &mut Sending<'_>) -> bool {
        let Some([one, other]) = self.sets.get(key.set()) else { return false };
        let flow = if one.key.is(key) {
            one
        } else if other.key.is(key) {
            other
        } else {
            return false;
        };
        if let Some(pool) = flow.pool {
            return flow.send_sprayed(pool, (index, frame), with);
        }
        if frame.data.len() + OVERHEAD - 14 > usize::from(flow.longest) {
            return false;
        }
        let Flow { ifindex, path, by_default, impaired, .. } = *flow;
        let to = Destination::Uplink { ifindex, path, by_default, impaired };
        flow.send(to, (index, frame), with, |_, _| {})
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
        (sent, choice): (&TxFrame, &Choice<'_>),
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
        let is_own = |known: &Flow| known.key.is_same_flow(key);
        let is_free = |known: &Flow| known.key.epoch != key.epoch;
        let free = set.iter().position(is_own).or_else(|| set.iter().position(is_free));
        let way = match free {
            Some(way) => way,
            // Only some frames evict another flow. With too many flows, writing entries would cost
            // more than it saves.
            None if identification % 16 < WAYS => identification % 16,
            None => return false,
        };
        let Some(flow) = Flow::of(*key, sent, choice) else { return false };
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
                path: flow.pool.is_none().then(|| (flow.ifindex, udp.source_port())),
                age: now.saturating_duration_since(origin.time?),
                is_current: flow.key.epoch == self.epoch,
            })
        })
    }
}
