//! The live next hops towards a VTEP, and the choice among them.

use std::net::IpAddr;

use wire::MacAddr;

/// One adjacency on an uplink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextHop {
    /// The uplink's interface index.
    pub ifindex: u32,
    /// The gateway, or the VTEP itself where it is on-link.
    pub gateway: IpAddr,
    /// The uplink's own MAC address.
    pub source_mac: MacAddr,
    /// The gateway's MAC address; `None` until the kernel has resolved it.
    pub destination_mac: Option<MacAddr>,
    /// The uplink's MTU in bytes, layer 3.
    pub mtu: u32,
    /// Weight, 1 to 256.
    pub weight: u16,
    /// Index of this adjacency's counters, stable while the adjacency lives.
    pub path: u16,
}

/// The live next hops towards one VTEP.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths {
    next_hops: Vec<NextHop>,
    /// One entry per unit of weight, an index into `next_hops`: the hash picks among these.
    buckets: Vec<u16>,
}

impl Paths {
    /// Paths over the given next hops, in the given order.
    ///
    /// Order matters: the same hops in the same order give every flow the same choice, so callers sort.
    #[must_use]
    pub fn new(next_hops: Vec<NextHop>) -> Self {
        let buckets = next_hops
            .iter()
            .zip(0u16..)
            .flat_map(|(hop, index)| std::iter::repeat_n(index, usize::from(hop.weight.max(1))))
            .collect();
        Self { next_hops, buckets }
    }

    /// The next hop for a flow whose outer headers have this hash (see [`entropy::path_hash`]).
    #[must_use]
    pub fn choose(&self, hash: u64) -> Option<&NextHop> {
        let bucket = match self.buckets.as_slice() {
            [] => return None,
            [only] => *only,
            buckets => *buckets.get(entropy::choose(hash, buckets.len()))?,
        };
        self.next_hops.get(usize::from(bucket))
    }

    /// All next hops.
    #[must_use]
    pub fn next_hops(&self) -> &[NextHop] {
        &self.next_hops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(ifindex: u32, weight: u16) -> NextHop {
        NextHop {
            ifindex,
            gateway: IpAddr::from([10, 0, 0, 1]),
            source_mac: MacAddr([2; 6]),
            destination_mac: None,
            mtu: 1500,
            weight,
            path: 0,
        }
    }

    /// Hashes of 20,000 flows that differ in their source port and address alone.
    fn hashes() -> impl Iterator<Item = u64> {
        let local = IpAddr::from([10, 0, 0, 11]);
        (0..20_000u16)
            .map(move |n| entropy::path_hash(1, local, IpAddr::from([10, 0, 0, 12]), 40_000 + n, 4789))
    }

    #[test]
    fn no_next_hop_is_no_choice_and_one_is_every_choice() {
        assert_eq!(Paths::default().choose(7), None);
        let one = Paths::new(vec![hop(3, 256)]);
        assert!(hashes().all(|hash| one.choose(hash).is_some_and(|hop| hop.ifindex == 3)));
    }

    #[test]
    fn flows_are_dealt_by_weight() {
        let weights = [1u16, 3, 12];
        let paths =
            Paths::new(weights.iter().zip(0..).map(|(weight, ifindex)| hop(ifindex, *weight)).collect());
        let mut dealt = [0u32; 3];
        for hash in hashes() {
            dealt[paths.choose(hash).unwrap().ifindex as usize] += 1;
        }
        let chi_squared: f64 = weights
            .iter()
            .zip(dealt)
            .map(|(weight, dealt)| {
                let expected = 20_000.0 * f64::from(*weight) / 16.0;
                (f64::from(dealt) - expected).powi(2) / expected
            })
            .sum();
        // p = 0.001 at two degrees of freedom.
        assert!(chi_squared < 13.82, "{dealt:?}: {chi_squared}");
    }

    #[test]
    fn equal_paths_choose_equally_and_a_weight_of_nothing_counts_as_one() {
        let (a, b) = (Paths::new(vec![hop(1, 1), hop(2, 1)]), Paths::new(vec![hop(1, 0), hop(2, 0)]));
        for hash in hashes() {
            assert_eq!(a.choose(hash).map(|hop| hop.ifindex), b.choose(hash).map(|hop| hop.ifindex));
        }
    }
}
