//! Whether an experiment and its simulation agree: on the balance of each dataplane, and on the
//! order of dataplanes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use experiment::role::Role;
use experiment::statistics::Statistics;
use experiment::{Experiment, Summary};
use serde::Serialize;
use sim::result::Line;

use super::SimulationError;
use super::compare::is_simulation;
use super::directory::results;
use super::translate::QUEUE_PAIRS;

/// The largest difference of two MMRs that agree.
const TOLERANCE: f64 = 0.05;

/// The balance of a dataplane on a tier, measured and simulated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Balance {
    /// The number of queue pairs.
    pub queue_pairs: usize,
    /// The tier.
    pub tier: Role,
    /// The label of the dataplane.
    pub dataplane: String,
    /// The measured MMR.
    pub measured: Statistics,
    /// The simulated MMR.
    pub simulated: Statistics,
    /// Whether they differ by at most 0.05, beside what their confidence intervals explain.
    pub agrees: bool,
}

/// An experiment and its simulation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    /// Each number of queue pairs, tier and dataplane.
    pub balances: Vec<Balance>,
    /// Two dataplanes whose order the two contradict, as a sentence each.
    pub contradictions: Vec<String>,
}

impl Agreement {
    /// Whether all balances agree, and no order is contradicted.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.contradictions.is_empty() && self.balances.iter().all(|balance| balance.agrees)
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  queue pairs  tier      dataplane             measured MMR    simulated")?;
        for balance in &self.balances {
            let Balance { queue_pairs, tier, dataplane, measured, simulated, agrees } = balance;
            let sign = if *agrees { '=' } else { '≠' };
            let tier = tier.name();
            let of = |of: &Statistics| match of.half_width {
                0.0 => format!("{:.3}", of.mean),
                half => format!("{:.3} ± {half:.3}", of.mean),
            };
            writeln!(
                f,
                "{sign} {queue_pairs:>11}  {tier:<8}  {dataplane:<18} {:>15} {:>15}",
                of(measured),
                of(simulated)
            )?;
        }
        self.contradictions.iter().try_for_each(|text| writeln!(f, "≠ {text}"))?;
        let word = if self.holds() { "agree" } else { "do not agree" };
        write!(f, "They {word} on balance (MMR within {TOLERANCE}) and on the order.")
    }
}

/// Compares an experiment with its simulation, if one directory has the one and the other one the
/// other.
///
/// # Errors
/// [`SimulationError`] if the results cannot be read, or have nothing in common.
pub fn agreement(one: &Path, other: &Path) -> Result<Option<Agreement>, SimulationError> {
    let (measured, simulated) = match [one, other].map(is_simulation) {
        [false, true] => (one, other),
        [true, false] => (other, one),
        _ => return Ok(None),
    };
    let lines = results(simulated)?;
    let measured = crate::run::load(measured).map_err(Box::new)?;
    let balances = balances(&measured.experiment, &measured.runs, &lines);
    if balances.is_empty() {
        return Err(SimulationError::NothingInCommon);
    }
    let contradictions = contradictions(&balances);
    Ok(Some(Agreement { balances, contradictions }))
}

/// The role of a tier, by the names of its nodes.
fn role(tier: &str) -> Role {
    match tier.split_once('-') {
        Some(("leaf", _)) => Role::Leaf,
        Some((_, "leaf")) => Role::FarLeaf,
        _ => Role::Spine,
    }
}

/// The number of queue pairs of a case.
fn queue_pairs(case: &str) -> Option<usize> {
    let (_, varied) = case.split_once(&format!("/{QUEUE_PAIRS}="))?;
    varied.parse().ok()
}

fn balances(experiment: &Experiment, runs: &[experiment::Run], lines: &[Line]) -> Vec<Balance> {
    let mut simulated = BTreeMap::<(usize, Role, &str), Vec<f64>>::new();
    for line in lines {
        let Some(queue_pairs) = queue_pairs(&line.case) else { continue };
        for (tier, mmr) in &line.mmr {
            simulated.entry((queue_pairs, role(tier), &line.scheme)).or_default().push(*mmr);
        }
    }
    let confidence = experiment.repetitions.confidence.get();
    let mut balances = Vec::new();
    for row in Summary::new(experiment, runs).rows {
        let queue_pairs = row.point.queue_pairs.get();
        for tier in &row.tiers {
            let values = simulated.get(&(queue_pairs, tier.role, &row.dataplane));
            let Some(simulated) = values.and_then(|of| Statistics::of(of, confidence)) else {
                continue;
            };
            let measured = tier.mmr;
            let noise = measured.half_width.hypot(simulated.half_width);
            balances.push(Balance {
                queue_pairs,
                tier: tier.role,
                dataplane: row.dataplane.clone(),
                measured,
                simulated,
                agrees: (measured.mean - simulated.mean).abs() <= TOLERANCE + noise,
            });
        }
    }
    balances
}

/// Whether the first one is clearly more even. Routing packets and random choices are no order.
fn is_better(one: &Statistics, other: &Statistics) -> bool {
    one.mean + one.half_width + TOLERANCE < other.mean - other.half_width
}

fn contradictions(balances: &[Balance]) -> Vec<String> {
    let mut found = Vec::new();
    for one in balances {
        let place = (one.queue_pairs, one.tier);
        let others = balances.iter().filter(|other| (other.queue_pairs, other.tier) == place);
        for other in others {
            let measured = is_better(&one.measured, &other.measured);
            if measured && is_better(&other.simulated, &one.simulated) {
                found.push(format!(
                    "{} queue pairs, {}: {} is more even than {} when measured, and less even when \
                     simulated",
                    one.queue_pairs,
                    one.tier.name(),
                    one.dataplane,
                    other.dataplane
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balance(dataplane: &str, measured: &[f64], simulated: &[f64]) -> Balance {
        let [measured, simulated] =
            [measured, simulated].map(|of| Statistics::of(of, 0.95).unwrap());
        Balance {
            queue_pairs: 2,
            tier: Role::Spine,
            dataplane: dataplane.to_owned(),
            measured,
            simulated,
            agrees: true,
        }
    }

    #[test]
    fn an_order_is_contradicted_by_the_opposite_one_only() {
        let of = |pin: &[f64]| {
            let all = [
                balance("qp-pin", &[2.0, 2.0], pin),
                balance("spray", &[1.0, 1.01], &[1.0, 1.0]),
                balance("qp-hash", &[2.0, 4.0, 2.0], &[2.5, 2.6]),
            ];
            contradictions(&all)
        };
        assert_eq!(of(&[2.0, 2.0]), [""; 0]);
        assert_eq!(of(&[1.0, 1.0]), [""; 0], "another balance, and no other order");
        assert_eq!(
            of(&[0.8, 0.8]),
            [
                "2 queue pairs, spine: spray is more even than qp-pin when measured, and less even when \
              simulated"
            ]
        );
    }

    #[test]
    fn tiers_and_cases_by_their_names() {
        let roles = ["leaf-spine", "spine-spine", "spine-leaf"].map(role);
        assert_eq!(roles, [Role::Leaf, Role::Spine, Role::FarLeaf]);
        assert_eq!(queue_pairs("spraying/traffic.0.flows=4"), Some(4));
        assert_eq!(queue_pairs("spraying/traffic.0.bytes=4"), None);
    }
}
