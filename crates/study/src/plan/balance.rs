//! How evenly technologies load the paths between sites: expected, measured by `lab run`, or simulated
//! by `lab sim`.

use std::collections::BTreeMap;
use std::path::Path;

use experiment::figure::Csv;
use planner::network::{Balance, Policy, Technology};
use serde::Deserialize;

use super::PlanError;
use fabric::owner::Folder;

/// Numbers of queue pairs between two GPUs.
const QUEUE_PAIRS: [u32; 6] = [1, 2, 4, 8, 16, 32];

fn balance(policy: Policy, queue_pairs: u32, imbalance: Option<f64>) -> Balance {
    Balance { technology: Technology { policy, queue_pairs }, imbalance }
}

/// The technologies that are tried by default, as even as is expected.
pub(super) fn expected() -> Vec<Balance> {
    let each = QUEUE_PAIRS.into_iter().flat_map(|queue_pairs| {
        [Policy::Ecmp, Policy::QpPin].map(|policy| balance(policy, queue_pairs, None))
    });
    each.chain([balance(Policy::Spray, 1, None)]).collect()
}

/// A table in which other values win.
pub(super) fn with(table: &[Balance], other: &[Balance]) -> Vec<Balance> {
    let is_new = |known: &&Balance| !other.iter().any(|new| new.technology == known.technology);
    table.iter().filter(is_new).chain(other).copied().collect()
}

/// The policy of a dataplane of `lab run`.
fn policy(dataplane: &str) -> Option<Policy> {
    match dataplane.split('.').next()? {
        "kernel" => Some(Policy::Ecmp),
        "qp-pin" => Some(Policy::QpPin),
        "spray" => Some(Policy::Spray),
        _ => None,
    }
}

/// The MMR of each policy and number of queue pairs in `summary.csv` of an experiment: that of the
/// least even tier, in the mean of the runs.
fn parse(text: &str) -> Vec<Balance> {
    let Some(table) = Csv::parse("summary.csv", text) else { return Vec::new() };
    let mut found: Vec<Balance> = Vec::new();
    for line in table.lines() {
        let field = |name: &str| table.field(line, name).unwrap_or_default();
        let (Some(policy), Ok(queue_pairs), Ok(imbalance)) = (
            policy(&field("dataplane")),
            field("queue_pairs").parse(),
            field("mmr_mean").parse::<f64>(),
        ) else {
            continue;
        };
        let new = balance(policy, queue_pairs, Some(imbalance.max(1.0)));
        match found.iter_mut().find(|known| known.technology == new.technology) {
            Some(known) if known.imbalance >= new.imbalance => {}
            Some(known) => *known = new,
            None => found.push(new),
        }
    }
    found
}

/// A row of `summary.json` of a simulation.
#[derive(Debug, Deserialize)]
struct Simulated {
    scheme: String,
    mmr: BTreeMap<String, f64>,
}

/// The MMR of a flow's one path (`ecmp`), and of the most even scheme of spraying: that of the least
/// even tier and case.
fn simulated(rows: &[Simulated]) -> Vec<Balance> {
    let mut worst = BTreeMap::<&str, f64>::new();
    for Simulated { scheme, mmr } in rows {
        let of_row = mmr.values().copied().fold(1.0, f64::max);
        let known = worst.entry(scheme).or_insert(1.0);
        *known = known.max(of_row);
    }
    let of = |policy, is_ecmp: bool| {
        let own = worst.iter().filter(|(scheme, _)| scheme.starts_with("ecmp") == is_ecmp);
        let best = own.map(|(_, mmr)| *mmr).min_by(f64::total_cmp)?;
        Some(balance(policy, 1, Some(best)))
    };
    [of(Policy::Ecmp, true), of(Policy::Spray, false)].into_iter().flatten().collect()
}

/// Puts what `lab run` has measured, or `lab sim` simulated, in place of what is expected.
///
/// # Errors
/// [`PlanError`], if the directory has no such results.
pub fn measured(table: &mut Vec<Balance>, directory: &Path) -> Result<(), PlanError> {
    let [ours, theirs] = ["summary.csv", "summary.json"];
    let is_simulated = directory.join(theirs).exists() && !directory.join(ours).exists();
    let name = if is_simulated { theirs } else { ours };
    let path = directory.join(name);
    let failed = |source| PlanError::Io { path: path.clone(), source };
    let text = Folder::existing(directory).and_then(|of| of.read_text(name)).map_err(failed)?;
    let found = match is_simulated {
        true => simulated(&serde_json::from_str::<Vec<_>>(&text).map_err(|e| failed(e.into()))?),
        false => parse(&text),
    };
    if found.is_empty() {
        return Err(PlanError::NoBalance(path));
    }
    let is_wrong = |one: &&Balance| !(1.0..=4096.0).contains(&one.imbalance.unwrap_or(1.0));
    if let Some(Balance { technology, imbalance }) = found.iter().find(is_wrong) {
        let imbalance = imbalance.unwrap_or_default();
        return Err(PlanError::Balance { path, technology: *technology, imbalance });
    }
    *table = with(table, &found);
    Ok(())
}

#[cfg(test)]
mod tests {
    use experiment::balance::{expected_mmr, floor};

    use super::*;

    #[test]
    fn the_least_even_tier_counts() {
        let text = "fabric,queue_pairs,inner_port,variant,dataplane,tier,links,runs,mmr_mean\n\
                    a,8,constant,,kernel,leaf,2,3,1.5\na,8,constant,,kernel,spine,4,3,2.25\n\
                    a,8,constant,,qp-hash,spine,4,3,3.0\na,8,constant,,qp-pin.offload,leaf,2,3,1\n";
        let found = parse(text);
        let expected = [balance(Policy::Ecmp, 8, Some(2.25)), balance(Policy::QpPin, 8, Some(1.0))];
        assert_eq!(found, expected);
        let table = with(&super::expected(), &found);
        assert_eq!(table.len(), 13);
        assert!(table.contains(&expected[0]));
        assert_eq!(parse("nothing"), []);
    }

    #[test]
    fn the_most_even_scheme_of_a_simulation_counts() {
        let text = r#"[{"scheme": "ecmp", "mmr": {"core": 3.5, "leaf": 2.0}, "case": "a"},
            {"scheme": "reps-64", "mmr": {"core": 1.25}}, {"scheme": "reps-64", "mmr": {"core": 1.5}},
            {"scheme": "prime-like", "mmr": {"core": 1.0625, "leaf": 1.0}}]"#;
        let rows: Vec<Simulated> = serde_json::from_str(text).unwrap();
        let found = simulated(&rows);
        assert_eq!(
            found,
            [balance(Policy::Ecmp, 1, Some(3.5)), balance(Policy::Spray, 1, Some(1.0625))]
        );
        assert_eq!(simulated(&rows[1..3]), [balance(Policy::Spray, 1, Some(1.5))]);
    }

    /// The planner's law of many queue pairs, beside the exact values of few.
    #[test]
    fn expected_values_are_near_the_exact_ones() {
        for paths in [2_u32, 4, 16] {
            for count in [1_u32, 2, 4, 8, 16, 32, 64] {
                let of = |policy| {
                    let technology = Technology { policy, queue_pairs: 1 };
                    technology.imbalance(f64::from(count), paths)
                };
                let exact = expected_mmr(count as usize, paths as usize);
                let error = of(Policy::Ecmp) / exact - 1.0;
                assert!((-0.11..0.01).contains(&error), "{count} on {paths}: {error}");
                assert_eq!(of(Policy::QpPin), floor(count as usize, paths as usize));
                assert!(of(Policy::Ecmp) >= of(Policy::QpPin), "{count} on {paths}");
            }
        }
    }

    #[test]
    fn a_balance_that_is_no_number_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let text = "dataplane,queue_pairs,mmr_mean\nkernel,8,inf\n";
        std::fs::write(directory.path().join("summary.csv"), text).unwrap();
        let error = measured(&mut expected(), directory.path()).unwrap_err().to_string();
        assert!(error.contains("ecmp Q8") && error.contains("measure again"), "{error}");
    }
}
