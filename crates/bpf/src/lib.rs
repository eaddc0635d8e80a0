//! BPF programs with their loader, hooks and maps, and further system calls that need `unsafe`.
//!
//! - [`steering`]: loads and attaches the steering programs and writes their maps
//! - `programs`, `maps`: the programs and the maps of the object file
//! - `hook`, `attach`: attaches programs by tcx or clsact
//! - `bypass`, `mac_locations`, `port_counts`: the bridge bypass, its map of MAC addresses, and its
//!   counters for each port
//! - `kill_switch`: the map that all attached programs call through
//! - `offload`: the tables and counters of the `offload` datapath
//! - `dropped`: the frames that the programs drop
//! - `placed`: queue pairs that are placed in the `kernel` datapath
//! - [`route_lookup`]: asks the kernel by which next hop it sends a packet
//! - [`probe_filter`]: the filter in front of the probing thread
//! - [`watchdog`]: the map by which the programs detect a worker that hangs
//! - [`foreign_programs`]: programs of other tools on the hooks that steering uses
//! - [`stale_filters`]: removes clsact filters that a killed vtepd left behind
//! - `rcu_expedite`: shortens RCU grace periods while many hooks change
//! - [`iptables`]: tables of legacy iptables
//! - [`confine`]: gives up privileges after the start, with a seccomp filter among others

#![allow(
    unsafe_code,
    reason = "raw system calls and their memory; every block says why it is sound"
)]

/// Defines types that keys and values of maps are: of integers alone, and without padding. Tests
/// compare each with the struct of the programs (`shared`).
macro_rules! shared {
    ($(
        $(#[$about:meta])*
        $seen:vis struct $name:ident {
            $($(#[$doc:meta])* $by:vis $field:ident: $kind:ty,)+
        }
    )+) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy)]
        #[repr(C)]
        $seen struct $name {
            $($(#[$doc])* $by $field: $kind,)+
        }

        // SAFETY: plain integers without padding.
        unsafe impl aya::Pod for $name {}

        #[cfg(test)]
        impl $name {
            /// The fields with offset and size, and the size, all in bytes.
            pub(crate) fn layout() -> crate::shared::Layout {
                let fields = [$((
                    stringify!($field).to_owned(),
                    std::mem::offset_of!(Self, $field),
                    size_of::<$kind>(),
                )),+];
                (fields.to_vec(), size_of::<Self>())
            }
        }
    )+};
}

mod attach;
mod bypass;
pub mod confine;
mod dropped;
mod error;
pub mod foreign_programs;
mod hook;
pub mod iptables;
mod kill_switch;
mod mac_locations;
mod mapped;
mod maps;
mod offload;
mod placed;
mod port_counts;
pub mod probe_filter;
mod programs;
mod rcu_expedite;
pub mod route_lookup;
#[cfg(test)]
mod shared;
pub mod stale_filters;
pub mod steering;
mod system_calls;
pub mod watchdog;

pub use bypass::BypassState;
pub use dropped::{DropCause, ProgramDrop, ProgramDrops, Sender, Untold};
pub use error::SteeringError;
pub use foreign_programs::bypass_obstacle;
pub use hook::{Hook, has_tcx};
pub use kill_switch::KillSwitch;
pub use offload::Offload;
pub use offload::pinned::{OffloadUsage, PinnedFlow};
pub use offload::traffic::{OffloadCounts, OffloadPathTraffic, OffloadTraffic};
pub use placed::{NewQueuePair, Place, PlacedKey, PlacedPorts};
pub use port_counts::PortCounts;
pub use probe_filter::{ProbeFilter, ProbesRefused};
pub use route_lookup::RouteLookup;
pub use steering::{
    NearEnds, PortChoiceEntry, ROUTE_PER_FRAME_MARK, Steering, SteeringCounts, TakenNetdev,
    TakenTunnel, TunnelEnd,
};
pub use watchdog::{Call, MOST_WORKERS, PuntSide, Wakeups, Watchdog};
