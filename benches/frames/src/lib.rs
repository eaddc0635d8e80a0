//! RoCE frames of a leaf's hosts, and the stages that each passes in memory, without sockets.
//!
//! - [`leaf`]: a leaf's forwarding state, and the frames that come to it
//! - [`stage`]: parse, decide, encapsulate, decapsulate, each by itself
//! - [`clock`]: how long a stage takes, with its frames in the cache and without
//! - [`counting`]: an allocator that counts

pub mod clock;
pub mod counting;
pub mod leaf;
pub mod stage;
