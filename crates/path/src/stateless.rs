//! The policies without state: the source port follows from a hash of the flow alone.

use wire::Dissection;

use crate::choice::{Choice, Flow, PathPolicy, Remote};
use crate::hash::choose;
use crate::key::Reason;
use crate::policy::{Bins, Policy};
use crate::range::SourcePortRange;

/// The policy `five-tuple`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FiveTuple {
    /// Seed of the hash.
    pub seed: u64,
    /// The ports of the netdev. The last one is never used, as in the kernel.
    pub range: SourcePortRange,
}

/// The policy `qp-hash`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpHash {
    /// Seed of the hash.
    pub seed: u64,
    /// The ports to choose from. All of them are used.
    pub range: SourcePortRange,
}

/// The policy `qp-bins`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpBins {
    /// Number of ports for queue pairs; at most as many as the range has.
    pub bins: Bins,
    /// The choice for frames without a queue pair, and the range of the bins.
    pub hash: QpHash,
}

impl FiveTuple {
    /// The source port of a flow.
    #[inline(always)]
    pub(crate) const fn source_port(self, flow: &Flow) -> u16 {
        kernel_port(flow.hash, self.range)
    }
}

impl QpHash {
    /// The source port of a flow.
    #[inline(always)]
    pub(crate) const fn source_port(self, flow: &Flow) -> u16 {
        self.range.min() + choose(flow.hash, self.range.ports() as usize) as u16
    }
}

impl QpBins {
    /// The bin of a flow; `None` for frames without a queue pair.
    #[inline(always)]
    pub(crate) fn bin(self, flow: &Flow) -> Option<u16> {
        (flow.reason == Reason::Roce)
            .then(|| choose(flow.hash, usize::from(self.bins.get())) as u16)
    }

    /// The source port of a flow.
    #[inline(always)]
    pub(crate) fn source_port(self, flow: &Flow) -> u16 {
        match self.bin(flow) {
            Some(bin) => bin_port(bin, self.bins, self.hash.range),
            None => self.hash.source_port(flow),
        }
    }
}

impl PathPolicy for FiveTuple {
    type State = ();

    #[inline(always)]
    fn flow(&self, frame: &Dissection) -> Flow {
        Flow::of(frame, Policy::FiveTuple, self.seed)
    }

    #[inline(always)]
    fn choose<'g>(&self, flow: &Flow, to: &Remote<'g>, (): &mut ()) -> Option<Choice<'g>> {
        Choice::hashed(self.source_port(flow), to, self.seed)
    }
}

impl PathPolicy for QpHash {
    type State = ();

    #[inline(always)]
    fn flow(&self, frame: &Dissection) -> Flow {
        Flow::of(frame, Policy::QpHash, self.seed)
    }

    #[inline(always)]
    fn choose<'g>(&self, flow: &Flow, to: &Remote<'g>, (): &mut ()) -> Option<Choice<'g>> {
        Choice::hashed(self.source_port(flow), to, self.seed)
    }
}

impl PathPolicy for QpBins {
    type State = ();

    #[inline(always)]
    fn flow(&self, frame: &Dissection) -> Flow {
        Flow::of(frame, Policy::QpBins, self.hash.seed)
    }

    #[inline(always)]
    fn choose<'g>(&self, flow: &Flow, to: &Remote<'g>, (): &mut ()) -> Option<Choice<'g>> {
        Choice::hashed(self.source_port(flow), to, self.hash.seed)
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
}
