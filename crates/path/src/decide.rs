//! The choice of the outer source port of a frame.

use wire::Dissection;

use crate::hash::choose;
use crate::key::{Key, Reason};
use crate::policy::{Bins, Policy};
use crate::range::SourcePortRange;

/// The configuration of source port selection for one VNI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// The policy.
    pub policy: Policy,
    /// Seed of the hash. Leaves with different seeds place the same flow differently.
    pub seed: u64,
    /// The ports of `qp-hash` and `qp-bins`. All of them are used.
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

/// Chooses outer source ports. It is stateless, so equal frames always get the same port.
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
            Policy::FiveTuple | Policy::QpHash => None,
        }
    }

    /// The ports that the policy chooses from.
    #[must_use]
    pub const fn range(&self) -> SourcePortRange {
        match self.policy {
            Policy::FiveTuple => self.netdev_range,
            Policy::QpHash | Policy::QpBins => self.range,
        }
    }

    /// Chooses the source port of a frame.
    #[inline]
    #[must_use]
    pub fn decide(&self, frame: &Dissection) -> Decision {
        self.work_out(frame).decision
    }

    /// Chooses the source port of a frame and explains the choice. With `qp-bins`, frames without a
    /// queue pair have no bin and use the whole range.
    #[must_use]
    pub fn explain(&self, frame: &Dissection) -> Explanation {
        self.work_out(frame)
    }

    /// The common implementation. It is inlined so that the compiler removes what
    /// [`Entropy::decide`] does not need.
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

/// Maps a hash to a port like `udp_flow_src_port()` (Linux include/net/udp.h). The scaling uses the
/// upper 16 of 32 bits, so the lower ones are mixed in. The last port is never reached.
#[inline]
const fn kernel_port(hash: u64, range: SourcePortRange) -> u16 {
    let mut hash = (hash >> 32) as u32;
    hash ^= hash << 16;
    let width = (range.max() - range.min()) as u64;
    range.min() + ((hash as u64 * width) >> 32) as u16
}

/// The port of a bin. The first bin has the first port of the range, the last bin the last, and the
/// others are evenly spaced. The ports therefore differ in high and low bits, whichever a switch
/// hashes.
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
        // ((h ^ h << 16) · (60999 − 32768)) >> 32, computed by hand.
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
