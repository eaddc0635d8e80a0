//! Counters of the steering programs.

use super::Steering;
use crate::error::SteeringError;
use crate::maps::per_cpu;
use crate::port_counts::PortCounts;

/// Defines the counters of the programs' map `counts` in the order of their indices, and adds those
/// of ports.
macro_rules! counts {
    ($($(#[$doc:meta])* $field:ident,)+) => {
        /// Counters of the steering programs since they were loaded, in frames. A super-frame
        /// counts as one.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct SteeringCounts {
            $($(#[$doc])* pub $field: u64,)+
            /// Frames of hosts that took the bypass: redirected to the worker past the bridge, or
            /// encapsulated by the `offload` datapath.
            pub port_bypassed: u64,
            /// Frames of hosts that could take the bypass but were left to the bridge, so that it
            /// refreshes its entry.
            pub port_refreshed: u64,
            /// Other frames of hosts on ports with the bypass, left to the bridge.
            pub port_passed: u64,
            /// Frames of hosts, left to the bridge because the worker hung.
            pub port_stalled: u64,
        }

        /// The counters of the map.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($field)),+];

        impl SteeringCounts {
            fn new(map: impl IntoIterator<Item = u64>, ports: PortCounts) -> Self {
                let mut map = map.into_iter();
                Self {
                    $($field: map.next().unwrap_or_default(),)+
                    port_bypassed: ports.bypass,
                    port_refreshed: ports.refreshed,
                    port_passed: ports.passed,
                    port_stalled: ports.stalled,
                }
            }

            /// All counters with their names.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![
                    $((stringify!($field), self.$field),)+
                    ("port_bypassed", self.port_bypassed),
                    ("port_refreshed", self.port_refreshed),
                    ("port_passed", self.port_passed),
                    ("port_stalled", self.port_stalled),
                ]
            }
        }
    };
}

counts! {
    /// VXLAN frames from uplinks, redirected to the worker.
    uplink_redirected,
    /// Frames from bridges, redirected to the worker.
    vxlan_redirected,
    /// Frames from bridges that would not fit the underlay, left to the kernel.
    vxlan_too_big,
    /// Frames from the worker, handed to a bridge.
    punt_returned,
    /// Frames from the worker for a VNI that is no longer taken over, dropped.
    punt_unknown_slot,
    /// VXLAN frames from uplinks, left to the kernel because the worker hung.
    uplink_stalled,
    /// Frames from bridges, left to the kernel because the worker hung.
    vxlan_stalled,
    /// Frames that the kernel encapsulates with a source port that vtepd chose.
    port_chosen,
    /// Frames that the kernel encapsulates with a source port of its own, because they are not IP.
    port_kept,
    /// Frames from bridges, encapsulated by the `offload` datapath.
    vxlan_offloaded,
    /// Frames encapsulated by the `offload` datapath, from bridges and from host ports.
    offload_encapsulated,
    /// Frames decapsulated by the `offload` datapath.
    offload_decapsulated,
    /// Frames whose headers the programs could not change, dropped.
    offload_failed,
    /// Frames that the `offload` datapath forwarded as further segments of super-frames.
    offload_copies,
    /// Frames that the `offload` datapath sent by a default route; each segment counts.
    offload_by_default,
    /// Frames that the `offload` datapath sent to host ports, past the bridge; each segment counts.
    offload_past_bridge,
}

impl Steering {
    /// The counters of the steering programs, summed over all CPUs.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn counts(&self) -> Result<SteeringCounts, SteeringError> {
        let sum = |index| Ok(per_cpu::<u64>(&self.ebpf, "counts", index)?.iter().sum());
        let sums: Vec<u64> =
            (0..NAMES.len() as u32).map(sum).collect::<Result<_, SteeringError>>()?;
        Ok(SteeringCounts::new(sums, self.bypass.counts_of_all(&self.ebpf)?))
    }
}
