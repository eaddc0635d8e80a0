//! FDB, flood lists, routes and next hops, and the immutable snapshot that workers forward by.
//!
//! - [`fdb`]: the remote MAC addresses of a VNI
//! - [`hash`]: the hasher of all tables here
//! - [`learning`]: which VTEP an address was heard from
//! - [`tunnel`]: what a vxlan netdev says of the outer header
//! - `pages`: a list of which unchanged parts are shared
//! - [`paths`]: the live next hops towards a VTEP
//! - [`placement`]: which bucket belongs to which next hop
//! - [`bypass`]: hosts' frames that skip the bridge
//! - [`snapshot`]: one consistent view of everything, and its builder
//! - [`steering`]: which frames the steering programs redirect to the worker

pub mod bypass;
pub mod fdb;
pub mod hash;
pub mod learning;
mod pages;
pub mod paths;
pub mod placement;
pub mod snapshot;
pub mod steering;
pub mod tunnel;

pub use bypass::{BypassPort, OpenPort, Place, PlaceChange};
pub use fdb::Fdb;
pub use learning::{Learned, Learning};
pub use paths::{BUCKETS, NextHop, Paths, Rebalance};
pub use snapshot::{Slot, Snapshot, SnapshotBuilder, VniTable, Vtep, VtepIndex, is_martian};
pub use steering::{PortChoice, SteeringPlan, TakenVni, Uplink};
pub use tunnel::{DontFragment, Tos, Ttl, Tunnel};
