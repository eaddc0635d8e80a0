//! Where the fabric drops frames, by the counters of its circuits and of its links.

use std::collections::{BTreeMap, BTreeSet};

use experiment::record::{CircuitDrops, Dropped};

use crate::error::RunError;
use fabric::deployed::Deployed;
use fabric::{at_once, counters};

/// The drops of the fabric so far.
///
/// # Errors
/// [`RunError`] if counters of interfaces cannot be read.
pub(super) fn read(deployed: &Deployed) -> Result<Dropped, RunError> {
    let wires = deployed.topology().wires();
    let mut ends: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for end in wires.iter().flat_map(fabric::topology::Wire::interfaces) {
        ends.entry(&end.node).or_default().insert(&end.interface);
    }
    let of = |(node, interfaces): &(&str, BTreeSet<&str>)| {
        let counters = counters::read(&deployed.namespace(node)?)?;
        let own = counters.iter().filter(|(name, _)| interfaces.contains(name.as_str()));
        Ok::<u64, RunError>(own.map(|(_, of)| of.tx_dropped).sum())
    };
    let links = at_once(&Vec::from_iter(ends), of)?.into_iter().sum();
    Ok(Dropped { circuits: circuits(deployed)?, links })
}

/// The drops of all circuits; `None` if there are none, or one does not answer.
fn circuits(deployed: &Deployed) -> Result<Option<CircuitDrops>, RunError> {
    let nodes: BTreeSet<String> =
        deployed.topology().circuits().flatten().map(|end| end.node).collect();
    let mut sum = (!nodes.is_empty()).then(CircuitDrops::default);
    for node in nodes {
        let namespace = deployed.namespace(&node)?;
        match (wan::counts(&namespace), &mut sum) {
            (Ok(report), Some(sum)) => {
                for counts in report.0.into_iter().map(|direction| direction.counts) {
                    sum.lost += counts.lost;
                    sum.queue_full += counts.queue_full + counts.buffer_full + counts.overruns;
                }
            }
            // A failure may have ended it.
            _ => return Ok(None),
        }
    }
    Ok(sum)
}
