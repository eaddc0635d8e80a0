//! The policy of a VNI, by its settings.

use wire::Dissection;

use crate::choice::{Choice, Flow, PathPolicy, Remote};
use crate::key::{Key, Reason};
use crate::pin::Pins;
use crate::policy::{Bins, Policy};
use crate::range::SourcePortRange;
use crate::spraying::is_sprayed;
use crate::stateless::{FiveTuple, QpBins, QpHash};
use crate::version::Version;

/// The configuration of source port selection for one VNI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// The policy.
    pub policy: Policy,
    /// Seed of the hash. Leaves with different seeds place the same flow differently.
    pub seed: u64,
    /// The ports of all policies but `five-tuple`. `qp-hash` uses all of them.
    pub range: SourcePortRange,
    /// Number of ports that `qp-bins` uses.
    pub bins: Bins,
    /// The ports of `five-tuple`, as configured on the netdev. The last one is never used, as in
    /// the kernel. `None` means [`SourcePortRange::KERNEL_DEFAULT`].
    pub netdev_range: Option<SourcePortRange>,
}

/// Settings that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// `qp-bins` needs one port for each bin.
    #[error("{bins} bins do not fit into source port range {range} ({} ports)", range.ports())]
    TooManyBins {
        /// The configured number of bins.
        bins: Bins,
        /// The configured range.
        range: SourcePortRange,
    },
}

/// The path policy of a VNI. All policies but `qp-pin` and `spray` are stateless: equal frames always get the
/// same port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entropy {
    policy: Policy,
    seed: u64,
    range: SourcePortRange,
    bins: Bins,
    netdev_range: SourcePortRange,
}

/// The source port of a frame, and its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Outer UDP source port.
    pub source_port: u16,
    /// The hash that selected the port.
    pub hash: u64,
    /// Number of the bin, 0 to bins − 1. `None` if the policy is not `qp-bins`, or the frame has no
    /// queue pair.
    pub bin: Option<u16>,
}

/// A decision together with its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Explanation {
    /// The policy of the VNI.
    pub policy: Policy,
    /// The hash key of the frame.
    pub key: Key,
    /// The reason for this key.
    pub reason: Reason,
    /// The range of the policy.
    pub range: SourcePortRange,
    /// The decision.
    pub decision: Decision,
}

impl Entropy {
    /// Checks `settings` and prepares them for use.
    ///
    /// # Errors
    /// If the policy is `qp-bins` and there are more bins than ports.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let Settings { policy, seed, range, bins, netdev_range } = settings;
        if policy == Policy::QpBins && bins.get() > range.ports() {
            return Err(SettingsError::TooManyBins { bins, range });
        }
        let netdev_range = netdev_range.unwrap_or(SourcePortRange::KERNEL_DEFAULT);
        Ok(Self { policy, seed, range, bins, netdev_range })
    }

    /// The policy of the VNI.
    #[must_use]
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// The seed of all hashes.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The number of ports that `qp-bins` uses; `None` for other policies.
    #[must_use]
    pub const fn bins(&self) -> Option<Bins> {
        match self.policy {
            Policy::QpBins => Some(self.bins),
            Policy::FiveTuple | Policy::QpHash | Policy::QpPin | Policy::Spray => None,
        }
    }

    /// The ports that the policy chooses from.
    #[must_use]
    pub const fn range(&self) -> SourcePortRange {
        match self.policy {
            Policy::FiveTuple => self.netdev_range,
            Policy::QpHash | Policy::QpBins | Policy::QpPin | Policy::Spray => self.range,
        }
    }

    /// Chooses the source port of a frame.
    #[inline]
    #[must_use]
    pub fn decide(&self, frame: &Dissection) -> Decision {
        self.decision(&self.flow(frame))
    }

    /// Chooses the source port of a frame and explains the choice. With `qp-bins`, frames without a
    /// queue pair have no bin and use the whole range.
    #[must_use]
    pub fn explain(&self, frame: &Dissection) -> Explanation {
        let flow = self.flow(frame);
        self.explanation(&flow, None)
    }

    /// Explains why frames of a flow have the source port that was chosen; `None` if no path could be
    /// chosen.
    #[inline]
    #[must_use]
    pub fn explanation(&self, flow: &Flow, source_port: Option<u16>) -> Explanation {
        let Flow { key, reason, .. } = *flow;
        let decision = self.decision(flow);
        let source_port = source_port.unwrap_or(decision.source_port);
        let decision = Decision { source_port, ..decision };
        Explanation { policy: self.policy, key, reason, range: self.range(), decision }
    }

    #[inline(always)]
    fn decision(&self, flow: &Flow) -> Decision {
        let (source_port, bin) = match self.policy {
            Policy::FiveTuple => (self.five_tuple().source_port(flow), None),
            Policy::QpHash | Policy::QpPin | Policy::Spray => {
                (self.qp_hash().source_port(flow), None)
            }
            Policy::QpBins => (self.qp_bins().source_port(flow), self.qp_bins().bin(flow)),
        };
        Decision { source_port, hash: flow.hash, bin }
    }

    #[inline(always)]
    const fn five_tuple(&self) -> FiveTuple {
        FiveTuple { seed: self.seed, range: self.netdev_range }
    }

    #[inline(always)]
    const fn qp_hash(&self) -> QpHash {
        QpHash { seed: self.seed, range: self.range }
    }

    #[inline(always)]
    const fn qp_bins(&self) -> QpBins {
        QpBins { bins: self.bins, hash: self.qp_hash() }
    }
}

impl Entropy {
    /// The path that the flow is pinned to, or that of `qp-hash`. The port of a pinned path is in the
    /// VNI's range.
    #[inline(never)]
    fn pinned<'g>(&self, flow: &Flow, to: &Remote<'g>, pins: &mut Pins) -> Option<Choice<'g>> {
        let hashed = self.qp_hash().choose(flow, to, &mut ())?;
        if flow.reason != Reason::Roce || !pins.is_placing() {
            return Some(hashed);
        }
        if flow.key.is_management() {
            // Each of these frames is looked at.
            return Some(Choice { is_cacheable: false, ..hashed });
        }
        let (pin, holds) = pins.pin(flow, to, hashed.path());
        let hashed = Choice { is_cacheable: holds, ..hashed };
        let Some(pin) = pin else { return Some(hashed) };
        let counter = Some(pin.counter);
        let hop = to.group.find(pin.path.hop).filter(|_| self.range.contains(pin.path.source_port));
        let Some(hop) = hop else { return Some(Choice { counter, ..hashed }) };
        let pinned = Choice::hashed(pin.path.source_port, to, self.seed)?;
        Some(Choice { hop, is_pinned: true, counter, is_cacheable: holds, ..pinned })
    }

    /// The next path of a packet that is sprayed, or that of the queue pair.
    #[inline(never)]
    fn sprayed<'g>(&self, flow: &Flow, to: &Remote<'g>, pins: &mut Pins) -> Option<Choice<'g>> {
        let placed = self.pinned(flow, to, pins)?;
        let pool = flow.is_sprayed.then(|| pins.pool(to, self.range)).flatten();
        let Some((pool, path)) = pool.and_then(|pool| Some((pool, pins.sprays().next(pool)?)))
        else {
            return Some(placed);
        };
        // Tables may not have the next hop any more.
        let Some(hop) = to.group.find(path.hop) else {
            return Some(Choice { is_cacheable: false, ..placed });
        };
        let sprayed = Choice::hashed(path.source_port, to, self.seed)?;
        let Choice { counter, is_cacheable, .. } = placed;
        Some(Choice { hop, is_pinned: true, counter, is_cacheable, pool: Some(pool), ..sprayed })
    }
}

/// The policy that the VNI is configured with.
impl PathPolicy for Entropy {
    type State = Pins;

    #[inline(always)]
    fn flow(&self, frame: &Dissection) -> Flow {
        let flow = Flow::of(frame, self.policy, self.seed);
        if self.policy != Policy::Spray {
            return flow;
        }
        Flow { is_sprayed: frame.roce.is_some_and(|roce| is_sprayed(roce.opcode)), ..flow }
    }

    #[inline(always)]
    fn choose<'g>(&self, flow: &Flow, to: &Remote<'g>, pins: &mut Pins) -> Option<Choice<'g>> {
        match self.policy {
            Policy::FiveTuple => self.five_tuple().choose(flow, to, &mut ()),
            Policy::QpHash => self.qp_hash().choose(flow, to, &mut ()),
            Policy::QpBins => self.qp_bins().choose(flow, to, &mut ()),
            Policy::QpPin => self.pinned(flow, to, pins),
            Policy::Spray => self.sprayed(flow, to, pins),
        }
    }

    #[inline]
    fn version(pins: &Pins) -> Version<Policy> {
        pins.version()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: u16, max: u16) -> SourcePortRange {
        SourcePortRange::try_from((min, max)).unwrap()
    }

    #[test]
    fn more_bins_than_ports_are_refused_where_they_matter() {
        let bins = Bins::try_from(5).unwrap();
        let settings =
            |policy| Settings { policy, bins, range: range(10, 13), ..Settings::default() };
        let error = Entropy::new(settings(Policy::QpBins)).unwrap_err();
        assert_eq!(error, SettingsError::TooManyBins { bins, range: range(10, 13) });
        assert_eq!(error.to_string(), "5 bins do not fit into source port range 10-13 (4 ports)");
        assert!(Entropy::new(settings(Policy::QpHash)).is_ok());
    }
}
