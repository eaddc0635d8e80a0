//! What `lab sim` has simulated of a plan: its traffic alone.

use std::path::Path;

use sim::matrix::Matrix;
use sim::traffic::{Flow, Start};

use crate::simulation::{Row, SimulationError, recorded_matrices};

/// Shares by which bytes of a flow may differ from those of the plan.
const ROUNDING: f64 = 0.02;

/// Whether a simulation sends from the start on what a plan does.
fn is_same(found: &Matrix, planned: &Matrix) -> bool {
    let ends = |flow: &Flow| (flow.source, flow.target);
    let sorted = |matrix: &Matrix| {
        let mut flows = matrix.flows.clone();
        flows.sort_by_key(|flow| (ends(flow), flow.bytes));
        flows
    };
    let near =
        |found: u64, planned: u64| found.abs_diff(planned) as f64 <= ROUNDING * planned as f64;
    let is_same = |(found, planned): (&Flow, &Flow)| {
        ends(found) == ends(planned)
            && near(found.bytes, planned.bytes)
            && found.start == Start::At(0)
    };
    found.flows.len() == planned.flows.len()
        && sorted(found).iter().zip(&sorted(planned)).all(is_same)
}

/// The cases and schemes of a simulation that send what a plan does.
///
/// # Errors
/// [`SimulationError`] if the results cannot be read.
pub(super) fn rows(directory: &Path, planned: &Matrix) -> Result<Vec<Row>, SimulationError> {
    let all = recorded_matrices(directory)?.into_iter();
    Ok(all.filter(|(_, matrix)| is_same(matrix, planned)).map(|(row, _)| row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_the_same_in_any_order_and_apart_from_rounding() {
        let matrix = |text: &str| Matrix::parse(&format!("Nodes 4\n{text}")).unwrap();
        let planned = matrix("0->2 id 1 start 0 size 1000\n3->1 id 2 start 0 size 500\n");
        let is = |text: &str| is_same(&matrix(text), &planned);
        assert!(is("3->1 id 7 start 0 size 505\n0->2 id 9 start 0 size 990\n"));
        for other in [
            "0->2 id 1 start 0 size 1000\n",
            "0->2 id 1 start 0 size 1000\n3->1 id 2 start 0 size 600\n",
            "0->2 id 1 start 0 size 1000\n2->1 id 2 start 0 size 500\n",
            "0->2 id 1 start 0 size 1000\n3->1 id 2 start 4 size 500\n",
        ] {
            assert!(!is(other), "{other}");
        }
    }
}
