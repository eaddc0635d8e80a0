//! Changes of the links of a running fabric: down, up, and the properties of circuits. Each change
//! can be undone.

use std::time::Duration;

use serde::Serialize;

use fabric::deployed::Deployed;
use fabric::netns::{Namespace, NetnsError};
use fabric::topology::{Endpoint, Wire};
use wan::{self, Change, ChangeError};

/// A link could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// An interface could not be set up or down.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A circuit could not be changed.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The fabric has no such link, or several.
    #[error(
        "no link is named '{0}': name an interface of it as NODE:INTERFACE, as 'lab counters' lists \
         them, or a circuit as A:B, as 'lab wan' does"
    )]
    NoLink(String),
    /// An interface of the link does not exist.
    #[error("the interface {0} does not exist")]
    Missing(Endpoint),
    /// The link is no circuit.
    #[error(
        "{0} is a plain link: only a circuit of 'lab wan' has delay, jitter, loss and rate. Make it \
         one in the topology file: a node with 'cmd: lab wan a1:b1', and two links instead of this \
         one, from one end to a1 and from b1 to the other ('lab new --sites 2' writes such nodes)"
    )]
    Plain(Wire),
    /// The jitter would be larger than the delay.
    #[error(
        "the jitter of {jitter:?} is larger than the delay of {delay:?}: a frame cannot leave before \
         it arrives"
    )]
    Jitter {
        /// The jitter.
        jitter: Duration,
        /// The delay.
        delay: Duration,
    },
}

/// The directions of a circuit `A:B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// Frames that arrive at the circuit's first interface
    AToB,
    /// Frames that arrive at its second interface
    BToA,
    /// All frames
    Both,
}

/// The properties of one direction of a circuit, in the units of `lab wan`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Properties {
    /// The delay in milliseconds.
    pub delay_milliseconds: f64,
    /// The maximum deviation from it in milliseconds.
    pub jitter_milliseconds: f64,
    /// The loss in percent.
    pub loss_percent: f64,
    /// The rate in kilobits per second, rounded up; 0 for no limit.
    pub rate_kilobits: u64,
    /// The queue of the rate limit in bytes.
    pub queue_bytes: u64,
}

impl From<&Change> for Properties {
    fn from(change: &Change) -> Self {
        let milliseconds = |time: Option<u64>| time.unwrap_or_default() as f64 / 1e6;
        Self {
            delay_milliseconds: milliseconds(change.delay),
            jitter_milliseconds: milliseconds(change.jitter),
            loss_percent: change.loss.unwrap_or_default() * 100.0,
            // A rate below 1 kbit/s is a limit, too.
            rate_kilobits: change.rate.unwrap_or_default().div_ceil(1000),
            queue_bytes: change.queue.unwrap_or_default(),
        }
    }
}

impl std::fmt::Display for Properties {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let round = |number: f64| (number * 1e4).round() / 1e4;
        write!(f, "delay {}ms", round(self.delay_milliseconds))?;
        write!(f, ", jitter {}ms", round(self.jitter_milliseconds))?;
        write!(f, ", loss {}%", round(self.loss_percent))?;
        match self.rate_kilobits {
            0 => f.write_str(", no rate limit"),
            rate => write!(f, ", rate {rate}kbit, queue {} bytes", self.queue_bytes),
        }
    }
}

/// What undoes a change.
#[derive(Debug)]
#[must_use]
pub struct Undo(Action);

#[derive(Debug)]
enum Action {
    /// Interfaces, and whether each was up.
    Interfaces(Vec<(Namespace, String, bool)>),
    Circuit(Namespace, Vec<Change>),
}

impl Undo {
    /// Undoes the change.
    ///
    /// # Errors
    /// [`LinkError`]. The other interfaces are set nevertheless.
    pub fn run(self) -> Result<(), LinkError> {
        match self.0 {
            Action::Interfaces(before) => {
                let mut first = Ok(());
                for (namespace, name, up) in before {
                    first = first.and(namespace.rtnl(|rtnl| rtnl.set_up(&name, up)));
                }
                Ok(first?)
            }
            Action::Circuit(namespace, before) => {
                wan::change(&namespace, &before)?;
                Ok(())
            }
        }
    }
}

/// Finds a link by its name.
///
/// # Errors
/// [`LinkError::NoLink`].
pub fn find(deployed: &Deployed, name: &str) -> Result<Wire, LinkError> {
    deployed.topology().wire_named(name).ok_or_else(|| LinkError::NoLink(name.to_owned()))
}

/// The interfaces to set. A plain link goes down at the end with this name, otherwise at its first;
/// a circuit at both interfaces of `lab wan`. A link is up if all its interfaces are.
fn interfaces<'a>(wire: &'a Wire, name: &str, up: bool) -> Vec<&'a Endpoint> {
    let [first, second] = &wire.ends;
    match &wire.circuit {
        _ if up => wire.interfaces().collect(),
        Some(ports) => ports.iter().collect(),
        None => vec![if second.to_string() == name { second } else { first }],
    }
}

/// Sets the link of this name up or down.
///
/// # Errors
/// [`LinkError`]. Nothing has changed then.
pub fn set(deployed: &Deployed, name: &str, up: bool) -> Result<Undo, LinkError> {
    let wire = find(deployed, name)?;
    let mut before = Vec::new();
    for end in interfaces(&wire, name, up) {
        let namespace = deployed.namespace(&end.node)?;
        let links = namespace.rtnl(|rtnl| rtnl.links())?;
        let link = links.into_iter().find(|link| link.name == end.interface);
        let link = link.ok_or_else(|| LinkError::Missing(end.clone()))?;
        if link.up != up {
            before.push((namespace, link.name, link.up));
        }
    }
    for (at, (namespace, interface, _)) in before.iter().enumerate() {
        let changed = namespace.rtnl(|rtnl| rtnl.set_up(interface, up));
        if let Err(error) = changed {
            before.truncate(at);
            // The error of the change counts.
            let _ = Undo(Action::Interfaces(before)).run();
            return Err(error.into());
        }
    }
    Ok(Undo(Action::Interfaces(before)))
}

/// The properties of a circuit: from `A` to `B`, and back.
///
/// # Errors
/// [`LinkError::Plain`], or [`LinkError::Change`] if `lab wan` does not answer.
pub fn properties(deployed: &Deployed, wire: &Wire) -> Result<[Properties; 2], LinkError> {
    let [ab, ba] = read(deployed, wire)?;
    Ok([Properties::from(&ab), Properties::from(&ba)])
}

/// The frames that a circuit has lost since the start of its `lab wan`, from `A` to `B`, and back.
///
/// # Errors
/// As [`properties`].
pub fn lost(deployed: &Deployed, wire: &Wire) -> Result<[u64; 2], LinkError> {
    let ports = ports(wire)?;
    let wan::Report(all) = wan::counts(&deployed.namespace(&ports[0].node)?)?;
    Ok(ports.each_ref().map(|port| {
        let of = all.iter().find(|direction| direction.from == port.interface);
        let lost = |of: &wan::Counts| of.lost + of.queue_full + of.buffer_full + of.overruns;
        of.map_or(0, |direction| lost(&direction.counts) + direction.counts.refused)
    }))
}

fn ports(wire: &Wire) -> Result<&[Endpoint; 2], LinkError> {
    wire.circuit.as_ref().ok_or_else(|| LinkError::Plain(wire.clone()))
}

fn read(deployed: &Deployed, wire: &Wire) -> Result<[Change; 2], LinkError> {
    let ports = ports(wire)?;
    let asked = ports.each_ref().map(|port| of(port, Change::default()));
    let mut before = wan::change(&deployed.namespace(&ports[0].node)?, &asked)?;
    // Answers are in reverse order.
    let ab = before.pop().unwrap_or_default();
    Ok([ab, before.pop().unwrap_or_default()])
}

fn of(port: &Endpoint, change: Change) -> Change {
    Change { from: Some(port.interface.clone()), ..change }
}

/// Changes the properties of a circuit, for `change.time` or for good. `lab wan` ends the change, also
/// if this program is killed. `change.from` is not used.
///
/// # Errors
/// [`LinkError`]. Nothing has changed then.
pub fn impair(
    deployed: &Deployed,
    wire: &Wire,
    direction: Direction,
    change: &Change,
) -> Result<Undo, LinkError> {
    let ports = ports(wire)?;
    let now = read(deployed, wire)?;
    let mut changes = Vec::new();
    for (at, (port, now)) in ports.iter().zip(&now).enumerate() {
        if direction == (if at == 0 { Direction::BToA } else { Direction::AToB }) {
            continue;
        }
        let delay = change.delay.or(now.delay).unwrap_or_default();
        if let Some(jitter) = change.jitter.filter(|jitter| *jitter > delay) {
            let [jitter, delay] = [jitter, delay].map(Duration::from_nanos);
            return Err(LinkError::Jitter { jitter, delay });
        }
        changes.push(of(port, change.clone()));
    }
    let namespace = deployed.namespace(&ports[0].node)?;
    let mut before = wan::change(&namespace, &changes)?;
    // Undoing it leaves later changes of other properties.
    before.iter_mut().for_each(|before| *before = before.named_by(change));
    Ok(Undo(Action::Circuit(namespace, before)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::topology::Topology;

    fn deployed() -> Deployed {
        let file =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/containerlab/scaleacross.clab.yml");
        Deployed::new(Topology::load(file.as_ref()).unwrap(), "none-".to_owned())
    }

    #[test]
    fn a_link_goes_down_at_the_named_end_and_a_circuit_in_the_middle() {
        let at = |name: &str, up| -> Vec<String> {
            let wire = find(&deployed(), name).unwrap();
            interfaces(&wire, name, up).into_iter().map(ToString::to_string).collect()
        };
        assert_eq!(at("spine1:dn1", false), ["spine1:dn1"]);
        assert_eq!(at("leaf1:up1", false), ["leaf1:up1"]);
        assert_eq!(at("leaf1:up1", true), ["leaf1:up1", "spine1:dn1"]);
        for name in ["spine1:dci1", "spine3:dci1", "wan:b1", "a1:b1"] {
            assert_eq!(at(name, false), ["wan:a1", "wan:b1"], "{name}");
        }
        assert_eq!(at("a1:b1", true), ["spine1:dci1", "spine3:dci1", "wan:a1", "wan:b1"]);
    }

    #[test]
    fn a_plain_link_and_an_unknown_one_are_refused_with_a_hint() {
        let deployed = deployed();
        let wire = find(&deployed, "leaf1:up1").unwrap();
        let plain = impair(&deployed, &wire, Direction::Both, &Change::default()).unwrap_err();
        let text = plain.to_string();
        assert!(text.starts_with("leaf1:up1 to spine1:dn1 is a plain link"), "{text}");
        assert!(
            text.contains("cmd: lab wan a1:b1") && text.contains("lab new --sites 2"),
            "{text}"
        );
        let none = find(&deployed, "leaf1:up9").unwrap_err().to_string();
        assert!(none.contains("'leaf1:up9'") && none.contains("lab counters"), "{none}");
    }

    #[test]
    fn undoing_leaves_what_the_change_did_not_name() {
        let before = Change {
            from: Some("a1".into()),
            delay: Some(5),
            jitter: Some(1),
            loss: Some(0.0),
            rate: Some(0),
            queue: Some(7),
            time: None,
        };
        let kept = |change: Change| before.named_by(&change);
        let from = before.from.clone();
        assert_eq!(
            kept(Change { delay: Some(9), ..Change::default() }),
            Change { from: from.clone(), delay: Some(5), jitter: Some(1), ..Change::default() }
        );
        assert_eq!(
            kept(Change { loss: Some(0.5), rate: Some(1), ..Change::default() }),
            Change { from, loss: Some(0.0), rate: Some(0), ..Change::default() }
        );
    }

    #[test]
    fn properties_are_in_the_units_of_lab_wan() {
        let change = Change {
            delay: Some(5_500_000),
            jitter: Some(1_000_000),
            loss: Some(0.001),
            rate: Some(2_000_000),
            queue: Some(4096),
            ..Change::default()
        };
        let text = Properties::from(&change).to_string();
        assert_eq!(text, "delay 5.5ms, jitter 1ms, loss 0.1%, rate 2000kbit, queue 4096 bytes");
        let free = Properties::from(&Change { rate: Some(0), ..change }).to_string();
        assert!(free.ends_with(", no rate limit"), "{free}");
    }
}
