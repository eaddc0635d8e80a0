//! The circuits of `lab wan` in a run.

use std::collections::BTreeMap;
use std::time::Duration;

use experiment::Experiment;
use experiment::circuits::{Circuits, Direction};
use experiment::units::Time;

use crate::error::RunError;
use fabric::Fabric;
use fabric::deployed::Deployed;
use fabric::netns::Namespace;
use fabric::own_program;
use fabric::process::wait_until;
use fabric::progress::note;
use fabric::topology::Endpoint;
use wan::{self, Change, ChangeError};

/// How long `lab wan` may take to end, and to answer after its start.
const LIMIT: Duration = Duration::from_secs(10);

/// The changes of the circuits so far.
#[derive(Debug)]
pub(super) enum Undo {
    /// What gives the circuits of a fabric that was up their earlier properties, when it is dropped.
    Changes(Vec<(Namespace, Vec<Change>)>),
    /// The options with which the circuits of the lab's own fabric were started again.
    Own(Option<Vec<(&'static str, String)>>),
}

impl Undo {
    /// Undoes the changes, the last one first.
    fn run(&mut self) -> Result<(), ChangeError> {
        let Self::Changes(changes) = self else { return Ok(()) };
        let mut all = std::mem::take(changes).into_iter().rev();
        all.try_for_each(|(namespace, changes)| wan::change(&namespace, &changes).map(drop))
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Err(error) = self.run() {
            note(error);
        }
    }
}

/// Gives the circuits the properties that the experiment and a variant set. Returns whether they may
/// have others than before.
pub(super) fn set(
    fabric: &Fabric,
    experiment: &Experiment,
    variant: &Circuits,
    undo: &mut Undo,
) -> Result<bool, RunError> {
    let deployed = fabric.deployed();
    undo.run()?;
    match undo {
        Undo::Own(before) => {
            let options = variant.options(&experiment.circuits);
            if before.as_ref() == Some(&options) {
                return Ok(false);
            }
            start(fabric, &options)?;
            *before = Some(options);
        }
        Undo::Changes(undo) => {
            for circuits in [&experiment.circuits, variant] {
                let mut all = changes(&deployed, circuits, None, Direction::Both)?;
                apply(&mut all)?;
                undo.extend(all);
            }
        }
    }
    for single in &experiment.single_circuits {
        let near = end_of(&deployed, &single.link.to_string())?;
        let all = changes(&deployed, &single.circuits, Some(&near), single.direction)?;
        for (namespace, changes) in all {
            let mut changed = Ok(Vec::new());
            // It may have been started just now.
            wait_until(LIMIT, || {
                changed = wan::change(&namespace, &changes);
                !matches!(changed, Err(wan::ChangeError::NoAnswer { .. }))
            });
            let before = changed?;
            if let Undo::Changes(undo) = undo {
                undo.push((namespace, before));
            }
        }
    }
    Ok(true)
}

/// Starts the circuits again with these options of `lab wan`, in addition to those in the topology.
fn start(fabric: &Fabric, options: &[(&'static str, String)]) -> Result<(), RunError> {
    if options.is_empty() {
        return Ok(());
    }
    for record in fabric.processes()?.into_iter().filter(|record| record.name == "lab") {
        let node = fabric.node(&record.node)?;
        let words = fabric.topology().nodes.get(&record.node).map(|node| node.program.as_slice());
        let mut words = words.unwrap_or_default().iter().skip(1);
        let mut arguments: Vec<&str> = Vec::new();
        while let Some(word) = words.next() {
            if options.iter().any(|(name, _)| name == word) {
                // Its value is left out, too.
                words.next();
            } else {
                arguments.push(word);
            }
        }
        record.identity.stop(LIMIT)?;
        let mut command = node.command(&[own_program()?])?;
        command.args(arguments);
        options.iter().for_each(|(name, value)| {
            command.arg(name).arg(value);
        });
        node.spawn(&record.name, &mut command)?;
    }
    Ok(())
}

/// The rate of the direction of a circuit that begins at an interface of `lab wan`, in bits per
/// second; `None` without a limit.
pub(super) fn rate(deployed: &Deployed, from: &Endpoint) -> Result<Option<u64>, RunError> {
    // A change without properties changes nothing.
    let ask = Change { from: Some(from.interface.clone()), ..Change::default() };
    let found = wan::change(&deployed.namespace(&from.node)?, &[ask])?;
    Ok(found.iter().find_map(|change| change.rate).filter(|rate| *rate > 0))
}

/// The end of a link by its name.
pub(super) fn end_of(deployed: &Deployed, name: &str) -> Result<Endpoint, RunError> {
    let mut ends = deployed.topology().links.iter().flat_map(|link| &link.ends);
    let found = ends.find(|end| end.to_string() == name).cloned();
    found.ok_or_else(|| RunError::NoLink(name.to_owned()))
}

pub(super) fn far_end(deployed: &Deployed, near: &Endpoint) -> Endpoint {
    deployed.topology().peer(near).cloned().unwrap_or_else(|| near.clone())
}

/// Makes changes, and keeps what undoes them.
pub(super) fn apply(all: &mut [(Namespace, Vec<Change>)]) -> Result<(), RunError> {
    for (namespace, changes) in all {
        *changes = wan::change(namespace, changes)?;
    }
    Ok(())
}

/// The changes of all circuits, or of the one that `near` sends to, in these directions.
pub(super) fn changes(
    deployed: &Deployed,
    circuits: &Circuits,
    near: Option<&Endpoint>,
    direction: Direction,
) -> Result<Vec<(Namespace, Vec<Change>)>, RunError> {
    let nanoseconds = |time: &Time| u64::try_from(time.duration().as_nanos()).unwrap_or(u64::MAX);
    let change = |from: Option<String>| Change {
        from,
        delay: circuits.delay.as_ref().map(nanoseconds),
        jitter: circuits.jitter.as_ref().map(nanoseconds),
        loss: circuits.loss.map(|loss| loss.get() / 100.0),
        rate: circuits.rate.map(|rate| rate.saturating_mul(1000)),
        queue: circuits.queue,
        time: None,
    };
    let mut all: BTreeMap<String, Vec<Change>> = BTreeMap::new();
    let Some(near) = near else {
        for [end, _] in deployed.topology().circuits() {
            all.insert(end.node, vec![change(None)]);
        }
        return opened(deployed, all);
    };
    let far = far_end(deployed, near);
    let circuit = deployed.topology().circuits().find(|ends| ends.contains(&far));
    let other = circuit.and_then(|ends| ends.into_iter().find(|end| *end != far));
    let other = other.ok_or(RunError::NoCircuit)?;
    let mut own = Vec::new();
    if direction != Direction::In {
        own.push(change(Some(far.interface)));
    }
    if direction != Direction::Out {
        own.push(change(Some(other.interface)));
    }
    all.insert(far.node, own);
    opened(deployed, all)
}

fn opened(
    deployed: &Deployed,
    all: BTreeMap<String, Vec<Change>>,
) -> Result<Vec<(Namespace, Vec<Change>)>, RunError> {
    all.into_iter().map(|(node, changes)| Ok((deployed.namespace(&node)?, changes))).collect()
}
