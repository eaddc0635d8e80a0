//! Counters of the steering programs.

use aya::maps::PerCpuArray;

use super::Steering;
use crate::error::SteeringError;

/// Counters of the steering programs since they were loaded, in frames. A super-frame counts as
/// one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SteeringCounts {
    /// VXLAN frames from uplinks, redirected to the worker.
    pub uplink_redirected: u64,
    /// Frames from bridges, redirected to the worker.
    pub vxlan_redirected: u64,
    /// Frames from bridges that would not fit the underlay, left to the kernel.
    pub vxlan_too_big: u64,
    /// Frames from the worker, handed to a bridge.
    pub punt_returned: u64,
    /// Frames from the worker for a VNI that is no longer taken over, dropped.
    pub punt_unknown_slot: u64,
    /// Frames that the kernel encapsulates with a source port that vtepd chose.
    pub port_chosen: u64,
    /// Frames that the kernel encapsulates with a source port of its own, because they are not IP.
    pub port_kept: u64,
    /// Frames from bridges, encapsulated by the `offload` datapath.
    pub vxlan_offloaded: u64,
    /// Frames encapsulated by the `offload` datapath, from bridges and from host ports.
    pub offload_encapsulated: u64,
    /// Frames decapsulated by the `offload` datapath.
    pub offload_decapsulated: u64,
    /// Frames whose headers the programs could not change, dropped.
    pub offload_failed: u64,
    /// Frames that the `offload` datapath forwarded as further segments of super-frames.
    pub offload_copies: u64,
    /// Frames that the `offload` datapath sent by a default route; each segment counts.
    pub offload_by_default: u64,
    /// Frames that the `offload` datapath sent to host ports, past the bridge; each segment counts.
    pub offload_past_bridge: u64,
    /// VXLAN frames from uplinks, left to the kernel because the worker hung.
    pub uplink_stalled: u64,
    /// Frames from bridges, left to the kernel because the worker hung.
    pub vxlan_stalled: u64,
    /// Frames of hosts that took the bypass: redirected to the worker past the bridge, or
    /// encapsulated by the `offload` datapath.
    pub port_bypassed: u64,
    /// Frames of hosts that could take the bypass but were left to the bridge, so that it refreshes
    /// its entry.
    pub port_refreshed: u64,
    /// Other frames of hosts on ports with the bypass, left to the bridge.
    pub port_passed: u64,
    /// Frames of hosts, left to the bridge because the worker hung.
    pub port_stalled: u64,
}

/// The indices of the counters in the programs' map `counts`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Count {
    UplinkRedirected,
    VxlanRedirected,
    VxlanTooBig,
    PuntReturned,
    PuntUnknownSlot,
    UplinkStalled,
    VxlanStalled,
    PortChosen,
    PortKept,
    VxlanOffloaded,
    OffloadEncapsulated,
    OffloadDecapsulated,
    OffloadFailed,
    OffloadCopies,
    OffloadByDefault,
    OffloadPastBridge,
}

impl Steering {
    /// The counters of the steering programs, summed over all CPUs.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn counts(&self) -> Result<SteeringCounts, SteeringError> {
        let map = self.ebpf.map("counts").ok_or(SteeringError::Missing("counts"))?;
        let map: PerCpuArray<_, u64> =
            map.try_into().map_err(|e| SteeringError::Map("counts", e))?;
        let sum = |count: Count| -> Result<u64, SteeringError> {
            Ok(map
                .get(&(count as u32), 0)
                .map_err(|e| SteeringError::Map("counts", e))?
                .iter()
                .sum())
        };
        let ports = self.bypass.counts_of_all(&self.ebpf)?;
        Ok(SteeringCounts {
            uplink_redirected: sum(Count::UplinkRedirected)?,
            vxlan_redirected: sum(Count::VxlanRedirected)?,
            vxlan_too_big: sum(Count::VxlanTooBig)?,
            punt_returned: sum(Count::PuntReturned)?,
            punt_unknown_slot: sum(Count::PuntUnknownSlot)?,
            uplink_stalled: sum(Count::UplinkStalled)?,
            vxlan_stalled: sum(Count::VxlanStalled)?,
            port_chosen: sum(Count::PortChosen)?,
            port_kept: sum(Count::PortKept)?,
            vxlan_offloaded: sum(Count::VxlanOffloaded)?,
            offload_encapsulated: sum(Count::OffloadEncapsulated)?,
            offload_decapsulated: sum(Count::OffloadDecapsulated)?,
            offload_failed: sum(Count::OffloadFailed)?,
            offload_copies: sum(Count::OffloadCopies)?,
            offload_by_default: sum(Count::OffloadByDefault)?,
            offload_past_bridge: sum(Count::OffloadPastBridge)?,
            port_bypassed: ports.bypass,
            port_refreshed: ports.refreshed,
            port_passed: ports.passed,
            port_stalled: ports.stalled,
        })
    }
}

#[cfg(test)]
impl Count {
    pub(crate) const ALL: [Self; 16] = [
        Self::UplinkRedirected,
        Self::VxlanRedirected,
        Self::VxlanTooBig,
        Self::PuntReturned,
        Self::PuntUnknownSlot,
        Self::UplinkStalled,
        Self::VxlanStalled,
        Self::PortChosen,
        Self::PortKept,
        Self::VxlanOffloaded,
        Self::OffloadEncapsulated,
        Self::OffloadDecapsulated,
        Self::OffloadFailed,
        Self::OffloadCopies,
        Self::OffloadByDefault,
        Self::OffloadPastBridge,
    ];
}
