//! BPF programs with their loader, hooks and maps, and further system calls that need `unsafe`.
//!
//! - [`steering`]: loads and attaches the steering programs and writes their maps
//! - `bypass`, `port_counts`: the bridge bypass and its counters for each port
//! - `kill_switch`: the map that all attached programs call through
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

mod bypass;
pub mod confine;
pub mod foreign_programs;
pub mod iptables;
mod kill_switch;
mod port_counts;
mod rcu_expedite;
#[cfg(test)]
mod shared;
pub mod stale_filters;
pub mod steering;
mod system_calls;
pub mod watchdog;

pub use bypass::BypassState;
pub use foreign_programs::bypass_obstacle;
pub use kill_switch::KillSwitch;
pub use port_counts::PortCounts;
pub use steering::{Hook, NearEnds, Steering, SteeringCounts, SteeringError, has_tcx};
pub use watchdog::{MOST_WORKERS, PuntSide, Wakeups, Watchdog};
