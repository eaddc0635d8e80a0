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
