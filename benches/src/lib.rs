//! The benchmarks, and what they share: a leaf, its frames, and the form in which results are
//! written.

pub mod micro;
pub mod plot;
pub mod scale;
pub mod state;
pub mod system;

pub use frames::{clock, leaf};
pub use rig::rows;
