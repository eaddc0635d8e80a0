//! Real VTEPs in the simulator: each packet of a sprayed flow is a frame with bytes, which the
//! pipeline of vtepd encapsulates with the policy `spray` and decapsulates at the other end.
//!
//! - [`vteps`]: a VTEP for each host of a run; [`run`]: a run with them
//! - [`pair`]: what a VTEP hears of the paths to another one
//! - `worker`: the pipeline of a VTEP between ports in memory
//! - [`packet`]: packets of RoCE as a host sends them
//!
//! What is abstract: switches, queues and the hosts' transport. They are those of the simulator.

pub mod packet;
pub mod pair;
pub mod vteps;
mod worker;

use sim::{Outcome, Scenario};

pub use pair::Pair;
pub use vteps::{Bytes, Unfit, Vteps, seed_of};

/// Runs a scenario with a VTEP for each host. The same seed gives the same outcome.
///
/// # Errors
/// [`Unfit`], if the scenario is none for VTEPs, or if a frame did not arrive as it was sent.
pub fn run(scenario: &Scenario, seed: u64) -> Result<Outcome, Unfit> {
    run_watched(scenario, seed, &|| true).map(Option::unwrap_or_default)
}

/// Runs as [`run`] does. `watch` says from time to time whether the run goes on
/// ([`sim::run_watched`]). `None` if it does not.
///
/// # Errors
/// Those of [`run`].
pub fn run_watched(
    scenario: &Scenario,
    seed: u64,
    watch: &dyn Fn() -> bool,
) -> Result<Option<Outcome>, Unfit> {
    let mut vteps = Vteps::new(scenario, seed)?;
    let outcome = sim::run_watched(scenario, seed, Some(&mut vteps), watch);
    match vteps.bytes() {
        Bytes { changed: 0, .. } => Ok(outcome),
        Bytes { changed, .. } => Err(Unfit::Changed(changed)),
    }
}
