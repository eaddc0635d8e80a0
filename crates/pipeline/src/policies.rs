//! The path policies that a pipeline asks, and their state.

use std::net::IpAddr;
use std::time::Instant;

use path::{Counting, Entropy, PathPolicy, Pins, Policy, Remote, Sprays, Version};
use tables::VniTable;

/// The state of a pipeline's path policy.
pub type State<P> = <<P as Policies>::Policy as PathPolicy>::State;

/// The path policies of all VNIs, with what they remember between frames.
pub trait Policies {
    /// The policy of a VNI.
    type Policy: PathPolicy;

    /// The policy of this VNI, and its state.
    fn of<'a>(&'a mut self, vni: &'a VniTable) -> (&'a Self::Policy, &'a mut State<Self>);

    /// A version that changes when choices that may be cached no longer hold
    /// ([`PathPolicy::version`]).
    fn version(&self) -> Version<Policy>;

    /// Begins a batch at this time.
    fn begin(&mut self, _: Instant) {}

    /// Ends a batch.
    fn end(&mut self) {}

    /// Takes a RoCE frame of this VNI for a management queue pair ([`path::Pinning::observe`]).
    fn observe(&self, _: &VniTable, _: (IpAddr, IpAddr), _: &Remote<'_>, _: &[u8]) {}

    /// Counts frames of pinned queue pairs that are sent at `now`.
    fn counting(&self, _: Instant) -> Counting<'_> {
        Counting::NONE
    }

    /// As [`Self::counting`], with what knows the paths of sprayed packets, if anything does.
    fn sending(&mut self, _: Instant) -> (Counting<'_>, Option<&mut Sprays>) {
        (Counting::NONE, None)
    }
}

/// The policies of the snapshot.
#[derive(Debug, Clone, Default)]
pub struct Configured {
    state: <Entropy as PathPolicy>::State,
}

impl Configured {
    /// The policies, with what places the queue pairs of `qp-pin`.
    #[must_use]
    pub const fn pinned(pins: Pins) -> Self {
        Self { state: pins }
    }
}

impl Policies for Configured {
    type Policy = Entropy;

    #[inline(always)]
    fn of<'a>(&'a mut self, vni: &'a VniTable) -> (&'a Entropy, &'a mut State<Self>) {
        (&vni.entropy, &mut self.state)
    }

    #[inline(always)]
    fn version(&self) -> Version<Policy> {
        Entropy::version(&self.state)
    }

    #[inline]
    fn begin(&mut self, now: Instant) {
        self.state.begin(now);
    }

    #[inline]
    fn end(&mut self) {
        self.state.end();
    }

    fn observe(&self, vni: &VniTable, hosts: (IpAddr, IpAddr), to: &Remote<'_>, packet: &[u8]) {
        if vni.entropy.policy().places_queue_pairs() {
            self.state.observe(hosts, to, packet);
        }
    }

    #[inline(always)]
    fn counting(&self, now: Instant) -> Counting<'_> {
        self.state.counting(now)
    }

    #[inline(always)]
    fn sending(&mut self, now: Instant) -> (Counting<'_>, Option<&mut Sprays>) {
        let (counting, sprays) = self.state.sending(now);
        (counting, Some(sprays))
    }
}
