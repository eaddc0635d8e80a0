//! What the benchmarks share: a leaf, its frames, and the form in which results are written.

pub mod clock;
pub mod micro;
pub mod rows;
pub mod state;

pub use frames::leaf;
