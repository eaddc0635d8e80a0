//! What the benchmarks share: a leaf, its frames, and the form in which results are written.

pub mod leaf;
pub mod rows;
pub mod state;
