//! RoCE frames of a leaf's hosts, and the stages of their processing in memory, without sockets.
//!
//! - [`leaf`]: a leaf's forwarding state, and the frames that it receives
//! - [`stage`]: parsing, encapsulation, decapsulation and others, each alone
//! - [`clock`]: the time of a stage, with its frames in the cache and without
//! - [`counting`]: an allocator that counts allocations

pub mod clock;
pub mod counting;
pub mod leaf;
mod placed;
pub mod stage;
