//! A publication.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use tables::{MacLocationChange, Snapshot, SteeringPlan};
use wire::Vni;

use crate::eligibility::ineligible::LeftToKernel;
use crate::publish::bypass::PortDecision;

/// A publication. Parts that did not change are the same `Arc` as before.
///
/// The consumer first removes steering that is no longer wanted, then hands the snapshot to the
/// workers, then adds new steering.
#[derive(Debug, Clone, Default)]
pub struct Update {
    /// The tables of the workers.
    pub snapshot: Arc<Snapshot>,
    /// The frames that are redirected to workers.
    pub plan: Arc<SteeringPlan>,
    /// The vxlan netdevs that stay with the kernel.
    pub left: Arc<[LeftToKernel]>,
    /// VNIs that the settings name and that no vxlan netdev has.
    pub missing: Arc<BTreeSet<Vni>>,
    /// VTEPs of VNIs taken over that only a default route leads to.
    pub by_default: Arc<BTreeSet<IpAddr>>,
    /// The host ports of bridges with VNIs taken over, and whether they have the bridge bypass.
    pub ports: Arc<[PortDecision]>,
    /// Addresses of the bridge bypass that appeared or left since the previous publication.
    pub mac_locations: Arc<[MacLocationChange]>,
}
