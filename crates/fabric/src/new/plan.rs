//! What is asked for.

use std::time::Duration;

use experiment::units::Name;

/// The MTU in bytes of links that carry VXLAN packets is ContainerLab's default, 9500. That of hosts
/// leaves room for the outer headers.
pub(super) const HOST_MTU: u32 = 9000;
/// The VNI of all hosts.
pub(super) const VNI: u32 = 10_010;

/// A leaf-spine fabric. Each leaf has a link to each spine of its site. Each spine has a link to
/// each spine of the other sites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The name of the fabric.
    pub name: Name,
    /// The number of sites (data centres).
    pub sites: usize,
    /// The number of leaves in each site.
    pub leaves: usize,
    /// The number of spines in each site.
    pub spines: usize,
    /// The number of hosts at each leaf.
    pub hosts: usize,
    /// The interval of BFD packets; a session ends after three intervals. `None`: without BFD.
    pub bfd: Option<Duration>,
    /// The delay and the jitter of each circuit between sites, in each direction.
    pub circuit: (Duration, Duration),
    /// Whether vtepd runs beside each leaf.
    pub vtepd: bool,
}

/// The most links between routers of a fabric with [`USUAL_BFD`]. Each has a BFD session at both
/// ends.
const MOST_USUAL: usize = 200;
/// The interval of BFD packets that is usual here.
const USUAL_BFD: Duration = Duration::from_millis(300);
/// That of fabrics with more links. With the usual one, 500 links need two thirds of two processors,
/// and sessions end because their packets are late.
const SLOW_BFD: Duration = Duration::from_secs(1);

impl Plan {
    /// The interval of BFD packets of a fabric of this size, unless another is asked for: 300 ms, or
    /// 1 s if there are more than 200 links between routers.
    #[must_use]
    pub const fn usual_bfd(sites: usize, leaves: usize, spines: usize) -> Duration {
        let inside = sites.saturating_mul(leaves).saturating_mul(spines);
        let pairs = sites.saturating_mul(sites.saturating_sub(1)) / 2;
        let between = pairs.saturating_mul(spines).saturating_mul(spines);
        if inside.saturating_add(between) > MOST_USUAL { SLOW_BFD } else { USUAL_BFD }
    }

    /// Whether links between sites pass circuits of `lab wan`.
    pub(super) fn has_circuits(&self) -> bool {
        self.sites > 1 && !self.circuit.0.is_zero()
    }
}
