//! From a frame to its outer source port.

use wire::Dissection;

use crate::hash::choose;
use crate::key::{Key, Reason};
use crate::policy::{Bins, Policy};
use crate::range::SourcePortRange;

/// How one VNI chooses outer source ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// The policy.
    pub policy: Policy,
    /// Seed of the hash: leaves with different seeds place the same flow differently.
    pub seed: u64,
    /// Ports of `qp-hash` and `qp-bins`, all of them used.
    pub range: SourcePortRange,
    /// Number of fixed ports of `qp-bins`.
    pub bins: Bins,
    /// Ports of `five-tuple`, as the netdev has them; the last one is never used, as in the kernel.
    /// `None` is [`SourcePortRange::KERNEL_DEFAULT`].
    pub netdev_range: Option<SourcePortRange>,
}

/// Settings that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// `qp-bins` needs a port for each bin.
    #[error("{bins} bins do not fit into source port range {range} ({} ports)", range.ports())]
    TooManyBins {
        /// Bins asked for.
        bins: Bins,
        /// The range they are to share.
        range: SourcePortRange,
    },
}

/// Chooses outer source ports. Cheap to copy; without state, so equal frames are decided equally
/// for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entropy {
    policy: Policy,
    seed: u64,
    range: SourcePortRange,
    bins: Bins,
    netdev_range: SourcePortRange,
}

/// What was decided about a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Outer UDP source port.
    pub source_port: u16,
    /// The hash behind it.
    pub hash: u64,
    /// Number of the bin, 0 to bins − 1, if `qp-bins` dealt a queue pair.
    pub bin: Option<u16>,
}

/// A decision with everything that led to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Explanation {
    /// The policy in force.
    pub policy: Policy,
    /// What the frame was hashed by.
    pub key: Key,
    /// Why by that.
    pub reason: Reason,
    /// The ports that could have been chosen.
    pub range: SourcePortRange,
    /// What was decided.
    pub decision: Decision,
}

impl Entropy {
    /// Checks `settings` and makes them ready for use.
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

    /// The policy in force.
    #[must_use]
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// The seed of all hashes.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Ports that `qp-bins` deals queue pairs over; `None` where another policy is in force.
    #[must_use]
    pub const fn bins(&self) -> Option<Bins> {
        match self.policy {
            Policy::QpBins => Some(self.bins),
            Policy::FiveTuple | Policy::QpHash => None,
        }
    }

    /// The ports that the policy in force chooses from.
    #[must_use]
    pub const fn range(&self) -> SourcePortRange {
        match self.policy {
            Policy::FiveTuple => self.netdev_range,
            Policy::QpHash | Policy::QpBins => self.range,
        }
    }

    /// Decides about a frame.
    #[inline]
    #[must_use]
    pub fn decide(&self, frame: &Dissection) -> Decision {
        self.work_out(frame).decision
    }

    /// Decides about a frame and says how. What is not a queue pair has no bin: it uses the whole
    /// range.
    #[must_use]
    pub fn explain(&self, frame: &Dissection) -> Explanation {
        self.work_out(frame)
    }

    /// The one way to a decision. Inlined, so that [`Entropy::decide`] does not pay for what only
    /// an explanation needs.
    #[inline(always)]
    fn work_out(&self, frame: &Dissection) -> Explanation {
        let (key, reason, hash) = Key::of(frame, self.policy, self.seed);
        let (source_port, bin) = match (self.policy, reason) {
            (Policy::FiveTuple, _) => (kernel_port(hash, self.netdev_range), None),
            (Policy::QpBins, Reason::Roce) => {
                let bin = choose(hash, usize::from(self.bins.get())) as u16;
                (bin_port(bin, self.bins, self.range), Some(bin))
            }
            (Policy::QpHash | Policy::QpBins, _) => {
                (self.range.min() + choose(hash, usize::from(self.range.ports())) as u16, None)
            }
        };
        let decision = Decision { source_port, hash, bin };
        Explanation { policy: self.policy, key, reason, range: self.range(), decision }
    }
}

/// Scales a hash into a range as `udp_flow_src_port()` does (Linux include/net/udp.h): 32 bits, of
/// which the scaling uses the upper 16, so the lower are mixed in; the last port is never reached.
#[inline]
const fn kernel_port(hash: u64, range: SourcePortRange) -> u16 {
    let mut hash = (hash >> 32) as u32;
    hash ^= hash << 16;
    let width = (range.max() - range.min()) as u64;
    range.min() + ((hash as u64 * width) >> 32) as u16
}

/// The port of a bin: the first bin has the range's first port, the last one its last, the others
/// lie evenly between them. So the ports differ in high and low bits alike, whichever of them a
/// switch looks at.
#[inline]
fn bin_port(bin: u16, bins: Bins, range: SourcePortRange) -> u16 {
    let steps = u32::from(bins.get() - 1).max(1);
    let width = u32::from(range.max() - range.min());
    range.min() + (u32::from(bin) * width / steps) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: u16, max: u16) -> SourcePortRange {
        SourcePortRange::try_from((min, max)).unwrap()
    }

    #[test]
    fn kernel_port_never_reaches_the_last_port() {
        for (min, max) in [(1, 4), (32768, 60999), (65000, 65535), (1, 65535)] {
            let mut reached = vec![false; 65536];
            for high in 0..=0xffff_u64 {
                for low in [0, 0x8000, 0xffff] {
                    reached[usize::from(kernel_port(
                        high << 48 | low << 32 | 0xffff_ffff,
                        range(min, max),
                    ))] = true;
                }
            }
            for port in 0..=u16::MAX {
                assert_eq!(
                    reached[usize::from(port)],
                    (min..max).contains(&port),
                    "{port} of {min}-{max}"
                );
            }
        }
    }

    #[test]
    fn kernel_port_of_known_hashes() {
        // ((h ^ h << 16) · (60999 − 32768)) >> 32, worked out by hand.
        for (hash, port) in [
            (0, 32768),
            (1, 32768),
            (0x0001_0000, 32768),
            (0x0000_8000, 46883),
            (0xffff_0000, 60998),
        ] {
            assert_eq!(kernel_port(hash << 32, SourcePortRange::KERNEL_DEFAULT), port, "{hash:#x}");
        }
        assert_eq!(kernel_port(u64::MAX, range(9, 9)), 9);
    }

    #[test]
    fn bin_ports_are_spread_over_the_whole_range() {
        let ports = |bins: u16, range| {
            let bins = Bins::try_from(bins).unwrap();
            (0..bins.get()).map(|bin| bin_port(bin, bins, range)).collect::<Vec<_>>()
        };
        assert_eq!(ports(4, SourcePortRange::DEFAULT), [49152, 54613, 60074, 65535]);
        assert_eq!(ports(1, SourcePortRange::DEFAULT), [49152]);
        assert_eq!(ports(2, range(7, 8)), [7, 8]);
        assert_eq!(ports(3, range(7, 10)), [7, 8, 10]);
        for (bins, range) in
            [(65535, range(1, 65535)), (1000, range(2000, 3000)), (64, range(5, 68))]
        {
            let ports = ports(bins, range);
            assert!(ports.windows(2).all(|pair| pair[0] < pair[1]), "{bins} bins of {range}");
            assert_eq!((ports.first(), ports.last()), (Some(&range.min()), Some(&range.max())));
        }
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
