//! Flow keys, queue pairs and policies for the outer UDP source port.
//!
//! [`Entropy::decide`] maps a dissected inner frame to the outer source port, by the VNI's
//! [`Policy`]. [`path_hash`] and [`choose`] then map the outer addresses and ports to one of the
//! leaf's next hops.

mod decide;
pub mod hash;
mod key;
mod path_hash;
mod policy;
mod range;

pub use decide::{Decision, Entropy, Explanation, Settings, SettingsError};
pub use hash::choose;
pub use key::{Key, Reason};
pub use path_hash::path_hash;
pub use policy::{Bins, BinsError, Policy, UnknownPolicy};
pub use range::{RangeError, SourcePortRange};
