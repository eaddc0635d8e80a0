//! The interface of all path policies.

use core::net::IpAddr;

use wire::{Dissection, Vni};

use crate::group::{NextHop, Paths};
use crate::key::{Key, Reason};
use crate::path_hash::path_hash;
use crate::path_id::{CounterId, PathId};
use crate::policy::Policy;
use crate::spraying::PoolNumber;
use crate::version::Version;

/// Chooses the outer source port and the next hop of frames.
///
/// The policy itself is part of the snapshot and immutable. What a policy must remember between
/// frames is its state, which each worker keeps for itself. Equal flows are asked about once if
/// their choice may be cached, and for each frame otherwise.
pub trait PathPolicy {
    /// What the policy remembers between frames; `()` for a policy without state.
    type State;

    /// The flow that a frame belongs to. It is determined once for each frame or segment, also if
    /// copies of it go to many VTEPs.
    fn flow(&self, frame: &Dissection) -> Flow;

    /// Chooses the path of a flow to a remote VTEP. `None` if the VTEP has no next hop.
    fn choose<'g>(
        &self,
        flow: &Flow,
        to: &Remote<'g>,
        state: &mut Self::State,
    ) -> Option<Choice<'g>>;

    /// A version that changes when earlier choices no longer hold, although neither the policy nor
    /// the next-hop group has changed.
    #[must_use]
    fn version(_: &Self::State) -> Version<Policy> {
        Version::NONE
    }
}

/// The flow of an inner frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The fields that identify the flow.
    pub key: Key,
    /// Why it is these fields.
    pub reason: Reason,
    /// Their hash under the seed of the policy.
    pub hash: u64,
    /// The UDP source port of a RoCE frame, and otherwise 0. It does not identify the flow.
    pub roce_port: u16,
    /// Whether the frame is a packet that the policy `spray` may send by any path. It does not identify
    /// the flow.
    pub is_sprayed: bool,
}

impl Flow {
    /// The flow of a frame as `policy` distinguishes flows.
    #[inline(always)]
    #[must_use]
    pub fn of(frame: &Dissection, policy: Policy, seed: u64) -> Self {
        let (key, reason, hash) = Key::of(frame, policy, seed);
        let ports = || frame.transport.and_then(|transport| transport.ports);
        let roce_port = frame.roce.and_then(|_| ports()).map_or(0, |(source, _)| source);
        Self { key, reason, hash, roce_port, is_sprayed: false }
    }
}

/// A remote VTEP, as a policy sees it.
#[derive(Debug, Clone, Copy)]
pub struct Remote<'g> {
    /// The VNI of the frame.
    pub vni: Vni,
    /// Outer source address: the local VTEP.
    pub local: IpAddr,
    /// Outer destination address.
    pub address: IpAddr,
    /// Outer UDP destination port.
    pub destination_port: u16,
    /// Its next hops.
    pub group: &'g Paths,
}

/// The path of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice<'g> {
    /// Outer UDP source port.
    pub source_port: u16,
    /// The next hop.
    pub hop: &'g NextHop,
    /// The hash of the outer addresses and ports ([`path_hash`]). It selects the next hop, unless
    /// the policy did.
    pub hash: u64,
    /// Whether the policy named the next hop, instead of leaving it to `hash`.
    pub is_pinned: bool,
    /// Whether later frames of the flow may use the same choice without asking the policy. It then
    /// holds until the VNI's settings, the next-hop group or the policy's version change.
    pub is_cacheable: bool,
    /// Where frames of the flow are counted ([`crate::Usage`]), if they are.
    pub counter: Option<CounterId>,
    /// The pool that each frame of the flow has its source port and next hop from. The others of the
    /// choice are those of this frame.
    pub pool: Option<PoolNumber>,
}

impl<'g> Choice<'g> {
    /// Its path.
    #[must_use]
    pub const fn path(&self) -> PathId {
        PathId { hop: self.hop.identity, source_port: self.source_port }
    }

    /// The choice of a source port, with the next hop that the hash of the outer header selects.
    /// One outer five-tuple therefore always takes one path. `None` without next hops.
    #[inline(always)]
    #[must_use]
    pub fn hashed(source_port: u16, to: &Remote<'g>, seed: u64) -> Option<Self> {
        let hash = path_hash(seed, to.local, to.address, source_port, to.destination_port);
        let hop = to.group.choose(hash)?;
        let (is_pinned, is_cacheable, counter, pool) = (false, true, None, None);
        Some(Self { source_port, hop, hash, is_pinned, is_cacheable, counter, pool })
    }
}
