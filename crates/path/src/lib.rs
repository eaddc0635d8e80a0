//! The choice of a frame's path through the underlay: its outer UDP source port and its next hop.
//!
//! - `key`: the fields of an inner frame that identify its flow
//! - `choice`: [`PathPolicy`], the interface of all policies
//! - `path_id`: what identifies a path ([`PathId`]), and the counters of a queue pair
//! - `stateless`: the policies `five-tuple`, `qp-hash` and `qp-bins`
//! - `decide`: the policy of a VNI, by its settings
//! - [`pin`]: what the policy `qp-pin` asks for the paths of queue pairs
//! - [`spraying`]: what the policy `spray` asks for the path of each packet
//! - [`record`]: what the frames of a queue pair tell about its transport
//! - [`group`], [`placement`]: the next hops of a remote VTEP, and the buckets that each of them has
//! - [`hash`]: the hash of all decisions
//! - `version`: the answer to "did it change?" ([`Version`])

mod choice;
mod decide;
pub mod group;
pub mod hash;
mod key;
mod path_hash;
mod path_id;
pub mod pin;
pub mod placement;
mod policy;
mod range;
pub mod record;
mod secret;
pub mod spraying;
mod stateless;
mod version;

pub use choice::{Choice, Flow, PathPolicy, Remote};
pub use decide::{Decision, Entropy, Explanation, Settings, SettingsError};
pub use group::{BUCKETS, NextHop, Paths, Rebalance, bucket};
pub use hash::choose;
pub use key::{Key, Reason};
pub use path_hash::path_hash;
pub use path_id::{CounterId, PathId};
pub use pin::{Answer, Before, Counting, Pin, Pinning, Pins, Usage};
pub use policy::{Bins, BinsError, Policy, UnknownPolicy};
pub use range::{RangeError, SourcePortRange};
pub use record::is_request;
pub use secret::Secret;
pub use spraying::{
    Agreed, Arrivals, Arrived, Backlog, Counted, Ends, Fate, MOST_PATHS, Pool, PoolNumber, Scheme,
    SprayOptions, Spraying, Sprays, is_sprayed,
};
pub use stateless::{FiveTuple, QpBins, QpHash};
pub use version::Version;
