//! Pseudo-random numbers that are the same in every run.

pub use spray::Random;

/// The seed of all pseudo-random values in this repository, such as queue pair numbers.
pub const SEED: u64 = 0x5a31_a557_391f_47ec;
