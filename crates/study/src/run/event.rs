//! What happens in an experiment, for a program that shows it.

use experiment::plan::Key;
use experiment::{Experiment, Run};
use fabric::Fabric;

/// What happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// A fabric is up.
    Fabric(&'a Fabric),
    /// A run begins.
    Run {
        /// The experiment, in the form that is run.
        experiment: &'a Experiment,
        /// The runs that are complete.
        runs: &'a [Run],
        /// How many are to go at most, with this one.
        left: usize,
        /// This run.
        key: &'a Key,
    },
}

/// A callback that is told what happens.
pub type OnEvent<'a> = &'a (dyn Fn(Event<'_>) + Sync);
