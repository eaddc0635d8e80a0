//! The way of a path through the fabric, and whether two opposite ways use the same links.
//!
//! The first and the last link are known by the uplinks of both VTEPs. Of a link between two
//! routers, each direction records the address at the other end. Two addresses are the two ends of
//! one link if they are those of a /31 network, or the two hosts of a /30 network. The latter counts
//! only if all addresses that were recorded between routers can be hosts of a /30 network. Routers
//! without addresses on their links record the same address in both directions: the routers are then
//! known, but not which of several links between two of them is used.

use std::net::Ipv4Addr;
use std::sync::Arc;

/// Where packets of a path leave, what they pass, and where they arrive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Way {
    /// The uplink by which they leave, as the sender's interface index.
    pub uplink: u32,
    /// The uplink by which they arrive, as the receiver's interface index.
    pub arrival: u32,
    /// Number of routers on the way.
    pub routers: u8,
    /// The address of each router's outgoing interface, in order. `None` if not every router has
    /// recorded one.
    pub recorded: Option<Arc<[Ipv4Addr]>>,
}

/// How much two opposite ways have in common, as far as that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Common {
    /// The uplink of at least one end differs, or the number of routers.
    None,
    /// The uplinks at both ends. The links between routers differ, or they are not known.
    Uplinks,
    /// The uplinks and all routers. Links between the same two routers cannot be told apart.
    Routers,
    /// All links.
    Links,
}

impl Way {
    /// The recorded addresses of links between routers. The last address is not one of them: its link
    /// leads to a VTEP.
    pub fn middle(&self) -> impl DoubleEndedIterator<Item = Ipv4Addr> + Clone {
        let recorded = self.recorded.as_deref().unwrap_or_default();
        recorded.split_last().map_or(&[][..], |(_, middle)| middle).iter().copied()
    }

    /// Whether links between routers may have /30 networks, by the addresses of this way.
    #[must_use]
    pub fn may_have_30(&self) -> bool {
        self.middle().all(|address| matches!(address.to_bits() & 3, 1 | 2))
    }

    /// What this way has in common with an opposite way. `has_30`: whether links between routers may
    /// have /30 networks.
    #[must_use]
    pub fn common(&self, opposite: &Self, has_30: bool) -> Common {
        let ends = (self.uplink, self.arrival, self.routers);
        if ends != (opposite.arrival, opposite.uplink, opposite.routers) {
            return Common::None;
        }
        // With one router, both links end at a VTEP.
        if self.routers <= 1 {
            return Common::Links;
        }
        let (Some(here), Some(there)) = (&self.recorded, &opposite.recorded) else {
            return Common::Uplinks;
        };
        let mut links = self.middle().zip(opposite.middle().rev());
        if here.len() == there.len() && links.all(|(a, b)| is_one_link(a, b, has_30)) {
            return Common::Links;
        }
        if here.iter().eq(there.iter().rev()) { Common::Routers } else { Common::Uplinks }
    }
}

/// Whether the addresses are the two of a /31 network (RFC 3021), or the two hosts of a /30 network
/// if such may be.
fn is_one_link(a: Ipv4Addr, b: Ipv4Addr, has_30: bool) -> bool {
    let (a, b) = (a.to_bits(), b.to_bits());
    if has_30 { a ^ b == 3 && matches!(a & 3, 1 | 2) } else { a ^ b == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(uplink: u32, arrival: u32, recorded: &[[u8; 4]]) -> Way {
        let addresses = recorded.iter().map(|address| Ipv4Addr::from(*address)).collect();
        Way { uplink, arrival, routers: recorded.len() as u8, recorded: Some(addresses) }
    }

    #[test]
    fn links_are_matched_by_their_two_ends() {
        let there = way(3, 7, &[[10, 2, 0, 0], [10, 2, 0, 4], [10, 1, 0, 9]]);
        let back = way(7, 3, &[[10, 2, 0, 5], [10, 2, 0, 1], [10, 1, 0, 1]]);
        let both = (there.common(&back, false), back.common(&there, false));
        assert_eq!(both, (Common::Links, Common::Links));
        let slash30 = way(7, 3, &[[10, 2, 0, 5], [10, 2, 0, 2], [10, 1, 0, 1]]);
        let there30 = way(3, 7, &[[10, 2, 0, 1], [10, 2, 0, 6], [10, 1, 0, 9]]);
        assert_eq!(there30.common(&slash30, true), Common::Links);
        assert_eq!(there30.common(&slash30, false), Common::Uplinks);
        assert!(there30.may_have_30() && slash30.may_have_30() && !there.may_have_30());
        for (changed, expected) in [
            (way(8, 3, &[[10, 2, 0, 5], [10, 2, 0, 1], [10, 1, 0, 1]]), Common::None),
            (way(7, 4, &[[10, 2, 0, 5], [10, 2, 0, 1], [10, 1, 0, 1]]), Common::None),
            (way(7, 3, &[[10, 2, 0, 5], [10, 1, 0, 1]]), Common::None),
            (way(7, 3, &[[10, 2, 0, 7], [10, 2, 0, 1], [10, 1, 0, 1]]), Common::Uplinks),
            (way(7, 3, &[[10, 2, 0, 5], [10, 2, 0, 3], [10, 1, 0, 1]]), Common::Uplinks),
            (Way { recorded: None, ..back.clone() }, Common::Uplinks),
        ] {
            assert_eq!(there.common(&changed, false), expected, "{changed:?}");
        }
    }

    #[test]
    fn one_router_needs_no_record_and_numbers_of_routers_are_not_links() {
        let plain = |uplink, arrival| Way { uplink, arrival, routers: 1, recorded: None };
        assert_eq!(plain(3, 7).common(&plain(7, 3), true), Common::Links);
        assert_eq!(plain(3, 7).common(&plain(3, 7), true), Common::None);
        let there = way(3, 7, &[[10, 0, 0, 11], [10, 0, 0, 12]]);
        let back = way(7, 3, &[[10, 0, 0, 12], [10, 0, 0, 11]]);
        assert_eq!(there.common(&back, false), Common::Routers);
    }
}
