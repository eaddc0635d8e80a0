//! Packet spraying: which path each packet of a flow takes, and the order at the other end.
//!
//! Nothing here does I/O, reads a clock, or allocates memory after a scheme is made. The caller
//! gives the time and the random numbers. So the same code runs in a dataplane and in a simulator.
//!
//! - `signal`: [`Entropy`], the number of a path, and [`Signal`], what happened to packets on it
//! - [`order`]: orders in which each path comes once a round
//! - `oblivious`, `reps`, `bitmap`, `mixed`, `prime_like`: the schemes
//! - `scheme`: [`Scheme`], a scheme by its name, and [`Sprayer`], its state
//! - [`resequence`]: restores the order at the other end
//! - `random`: [`Random`]

mod bitmap;
mod mixed;
mod oblivious;
pub mod order;
mod prime_like;
mod random;
mod reps;
pub mod resequence;
mod scheme;
mod signal;

pub use bitmap::Bitmap;
pub use mixed::Mixed;
pub use oblivious::Oblivious;
pub use prime_like::{PrimeLike, Times};
pub use random::Random;
pub use reps::Reps;
pub use scheme::{Scheme, Sprayer, UnknownScheme};
pub use signal::{Entropy, Nanos, Signal, Spray, Values, ValuesError};
