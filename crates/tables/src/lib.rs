//! FDB, flood lists, routes and next hops, and the immutable snapshot that workers forward by.
//!
//! - [`hash`]: the hasher of all tables here
//! - [`learning`]: which VTEP an address was heard from
//! - [`tunnel`]: what a vxlan netdev says of the outer header
//! - [`paths`]: the live next hops towards a VTEP
//! - [`snapshot`]: one consistent view of everything, and its builder
//! - [`steering`]: which frames the steering programs redirect to the worker

pub mod hash;
pub mod learning;
pub mod paths;
pub mod snapshot;
pub mod steering;
pub mod tunnel;

pub use learning::{Learned, Learning};
pub use paths::{BUCKETS, NextHop, Paths, Rebalance};
pub use snapshot::{Slot, Snapshot, SnapshotBuilder, VniTable, Vtep, VtepIndex};
pub use steering::{SteeringPlan, TakenVni, Uplink};
pub use tunnel::{DontFragment, Tos, Ttl, Tunnel};
