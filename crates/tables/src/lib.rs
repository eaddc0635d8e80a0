//! FDB, flood lists, routes and next hops, and the immutable snapshot that workers forward by.
//!
//! - [`diff`]: what differs between two steering plans
//! - [`fdb`]: the MAC addresses of a VNI
//! - [`hash`]: the hasher of all tables here
//! - `kernel_vni`: VNIs whose queue pairs are placed in kernel VXLAN
//! - [`learning`]: data-plane learning of remote MAC addresses
//! - [`tunnel`]: the outer header settings of a vxlan netdev
//! - `pages`: a list that shares its unchanged parts between clones
//! - [`bypass`]: the bridge bypass
//! - [`slot`]: the encoding of VNIs on the bridge punt pair
//! - [`snapshot`]: all forwarding tables at one moment, and their builder
//! - [`steering`]: the frames that BPF programs redirect to workers

pub mod bypass;
pub mod diff;
pub mod fdb;
pub mod hash;
mod kernel_vni;
pub mod learning;
mod pages;
pub mod slot;
pub mod snapshot;
pub mod steering;
pub mod tunnel;

pub use bypass::{BypassPort, MacLocation, MacLocationChange, OpenPort};
pub use diff::{Difference, SteeringDiff};
pub use fdb::Fdb;
pub use kernel_vni::{KernelVni, PinnedTunnel};
pub use learning::{Learned, Learning};
pub use path::{BUCKETS, NextHop, Paths, Rebalance, Version, placement};
pub use slot::Slot;
pub use snapshot::{
    Addition, Reception, Snapshot, SnapshotBuilder, VniIndex, VniTable, Vtep, VtepIndex, is_martian,
};
pub use steering::{PortChoice, SteeringPlan, TakenVni, Uplink, VniSource};
pub use tunnel::{DontFragment, FlowLabel, Tos, Ttl, Tunnel};
