//! The status of the control task, for metrics, the command line and the log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use tables::SteeringPlan;
use wire::Vni;

use crate::eligibility::ineligible::LeftToKernel;
use crate::learn::LearnCounts;
use crate::mac_mobility::MoveCounts;
use crate::publish::bypass::PortDecision;
use crate::sources::SourceState;
use crate::sources::fpm_session::FpmHazard;
use crate::sources::resync::Resync;

/// The status of the control task. It is updated after each turn of its loop.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// rtnetlink.
    pub kernel: SourceState,
    /// zebra's FPM.
    pub fpm: SourceState,
    /// How often kernel notifications were lost, so that everything was dumped again.
    pub overruns: u64,
    /// The last dump of each kind, by name.
    pub dumps: BTreeMap<&'static str, Resync>,
    /// Number of zebra's entries that its last replay did not repeat.
    pub fpm_swept: usize,
    /// FPM connections refused because of their user, since the start.
    pub fpm_refused: u64,
    /// Entries removed because a source did not confirm them, since the start.
    pub swept: Swept,
    /// Results of learning from received frames.
    pub learning: LearnCounts,
    /// Counters of the moves of MAC addresses.
    pub moves: MoveCounts,
    /// Number of publications.
    pub generation: u64,
    /// The steering plan: what is taken over.
    pub plan: Arc<SteeringPlan>,
    /// The netdevs that stay with the kernel, with reasons.
    pub left: Arc<[LeftToKernel]>,
    /// VNIs that the settings name and that no vxlan netdev has.
    pub missing: Arc<BTreeSet<Vni>>,
    /// VTEPs of VNIs taken over that only a default route leads to.
    pub by_default: Arc<BTreeSet<IpAddr>>,
    /// The host ports of bridges with VNIs taken over, and whether they have the bridge bypass.
    pub ports: Arc<[PortDecision]>,
    /// The current warnings.
    pub warnings: Vec<Warning>,
    /// How often the control task has applied all waiting events and published.
    pub turns: u64,
}

/// Number of entries removed because a source did not confirm them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// By dumps of the kernel.
    pub kernel: u64,
    /// By zebra's replays, or because zebra was away for too long.
    pub fpm: u64,
}

/// The sentence about VTEPs that only a default route leads to.
#[derive(Debug, Clone, Copy)]
pub struct ByDefault<'a>(&'a BTreeSet<IpAddr>);

impl<'a> ByDefault<'a> {
    /// How many VTEPs the sentence names.
    const NAMED: usize = 8;

    /// The sentence, or `None` without such VTEPs.
    #[must_use]
    pub fn of(vteps: &'a BTreeSet<IpAddr>) -> Option<Self> {
        (!vteps.is_empty()).then_some(Self(vteps))
    }
}

impl fmt::Display for ByDefault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<String> = self.0.iter().take(Self::NAMED).map(ToString::to_string).collect();
        let more = self.0.len() - named.len();
        f.write_str("only the default route leads to ")?;
        f.write_str(if self.0.len() == 1 { "VTEP " } else { "VTEPs " })?;
        f.write_str(&named.join(", "))?;
        if more > 0 {
            write!(f, " and {more} more")?;
        }
        f.write_str(
            ": frames leave by it, as by kernel VXLAN, and are counted (`vtepctl peer`). If it is a management network's, \
             see why the fabric's routing has no route of its own (`ip route get VTEP`)",
        )
    }
}

/// A condition that the user should know. Its text is a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// The FPM server listens and zebra has not connected.
    NoFpm,
    /// zebra has disconnected.
    FpmGone {
        /// When it disconnected.
        since: Instant,
    },
    /// zebra disconnected so long ago that its entries were removed.
    FpmForgotten {
        /// When it disconnected.
        since: Instant,
    },
    /// zebra is connected, but would crash at a reconnect.
    FpmHazard(FpmHazard),
    /// The FPM server does not listen, because zebra may crash when it connects.
    FpmHeldBack(FpmHazard),
    /// The FPM server cannot listen.
    FpmNotBound(String),
    /// zebra has sent more entries than this limit.
    FpmTooMany(usize),
    /// A dump failed, so facts of this kind may be outdated. It will be repeated.
    DumpFailed {
        /// The kind of dump.
        what: &'static str,
        /// The error.
        error: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFpm => f.write_str(
                "zebra has not connected by FPM: everything comes from rtnetlink alone. To turn FPM on, start zebra \
                 with `-M dplane_fpm_nl` and configure `fpm address 127.0.0.1` and `no fpm use-next-hop-groups`",
            ),
            Self::FpmGone { since } => write!(
                f,
                "zebra's FPM connection is gone since {} s: what it said is kept, rtnetlink goes first",
                since.elapsed().as_secs()
            ),
            Self::FpmForgotten { since } => write!(
                f,
                "zebra's FPM connection is gone since {} s, longer than what it said is kept: everything comes from rtnetlink \
                 alone",
                since.elapsed().as_secs()
            ),
            Self::FpmHazard(FpmHazard { router_mac, vtep }) => write!(
                f,
                "this zebra (before FRR 9.0) knows router MAC {router_mac} of {vtep} and may crash if its FPM \
                 connection is made again (fixed in 8.4.7 and 8.5.7)"
            ),
            Self::FpmHeldBack(FpmHazard { router_mac, vtep }) => write!(
                f,
                "FPM is not listened for, and everything comes from rtnetlink, which knows as much: router MAC {router_mac} \
                 of {vtep} is known (L3VNI), and zebra before 8.4.7, 8.5.7, 9.0.5, 9.1.3, 10.0.3 and 10.1.2 crashes if it \
                 connects then. If yours is newer, use --fpm-unsafe"
            ),
            Self::FpmNotBound(error) => write!(f, "{error}; until then everything comes from rtnetlink alone"),
            Self::FpmTooMany(most) => write!(
                f,
                "zebra sent more than {most} entries by FPM: all were removed, FPM is off until the next \
                 start, and everything comes from rtnetlink alone"
            ),
            Self::DumpFailed { what, error } => write!(f, "the kernel's {what} could not be read: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_reached_by_the_default_route_is_named_as_far_as_there_is_room() {
        let vteps = |count: u8| {
            (1..=count).map(|last| IpAddr::from([10, 0, 0, last])).collect::<BTreeSet<_>>()
        };
        let sentence = |count| ByDefault::of(&vteps(count)).map(|warning| warning.to_string());
        assert_eq!(sentence(0), None);
        assert!(sentence(1).unwrap().contains("leads to VTEP 10.0.0.1: frames"));
        assert!(sentence(2).unwrap().contains("leads to VTEPs 10.0.0.1, 10.0.0.2: frames"));
        assert!(sentence(100).unwrap().contains("10.0.0.7, 10.0.0.8 and 92 more: frames"));
    }
}
